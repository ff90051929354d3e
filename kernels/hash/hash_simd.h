/* The content hash over the vectors of one little-endian instruction set: include a vector_*.h
 * first. A sum may be formed in any order, so each lane of 64 bits adds up its own terms. */
#include "kernels/core/prefetch.h"
#include "kernels/hash/hash_cpu.h"

enum { HASH_WORDS = sizeof(VI) / 8 };

/* mo_hash_term; key: (index + 1) * MO_HASH_KEY of each word. */
MO_INLINE VI hash_terms(VI words, VI key)
{
    VI t = v_add64(words, key);
    t = v_mul64(v_xor(t, v_srl64(t, 32)), MO_HASH_MIX1);
    t = v_mul64(v_xor(t, v_srl64(t, 29)), MO_HASH_MIX2);
    return v_xor(t, v_srl64(t, 32));
}

static uint64_t hash_full(const unsigned char *bytes)
{
    static const uint64_t places[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const VI step = v_set64((long long)(HASH_WORDS * MO_HASH_KEY));
    VI sums = v_set64(0), key = v_mul64(v_loadi(places), MO_HASH_KEY);
    uint64_t lanes[HASH_WORDS], sum = 0;
    for (uint64_t at = 0; at < MO_HASH_GRANULE; at += sizeof(VI)) {
        mo_prefetch_page_ahead(bytes + at, sizeof(VI));
        sums = v_add64(sums, hash_terms(v_loadi(bytes + at), key));
        key = v_add64(key, step);
    }
    v_put(lanes, sums, 0);
    for (int i = 0; i < HASH_WORDS; i++)
        sum += lanes[i];
    return sum;
}

void MO_FORM(mo_hash_granules)(const void *args, uint64_t begin, uint64_t end)
{
    mo_hash_run(args, begin, end, hash_full);
}
