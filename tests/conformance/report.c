/* What is said of the cases: lines as they end, counts, and a JSON file. */
#include "conformance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    char name[64], message[512];
    case_outcome outcome;
    double seconds;
} entry;

static entry *entries;
static uint32_t entry_count, entry_capacity, counts[3];

static const char *const words[] = {"passed", "failed", "skipped"};

void report_case(const char *name, case_outcome outcome, double seconds, const char *message)
{
    static const char *const marks[] = {"ok", "FAILED", "skip"};
    printf("%-6s %-28s %7.2f s%s%s\n", marks[outcome], name, seconds, message[0] ? "  " : "",
           message);
    fflush(stdout);
    counts[outcome]++;
    if (entry_count == entry_capacity) {
        entry_capacity = 2 * entry_capacity + 64;
        entries = realloc(entries, entry_capacity * sizeof *entries);
        if (entries == NULL)
            abort();
    }
    entry *e = &entries[entry_count++];
    snprintf(e->name, sizeof e->name, "%s", name);
    snprintf(e->message, sizeof e->message, "%s", message);
    e->outcome = outcome;
    e->seconds = seconds;
}

/* Bytes that are not ASCII may be half of a character that was cut: they become '?'. */
static void write_string(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(file, "\\%c", c);
        else if (c < 0x20)
            fprintf(file, "\\u%04x", c);
        else
            fputc(c < 0x7F ? c : '?', file);
    }
    fputc('"', file);
}

static void write_json(FILE *file, const suite_options *options,
                       const memopt_device_properties *properties)
{
    static const char *const scales[] = {"small", "normal", "large"};
    fputs("{\n  \"device\": ", file);
    write_string(file, options->device);
    fputs(",\n  \"name\": ", file);
    write_string(file, properties->name);
    fputs(",\n  \"isa\": ", file);
    write_string(file, properties->isa);
    fprintf(file,
            ",\n  \"warp_size\": %u,\n  \"total_memory\": %llu,\n  \"library\": \"%s\",\n"
            "  \"scale\": \"%s\",\n  \"seed\": %llu,\n  \"passed\": %u,\n  \"failed\": %u,\n"
            "  \"skipped\": %u,\n  \"cases\": [",
            properties->warp_size, (unsigned long long)properties->total_memory,
            memopt_version_string(), scales[options->scale], (unsigned long long)options->seed,
            counts[PASSED], counts[FAILED], counts[SKIPPED]);
    for (uint32_t i = 0; i < entry_count; i++) {
        fprintf(file, "%s\n    {\"name\": ", i == 0 ? "" : ",");
        write_string(file, entries[i].name);
        fprintf(file,
                ", \"status\": \"%s\", \"seconds\": %.3f, \"message\": ", words[entries[i].outcome],
                entries[i].seconds);
        write_string(file, entries[i].message);
        fputc('}', file);
    }
    fputs("\n  ]\n}\n", file);
}

int report_end(const suite_options *options, const memopt_device_properties *properties)
{
    int written = 1;
    printf("%s: %u cases: %u passed, %u failed, %u skipped\n", options->device, entry_count,
           counts[PASSED], counts[FAILED], counts[SKIPPED]);
    if (options->json != NULL) {
        FILE *file = fopen(options->json, "w");
        if (file != NULL)
            write_json(file, options, properties);
        written = file != NULL && !ferror(file);
        if ((file != NULL && fclose(file) != 0) || !written) {
            fprintf(stderr, "%s cannot be written\n", options->json);
            written = 0;
        }
    }
    int good = counts[FAILED] == 0 && entry_count > 1 && written; /* one is the end */
    free(entries);
    entries = NULL;
    entry_count = entry_capacity = 0;
    memset(counts, 0, sizeof counts);
    return good ? 0 : 1;
}
