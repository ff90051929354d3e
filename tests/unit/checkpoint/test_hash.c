/* The content hash: its specification, every form of it, and what it finds. */
#include "support.h"

#include "kernels/hash/hash.h"
#include "support/forms.h"
#include "support/random.h"

#include <stdio.h>

enum { MOST = 3 * MO_HASH_GRANULE };

static uint64_t state = 88172645463325252u;

static void fill(unsigned char *bytes, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)(next_random(&state) >> 24);
}

static uint64_t hash_one(const void *data, uint64_t bytes)
{
    uint64_t hash = 0;
    mo_hash_granules_args args = {data, &hash, bytes};
    mo_kernel_hash_granules.cpu[MO_ISA_SCALAR](&args, 0, 1);
    return hash;
}

/* The specification again, written from its text: bytes, not words. */
static uint64_t oracle(const unsigned char *data, uint64_t bytes)
{
    const uint64_t key = 0x6A09E667F3BCC909u, mix1 = 0xBB67AE8584CAA73Bu;
    const uint64_t mix2 = 0x3C6EF372FE94F82Bu, length = 0xA54FF53A5F1D36F1u;
    uint64_t sum = 0;
    for (uint64_t i = 0; i * 8 < bytes; i++) {
        uint64_t w = 0;
        for (uint64_t k = 0; k < 8 && i * 8 + k < bytes; k++)
            w += (uint64_t)data[i * 8 + k] << (8 * k);
        uint64_t t1 = w + (i + 1) * key;
        uint64_t t2 = (t1 ^ (t1 >> 32)) * mix1;
        uint64_t t3 = t2 ^ (t2 >> 29);
        uint64_t t4 = t3 * mix2;
        sum += t4 ^ (t4 >> 32);
    }
    uint64_t f1 = sum + bytes * length;
    uint64_t f2 = (f1 ^ (f1 >> 31)) * mix1;
    return f2 ^ (f2 >> 33);
}

TEST(test_forms_are_equal)
{
    static unsigned char data[MOST + 8];
    fill(data, sizeof data);
    for (int round = 0; round < 3000; round++) {
        uint64_t shift = next_random(&state) % 8,
                 bytes = round < 300 ? (uint64_t)round + 1 : 1 + next_random(&state) % MOST;
        uint64_t granules = (bytes + MO_HASH_GRANULE - 1) / MO_HASH_GRANULE;
        for (uint64_t g = 0; g < granules; g++) {
            uint64_t rest = bytes - g * MO_HASH_GRANULE;
            uint64_t size = rest < MO_HASH_GRANULE ? rest : MO_HASH_GRANULE;
            uint64_t expected = oracle(data + shift + g * MO_HASH_GRANULE, size);
            FOR_EACH_FORM (isa, &mo_kernel_hash_granules) {
                uint64_t hashes[3] = {1, 2, 3};
                mo_hash_granules_args args = {data + shift, hashes, bytes};
                mo_kernel_hash_granules.cpu[isa](&args, g, g + 1);
                assert_int_equal(hashes[g], expected);
            }
        }
    }
}

TEST(test_every_single_bit_is_seen)
{
    static unsigned char data[MO_HASH_GRANULE];
    const uint64_t sizes[] = {MO_HASH_GRANULE, 333, 8, 1};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        fill(data, sizes[s]);
        uint64_t before = hash_one(data, sizes[s]);
        for (uint64_t bit = 0; bit < 8 * sizes[s]; bit++) {
            data[bit / 8] ^= (unsigned char)(1 << bit % 8);
            if (hash_one(data, sizes[s]) == before)
                fail_msg("bit %d of %d bytes is not seen", (int)bit, (int)sizes[s]);
            data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
        assert_int_equal(hash_one(data, sizes[s]), before);
    }
}

TEST(test_of_a_callers_tensor)
{
    bench b = open_bench(MEMOPT_STREAM_ORDER_ADVERSARIAL, 3);
    unsigned char *data = NULL;
    uint64_t *hashes = NULL;
    const uint64_t bytes = 2 * MO_HASH_GRANULE + 6;
    OK(memopt_allocator_alloc(b.allocator, bytes + 2, MEMOPT_TAG_OTHER, b.stream, (void **)&data));
    OK(memopt_allocator_alloc(b.allocator, 64, MEMOPT_TAG_OTHER, b.stream, (void **)&hashes));
    unsigned char host[MOST];
    fill(host, bytes);
    OK(memopt_copy(b.device, data + 2, host, bytes, b.stream));
    memopt_tensor tensor = {data + 2, bytes / 2, MEMOPT_DTYPE_BF16}; /* not aligned to words */
    OK(memopt_content_hash(b.device, hashes, &tensor, b.stream));
    OK(memopt_stream_sync(b.device, b.stream));
    for (uint64_t g = 0; g < 3; g++)
        assert_int_equal(hashes[g],
                         oracle(host + g * MO_HASH_GRANULE, g < 2 ? MO_HASH_GRANULE : 6));

    memopt_tensor bad = tensor;
    REFUSED(memopt_content_hash(NULL, hashes, &tensor, b.stream));
    REFUSED(memopt_content_hash(b.device, hashes, NULL, b.stream));
    REFUSED(memopt_content_hash(b.device, NULL, &tensor, b.stream));
    REFUSED(memopt_content_hash(b.device, (uint64_t *)(void *)(data + 8), &tensor, b.stream));
    bad.dtype = MEMOPT_DTYPE_INVALID;
    REFUSED(memopt_content_hash(b.device, hashes, &bad, b.stream));
    bad = tensor;
    bad.count = UINT64_MAX / 2 + 1;
    REFUSED(memopt_content_hash(b.device, hashes, &bad, b.stream));
    bad.count = 0;
    OK(memopt_content_hash(b.device, NULL, &bad, b.stream));
    bench_close(&b);
}
