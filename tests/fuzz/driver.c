/*
 * A main for fuzz targets that needs no fuzzer: every file of the corpus folders given, and then
 * seeded mutations of those files, go through LLVMFuzzerTestOneInput. The target finds a fault by
 * crashing (assert, a sanitizer); the input that did it is left in crash-<target>.bin beforehand,
 * so it can be replayed: PROGRAM FILE.
 *
 *   PROGRAM [--runs N] [--seed N] FOLDER_OR_FILE...
 */
#include "support/random.h"
#include "support/sweep.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 1 << 16, FILES_MAX = 4096 };

typedef struct input {
    uint8_t *bytes;
    size_t size;
} input;

static input corpus[FILES_MAX];
static size_t corpus_count;
static uint64_t random_state;
static const char *crash_path;

static size_t below(size_t limit)
{
    return limit == 0 ? 0 : (size_t)(next_random(&random_state) % limit);
}

static void add_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || corpus_count == FILES_MAX) {
        fprintf(stderr, "%s cannot be taken into the corpus\n", path);
        exit(2);
    }
    uint8_t *bytes = malloc(INPUT_MAX);
    if (bytes == NULL)
        exit(2);
    size_t size = fread(bytes, 1, INPUT_MAX, file);
    fclose(file);
    corpus[corpus_count++] = (input){bytes, size};
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int not_hidden(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void add_path(const char *path)
{
    struct stat status;
    struct dirent **names;
    if (stat(path, &status) != 0)
        return; /* a target without a corpus starts from the empty input */
    if (!S_ISDIR(status.st_mode)) {
        add_file(path);
        return;
    }
    int count = scandir(path, &names, not_hidden, by_name);
    for (int i = 0; i < count; i++) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
        add_file(file);
        free(names[i]);
    }
    if (count >= 0)
        free(names);
}

static size_t insert_bytes(uint8_t *data, size_t size, const uint8_t *more, size_t count)
{
    size_t at = below(size + 1);
    if (count > INPUT_MAX - size)
        count = INPUT_MAX - size;
    memmove(data + at + count, data + at, size - at);
    memcpy(data + at, more, count);
    return size + count;
}

/* One random edit: flip, overwrite, cut, repeat, or splice from another input. */
static size_t mutate_once(uint8_t *data, size_t size)
{
    static const uint8_t special[] = {0, 1, 0x7f, 0x80, 0xff, ',', ':', '[', ']', '0', '9', '-'};
    const input *other = &corpus[below(corpus_count)];
    uint8_t piece[64];
    size_t start, count;
    switch (next_random(&random_state) % 6) {
    case 0:
        if (size > 0)
            data[below(size)] ^= (uint8_t)(1u << (next_random(&random_state) % 8));
        return size;
    case 1:
        if (size > 0)
            data[below(size)] = special[below(sizeof special)];
        return size;
    case 2:
        start = below(size);
        count = below(size - start + 1);
        memmove(data + start, data + start + count, size - start - count);
        return size - count;
    case 3:
        start = below(size);
        count = size - start < sizeof piece ? size - start : below(sizeof piece);
        memcpy(piece, data + start, count);
        return insert_bytes(data, size, piece, count);
    case 4:
        start = below(other->size);
        count = other->size - start < sizeof piece ? other->size - start : below(sizeof piece);
        return count == 0 ? size : insert_bytes(data, size, other->bytes + start, count);
    default:
        for (count = 0; count < 8; count++)
            piece[count] = (uint8_t)next_random(&random_state);
        return insert_bytes(data, size, piece, 1 + below(8));
    }
}

static void run(const uint8_t *data, size_t size)
{
    FILE *file = fopen(crash_path, "wb");
    if (file != NULL) {
        fwrite(data, 1, size, file);
        fclose(file);
    }
    /* A block of the exact size lets a sanitizer see a read one byte too far. */
    uint8_t *copy = malloc(size ? size : 1);
    if (copy == NULL)
        exit(2);
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void run_mutations(unsigned long runs)
{
    static uint8_t data[INPUT_MAX];
    for (unsigned long i = 0; i < runs; i++) {
        const input *seed = &corpus[below(corpus_count)];
        size_t size = seed->size;
        memcpy(data, seed->bytes, size);
        for (size_t edits = 1 + below(8); edits > 0; edits--)
            size = mutate_once(data, size);
        run(data, size);
    }
}

int main(int argc, char **argv)
{
    static uint8_t nothing[1];
    char path[4096];
    unsigned long runs = is_long() ? 50000 : 250;
    const char *slash = strrchr(argv[0], '/');
    snprintf(path, sizeof path, "crash-%s.bin", slash ? slash + 1 : argv[0]);
    crash_path = path;
    random_state = first_seed();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--runs") == 0 && i + 1 < argc)
            runs = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            random_state = strtoull(argv[++i], NULL, 10);
        else
            add_path(argv[i]);
    }
    if (corpus_count == 0)
        corpus[corpus_count++] = (input){nothing, 0};
    size_t files = corpus_count;
    for (size_t i = 0; i < files; i++)
        run(corpus[i].bytes, corpus[i].size);
    run_mutations(runs);
    remove(crash_path);
    printf("%zu inputs of the corpus, %lu mutations\n", files, runs);
    for (size_t i = 0; i < files; i++)
        if (corpus[i].bytes != nothing)
            free(corpus[i].bytes);
    return 0;
}
