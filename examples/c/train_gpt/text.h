/*
 * The text that is learned: all of it in host memory, and the batches that are cut from it.
 */
#ifndef GPT_TEXT_H
#define GPT_TEXT_H

#include "status.h"

#include <stddef.h>

typedef struct corpus {
    uint8_t *bytes;
    size_t length;   /* of all text */
    size_t training; /* the first bytes; the rest is held out for evaluation */
    uint32_t files;
    uint32_t crc; /* of all bytes: a resume file must meet the same text */
} corpus;

/* Reads a file, or all text files below a folder in the order of their names (hidden ones, build
 * folders, binaries and files above 256 KiB are left out). path NULL: the repository that the
 * current folder lies in, else the current folder. The text must hold at least `least` bytes on
 * both sides of the split. */
memopt_status text_read(corpus *t, const char *path, size_t least);

void text_free(corpus *t);

/* Cuts `rows` sequences of `context` bytes, each at a place that a hash of (key, row) chooses;
 * targets are the same, one byte on. held_out: from the evaluation part. */
void text_batch(const corpus *t, uint64_t key, int held_out, uint32_t rows, uint32_t context,
                uint8_t *inputs, uint8_t *targets);

/* The CRC-32 of zlib and Ethernet; pass the value so far to go on, 0 to begin. */
uint32_t crc32_add(uint32_t crc, const void *bytes, size_t length);

#endif
