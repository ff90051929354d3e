/*
 * Mixed precision in one loop: float32 master weights, a bfloat16 copy for the model, float16
 * gradients under a dynamic loss scale.
 *
 * The "model" is a line, w · x, fitted to y = 3 x; its gradients are so small that float16 would
 * lose them without a loss scale. One of the steps overflows on purpose.
 */
#include <memopt/cast.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define WEIGHTS 4096

/* Every call returns a status; the message of the failed one says what to do. */
static void must(memopt_status status)
{
    if (status != MEMOPT_OK) {
        fprintf(stderr, "%s: %s\n", memopt_status_name(status), memopt_last_error());
        exit(1);
    }
}

/* A tensor is a pointer, a count and an element type. On the "cpu" device any memory will do. */
static memopt_tensor tensor(void *data, memopt_dtype dtype)
{
    memopt_tensor t = {data, WEIGHTS, dtype};
    return t;
}

/* Mean of a bf16 tensor: widened to float32 first. */
static double mean_of(memopt_device *device, const memopt_tensor *brain, float *room)
{
    double sum = 0;
    memopt_tensor wide = tensor(room, MEMOPT_DTYPE_F32);
    must(memopt_cast(device, &wide, brain, 1, NULL, NULL));
    for (int i = 0; i < WEIGHTS; i++)
        sum += (double)room[i];
    return sum / WEIGHTS;
}

/* 1. Rounding: to nearest, 1 + 2^-10 always becomes 1; stochastically it is right on average. */
static int show_rounding(memopt_device *device)
{
    static float source[WEIGHTS], room[WEIGHTS];
    static uint16_t result[WEIGHTS];
    memopt_tensor from = tensor(source, MEMOPT_DTYPE_F32), to = tensor(result, MEMOPT_DTYPE_BF16);
    memopt_cast_options options = MEMOPT_CAST_OPTIONS_INIT;
    double nearest, stochastic;

    for (int i = 0; i < WEIGHTS; i++)
        source[i] = 1.0f + 1.0f / 1024;
    must(memopt_cast(device, &to, &from, 1, NULL, NULL));
    nearest = mean_of(device, &to, room);

    options.rounding = MEMOPT_ROUND_STOCHASTIC;
    options.seed = 42;    /* a run's own number */
    options.sequence = 0; /* the step: each step draws other bits */
    must(memopt_cast(device, &to, &from, 1, &options, NULL));
    stochastic = mean_of(device, &to, room);

    printf("1.000977 as bf16, mean of %d: %.6f to nearest, %.6f stochastically\n", WEIGHTS, nearest,
           stochastic);
    return nearest == 1.0 && fabs(stochastic - 1.000977) < 0.0003;
}

/* Gradients of the scaled loss, rounded to float16 as a model in float16 would give them. */
static void backward(memopt_device *device, const float *weights, uint16_t *gradients, float scale)
{
    static float exact[WEIGHTS];
    memopt_tensor from = tensor(exact, MEMOPT_DTYPE_F32), to = tensor(gradients, MEMOPT_DTYPE_F16);
    for (int i = 0; i < WEIGHTS; i++)
        exact[i] = (weights[i] - 3.0f) * 1e-8f * scale; /* below float16's range unless scaled */
    must(memopt_cast(device, &to, &from, 1, NULL, NULL));
}

