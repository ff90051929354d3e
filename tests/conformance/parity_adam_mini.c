/* Adam-mini: the same bits as on the cpu for every pair of types, shape, format and alignment. */
#include "conformance.h"

#include <stdlib.h>

/* Elements, vectors, rows and heads; ragged and whole, in one item and in many. */
static const struct {
    uint64_t blocks, rows, columns;
} shapes[] = {{700, 1, 1},  {1, 1, 3001}, {1, 1, 40000}, {21, 1, 768},
              {3, 64, 256}, {3, 7, 75},   {2, 60, 300},  {40, 1, 1025}};
enum { SHAPES = sizeof shapes / sizeof shapes[0], STEPS = 2, MOST = 49152 };

static void step(world *w, memopt_adam_mini *a, uint64_t number, const float *values)
{
    uint64_t bytes = 0;
    memopt_tensor gradient =
        new_shifted_tensor(w, a->parameter.count, a->gradient.dtype, values, number % 2);
    a->gradient = gradient;
    a->step = number;
    OK(memopt_adam_mini_get_scratch(a, &bytes));
    memopt_tensor scratch = new_raw_tensor(w, bytes + 8, MEMOPT_DTYPE_U8, NULL, 0);
    OK(memopt_adam_mini_step(w->device, a, scratch.data, bytes, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    free_tensor(w, &scratch);
    free_tensor(w, &gradient);
}

static void one_shape(world *w, int shape, memopt_dtype type, memopt_dtype other, int coded,
                      float *values)
{
    const uint64_t blocks = shapes[shape].blocks, rows = shapes[shape].rows;
    const uint64_t columns = shapes[shape].columns, count = blocks * rows * columns;
    memopt_adam_mini a = MEMOPT_ADAM_MINI_INIT;
    fill_smooth(values, count, 7 + w->options->seed, 0.3f);
    a.parameter = new_tensor(w, count, type, values);
    a.mean = coded ? new_raw_tensor(w, count, MEMOPT_DTYPE_U8, NULL, 0)
                   : new_tensor(w, count, MEMOPT_DTYPE_F32, NULL);
    /* Scales of 0 make zeros of any codes. */
    memopt_tensor scales =
        new_tensor(w, blocks * rows * ((columns + 255) / 256), MEMOPT_DTYPE_F32, NULL);
    memopt_tensor second = new_tensor(w, blocks, MEMOPT_DTYPE_F32, NULL);
    a.scales = coded ? scales.data : NULL;
    a.square_mean = second.data;
    a.gradient.dtype = other;
    a.rows = rows;
    a.columns = columns;
    a.weight_decay = 0.1;
    a.maximize = shape % 2;
    label(w, "%s by %s, %llu blocks of %llu x %llu, coded %d", memopt_dtype_name(type),
          memopt_dtype_name(other), (unsigned long long)blocks, (unsigned long long)rows,
          (unsigned long long)columns, coded);
    for (uint64_t number = 1; number <= STEPS; number++) {
        fill_smooth(values, count, number, 2.0f);
        if (number == STEPS && shape % 3 == 1) /* an infinity */
            fill_any_floats(values, count < 50 ? count : 50, number);
        step(w, &a, number, values);
        result_of_tensor(w, &a.parameter);
        result_of_tensor(w, &a.mean);
        result_of_tensor(w, &scales);
        result_of_tensor(w, &second);
    }
    free_tensor(w, &a.parameter);
    free_tensor(w, &a.mean);
    free_tensor(w, &scales);
    free_tensor(w, &second);
}

static void steps_agree(world *w)
{
    float *values = host_memory(4 * MOST);
    uint32_t turn = 0;
    for (int shape = 0; shape < SHAPES; shape++)
        for (int type = 0; type < WIDE_TYPES; type++)
            for (int other = 0; other < WIDE_TYPES; other++, turn++)
                if (w->options->scale != SCALE_SMALL || turn % 4 == 0) {
                    one_shape(w, shape, float_types[type], float_types[other], 0, values);
                    one_shape(w, shape, float_types[type], float_types[other], 1, values);
                }
    free(values);
}

const conformance_case adam_mini_cases[] = {
    {"adam_mini", steps_agree, 1, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
