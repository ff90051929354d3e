/*
 * Step time with streamed weights, on a device that keeps time:
 *
 *     stream_overlap
 *
 * Prints a Markdown table. Frozen layers of a model, of which the budget has a part, are used forward and
 * backward. Kernels take what the card needs for their operations, copies what the link needs for their
 * bytes (mo_cpu_keep_time). Sizes and the link's rate are divided by SCALE alike, which leaves the times
 * as they are.
 *
 * "limit": memopt_streamer_get_limit() for this budget, work and link. "late": layers whose copy had
 * not begun when they were needed, in the last step.
 */
#include <memopt/stream.h>

#include "timed.h"

enum { SCALE = 256, STEPS = 4, MOST_LAYERS = 64, PARTS = 7 };

/* Layers, tokens of a step, weights of a layer, bytes of a weight. */
typedef struct model {
    const char *name;
    uint32_t layers;
    double tokens, weights, bytes;
} model;

static const model models[] = {
    {"Llama-3-8B, bf16, 2048 tokens", 32, 2048, 218112000, 2},
    {"Llama-3-8B, nf4, 2048 tokens", 32, 2048, 218112000, 0.5625},
    {"Llama-3-8B, nf4, 512 tokens", 32, 512, 218112000, 0.5625},
};

static const card cards[] = {
    {"RTX 4060 8 GB, PCIe 4 x8", 25e3, 12},
    {"RTX 4090, PCIe 4", 100e3, 25},
    {"H100, PCIe 5", 400e3, 50},
};

static const double shares[] = {0.1, 0.5};

typedef struct bench {
    uint32_t layers;
    uint64_t work[2]; /* nanoseconds of a layer, forward and backward */
    uint64_t layer_bytes;
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_offloader *offloader;
    memopt_streamer *streamer;
    memopt_stream stream;
} bench;

static void add_layers(bench *b)
{
    memopt_stream_part parts[PARTS];
    uint32_t number;
    void *host;
    for (uint32_t layer = 0; layer < b->layers; layer++) {
        for (int i = 0; i < PARTS; i++) {
            parts[i].bytes = b->layer_bytes / PARTS / 256 * 256;
            NEED(memopt_offloader_reserve(b->offloader, parts[i].bytes, &parts[i].ticket, &host));
            NEED(memopt_offloader_host_end(b->offloader, parts[i].ticket));
        }
        NEED(memopt_streamer_add(b->streamer, parts, PARTS, &number));
    }
}

static void open_bench(bench *b, const model *m, const card *c, double share)
{
    b->layers = m->layers;
    b->work[0] = (uint64_t)(2 * m->tokens * m->weights / c->operations);
    b->work[1] = b->work[0]; /* frozen weights have no gradient: backward is as long as forward */
    b->layer_bytes = (uint64_t)(m->weights * m->bytes / SCALE);
    b->device = open_timed(c, SCALE, 0);
    NEED(memopt_allocator_create(b->device, NULL, NULL, &b->allocator));
    NEED(memopt_offloader_create(b->device, b->allocator, NULL, &b->offloader));
    NEED(memopt_stream_create(b->device, &b->stream));
    NEED(memopt_streamer_create(b->device, b->offloader,
                                (uint64_t)(share * (double)(b->layers * b->layer_bytes)),
                                &b->streamer));
    add_layers(b);
}

static void close_bench(bench *b)
{
    NEED(memopt_streamer_destroy(b->streamer));
    NEED(memopt_offloader_destroy_force(b->offloader));
    NEED(memopt_allocator_destroy(b->allocator));
    NEED(memopt_stream_destroy(b->device, b->stream));
    NEED(memopt_device_close(b->device));
}

/* Steps one behind the other; the nanoseconds of the last one. */
static uint64_t measure_step(bench *b, memopt_stream_stats *out_stats)
{
    uint64_t start = 0;
    void *parts[PARTS];
    memopt_stream_stats before = MEMOPT_STREAM_STATS_INIT;
    for (int step = 0; step < STEPS; step++) {
        NEED(memopt_device_sync(b->device));
        NEED(memopt_streamer_get_stats(b->streamer, &before));
        start = mo_cpu_now(b->device);
        for (uint32_t i = 0; i < 2 * b->layers; i++) {
            const uint32_t layer = i < b->layers ? i : 2 * b->layers - 1 - i;
            NEED(memopt_streamer_begin(b->streamer, layer, b->stream, parts));
            NEED(mo_cpu_work(b->device, b->stream, b->work[i >= b->layers]));
            NEED(memopt_streamer_end(b->streamer, layer, b->stream));
        }
    }
    NEED(memopt_device_sync(b->device));
    *out_stats = (memopt_stream_stats)MEMOPT_STREAM_STATS_INIT;
    NEED(memopt_streamer_get_stats(b->streamer, out_stats));
    out_stats->late -= before.late;
    out_stats->copies -= before.copies;
    return mo_cpu_now(b->device) - start;
}

static void measure(const model *m, const card *c, double share)
{
    bench b;
    double work[2 * MOST_LAYERS], limit = 0, compute = 0;
    memopt_stream_plan plan = MEMOPT_STREAM_PLAN_INIT;
    memopt_stream_stats stats;
    open_bench(&b, m, c, share);
    for (uint32_t i = 0; i < 2 * b.layers; i++)
        compute += work[i] = 1e-9 * (double)b.work[i >= b.layers];
    NEED(memopt_streamer_get_plan(b.streamer, NULL, 0, &plan));
    NEED(memopt_streamer_get_limit(b.streamer, NULL, 0, work, 1e9 * c->link / SCALE, &limit));
    double transfer = 1e-9 * (double)plan.copied_bytes / (c->link / SCALE);
    double step = 1e-9 * (double)measure_step(&b, &stats);
    printf(
        "| %s | %s | %llu of %u | %.0f ms | %.0f ms | %.2f | %.0f ms | %.0f ms | **%.3f** | %llu |"
        " %llu |\n",
        m->name, c->name, (unsigned long long)plan.resident, b.layers, 1e3 * compute,
        1e3 * transfer, limit / (transfer > compute ? transfer : compute), 1e3 * limit, 1e3 * step,
        step / limit, (unsigned long long)stats.copies, (unsigned long long)stats.late);
    close_bench(&b);
}

int main(void)
{
    printf("| layers | card | in the budget | compute | copies | limit ÷ larger of both | limit | "
           "step |"
           " ÷ limit | layers copied | late |\n");
    printf("|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        for (size_t k = 0; k < sizeof cards / sizeof cards[0]; k++)
            for (size_t s = 0; s < sizeof shares / sizeof shares[0]; s++)
                measure(&models[i], &cards[k], shares[s]);
    return 0;
}