/* 2. Blocks: a scale for each 32 values keeps the range of f32 in 8 bits. */
static int show_blocks(memopt_device *device)
{
    static float source[WEIGHTS], back[WEIGHTS];
    static uint8_t codes[WEIGHTS], scales[WEIGHTS / 32];
    static uint8_t turned_codes[WEIGHTS], turned_scales[WEIGHTS / 32];
    memopt_tensor from = tensor(source, MEMOPT_DTYPE_F32), to = tensor(back, MEMOPT_DTYPE_F32);
    double error = 0;

    for (int i = 0; i < WEIGHTS; i++)
        source[i] = ldexpf(1.0f + (float)(i % 31) / 31, i / 32 - 64);
    memopt_blocks matrix = {codes, scales, NULL, 32, 128, MEMOPT_BLOCKS_MXFP8_E4M3};
    must(memopt_blocks_quantize(device, &matrix, &from, 1, NULL, NULL));
    must(memopt_blocks_dequantize(device, &to, &matrix, 1, NULL));
    memopt_blocks turned = {turned_codes, turned_scales, NULL, 128, 32, MEMOPT_BLOCKS_MXFP8_E4M3};
    must(memopt_blocks_quantize_transpose(device, &matrix, &turned, &from, 1, NULL, NULL));
    for (int i = 0; i < WEIGHTS; i++)
        if (fabs((double)back[i] / (double)source[i] - 1) > error)
            error = fabs((double)back[i] / (double)source[i] - 1);
    printf("2^-64 to 2^64 as mxfp8: %.4f at most away\n", error);
    return error < 0.13;
}

/* 3. Training under a loss scale. */
static int train(memopt_device *device)
{
    static float weights[WEIGHTS], step_gradient[WEIGHTS], room[WEIGHTS], norm;
    static uint16_t gradients[WEIGHTS], model[WEIGHTS];
    memopt_tensor master = tensor(weights, MEMOPT_DTYPE_F32);
    memopt_tensor copy = tensor(model, MEMOPT_DTYPE_BF16);
    memopt_tensor half = tensor(gradients, MEMOPT_DTYPE_F16);
    memopt_tensor wide = tensor(step_gradient, MEMOPT_DTYPE_F32);
    memopt_scaler_options options = MEMOPT_SCALER_OPTIONS_INIT;
    memopt_scaler_state state = MEMOPT_SCALER_STATE_INIT;
    memopt_scaler *scaler = NULL;
    double scratch[8]; /* memopt_norm_get_scratch() tells how much for larger lists */
    int skipped = 0;

    options.growth_interval = 20; /* short, to see it grow */
    must(memopt_scaler_create(device, &options, &scaler));
    for (int step = 0; step < 60; step++) {
        /* The scale is one float in device memory: a loss kernel multiplies by it in place. On the
         * "cpu" device the host may read it too. */
        backward(device, weights, gradients, *memopt_scaler_get_scale(scaler));
        if (step == 30)
            gradients[7] = 0x7c00; /* an overflow: +infinity */

        must(memopt_cast(device, &wide, &half, 1, NULL, NULL));
        must(memopt_scaler_unscale(scaler, &wide, 1, NULL)); /* notes non-finite gradients */
        must(memopt_clip(device, &norm, &wide, 1, 1e-3, scratch, sizeof scratch, NULL));
        if (*memopt_scaler_get_found_inf(scaler) == 0.0f) {
            for (int i = 0; i < WEIGHTS; i++)
                weights[i] -= 1e7f * step_gradient[i];
        } else {
            skipped++;
        }
        must(memopt_scaler_update(scaler, NULL)); /* shrink or grow; clear the flag */
        must(memopt_cast(device, &copy, &master, 1, NULL, NULL));
    }
    must(memopt_scaler_get_state_sync(scaler, NULL, &state));
    must(memopt_scaler_destroy(scaler));

    double mean = mean_of(device, &copy, room);
    printf("60 steps: weights %.3f (wanted 3), %d skipped, scale %g, %u clean steps, norm %.3g\n",
           mean, skipped, state.scale, (unsigned)state.growth_tracker, (double)norm);
    /* 65536 · 2 (step 19) / 2 (step 30) · 2 (step 50), and 9 clean steps since. */
    return fabs(mean - 3.0) < 0.02 && skipped == 1 && state.scale == 131072.0 &&
           state.growth_tracker == 9;
}

int main(void)
{
    memopt_device *device = NULL;
    int good;
    must(memopt_device_open("cpu", NULL, &device));
    good = show_rounding(device);
    good = show_blocks(device) && good;
    good = train(device) && good;
    must(memopt_device_close(device));
    puts(good ? "as expected" : "NOT as expected");
    return good ? 0 : 1;
}
