/*
 * The content hash: 64 bits for every granule of 4 KiB, the same on every back end, for every
 * thread count and SIMD width.
 *
 * Specification. A granule of n bytes (4096, fewer only at the end of the data) is read as
 * ceil(n / 8) little-endian 64-bit words, the last padded with zero bytes. With all arithmetic
 * modulo 2^64 and i counted from 0:
 *
 *     term(w, i) = t5,  t1 = w + (i + 1) * KEY,  t2 = (t1 ^ (t1 >> 32)) * MIX1,
 *                       t3 = t2 ^ (t2 >> 29),    t4 = t3 * MIX2,   t5 = t4 ^ (t4 >> 32)
 *     sum        = term(w_0, 0) + term(w_1, 1) + ...
 *     hash       = f3,  f1 = sum + n * LENGTH,   f2 = (f1 ^ (f1 >> 31)) * MIX1,  f3 = f2 ^ (f2 >>
 * 33)
 *
 * Why this shape. For a fixed place i, term is a bijection of the word (adding, multiplying by an
 * odd number and folding the upper half down can all be undone), and so is the last line of the
 * sum: two granules that differ in one word only, by a single bit or by all 64, never have the same
 * hash. Differences in several words cancel with a chance of about 2^-64. The place enters every
 * term, so exchanged words are found. A sum may be formed in any order, so a warp, a vector
 * register and a plain loop agree. The hash is made to find mistakes, not forgery.
 *
 * The constants are the first 64 bits of the fractional parts of the square roots of 2, 3, 5 and 7,
 * with the last bit set.
 */
#ifndef MO_KERNELS_HASH_HASH_H
#define MO_KERNELS_HASH_HASH_H

#include "kernels/core/kernel_launch.h"

enum { MO_HASH_GRANULE = 4096, MO_HASH_THREADS = 128, MO_HASH_COMPARE_THREADS = 256 };

#define MO_HASH_KEY 0x6A09E667F3BCC909ull
#define MO_HASH_MIX1 0xBB67AE8584CAA73Bull
#define MO_HASH_MIX2 0x3C6EF372FE94F82Bull
#define MO_HASH_LENGTH 0xA54FF53A5F1D36F1ull

/* What the word at place `index` of its granule adds to the sum. */
MO_HD static inline uint64_t mo_hash_term(uint64_t word, uint64_t index)
{
    uint64_t t = word + (index + 1) * MO_HASH_KEY;
    t = (t ^ (t >> 32)) * MO_HASH_MIX1;
    t = (t ^ (t >> 29)) * MO_HASH_MIX2;
    return t ^ (t >> 32);
}

/* The hash of a granule of `bytes` bytes whose terms add up to `sum`. */
MO_HD static inline uint64_t mo_hash_finish(uint64_t sum, uint64_t bytes)
{
    uint64_t f = sum + bytes * MO_HASH_LENGTH;
    f = (f ^ (f >> 31)) * MO_HASH_MIX1;
    return f ^ (f >> 33);
}

/* One item hashes one granule: hashes[i] is that of data[i * 4096 ...). */
typedef struct mo_hash_granules_args {
    const void *data; /* any alignment */
    uint64_t *hashes; /* one per granule */
    uint64_t bytes;   /* of data, at least 1 */
} mo_hash_granules_args;

/* One item in all: finds the first place where two runs of hashes differ. A set result stays, so
 * the first difference of several comparisons in one stream is kept. */
typedef struct mo_hash_compare_args {
    const uint64_t *first;
    const uint64_t *second;
    uint64_t *result; /* two words, all bits set before the first comparison: label, place */
    uint64_t count;   /* hashes to compare */
    uint64_t label;   /* below UINT64_MAX */
} mo_hash_compare_args;

extern const mo_kernel mo_kernel_hash_granules;
extern const mo_kernel mo_kernel_hash_compare;

#endif
