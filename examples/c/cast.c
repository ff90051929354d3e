/*
 * Mixed precision in one loop: float32 master weights, a bfloat16 copy for the model, float16
 * gradients under a dynamic loss scale.
 *
 * The "model" is a line, w · x, fitted to y = 3 x; its gradients are so small that float16 would
 * lose them without a loss scale. One of the steps overflows on purpose.
 */
#include "example.h"

#include <math.h>

#define WEIGHTS 4096

static memopt_device *device;
static memopt_allocator *memory; /* of the host and the device */

static void *room(uint64_t bytes)
{
    void *pointer;
    CHECK(memopt_allocator_alloc(memory, bytes, MEMOPT_TAG_OTHER, NULL, &pointer));
    return memset(pointer, 0, bytes);
}

/* A tensor is a pointer, a count and an element type. */
static memopt_tensor tensor(memopt_dtype dtype)
{
    memopt_tensor t = {room(WEIGHTS * memopt_dtype_size(dtype)), WEIGHTS, dtype};
    return t;
}

/* Calls only enqueue. Before the host looks at what they make, it waits. */
static void wait_for_device(void)
{
    CHECK(memopt_stream_sync(device, NULL));
}

/* Mean of a bf16 tensor: widened to float32 first. */
static double mean_of(const memopt_tensor *brain)
{
    double sum = 0;
    memopt_tensor wide = tensor(MEMOPT_DTYPE_F32);
    CHECK(memopt_cast(device, &wide, brain, 1, NULL, NULL));
    wait_for_device();
    for (int i = 0; i < WEIGHTS; i++)
        sum += (double)((float *)wide.data)[i];
    CHECK(memopt_allocator_free(memory, wide.data));
    return sum / WEIGHTS;
}

/* 1. Rounding: to nearest, 1 + 2^-10 always becomes 1; stochastically it is right on average. */
static int show_rounding(void)
{
    memopt_tensor from = tensor(MEMOPT_DTYPE_F32), to = tensor(MEMOPT_DTYPE_BF16);
    memopt_cast_options options = MEMOPT_CAST_OPTIONS_INIT;
    double nearest, stochastic;

    for (int i = 0; i < WEIGHTS; i++)
        ((float *)from.data)[i] = 1.0f + 1.0f / 1024;
    CHECK(memopt_cast(device, &to, &from, 1, NULL, NULL));
    nearest = mean_of(&to);

    options.rounding = MEMOPT_ROUND_STOCHASTIC;
    options.seed = 42;    /* a run's own number */
    options.sequence = 0; /* the step: each step draws other bits */
    CHECK(memopt_cast(device, &to, &from, 1, &options, NULL));
    stochastic = mean_of(&to);

    printf("1.000977 as bf16, mean of %d: %.6f to nearest, %.6f stochastically\n", WEIGHTS, nearest,
           stochastic);
    return nearest == 1.0 && fabs(stochastic - 1.000977) < 0.0003;
}

/* Gradients of the scaled loss, rounded to float16 as a model in float16 would give them. */
static void backward(const float *weights, const memopt_tensor *gradients, float scale)
{
    memopt_tensor from = tensor(MEMOPT_DTYPE_F32);
    float *exact = from.data;
    for (int i = 0; i < WEIGHTS; i++)
        exact[i] = (weights[i] - 3.0f) * 1e-8f * scale; /* below float16's range unless scaled */
    CHECK(memopt_cast(device, gradients, &from, 1, NULL, NULL));
    wait_for_device();
    CHECK(memopt_allocator_free(memory, exact));
}

/* 2. Blocks: a scale for each 32 values keeps the range of f32 in 8 bits. */
static int show_blocks(void)
{
    void *codes = room(WEIGHTS), *scales = room(WEIGHTS / 32);
    memopt_tensor from = tensor(MEMOPT_DTYPE_F32), to = tensor(MEMOPT_DTYPE_F32);
    float *source = from.data;
    const float *back = to.data;
    double error = 0;

    for (int i = 0; i < WEIGHTS; i++)
        source[i] = ldexpf(1.0f + (float)(i % 31) / 31, i / 32 - 64);
    memopt_blocks matrix = {codes, scales, NULL, 32, 128, MEMOPT_BLOCKS_MXFP8_E4M3};
    CHECK(memopt_blocks_quantize(device, &matrix, &from, 1, NULL, NULL));
    CHECK(memopt_blocks_dequantize(device, &to, &matrix, 1, NULL));
    wait_for_device();
    for (int i = 0; i < WEIGHTS; i++)
        if (fabs((double)back[i] / (double)source[i] - 1) > error)
            error = fabs((double)back[i] / (double)source[i] - 1);
    printf("2^-64 to 2^64 as mxfp8: %.4f at most away\n", error);
    return error < 0.13;
}

