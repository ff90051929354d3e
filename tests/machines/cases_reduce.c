/* Reductions, the loss scaler's kernels, trust ratios and the content hash. */
#include "machines/digest.h"

#include "kernels/hash/hash.h"
#include "kernels/reduce/scale.h"
#include "kernels/trust/trust.h"

#include <math.h>

enum { LONG = MO_CHUNK_ELEMENTS + 333, ROOM = LONG + 2000 };

static unsigned char data[4 * ROOM];

/* A tensor of more than a chunk, a short one and a single element; all finite or not. */
static uint64_t segments(mo_tensor_segment *list, uint32_t dtype, int finite)
{
    const uint64_t lengths[] = {LONG, 1031, 1};
    uint64_t at = 0, chunks = 0;
    for (int i = 0; i < 3; i++) {
        unsigned char *start = data + at * mo_element_size(dtype);
        list[i] = (mo_tensor_segment){start, lengths[i], chunks, dtype, 0};
        if (finite) /* its first runs */
            for (uint64_t k = 0; k < lengths[i]; k += 128)
                digest_fill_runs(start + k * mo_element_size(dtype),
                                 lengths[i] - k < 128 ? lengths[i] - k : 128, dtype, k + dtype);
        else
            digest_fill_any(start, lengths[i], dtype, (uint64_t)i + dtype);
        at += lengths[i] + 1;
        chunks += mo_chunks_of(lengths[i]);
    }
    return chunks;
}

static void square_sum(uint32_t dtype)
{
    uint64_t digest = DIGEST_START;
    for (int finite = 0; finite <= 1; finite++) {
        double partials[8];
        mo_reduce_args args = {.partials = partials, .count = 3};
        uint64_t chunks = segments(args.segments, dtype, finite);
        digest_launch(&mo_kernel_square_sum, &args, chunks);
        for (uint64_t i = 0; i < chunks; i++)
            digest_add_f64(&digest, partials[i]);
    }
    digest_report(digest, "mo_square_sum.%s", digest_dtype(dtype));
}

/* One infinity or NaN at every place of a vector and at the ragged end. */
static void check(uint32_t dtype)
{
    static const uint16_t bad[] = {0, 0x7f80, 0xfc00, 0xff81};
    uint64_t digest = DIGEST_START;
    for (uint64_t place = 0; place < 200; place++) {
        uint32_t size = mo_element_size(dtype), f32 = (uint32_t)bad[dtype] << 16 | 0x7f800000u;
        float found = 0.0f;
        mo_reduce_args args = {.found_inf = &found, .count = 1};
        memset(data, 0x3b, 4 * 200);
        args.segments[0] = (mo_tensor_segment){data + size, 150, 0, dtype, 0};
        memcpy(data + place * size, size == 4 ? (void *)&f32 : (void *)&bad[dtype], size);
        digest_launch(&mo_kernel_check, &args, 1);
        digest_add_f32(&digest, found);
    }
    digest_report(digest, "mo_check.%s", digest_dtype(dtype));
}

static void sum(void)
{
    static double values[2500];
    double totals[3];
    uint64_t digest = DIGEST_START, state = 5;
    mo_sum_args args = {values, totals, 2500};
    for (int i = 0; i < 2500; i++)
        values[i] = (double)(int64_t)next_random(&state) * (i % 3 ? 1.0 : 0x1p-60);
    digest_launch(&mo_kernel_sum, &args, 3);
    digest_add(&digest, totals, 3, 8);
    digest_report(digest, "mo_sum");
}

static void scale(uint32_t dtype)
{
    static const float factors[] = {1.0f, 0.3f, -0x1p-20f, 0x1p100f, 0.0f, 0x1p-140f};
    uint64_t digest = DIGEST_START;
    for (int k = 0; k < 12; k++) {
        float found = 0.0f;
        const float *factor = &factors[k / 2];
        mo_scale_args args = {.scale = k % 2 ? factor : NULL,
                              .factor = k % 2 ? NULL : factor,
                              .found_inf = k % 4 ? &found : NULL,
                              .count = 1};
        digest_fill_any(data, 1100, dtype, 70 + (uint64_t)k);
        args.segments[0] = (mo_tensor_segment){data + mo_element_size(dtype), 1031, 0, dtype, 0};
        digest_launch(&mo_kernel_scale, &args, 1);
        digest_add(&digest, data, 1100, mo_element_size(dtype));
        digest_add_f32(&digest, found);
    }
    digest_report(digest, "mo_scale.%s", digest_dtype(dtype));
}

static void norm(void)
{
    const double infinity = mo_f64_from_bits(0x7ff0000000000000u);
    const double sums[] = {0.0, 2.0, 1e-320, 1e300, 0.1, infinity, infinity - infinity};
    uint64_t digest = DIGEST_START;
    for (int k = 0; k < 14; k++) {
        float length = 0.0f, coefficient = 0.0f;
        mo_norm_args args = {&sums[k / 2], &length, &coefficient, k % 2 ? 0.3 : 1e200};
        digest_launch(&mo_kernel_norm, &args, 1);
        digest_add_f32(&digest, length);
        digest_add_f32(&digest, coefficient);
    }
    digest_report(digest, "mo_norm");
}

