/* What the CPU forms of the content hash share: short granules, and the loop over granules. */
#ifndef MO_KERNELS_HASH_HASH_CPU_H
#define MO_KERNELS_HASH_HASH_CPU_H

#include "kernels/hash/hash.h"

#include <string.h>

void mo_hash_granules_ref(const void *args, uint64_t begin, uint64_t end);
void mo_hash_compare_ref(const void *args, uint64_t begin, uint64_t end);
void mo_hash_granules_neon(const void *args, uint64_t begin, uint64_t end);
void mo_hash_granules_avx2(const void *args, uint64_t begin, uint64_t end);
void mo_hash_granules_avx512(const void *args, uint64_t begin, uint64_t end);

static inline uint64_t mo_hash_load(const unsigned char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return MO_BIG_ENDIAN ? __builtin_bswap64(word) : word;
}

/* The sum of the terms of a granule of any size. */
static inline uint64_t mo_hash_sum(const unsigned char *bytes, uint64_t count)
{
    uint64_t sum = 0;
    uint64_t words = count / 8;
    for (uint64_t i = 0; i < words; i++)
        sum += mo_hash_term(mo_hash_load(bytes + 8 * i), i);
    if (count % 8 != 0) {
        unsigned char last[8] = {0};
        memcpy(last, bytes + 8 * words, (size_t)(count % 8));
        sum += mo_hash_term(mo_hash_load(last), words);
    }
    return sum;
}

/* full: a form's sum of the terms of MO_HASH_GRANULE bytes. */
static inline void mo_hash_run(const mo_hash_granules_args *args, uint64_t begin, uint64_t end,
                               uint64_t (*full)(const unsigned char *bytes))
{
    const unsigned char *data = args->data;
    for (uint64_t item = begin; item < end; item++) {
        uint64_t offset = item * MO_HASH_GRANULE, rest = args->bytes - offset;
        if (rest >= MO_HASH_GRANULE)
            args->hashes[item] = mo_hash_finish(full(data + offset), MO_HASH_GRANULE);
        else
            args->hashes[item] = mo_hash_finish(mo_hash_sum(data + offset, rest), rest);
    }
}

#endif
