/*
 * Checkpoint regions: train a step without keeping the activations.
 *
 * A small network of 16 layers runs forward and backward three times: keeping every activation,
 * recomputing each layer just before its backward, and recomputing with the content check on while
 * we make the mistake that recomputation invites: not restoring the state of the random generator
 * that dropout draws from.
 *
 * Build it with:  cc checkpoint.c $(pkg-config --cflags --libs memopt) -lm
 */
#include "example.h"

#include <inttypes.h>
#include <math.h>

enum { LAYERS = 16, WIDTH = 1 << 16 };

/* The generator that dropout uses. Its state is all that a region has to save and restore. */
typedef struct generator {
    uint64_t state;
} generator;

static float draw(generator *g)
{
    g->state = g->state * 6364136223846793005u + 1442695040888963407u;
    return (float)(g->state >> 40) / (float)(1 << 24);
}

typedef struct model model;

/* y = tanh(dropout(w * x)), element by element: little arithmetic, but three values to keep. */
typedef struct layer {
    model *model;
    memopt_region *region;
    float *w, *gradient;
    const float *x; /* the region's input: the layer below keeps it */
    float *y;       /* its output: kept by us */
    float *keep;    /* leased: the dropout mask */
    float *dropped; /* leased: what goes into tanh */
    float *slope;   /* leased: 1 - tanh² */
} layer;

struct model {
    memopt_device *device;
    memopt_allocator *allocator;
    generator random;
    int forget_random; /* our mistake, for the third run */
    float *input, *error;
    layer layers[LAYERS];
};

/*
 * The region's callback. It is called in the forward pass and, where the region recomputes, once
 * more before backward; it does the same both times. Everything that backward needs is leased.
 * Here the host computes, in memory that the device shares; in a trainer these loops are kernels on
 * `stream`.
 */
static memopt_status run_layer(void *user, memopt_region *region, memopt_region_pass pass,
                               memopt_stream stream)
{
    layer *l = user;
    void *leases[3];
    (void)pass;
    for (int i = 0; i < 3; i++) {
        memopt_status status = memopt_region_alloc(region, WIDTH * sizeof(float), &leases[i]);
        if (status != MEMOPT_OK)
            return status; /* comes out of memopt_region_forward() unchanged */
    }
    l->keep = leases[0];
    l->dropped = leases[1];
    l->slope = leases[2];
    for (int i = 0; i < WIDTH; i++) {
        l->keep[i] = draw(&l->model->random) < 0.1f ? 0.0f : 1.0f / 0.9f;
        l->dropped[i] = l->keep[i] * l->w[i] * l->x[i];
        l->y[i] = tanhf(l->dropped[i]);
        l->slope[i] = 1.0f - l->y[i] * l->y[i];
    }
    memopt_tensor mask = {l->keep, WIDTH, MEMOPT_DTYPE_F32};
    CHECK(memopt_region_check(region, "mask", &mask));   /* free unless a check mode is on */
    return memopt_stream_sync(l->model->device, stream); /* the host goes on to write the memory */
}

static memopt_status save_random(void *user, void *state)
{
    memcpy(state, &((layer *)user)->model->random, sizeof(generator));
    return MEMOPT_OK;
}

static memopt_status restore_random(void *user, const void *state)
{
    model *m = ((layer *)user)->model;
    if (!m->forget_random)
        memcpy(&m->random, state, sizeof(generator));
    return MEMOPT_OK;
}

/* The loop of a trainer: forward in order, backward in reverse, a region's leases alive between
 * recompute and release. */
static memopt_status train_step(model *m)
{
    for (int i = 0; i < LAYERS; i++) {
        memopt_status status = memopt_region_forward(m->layers[i].region, NULL);
        if (status != MEMOPT_OK)
            return status;
    }
    for (int k = 0; k < WIDTH; k++) /* the loss is half the sum of squares */
        m->error[k] = m->layers[LAYERS - 1].y[k];
    for (int i = LAYERS - 1; i >= 0; i--) {
        layer *l = &m->layers[i];
        memopt_status status = memopt_region_recompute(l->region, NULL);
        if (status != MEMOPT_OK)
            return status;
        for (int k = 0; k < WIDTH; k++) {
            float inner = m->error[k] * l->slope[k] * l->keep[k];
            l->gradient[k] = inner * l->x[k];
            m->error[k] = inner * l->w[k];
        }
        CHECK(memopt_region_release(l->region));
    }
    return MEMOPT_OK;
}