/* 3. Cross-entropy of 4 rows and 4096 classes, of which 1024 are there at a time. */
static int show_cross_entropy(void)
{
    enum { ROWS = 4, PIECE = 1024 };
    memopt_tensor logits = tensor(MEMOPT_DTYPE_F32); /* ROWS * PIECE of them */
    memopt_cross_entropy_row *rows = room(ROWS * sizeof *rows);
    int32_t *targets = room(ROWS * sizeof *targets);
    float *losses = room(ROWS * sizeof *losses), *gradient = logits.data;
    memopt_logits piece = MEMOPT_LOGITS_INIT;

    targets[1] = 1, targets[2] = 4095, targets[3] = -1; /* the last row is ignored */
    piece.data = logits.data;
    piece.rows = ROWS;
    piece.columns = PIECE;
    for (piece.first_class = 0; piece.first_class < WEIGHTS; piece.first_class += PIECE)
        CHECK(memopt_cross_entropy_add(device, &piece, targets, rows, NULL)); /* all logits are 0 */
    CHECK(memopt_cross_entropy_losses(device, rows, targets, ROWS, losses, NULL));
    piece.first_class = 0; /* the first piece's gradient takes the place of its logits */
    CHECK(memopt_cross_entropy_gradient(device, &piece, targets, rows, 1.0f, NULL));
    wait_for_device();
    printf("a loss of %.4f, the logarithm of %d; a gradient of %.6f\n", (double)losses[2], WEIGHTS,
           (double)gradient[1]);
    return fabs((double)losses[2] - log(WEIGHTS)) < 1e-6 && losses[3] == 0.0f &&
           gradient[1] == 1.0f / WEIGHTS && gradient[0] == 1.0f / WEIGHTS - 1.0f;
}

/* 4. Training under a loss scale. */
static int train(void)
{
    memopt_tensor master = tensor(MEMOPT_DTYPE_F32), copy = tensor(MEMOPT_DTYPE_BF16);
    memopt_tensor half = tensor(MEMOPT_DTYPE_F16), wide = tensor(MEMOPT_DTYPE_F32);
    float *weights = master.data, *step_gradient = wide.data, *norm = room(sizeof *norm);
    float scale, found_inf;
    memopt_scaler_options options = MEMOPT_SCALER_OPTIONS_INIT;
    memopt_scaler_state state = MEMOPT_SCALER_STATE_INIT;
    memopt_scaler *scaler = NULL;
    int skipped = 0;

    options.growth_interval = 20; /* short, to see it grow */
    CHECK(memopt_scaler_create(device, &options, &scaler));
    for (int step = 0; step < 60; step++) {
        /* The scale is one float in device memory: a loss kernel multiplies by it in place. Here
         * the host is the model, so it has to wait for it. */
        CHECK(memopt_copy_sync(device, &scale, memopt_scaler_get_scale(scaler), 4, NULL));
        backward(weights, &half, scale);
        if (step == 30)
            ((uint16_t *)half.data)[7] = 0x7c00; /* an overflow: +infinity */

        CHECK(memopt_cast(device, &wide, &half, 1, NULL, NULL));
        CHECK(memopt_scaler_unscale(scaler, &wide, 1, NULL)); /* notes non-finite gradients */
        CHECK(memopt_norm(device, norm, &wide, 1, 1e-3, NULL));
        CHECK(memopt_copy_sync(device, &found_inf, memopt_scaler_get_found_inf(scaler), 4, NULL));
        if (found_inf == 0.0f) {
            for (int i = 0; i < WEIGHTS; i++)
                weights[i] -= 1e7f * step_gradient[i];
        } else {
            skipped++;
        }
        CHECK(memopt_scaler_update(scaler, NULL)); /* shrink or grow; clear the flag */
        CHECK(memopt_cast(device, &copy, &master, 1, NULL, NULL));
    }
    CHECK(memopt_scaler_get_state_sync(scaler, NULL, &state));
    CHECK(memopt_scaler_destroy(scaler));

    double mean = mean_of(&copy);
    printf("60 steps: weights %.3f (wanted 3), %d skipped, scale %g, %u clean steps, norm %.3g\n",
           mean, skipped, state.scale, (unsigned)state.growth_tracker, (double)*norm);
    /* 65536 · 2 (step 19) / 2 (step 30) · 2 (step 50), and 9 clean steps since. */
    return fabs(mean - 3.0) < 0.02 && skipped == 1 && state.scale == 131072.0 &&
           state.growth_tracker == 9;
}

int main(int count, char **words)
{
    device = open_device(device_argument(count, words, "cpu"), 0);
    memory = shared_memory(device);
    int good = show_rounding();
    good = show_blocks() && good;
    good = show_cross_entropy() && good;
    good = train() && good;
    CHECK(memopt_allocator_destroy_force(memory)); /* with all that is still in it */
    CHECK(memopt_device_close(device));
    puts(good ? "as expected" : "NOT as expected");
    return good ? 0 : 1;
}
