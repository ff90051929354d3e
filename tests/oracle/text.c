/* Cases as text: a line of the device and the features, then a line for each operation. */
#include "oracle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct op_text {
    const char *name;
    const char *fields[4];
} op_text;

#define OP_TEXT(name, text, a, b, c, n) {#text, {a, b, c, n}},
static const op_text texts[ORACLE_KINDS] = {ORACLE_OPS(OP_TEXT)};

#define FEATURE_TEXT(name, text) #text,
static const char *const feature_names[] = {ORACLE_FEATURES(FEATURE_TEXT)};

const char *oracle_feature_name(uint32_t feature)
{
    return feature_names[feature];
}

void oracle_print_op(const oracle_op *op, char *out, size_t size)
{
    const op_text *text = &texts[op->kind];
    const uint64_t values[4] = {op->slot, op->member, op->stream, op->n};
    size_t used = (size_t)snprintf(out, size, "%s", text->name);
    for (int i = 0; i < 4; i++)
        if (text->fields[i][0] != '\0' && used < size)
            used += (size_t)snprintf(out + used, size - used, " %s=%" PRIu64, text->fields[i],
                                     values[i]);
}

void oracle_print(const oracle_case *c, void (*line)(void *user, const char *text), void *user)
{
    char text[512];
    size_t used = (size_t)snprintf(text, sizeof text, "case device=%s config=%u seed=%" PRIu64,
                                   c->device, c->config, c->seed);
    for (uint32_t f = 0; f < ORACLE_FEATURE_COUNT; f++)
        if ((c->features >> f & 1) != 0)
            used += (size_t)snprintf(text + used, sizeof text - used, " %s", feature_names[f]);
    line(user, text);
    for (uint64_t i = 0; i < c->count; i++) {
        oracle_print_op(&c->ops[i], text, sizeof text);
        line(user, text);
    }
}

static int parse_op(const char *line, oracle_op *op)
{
    char name[32];
    int used = 0;
    memset(op, 0, sizeof *op);
    if (sscanf(line, "%31s%n", name, &used) != 1)
        return 0;
    while (op->kind < ORACLE_KINDS && strcmp(texts[op->kind].name, name) != 0)
        op->kind++;
    if (op->kind == ORACLE_KINDS)
        return 0;
    uint64_t values[4] = {0, 0, 0, 0};
    line += used;
    for (int i = 0; i < 4; i++) {
        const char *field = texts[op->kind].fields[i];
        if (field[0] == '\0')
            continue;
        if (sscanf(line, " %31[a-z]=%" SCNu64 "%n", name, &values[i], &used) != 2 ||
            strcmp(name, field) != 0)
            return 0;
        line += used;
    }
    op->slot = (uint8_t)(values[0] % ORACLE_SLOTS);
    op->member = (uint8_t)(values[1] % ORACLE_MEMBERS);
    op->stream = (uint8_t)(values[2] % ORACLE_STREAMS);
    op->n = values[3];
    return 1;
}

static int parse_head(const char *line, oracle_case *c)
{
    static char device[32];
    char word[32];
    int used = 0;
    if (sscanf(line, "case device=%31s config=%u seed=%" SCNu64 "%n", device, &c->config, &c->seed,
               &used) != 3)
        return 0;
    c->device = device;
    for (line += used; sscanf(line, " %31s%n", word, &used) == 1; line += used) {
        uint32_t f = 0;
        while (f < ORACLE_FEATURE_COUNT && strcmp(feature_names[f], word) != 0)
            f++;
        if (f == ORACLE_FEATURE_COUNT)
            return 0;
        c->features |= 1u << f;
    }
    return 1;
}

int oracle_parse(const char *text, oracle_case *out)
{
    char line[512];
    uint64_t room = 0;
    for (const char *p = text; *p != '\0'; p++)
        room += *p == '\n';
    memset(out, 0, sizeof *out);
    out->ops = calloc(room + 1, sizeof *out->ops);
    while (out->ops != NULL && *text != '\0') {
        size_t length = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, text);
        text += length + (text[length] == '\n');
        if (line[strspn(line, " \t\r")] == '\0')
            continue;
        if (out->device == NULL ? !parse_head(line, out)
                                : !parse_op(line, &out->ops[out->count++])) {
            fprintf(stderr, "not an operation: %s\n", line);
            free(out->ops);
            return 0;
        }
    }
    return out->ops != NULL && out->device != NULL;
}
