/* What allocations, growing segments and save-on-CPU cost. Host clock, since the host waits. */
#include "bench.h"

#include <stdlib.h>

/* --- allocator ----------------------------------------------------------------------------- */

static double pair_seconds(bench *b, memopt_allocator *allocator, uint64_t bytes, uint32_t pairs)
{
    double begin = now();
    for (uint32_t i = 0; i < pairs; i++) {
        void *block;
        OK(memopt_allocator_alloc(allocator, bytes, MEMOPT_TAG_OTHER, b->stream, &block));
        OK(memopt_allocator_free(allocator, block));
    }
    return (now() - begin) / pairs;
}

static void bench_pairs(bench *b)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } sizes[] = {{"alloc + free, 512 B", 512},
                 {"alloc + free, 1 MiB", MIB},
                 {"alloc + free, 20 MiB", 20 * MIB}};
    for (uint32_t s = 0; s < 3; s++) {
        double best = 1e9;
        (void)pair_seconds(b, b->allocator, sizes[s].bytes, 10);
        for (uint32_t round = 0; round < b->rounds; round++) {
            double seconds = pair_seconds(b, b->allocator, sizes[s].bytes, b->small ? 10 : 10000);
            best = seconds < best ? seconds : best;
        }
        figure_row(b, "cached blocks", sizes[s].name, 1e9 * best, "ns");
    }
}

/* The first allocation takes memory from the driver, trim gives it back. */
static void bench_growth(bench *b, const char *config, const char *table)
{
    enum { ROUNDS = 7 };
    double grow[ROUNDS], shrink[ROUNDS];
    uint64_t bytes = b->small ? 8 * MIB : GIB, released;
    memopt_allocator *allocator;
    OK(memopt_allocator_create(b->device, config, NULL, &allocator));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        void *block;
        double begin = now();
        OK(memopt_allocator_alloc(allocator, bytes, MEMOPT_TAG_OTHER, b->stream, &block));
        grow[round] = now() - begin;
        OK(memopt_allocator_free(allocator, block));
        OK(memopt_stream_sync(b->device, b->stream));
        begin = now();
        OK(memopt_allocator_trim_sync(allocator, &released));
        shrink[round] = now() - begin;
    }
    OK(memopt_allocator_destroy(allocator));
    double gib = (double)bytes / (double)GIB;
    figure_row(b, table, "take from the driver", 1e6 * median(grow, ROUNDS) / gib, "us/GiB");
    figure_row(b, table, "give back", 1e6 * median(shrink, ROUNDS) / gib, "us/GiB");
}

void bench_allocator(bench *b)
{
    bench_pairs(b);
    bench_growth(b, NULL, "classic segments");
    if (b->properties.virtual_memory)
        bench_growth(b, "expandable_segments:True", "expandable segments");
    else
        skip_row(b, "expandable segments", "take from the driver", "no virtual memory");
}

/* --- save-on-CPU --------------------------------------------------------------------------- */

enum { LAYERS = 8, WAYS = 3, MOST = 100 };

typedef struct offload_work {
    memopt_offloader *offloader;
    memopt_tensor from, into; /* what compute casts, again and again */
    uint64_t bytes;           /* of a layer's activations */
    uint32_t casts;           /* of a layer's forward run; twice as many backward */
} offload_work;

static void compute(bench *b, offload_work *w, uint32_t times)
{
    for (uint32_t i = 0; i < times * w->casts; i++)
        OK(memopt_cast(b->device, &w->into, &w->from, 1, NULL, b->stream));
}

static void *activation(bench *b, offload_work *w)
{
    void *block;
    OK(memopt_allocator_alloc(b->allocator, w->bytes, MEMOPT_TAG_ACTIVATIONS, b->stream, &block));
    OK(memopt_fill(b->device, block, 7, w->bytes, b->stream));
    return block;
}

static void step_plain(bench *b, offload_work *w)
{
    void *kept[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        kept[i] = activation(b, w);
        compute(b, w, 1);
    }
    for (int i = LAYERS - 1; i >= 0; i--) {
        compute(b, w, 2);
        OK(memopt_allocator_free(b->allocator, kept[i]));
    }
}