static float *device_floats(model *m, memopt_tag tag)
{
    void *memory = NULL;
    CHECK(memopt_allocator_alloc(m->allocator, WIDTH * sizeof(float), tag, NULL, &memory));
    return memory;
}

static void build(model *m, const char *name)
{
    m->device = open_device(name, 0);
    m->allocator = shared_memory(m->device);
    m->input = device_floats(m, MEMOPT_TAG_OTHER);
    m->error = device_floats(m, MEMOPT_TAG_OTHER);
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &m->layers[i];
        l->model = m;
        l->w = device_floats(m, MEMOPT_TAG_WEIGHTS);
        l->gradient = device_floats(m, MEMOPT_TAG_GRADIENTS);
        l->y = device_floats(m, MEMOPT_TAG_OTHER);
        l->x = i == 0 ? m->input : m->layers[i - 1].y;
    }
}

/* One step in a mode. Returns its status; the most bytes of leases at once, and a fingerprint of
 * every gradient bit, through the pointers. */
static memopt_status run(model *m, uint32_t mode, uint32_t check_mode, uint64_t *peak,
                         uint64_t *gradients)
{
    memopt_tag_stats tag = MEMOPT_TAG_STATS_INIT;
    m->random.state = 2026;
    for (int k = 0; k < WIDTH; k++)
        m->input[k] = 0.5f + draw(&m->random);
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &m->layers[i];
        memopt_region_callbacks callbacks = {sizeof callbacks, run_layer, save_random,
                                             restore_random, l};
        memopt_region_options options = MEMOPT_REGION_OPTIONS_INIT;
        char name[16];
        snprintf(name, sizeof name, "layer %d", i);
        options.name = name;
        options.mode = mode;
        options.check = check_mode;
        options.random_bytes = sizeof(generator);
        CHECK(memopt_region_create(m->device, m->allocator, &callbacks, &options, &l->region));
        for (int k = 0; k < WIDTH; k++)
            l->w[k] = 0.5f + draw(&m->random);
    }
    CHECK(memopt_allocator_reset_peaks(m->allocator));
    memopt_status status = train_step(m);
    CHECK(memopt_allocator_get_tag_stats(m->allocator, MEMOPT_TAG_ACTIVATIONS, &tag));
    *peak = tag.peak_bytes;
    *gradients = 14695981039346656037u;
    for (int i = 0; i < LAYERS; i++) {
        for (int k = 0; k < WIDTH; k++) {
            uint32_t bits;
            memcpy(&bits, &m->layers[i].gradient[k], sizeof bits);
            *gradients = (*gradients ^ bits) * 1099511628211u;
        }
        CHECK(memopt_region_destroy(m->layers[i].region));
    }
    return status;
}

int main(int count, char **words)
{
    static model m;
    uint64_t peak_kept, peak_recomputed, peak_checked, kept, recomputed, checked;
    build(&m, device_argument(count, words, "cpu"));

    CHECK(run(&m, MEMOPT_REGION_KEEP, MEMOPT_CHECK_NONE, &peak_kept, &kept));
    CHECK(run(&m, MEMOPT_REGION_RECOMPUTE, MEMOPT_CHECK_NONE, &peak_recomputed, &recomputed));
    printf("%d layers of %d values, three activations each\n", LAYERS, WIDTH);
    printf("  keeping:      %6.1f MiB of activations at the peak, gradients %016" PRIx64 "\n",
           (double)peak_kept / 1048576, kept);
    printf("  recomputing:  %6.1f MiB of activations at the peak, gradients %016" PRIx64 "\n",
           (double)peak_recomputed / 1048576, recomputed);

    m.forget_random = 1;
    memopt_status status =
        run(&m, MEMOPT_REGION_RECOMPUTE, MEMOPT_CHECK_HASH, &peak_checked, &checked);
    printf("  random state not restored, with the content check on (%.1f MiB):\n    %s: %s\n",
           (double)peak_checked / 1048576, memopt_status_name(status), memopt_last_error());

    int good =
        kept == recomputed && peak_recomputed * LAYERS == peak_kept && status == MEMOPT_MISMATCH;
    printf("%s\n", good ? "Same gradients in a sixteenth of the memory, and the mistake was found."
                        : "FAILED: this is not what should have happened");
    CHECK(memopt_allocator_destroy_force(m.allocator));
    CHECK(memopt_device_close(m.device));
    return good ? 0 : 1;
}
