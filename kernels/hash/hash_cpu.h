/*
 * The CPU loop of the content hash, included by one file per instruction set. It is plain C: the
 * sum may be formed in any order, so the compiler vectorises it with the flags of each file.
 */
#ifndef MO_KERNELS_HASH_HASH_CPU_H
#define MO_KERNELS_HASH_HASH_CPU_H

#include "kernels/hash/hash.h"

#include <string.h>

void mo_hash_granules_ref(const void *args, uint64_t begin, uint64_t end);
void mo_hash_compare_ref(const void *args, uint64_t begin, uint64_t end);
void mo_hash_granules_avx512(const void *args, uint64_t begin, uint64_t end);

enum { MO_HASH_WORDS = MO_HASH_GRANULE / 8 };

static inline uint64_t mo_hash_load(const unsigned char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return MO_BIG_ENDIAN ? __builtin_bswap64(word) : word;
}

static inline uint64_t mo_hash_full_granule(const unsigned char *bytes)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < MO_HASH_WORDS; i++)
        sum += mo_hash_term(mo_hash_load(bytes + 8 * i), i);
    return mo_hash_finish(sum, MO_HASH_GRANULE);
}

static inline uint64_t mo_hash_short_granule(const unsigned char *bytes, uint64_t count)
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
    return mo_hash_finish(sum, count);
}

static inline void mo_hash_granules_loop(const mo_hash_granules_args *args, uint64_t begin,
                                         uint64_t end)
{
    const unsigned char *data = args->data;
    for (uint64_t item = begin; item < end; item++) {
        uint64_t offset = item * MO_HASH_GRANULE;
        uint64_t rest = args->bytes - offset;
        args->hashes[item] = rest >= MO_HASH_GRANULE ? mo_hash_full_granule(data + offset)
                                                     : mo_hash_short_granule(data + offset, rest);
    }
}

#endif
