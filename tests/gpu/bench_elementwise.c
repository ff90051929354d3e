/* Casts, reductions, block quantisation and the content hash, each beside a copy. */
#include "bench.h"

#include "device/device.h"
#include "kernels/hash/hash.h"

typedef struct pair {
    memopt_tensor into, from;
    memopt_cast_options options;
} pair;

typedef struct work {
    pair copy, casts[5];
    memopt_tensor floats, codes, absmax;
    memopt_scaler *scaler;
    float *norm;
    uint64_t *hashes;
} work;

static void run_copy(bench *b, void *context)
{
    pair *p = context;
    OK(memopt_copy(b->device, p->into.data, p->from.data, 4 * p->from.count, b->stream));
}

static void run_cast(bench *b, void *context)
{
    pair *p = context;
    OK(memopt_cast(b->device, &p->into, &p->from, 1, &p->options, b->stream));
}

static void run_norm(bench *b, void *context)
{
    work *w = context;
    OK(memopt_scaler_norm(w->scaler, &w->floats, 1, w->norm, b->stream));
}

static void run_check(bench *b, void *context)
{
    work *w = context;
    OK(memopt_scaler_check(w->scaler, &w->floats, 1, b->stream));
}

static void run_quantize(bench *b, void *context)
{
    work *w = context;
    OK(memopt_quantize(b->device, MEMOPT_STATE_8BIT, &w->codes, &w->absmax, &w->floats, 1,
                       b->stream));
}

static void run_dequantize(bench *b, void *context)
{
    work *w = context;
    OK(memopt_dequantize(b->device, MEMOPT_STATE_8BIT, &w->copy.into, &w->codes, &w->absmax, 1,
                         b->stream));
}

static void run_hash(bench *b, void *context)
{
    work *w = context;
    uint64_t bytes = 4 * w->floats.count;
    mo_hash_granules_args args = {w->floats.data, w->hashes, bytes};
    OK(mo_launch(b->device, b->stream, &mo_kernel_hash_granules, &args,
                 (bytes + MO_HASH_GRANULE - 1) / MO_HASH_GRANULE));
}

static void make(bench *b, work *w, uint64_t count)
{
    static const memopt_dtype into[] = {MEMOPT_DTYPE_BF16, MEMOPT_DTYPE_F16, MEMOPT_DTYPE_F8_E4M3,
                                        MEMOPT_DTYPE_BF16, MEMOPT_DTYPE_F32};
    memopt_scaler_options scaling = MEMOPT_SCALER_OPTIONS_INIT;
    scaling.disabled = 1;
    *w = (work){.floats = new_tensor(b, count, MEMOPT_DTYPE_F32, 0.02f)};
    w->codes = new_tensor(b, count, MEMOPT_DTYPE_U8, 0);
    w->absmax = new_tensor(b, (count + 255) / 256, MEMOPT_DTYPE_F32, 1);
    w->copy.from = w->floats;
    w->copy.into = new_tensor(b, count, MEMOPT_DTYPE_F32, 0.02f);
    for (uint32_t i = 0; i < 5; i++) {
        w->casts[i].from = w->floats;
        w->casts[i].options = (memopt_cast_options)MEMOPT_CAST_OPTIONS_INIT;
        w->casts[i].into = i == 4 ? w->copy.into : new_tensor(b, count, into[i], 1);
    }
    w->casts[3].options.rounding = MEMOPT_ROUND_STOCHASTIC;
    w->casts[4].from = w->casts[0].into;
    OK(memopt_scaler_create(b->device, &scaling, &w->scaler));
    OK(memopt_allocator_alloc(b->allocator, 4, MEMOPT_TAG_OTHER, b->stream, (void **)&w->norm));
    OK(memopt_allocator_alloc(b->allocator, 8 * (count / 1024 + 1), MEMOPT_TAG_OTHER, b->stream,
                              (void **)&w->hashes));
}

static void end(bench *b, work *w)
{
    OK(memopt_stream_sync(b->device, b->stream));
    OK(memopt_scaler_destroy(w->scaler));
    OK(memopt_allocator_free(b->allocator, w->norm));
    OK(memopt_allocator_free(b->allocator, w->hashes));
    for (uint32_t i = 0; i < 4; i++)
        free_tensor(b, &w->casts[i].into);
    free_tensor(b, &w->copy.into);
    free_tensor(b, &w->floats);
    free_tensor(b, &w->codes);
    free_tensor(b, &w->absmax);
}

void bench_elementwise(bench *b)
{
    uint64_t count = b->small ? 5000 : 256 * MIB;
    char table[64];
    work w;
    while (!b->small && 24 * count > room(b))
        count /= 2;
    make(b, &w, count);
    double n = (double)count;
    bench_case cases[] = {
        {"copy f32", run_copy, &w.copy, 8 * n, 0},
        {"cast f32 to bf16", run_cast, &w.casts[0], 6 * n, 0},
        {"cast f32 to f16", run_cast, &w.casts[1], 6 * n, 0},
        {"cast f32 to f8_e4m3", run_cast, &w.casts[2], 5 * n, 0},
        {"cast f32 to bf16, stochastic", run_cast, &w.casts[3], 6 * n, 0},
        {"cast bf16 to f32", run_cast, &w.casts[4], 6 * n, 0},
        {"norm f32", run_norm, &w, 4 * n, 0},
        {"non-finite check f32", run_check, &w, 4 * n, 0},
        {"quantize f32 to 8 bit", run_quantize, &w, 5 * n + n / 64, 0},
        {"dequantize 8 bit to f32", run_dequantize, &w, 5 * n + n / 64, 0},
        {"hash", run_hash, &w, 4 * n + n / 128, 0},
    };
    snprintf(table, sizeof table, "%.4g Mi elements", n / (double)MIB);
    measure(b, table, cases, sizeof cases / sizeof cases[0]);
    end(b, &w);
}
