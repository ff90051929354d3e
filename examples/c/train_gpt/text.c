/*
 * Reading a tree of text and cutting batches from it (text.h).
 */
#include "text.h"

#include "ops.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_MOST ((size_t)256 << 10)  /* of a file in a folder: larger ones are data, not text */
#define TOTAL_MOST ((size_t)256 << 20) /* of all text */
#define PATH_MOST 4096

static memopt_status append(corpus *t, const uint8_t *bytes, size_t length)
{
    uint8_t *grown = realloc(t->bytes, t->length + length + 1);
    if (!grown)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "text: no memory for %zu bytes", t->length);
    memcpy(grown + t->length, bytes, length);
    t->bytes = grown;
    t->length += length;
    return MEMOPT_OK;
}

static memopt_status read_file(corpus *t, const char *path, size_t size, int in_folder)
{
    FILE *file = fopen(path, "rb");
    if (!file && in_folder)
        return MEMOPT_OK; /* unreadable files of a tree are not text */
    if (!file)
        return gpt_fail(MEMOPT_IO_ERROR, "text: %s: %s", path, strerror(errno));
    uint8_t *bytes = malloc(size + 1);
    size_t length = bytes ? fread(bytes, 1, size, file) : 0;
    fclose(file);
    memopt_status status = MEMOPT_OK;
    if (!bytes)
        status = gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "text: no memory for %s", path);
    else if (!in_folder || !memchr(bytes, 0, length)) { /* a zero byte: a binary */
        status = append(t, bytes, length);
        t->files++;
    }
    free(bytes);
    return status;
}

static int wanted(const struct dirent *entry)
{
    static const char *const skipped[] = {"build", "node_modules", "__pycache__"};
    if (entry->d_name[0] == '.')
        return 0;
    for (size_t i = 0; i < sizeof skipped / sizeof skipped[0]; i++)
        if (strcmp(entry->d_name, skipped[i]) == 0)
            return 0;
    return 1;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static memopt_status read_folder(corpus *t, const char *folder);

static memopt_status read_entry(corpus *t, const char *folder, const char *name)
{
    char path[PATH_MOST];
    struct stat about;
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length < 0 || length >= PATH_MOST || lstat(path, &about) != 0)
        return MEMOPT_OK;
    if (S_ISDIR(about.st_mode))
        return read_folder(t, path);
    size_t size = (size_t)about.st_size;
    if (!S_ISREG(about.st_mode) || size == 0 || size > FILE_MOST || t->length + size > TOTAL_MOST)
        return MEMOPT_OK;
    return read_file(t, path, size, 1);
}

static memopt_status read_folder(corpus *t, const char *folder)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, wanted, by_name);
    if (count < 0)
        return gpt_fail(MEMOPT_IO_ERROR, "text: %s: %s", folder, strerror(errno));
    memopt_status status = MEMOPT_OK;
    for (int i = 0; i < count; i++) {
        if (status == MEMOPT_OK)
            status = read_entry(t, folder, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* Walks up from the current folder to the one that holds the library's guide: English alone, so
 * that batches are alike and losses of short runs can be compared. */
static void find_guide(char *path)
{
    char up[PATH_MOST / 2] = ".";
    for (int level = 0; level < 16; level++) {
        struct stat about;
        snprintf(path, PATH_MOST, "%s/docs/guide/allocator.md", up);
        if (stat(path, &about) == 0) {
            snprintf(path, PATH_MOST, "%s/docs/guide", up);
            return;
        }
        strncat(up, "/..", sizeof up - strlen(up) - 1);
    }
    memcpy(path, ".", 2);
}

static memopt_status read_path(corpus *t, const char *path)
{
    struct stat about;
    if (stat(path, &about) != 0)
        return gpt_fail(MEMOPT_IO_ERROR, "text: %s: %s", path, strerror(errno));
    if (S_ISDIR(about.st_mode))
        return read_folder(t, path);
    if ((uint64_t)about.st_size > TOTAL_MOST)
        return gpt_fail(MEMOPT_LIMIT_REACHED, "text: %s is larger than %zu MiB", path,
                        TOTAL_MOST >> 20);
    return read_file(t, path, (size_t)about.st_size, 0);
}

memopt_status text_read(corpus *t, const char *path, size_t least)
{
    char guide[PATH_MOST];
    memset(t, 0, sizeof *t);
    if (!path) {
        find_guide(guide);
        path = guide;
    }
    memopt_status status = read_path(t, path);
    size_t held_out = t->length / 10 < 65536 ? t->length / 10 : 65536;
    if (held_out < least)
        held_out = least;
    if (status == MEMOPT_OK && t->length < held_out + least)
        status = gpt_fail(MEMOPT_INVALID_ARGUMENT,
                          "text: %s has %zu bytes of text in %u files, and this context needs %zu; "
                          "take more text or a smaller --context",
                          path, t->length, t->files, held_out + least);
    if (status != MEMOPT_OK) {
        text_free(t);
        return status;
    }
    t->training = t->length - held_out;
    t->crc = crc32_add(0, t->bytes, t->length);
    return MEMOPT_OK;
}

void text_free(corpus *t)
{
    free(t->bytes);
    memset(t, 0, sizeof *t);
}

void text_batch(const corpus *t, uint64_t key, int held_out, uint32_t rows, uint32_t context,
                uint8_t *inputs, uint8_t *targets)
{
    const uint8_t *part = held_out ? t->bytes + t->training : t->bytes;
    size_t length = held_out ? t->length - t->training : t->training;
    for (uint32_t row = 0; row < rows; row++) {
        size_t at = (size_t)(random_draw(key, row) % (length - context));
        memcpy(inputs + (size_t)row * context, part + at, context);
        memcpy(targets + (size_t)row * context, part + at + 1, context);
    }
}

uint32_t crc32_add(uint32_t crc, const void *bytes, size_t length)
{
    static uint32_t table[8][256]; /* slicing by 8: one table per byte of a 64-bit word */
    if (!table[0][1]) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t value = i;
            for (int bit = 0; bit < 8; bit++)
                value = value & 1 ? value >> 1 ^ UINT32_C(0xEDB88320) : value >> 1;
            table[0][i] = value;
        }
        for (int slice = 1; slice < 8; slice++)
            for (uint32_t i = 0; i < 256; i++)
                table[slice][i] = table[slice - 1][i] >> 8 ^ table[0][table[slice - 1][i] & 255];
    }
    const uint8_t *p = bytes;
    crc = ~crc;
    for (; length >= 8; length -= 8, p += 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                              (uint32_t)p[3] << 24);
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^
              table[4][low >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^
              table[0][p[7]];
    }
    for (; length > 0; length--)
        crc = crc >> 8 ^ table[0][(crc ^ *p++) & 255];
    return ~crc;
}
