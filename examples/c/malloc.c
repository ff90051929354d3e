/*
 * 8-bit AdamW over memory from malloc: on the "cpu" device the library steps it in place.
 *
 * The weights learn hidden targets. Only the states come from the library's allocator.
 */
#include <memopt/memopt.h>

#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 10000, STEPS = 300 };

/* Every call returns a status; a program this small just ends. */
static void must(memopt_status status)
{
    if (status != MEMOPT_OK) {
        fprintf(stderr, "%s: %s\n", memopt_status_name(status), memopt_last_error());
        exit(1);
    }
}

/* Your own pass: the loss, and its gradient. */
static float backward(const float *weights, float *gradient)
{
    float loss = 0.0f;
    for (int i = 0; i < COUNT; i++) {
        gradient[i] = weights[i] - (float)(i % 100) / 100.0f;
        loss += gradient[i] * gradient[i] / COUNT;
    }
    return loss;
}

int main(void)
{
    float *weights = calloc(COUNT, sizeof *weights), *gradient = malloc(COUNT * sizeof *gradient);
    memopt_device *device;
    memopt_allocator *allocator; /* of the states */
    memopt_optimizer *optimizer;
    uint32_t number;
    uint64_t index;
    if (weights == NULL || gradient == NULL)
        return 1;

    memopt_tensor parameter = {weights, COUNT, MEMOPT_DTYPE_F32}; /* your mallocs */
    memopt_tensor step = {gradient, COUNT, MEMOPT_DTYPE_F32};
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT; /* torch's AdamW */
    options.state_format = MEMOPT_STATE_8BIT;
    group.lr = 1e-2;
    must(memopt_device_open("cpu", NULL, &device));
    must(memopt_allocator_create(device, NULL, NULL, &allocator));
    must(memopt_optimizer_create(allocator, &options, &optimizer));
    must(memopt_optimizer_add_group(optimizer, &group, &number));
    must(memopt_optimizer_add_parameter(optimizer, number, &parameter, NULL, NULL, &index));

    float first = backward(weights, gradient), loss = first;
    for (int i = 0; i < STEPS; i++) {
        must(memopt_optimizer_step(optimizer, &step, 1, NULL, NULL));
        loss = backward(weights, gradient);
    }
    printf("loss %.4f, then %.4f\n", (double)first, (double)loss);

    must(memopt_optimizer_destroy(optimizer));
    must(memopt_allocator_destroy(allocator));
    must(memopt_device_close(device));
    free(weights);
    free(gradient);
    return loss < first / 20.0f ? 0 : 1;
}