static void add_block(uint64_t *digest, const mo_scaler_block *block)
{
    digest_add_f32(digest, block->scale);
    digest_add_f32(digest, block->found_inf);
    digest_add_u64(digest, block->growth_tracker);
    digest_add_u64(digest, block->growth_interval);
    digest_add_f64(digest, block->growth_factor);
    digest_add_f64(digest, block->backoff_factor);
}

/* The scale grows to its end and falls to subnormals. */
static void scaler(void)
{
    uint64_t set_digest = DIGEST_START, update_digest = DIGEST_START;
    mo_scaler_block block = {.found_inf = 1.0f};
    for (uint32_t clear = 0; clear <= 1; clear++) {
        mo_scaler_set_args set = {&block, 0x1p120f, 1, 2, clear, 1.9, 0.3};
        digest_launch(&mo_kernel_scaler_set, &set, 1);
        add_block(&set_digest, &block);
    }
    for (uint32_t i = 0; i < 300; i++) {
        mo_scaler_update_args update = {&block, i % 7 == 6, 0};
        block.found_inf = i >= 30 && i % 5 ? 1.0f : 0.0f;
        digest_launch(&mo_kernel_scaler_update, &update, 1);
        add_block(&update_digest, &block);
    }
    digest_report(set_digest, "mo_scaler_set");
    digest_report(update_digest, "mo_scaler_update");
}

static void hash(void)
{
    static const uint64_t bytes[] = {1, 8, 13, 4095, 4096, 4097, 3 * 4096 + 77};
    uint64_t digest = DIGEST_START, compared = DIGEST_START, hashes[2][4];
    for (int k = 0; k < 7; k++) {
        uint64_t granules = (bytes[k] + MO_HASH_GRANULE - 1) / MO_HASH_GRANULE;
        mo_hash_granules_args args = {data + k, hashes[0], bytes[k]};
        digest_fill_any(data, 3 * 4096 + 100, MO_DTYPE_F8_E4M3, (uint64_t)k); /* bytes */
        digest_launch(&mo_kernel_hash_granules, &args, granules);
        digest_add(&digest, hashes[0], granules, 8);
    }
    for (uint64_t place = 0; place < 5; place++) {
        uint64_t result[2] = {UINT64_MAX, UINT64_MAX};
        mo_hash_compare_args args = {hashes[0], hashes[1], result, 4, 40 + place};
        memcpy(hashes[1], hashes[0], sizeof hashes[0]);
        if (place < 4)
            hashes[1][place] ^= (uint64_t)1 << (63 - place);
        digest_launch(&mo_kernel_hash_compare, &args, 1);
        digest_add(&compared, result, 2, 8);
    }
    digest_report(digest, "mo_hash_granules");
    digest_report(compared, "mo_hash_compare");
}

/* Tensors of no chunk, of few and of many; norms of 0, and of which a square is not finite. */
static void trust(void)
{
    enum { TENSORS = 5, PARTIALS = 137 };
    uint64_t digest = DIGEST_START, state = 3;
    double partials[PARTIALS], totals[2 * TENSORS];
    float rates[TENSORS];
    mo_trust_totals_args sums = {
        .partials = partials, .totals = totals, .first = {0, 0, 1, 4, 37, PARTIALS}};
    for (int i = 0; i < PARTIALS; i++)
        partials[i] = (double)(next_random(&state) >> 12) * 0x1p-40;
    digest_launch(&mo_kernel_trust_totals, &sums, TENSORS);
    sums.totals = totals + TENSORS;
    partials[2] = INFINITY;
    partials[0] = 0x1p-300;
    digest_launch(&mo_kernel_trust_totals, &sums, TENSORS);
    for (int i = 0; i < 2 * TENSORS; i++)
        digest_add_f64(&digest, totals[i]);
    digest_report(digest, "mo_trust_totals");
    digest = DIGEST_START;
    for (uint32_t clip = 0; clip < 8; clip++) {
        mo_trust_rates_args args = {.squares = totals,
                                    .rates = rates,
                                    .scale = -0.1,
                                    .most = clip / 2 * 0.02,
                                    .count = TENSORS,
                                    .clip = clip % 2};
        digest_launch(&mo_kernel_trust_rates, &args, 1);
        for (int i = 0; i < TENSORS; i++)
            digest_add_f32(&digest, rates[i]);
    }
    digest_report(digest, "mo_trust_rates");
}

void digest_reductions(void)
{
    for (uint32_t dtype = MO_DTYPE_F32; dtype <= MO_DTYPE_BF16; dtype++) {
        square_sum(dtype);
        check(dtype);
        scale(dtype);
    }
    sum();
    norm();
    scaler();
    trust();
    hash();
}
