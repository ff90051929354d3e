/*
 * Uses every primitive on "cpu" and prints a digest of all that they computed: however the library
 * was built, it is the same.
 */
#include <memopt/memopt.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 5000, STEPS = 5, LAYERS = 4 };

#define CHECK(call)                                                                                \
    do {                                                                                           \
        memopt_status status_ = (call);                                                            \
        if (status_ != MEMOPT_OK) {                                                                \
            fprintf(stderr, "%s: %s: %s\n", #call, memopt_status_name(status_),                    \
                    memopt_last_error());                                                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static uint64_t digest = 14695981039346656037u;

static void note(const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        digest = (digest ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
}

static memopt_device *device;
static memopt_allocator *allocator;

static void *memory(uint64_t bytes, memopt_tag tag)
{
    void *out;
    CHECK(memopt_allocator_alloc(allocator, bytes, tag, NULL, &out));
    memset(out, 0, bytes); /* "cpu" */
    return out;
}

static void draw(float *values, uint32_t seed)
{
    for (int i = 0; i < COUNT; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

static void optimizers(void)
{
    const uint32_t formats[] = {MEMOPT_STATE_F32, MEMOPT_STATE_8BIT, MEMOPT_STATE_4BIT,
                                MEMOPT_STATE_BF16};
    float *weights = memory(COUNT * sizeof(float), MEMOPT_TAG_WEIGHTS);
    float *gradients = memory(COUNT * sizeof(float), MEMOPT_TAG_GRADIENTS);
    memopt_tensor weight = {weights, COUNT, MEMOPT_DTYPE_F32};
    memopt_tensor gradient = {gradients, COUNT, MEMOPT_DTYPE_F32};
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
        memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
        memopt_step_options step = MEMOPT_STEP_OPTIONS_INIT;
        memopt_optimizer *optimizer;
        uint32_t number;
        uint64_t index;
        options.state_format = formats[f];
        step.max_norm = 10.0;
        draw(weights, 1);
        CHECK(memopt_optimizer_create(allocator, &options, &optimizer));
        CHECK(memopt_optimizer_add_group(optimizer, &group, &number));
        CHECK(memopt_optimizer_add_parameter(optimizer, number, &weight, NULL, NULL, &index));
        for (uint32_t i = 0; i < STEPS; i++) {
            draw(gradients, 2 + i);
            CHECK(memopt_optimizer_step(optimizer, &gradient, 1, &step, NULL));
            CHECK(memopt_stream_sync(device, NULL));
        }
        note(weights, COUNT * sizeof(float));
        CHECK(memopt_optimizer_destroy(optimizer));
    }
    CHECK(memopt_allocator_free(allocator, weights));
    CHECK(memopt_allocator_free(allocator, gradients));
}

static void casts(void)
{
    const memopt_dtype types[] = {MEMOPT_DTYPE_F16, MEMOPT_DTYPE_BF16, MEMOPT_DTYPE_F8_E4M3,
                                  MEMOPT_DTYPE_F8_E5M2};
    float *values = memory(COUNT * sizeof(float), MEMOPT_TAG_OTHER);
    unsigned char *narrow = memory(COUNT * sizeof(float), MEMOPT_TAG_OTHER);
    memopt_tensor from = {values, COUNT, MEMOPT_DTYPE_F32};
    float norm = 0.0f;
    draw(values, 3);
    for (uint32_t stochastic = 0; stochastic < 2; stochastic++)
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
            memopt_cast_options options = MEMOPT_CAST_OPTIONS_INIT;
            memopt_tensor to = {narrow, COUNT, types[t]};
            options.rounding = stochastic ? MEMOPT_ROUND_STOCHASTIC : MEMOPT_ROUND_NEAREST_EVEN;
            options.seed = 4;
            CHECK(memopt_cast(device, &to, &from, 1, &options, NULL));
            CHECK(memopt_stream_sync(device, NULL));
            note(narrow, COUNT * (t < 2 ? 2 : 1));
        }
    CHECK(memopt_norm(device, &norm, &from, 1, 0.0, NULL));
    CHECK(memopt_stream_sync(device, NULL));
    note(&norm, sizeof norm);
    CHECK(memopt_allocator_free(allocator, narrow));
    CHECK(memopt_allocator_free(allocator, values));
}

/* --- a region, and what it computes parked on the host ---------------------------------------- */

static float *leased;

static memopt_status run(void *user, memopt_region *region, memopt_region_pass pass,
                         memopt_stream stream)
{
    memopt_tensor values = {NULL, COUNT, MEMOPT_DTYPE_F32};
    (void)pass;
    (void)stream;
    CHECK(memopt_region_alloc(region, COUNT * sizeof(float), &values.data));
    leased = values.data;
    draw(leased, *(const uint32_t *)user);
    return memopt_region_check(region, "values", &values);
}

static void regions(void)
{
    uint32_t seed = 5;
    memopt_region_callbacks callbacks = {sizeof callbacks, run, NULL, NULL, &seed};
    memopt_region_options options = MEMOPT_REGION_OPTIONS_INIT;
    memopt_region *region;
    options.mode = MEMOPT_REGION_RECOMPUTE;
    options.check = MEMOPT_CHECK_HASH;
    CHECK(memopt_region_create(device, allocator, &callbacks, &options, &region));
    CHECK(memopt_region_forward(region, NULL));
    CHECK(memopt_region_recompute(region, NULL));
    note(leased, COUNT * sizeof(float));
    CHECK(memopt_region_release(region));
    CHECK(memopt_region_forward(region, NULL));
    seed = 6; /* other values */
    if (memopt_region_recompute(region, NULL) != MEMOPT_MISMATCH)
        exit(1);
    CHECK(memopt_region_reset(region));
    CHECK(memopt_region_destroy(region));
}

/* Values of an offloader, back in one piece, and as weights that stream through half of their size. */
static void offload(void)
{
    const uint64_t bytes = COUNT * sizeof(float);
    memopt_offloader *offloader;
    memopt_streamer *streamer;
    memopt_ticket tickets[LAYERS];
    memopt_stream stream;
    void *back;
    uint32_t layer;
    CHECK(memopt_stream_create(device, &stream));
    CHECK(memopt_offloader_create(device, allocator, NULL, &offloader));
    for (uint32_t i = 0; i < LAYERS; i++) {
        CHECK(memopt_allocator_alloc(allocator, bytes, MEMOPT_TAG_ACTIVATIONS, stream, &back));
        draw(back, 7 + i);
        CHECK(memopt_offloader_pack(offloader, back, bytes, stream, &tickets[i]));
    }
    CHECK(memopt_streamer_create(device, offloader, 2 * bytes + 1024, &streamer));
    for (uint32_t i = 0; i < LAYERS; i++) {
        memopt_stream_part part = {tickets[i], bytes};
        CHECK(memopt_streamer_add(streamer, &part, 1, &layer));
    }
    for (uint32_t i = 0; i < 2 * LAYERS; i++) {
        CHECK(memopt_streamer_begin(streamer, i % LAYERS, stream, &back));
        CHECK(memopt_stream_sync(device, stream));
        note(back, bytes);
        CHECK(memopt_streamer_end(streamer, i % LAYERS, stream));
    }
    CHECK(memopt_streamer_destroy(streamer));
    for (uint32_t i = LAYERS; i-- > 0;) {
        CHECK(memopt_offloader_unpack(offloader, tickets[i], stream, &back));
        CHECK(memopt_stream_sync(device, stream));
        note(back, bytes);
        CHECK(memopt_offloader_release(offloader, tickets[i], stream));
    }
    CHECK(memopt_offloader_destroy(offloader));
    CHECK(memopt_stream_destroy(device, stream));
}

static void schedules(void)
{
    memopt_chain_stage stages[16];
    memopt_schedule_options options = MEMOPT_SCHEDULE_OPTIONS_INIT;
    memopt_schedule_step step = MEMOPT_SCHEDULE_STEP_INIT;
    memopt_schedule *schedule;
    for (uint64_t i = 0; i < 16; i++)
        stages[i] = (memopt_chain_stage){1.0 + (double)(i % 3), 2.0, 100 + i, 300 + 7 * i, 0, 0};
    options.budget = 3000;
    CHECK(memopt_schedule_create(stages, 16, &options, &schedule));
    while (memopt_schedule_next(schedule, &step) == MEMOPT_OK) {
        note(&step.operation, sizeof step.operation);
        note(&step.stage, sizeof step.stage);
    }
    CHECK(memopt_schedule_destroy(schedule));
}

int main(void)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *none;
    void *block;
    options.capacity = (uint64_t)1 << 26;
    CHECK(memopt_device_open("cpu", &options, &device));
    CHECK(memopt_allocator_create(device, "expandable_segments:True", NULL, &allocator));
    optimizers();
    casts();
    regions();
    offload();
    schedules();
    if (memopt_allocator_alloc(allocator, (uint64_t)1 << 30, MEMOPT_TAG_OTHER, NULL, &block) !=
        MEMOPT_OUT_OF_DEVICE_MEMORY)
        return 1;
    if (memopt_device_open("nothing", NULL, &none) != MEMOPT_NOT_FOUND)
        return 1;
    CHECK(memopt_allocator_destroy(allocator));
    CHECK(memopt_device_close(device));
    printf("%016" PRIx64 "\n", digest);
    return 0;
}
