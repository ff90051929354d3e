/*
 * Step time with offloaded activations, on a device that keeps time:
 *
 *     offload_overlap
 *
 * Prints a Markdown table. A model's layers save tensors in the forward pass; all but the last layer's
 * are packed, and copied back in the backward pass, so many bytes ahead. Kernels take what the card
 * needs for their operations, copies what the link needs for their bytes (mo_cpu_keep_time). Sizes and
 * the link's rate are divided by SCALE alike, which leaves the times as they are.
 *
 * "limit": what the schedule needs: max(forward, first layer's + copies out) + max(backward, copies
 * in + first layer's), since nothing is copied out before the first layer has run, and its backward
 * work comes behind the last copy. "held": the most that the allocator holds, in layers. "waits": of
 * the host before the end of the step.
 */
#include <memopt/offload.h>

#include "base/checked.h"
#include "timed.h"

enum { SCALE = 64, STEPS = 3, MOST_LAYERS = 64, MOST_TENSORS = 8 };

/* A transformer's layers: what one saves, in elements a token, and its weights. */
typedef struct model {
    const char *name;
    int layers;
    uint64_t tokens, sequence, width, weights;
    uint64_t saved[MOST_TENSORS]; /* two bytes each; ends at 0 */
} model;

/* The inputs of both norms, of the projections and of the activation; queries, keys and values; the
 * attention's output. */
static const model models[] = {
    {"GPT-2 medium, 4 × 1024 tokens",
     24,
     4096,
     1024,
     1024,
     12 * 1024 * 1024,
     {1024, 1024, 3072, 1024, 1024, 1024, 4096, 4096}},
    {"Llama-3-8B, 2048 tokens",
     32,
     2048,
     2048,
     4096,
     218112000,
     {4096, 4096, 6144, 4096, 4096, 4096, 28672, 14336}},
    {"ViT-L/16, 64 images",
     24,
     64 * 197,
     197,
     1024,
     12 * 1024 * 1024,
     {1024, 1024, 3072, 1024, 1024, 1024, 4096, 4096}},
};

static const card cards[] = {
    {"T4, PCIe 3", 25e3, 12},
    {"RTX 4090, PCIe 4", 100e3, 25},
    {"H100, PCIe 5", 400e3, 50},
};

typedef struct bench {
    const model *model;
    uint64_t forward, backward; /* nanoseconds of a layer */
    uint64_t tensors, bytes[MOST_TENSORS], layer_bytes, ahead;
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_offloader *offloader;
    memopt_stream stream;
    memopt_ticket tickets[MOST_LAYERS][MOST_TENSORS];
    void *kept[MOST_TENSORS];
} bench;

static void open_bench(bench *b, const model *m, const card *c)
{
    double weights = 2.0 * (double)m->tokens * (double)m->weights;
    double attention = 2.0 * (double)m->tokens * (double)m->sequence * (double)m->width;
    b->model = m;
    b->forward = (uint64_t)((weights + attention) / c->operations);
    b->backward = 2 * b->forward;
    b->tensors = b->layer_bytes = 0;
    for (int i = 0; i < MOST_TENSORS && m->saved[i] != 0; i++) {
        b->bytes[b->tensors] = 2 * m->tokens * m->saved[i] / SCALE;
        b->layer_bytes += b->bytes[b->tensors++];
    }
    b->ahead = 2 * b->layer_bytes;
    b->device = open_timed(c, SCALE, 2 * MIB / SCALE);
    NEED(memopt_allocator_create(b->device, "expandable_segments:True", NULL, &b->allocator));
    NEED(memopt_offloader_create(b->device, b->allocator, NULL, &b->offloader));
    NEED(memopt_stream_create(b->device, &b->stream));
}

static void close_bench(bench *b)
{
    NEED(memopt_offloader_destroy(b->offloader));
    NEED(memopt_allocator_destroy(b->allocator));
    NEED(memopt_stream_destroy(b->device, b->stream));
    NEED(memopt_device_close(b->device));
}

