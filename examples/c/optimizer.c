/*
 * 8-bit AdamW: the same model trained twice, with 32-bit and with 8-bit states.
 *
 * The model is a linear map y = W x from 64 inputs to 64 outputs that learns a hidden map. The
 * program shows what the states take, that both runs learn, and that a step whose gradients are not
 * finite changes nothing.
 */
#include "example.h"

#include <math.h>

enum { WIDTH = 64, WEIGHTS = WIDTH * WIDTH, STEPS = 200 };

static float random_value(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

/* One sample: gradient of the squared error by W, and the error itself. */
static float forward_backward(const float *w, const float *hidden, unsigned *state, float *gradient)
{
    float x[WIDTH], loss = 0.0f;
    for (int i = 0; i < WIDTH; i++)
        x[i] = random_value(state);
    for (int o = 0; o < WIDTH; o++) {
        float error = 0.0f;
        for (int i = 0; i < WIDTH; i++)
            error += (w[o * WIDTH + i] - hidden[o * WIDTH + i]) * x[i];
        for (int i = 0; i < WIDTH; i++)
            gradient[o * WIDTH + i] = error * x[i];
        loss += error * error / WIDTH;
    }
    return loss;
}

/* Memory for one tensor of floats. */
static memopt_tensor new_tensor(memopt_allocator *allocator, memopt_tag tag)
{
    memopt_tensor t = {NULL, WEIGHTS, MEMOPT_DTYPE_F32};
    CHECK(memopt_allocator_alloc(allocator, WEIGHTS * sizeof(float), tag, NULL, &t.data));
    memset(t.data, 0, WEIGHTS * sizeof(float));
    return t;
}

static memopt_optimizer *new_optimizer(memopt_allocator *allocator, uint32_t format,
                                       const memopt_tensor *weights)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT; /* torch's defaults */
    memopt_optimizer *optimizer;
    uint32_t number;
    uint64_t index;
    options.state_format = format;
    group.lr = 1e-2;
    group.weight_decay = 0.0;
    CHECK(memopt_optimizer_create(allocator, &options, &optimizer));
    CHECK(memopt_optimizer_add_group(optimizer, &group, &number));
    CHECK(memopt_optimizer_add_parameter(optimizer, number, weights, NULL, NULL, &index));
    return optimizer;
}

/* Trains with one format; returns the last loss, and the bytes of the states. */
static float train(memopt_device *device, const float *hidden, uint32_t format, uint64_t *bytes)
{
    memopt_allocator *allocator, *shared = shared_memory(device);
    memopt_tag_stats stats = MEMOPT_TAG_STATS_INIT;
    unsigned state = 7;
    float loss = 0.0f, mean = 0.0f;
    CHECK(memopt_allocator_create(device, NULL, NULL, &allocator));
    memopt_tensor weights = new_tensor(shared, MEMOPT_TAG_WEIGHTS);
    memopt_tensor gradient = new_tensor(shared, MEMOPT_TAG_GRADIENTS);
    memopt_optimizer *optimizer = new_optimizer(allocator, format, &weights);
    CHECK(memopt_allocator_get_tag_stats(allocator, MEMOPT_TAG_OPTIMIZER, &stats));
    *bytes = stats.current_bytes;

    memopt_step_options step = MEMOPT_STEP_OPTIONS_INIT;
    step.skip_non_finite = 1;
    step.max_norm = 100.0; /* clipping is part of the fused step */
    for (int i = 0; i < STEPS; i++) {
        loss = forward_backward(weights.data, hidden, &state, gradient.data);
        if (i == 0)
            printf("  first loss %.3f\n", (double)loss);
        if (i >= STEPS - 20)
            mean += loss / 20;
        CHECK(memopt_optimizer_step(optimizer, &gradient, 1, &step, NULL));
        CHECK(memopt_stream_sync(device, NULL)); /* before the host uses the weights */
    }

    /* A gradient that is not finite: the step is skipped, whole. */
    float before = ((float *)weights.data)[5];
    uint64_t steps;
    ((float *)gradient.data)[WEIGHTS / 2] = INFINITY;
    CHECK(memopt_optimizer_step(optimizer, &gradient, 1, &step, NULL));
    CHECK(memopt_optimizer_get_steps_sync(optimizer, 0, NULL, &steps));
    if (((float *)weights.data)[5] != before || steps != STEPS) {
        fprintf(stderr, "a step with an infinite gradient changed something\n");
        exit(1);
    }

    CHECK(memopt_optimizer_destroy(optimizer));
    CHECK(memopt_allocator_free(shared, weights.data));
    CHECK(memopt_allocator_free(shared, gradient.data));
    CHECK(memopt_allocator_destroy(shared));
    CHECK(memopt_allocator_destroy(allocator));
    return mean;
}

int main(int count, char **words)
{
    static float hidden[WEIGHTS];
    memopt_device *device = open_device(device_argument(count, words, "cpu"), 0);
    unsigned state = 1;
    uint64_t bytes32, bytes8;
    for (int i = 0; i < WEIGHTS; i++)
        hidden[i] = random_value(&state) * 0.3f;

    printf("32-bit states\n");
    float loss32 = train(device, hidden, MEMOPT_STATE_F32, &bytes32);
    printf("  last loss %.3f, states %.1f KiB\n", (double)loss32, (double)bytes32 / 1024);
    printf("8-bit states\n");
    float loss8 = train(device, hidden, MEMOPT_STATE_8BIT, &bytes8);
    printf("  last loss %.3f, states %.1f KiB\n", (double)loss8, (double)bytes8 / 1024);
    printf("states are %.2f times smaller; losses differ by %.1f %%\n",
           (double)bytes32 / (double)bytes8, 100.0 * fabs((double)(loss8 / loss32 - 1)));
    printf("a step with an infinite gradient changed nothing\n");

    CHECK(memopt_device_close(device));
    return bytes8 * 3 < bytes32 && fabsf(loss8 / loss32 - 1) < 0.1f ? 0 : 1;
}