/* blocking: the compute stream waits for each copy, as a plain copy back and forth would. */
static void step_offload(bench *b, offload_work *w, int blocking)
{
    memopt_ticket tickets[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        OK(memopt_offloader_pack(w->offloader, activation(b, w), w->bytes, b->stream, &tickets[i]));
        if (blocking)
            OK(memopt_offloader_wait_packed(w->offloader, tickets[i], b->stream));
        compute(b, w, 1);
    }
    for (int i = LAYERS - 1; i >= 0; i--) {
        void *back;
        if (!blocking && i > 0)
            OK(memopt_offloader_prefetch(w->offloader, tickets[i - 1]));
        OK(memopt_offloader_unpack(w->offloader, tickets[i], b->stream, &back));
        compute(b, w, 2);
        OK(memopt_offloader_release(w->offloader, tickets[i], b->stream));
    }
}

static double step_seconds(bench *b, offload_work *w, int way)
{
    double begin = now();
    if (way == 0)
        step_plain(b, w);
    else
        step_offload(b, w, way == 2);
    OK(memopt_stream_sync(b->device, b->stream));
    return now() - begin;
}

/* As many casts a layer as take one and a half times as long as its copy to the host. */
static void balance(bench *b, offload_work *w)
{
    double copies, casts;
    w->casts = 0;
    (void)step_seconds(b, w, 2); /* page-locks the host memory */
    double plain = step_seconds(b, w, 0);
    copies = (step_seconds(b, w, 2) - plain) / (2 * LAYERS);
    if (b->small) {
        w->casts = 1;
        return;
    }
    w->casts = 4;
    (void)step_seconds(b, w, 0);
    casts = (step_seconds(b, w, 0) - plain) / (3 * LAYERS * 4);
    double wanted = casts > 0 ? 1.5 * copies / casts : 1;
    w->casts = wanted < 1 ? 1 : wanted > 500 ? 500 : (uint32_t)wanted;
    figure_row(b, "save-on-CPU", "copies, either way", 1e-9 * (double)w->bytes / copies, "GB/s");
}

void bench_offload(bench *b)
{
    static const char *const names[WAYS] = {"step, nothing offloaded", "step, offloaded",
                                            "step, offloaded, waiting for each copy"};
    double seconds[WAYS][MOST], middle[WAYS];
    uint32_t rounds = b->rounds < 7 ? b->rounds : 7;
    offload_work w = {.bytes = b->small ? 64 * KIB : 128 * MIB};
    if (now() > b->deadline || room(b) < (b->small ? 0 : 8 * GIB)) {
        skip_row(b, "save-on-CPU", "step", "no time or memory left");
        return;
    }
    uint64_t count = b->small ? 1000 : 128 * MIB;
    OK(memopt_offloader_create(b->device, b->allocator, NULL, &w.offloader));
    w.from = new_tensor(b, count, MEMOPT_DTYPE_F32, 1);
    w.into = new_tensor(b, count, MEMOPT_DTYPE_BF16, 1);
    balance(b, &w);
    for (uint32_t round = 0; round < rounds; round++)
        for (int way = 0; way < WAYS; way++)
            seconds[way][round] = step_seconds(b, &w, way);
    for (int way = 0; way < WAYS; way++) {
        middle[way] = median(seconds[way], rounds);
        figure_row(b, "save-on-CPU", names[way], 1e3 * middle[way], "ms");
    }
    double exposed = middle[2] - middle[0];
    figure_row(b, "save-on-CPU", "copy time hidden",
               exposed > 0 ? 100 * (middle[2] - middle[1]) / exposed : 0, "%");
    figure_row(b, "save-on-CPU", "offloaded over not offloaded", middle[1] / middle[0], "x");
    OK(memopt_offloader_destroy(w.offloader));
    free_tensor(b, &w.from);
    free_tensor(b, &w.into);
}