static void forward(bench *b, int layer)
{
    void *saved[MOST_TENSORS];
    for (uint64_t i = 0; i < b->tensors; i++)
        NEED(memopt_allocator_alloc(b->allocator, b->bytes[i], MEMOPT_TAG_OTHER, b->stream,
                                    &saved[i]));
    NEED(mo_cpu_work(b->device, b->stream, b->forward));
    for (uint64_t i = 0; i < b->tensors; i++) {
        if (layer == b->model->layers - 1)
            b->kept[i] = saved[i];
        else
            NEED(memopt_offloader_pack(b->offloader, saved[i], b->bytes[i], b->stream,
                                       &b->tickets[layer][i]));
    }
}

/* Copies back what is needed before `layer`'s work and as much behind it as may be ahead. */
static int prefetch(bench *b, int layer, int next)
{
    for (; next >= 0 && (uint64_t)(layer - next) * b->layer_bytes <= b->ahead; next--)
        for (uint64_t i = b->tensors; i-- > 0;)
            NEED(memopt_offloader_prefetch(b->offloader, b->tickets[next][i]));
    return next;
}

static void backward(bench *b, int layer)
{
    int packed = layer < b->model->layers - 1;
    void *data;
    for (uint64_t i = b->tensors; packed && i-- > 0;)
        NEED(memopt_offloader_unpack(b->offloader, b->tickets[layer][i], b->stream, &data));
    NEED(mo_cpu_work(b->device, b->stream, b->backward));
    for (uint64_t i = 0; i < b->tensors; i++) {
        if (packed)
            NEED(memopt_offloader_release(b->offloader, b->tickets[layer][i], b->stream));
        else
            NEED(memopt_allocator_free(b->allocator, b->kept[i]));
    }
}

/* Returns the nanoseconds, and how often the host waited before the end. */
static uint64_t step(bench *b, uint64_t *out_waits)
{
    uint64_t start = mo_cpu_now(b->device), waits = mo_cpu(b->device)->waits.waits;
    int next = b->model->layers - 2;
    for (int layer = 0; layer < b->model->layers; layer++)
        forward(b, layer);
    for (int layer = b->model->layers - 1; layer >= 0; layer--) {
        next = prefetch(b, layer, next);
        backward(b, layer);
    }
    *out_waits = mo_cpu(b->device)->waits.waits - waits;
    NEED(memopt_device_sync(b->device));
    return mo_cpu_now(b->device) - start;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void measure(const model *m, const card *c)
{
    bench b;
    uint64_t time = 0, waits = 0, held = 0;
    open_bench(&b, m, c);
    for (int i = 0; i < STEPS; i++)
        time = step(&b, &waits);
    NEED(memopt_allocator_get_stat(b.allocator, "reserved_bytes.all.peak", &held));
    uint64_t layers = (uint64_t)m->layers;
    double bytes = (double)((layers - 1) * b.layer_bytes);
    uint64_t copies = (uint64_t)(bytes / (c->link / SCALE)) + (layers - 1) * b.tensors * SETUP;
    uint64_t limit = larger(layers * b.forward, b.forward + copies) +
                     larger(layers * b.backward, copies + b.backward);
    printf("| %s | %s | %.1f ms | %.1f ms | %.1f ms | %.1f ms | %.4f | %.1f of %llu | %llu |\n",
           m->name, c->name, 1e-6 * (double)(layers * (b.forward + b.backward)),
           2e-6 * (double)copies, 1e-6 * (double)limit, 1e-6 * (double)time,
           (double)time / (double)limit, (double)held / (double)b.layer_bytes,
           (unsigned long long)layers, (unsigned long long)waits);
    close_bench(&b);
}

int main(void)
{
    printf("| layers | card | compute | copies | limit | step | ÷ limit | held | waits |\n");
    printf("|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        for (size_t k = 0; k < sizeof cards / sizeof cards[0]; k++)
            measure(&models[i], &cards[k]);
    return 0;
}
