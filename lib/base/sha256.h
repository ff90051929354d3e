/* SHA-256 (FIPS 180-4): of GPU code in files, and of what that code was compiled from. */
#ifndef MO_BASE_SHA256_H
#define MO_BASE_SHA256_H

#include <stdint.h>

enum { MO_SHA256_TEXT = 65 };

typedef struct mo_sha256 {
    uint32_t state[8];
    uint64_t bytes; /* added so far */
    unsigned char block[64];
} mo_sha256;

void mo_sha256_begin(mo_sha256 *sha);
void mo_sha256_add(mo_sha256 *sha, const void *data, uint64_t bytes);
/* Writes 64 hexadecimal digits and a zero byte into text[MO_SHA256_TEXT]. */
void mo_sha256_end(mo_sha256 *sha, char *text);

#endif
