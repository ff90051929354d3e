/* Adafactor: the same bits as on the cpu for every pair of types, shape and alignment. */
#include "conformance.h"

#include <stdlib.h>

/* Rows 0: a vector. Ragged and whole, narrower and wider than tiles. */
static const struct {
    uint64_t stack, rows, columns;
} shapes[] = {{1, 0, 1},     {1, 0, 3001},  {1, 1, 1},   {40, 3, 3},
              {2, 65, 1025}, {1, 64, 1024}, {1, 1300, 7}};
enum { SHAPES = sizeof shapes / sizeof shapes[0], STEPS = 2 };

static void step(world *w, memopt_adafactor *a, uint64_t number, const float *values)
{
    memopt_tensor gradient =
        new_shifted_tensor(w, a->parameter.count, a->gradient.dtype, values, number % 2);
    a->gradient = gradient;
    a->step = number;
    OK(memopt_adafactor_step(w->device, a, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    free_tensor(w, &gradient);
}

static void one_shape(world *w, int shape, memopt_dtype type, memopt_dtype other, float *values)
{
    const uint64_t stack = shapes[shape].stack, rows = shapes[shape].rows;
    const uint64_t columns = shapes[shape].columns, count = stack * (rows ? rows : 1) * columns;
    memopt_adafactor a = MEMOPT_ADAFACTOR_INIT;
    fill_smooth(values, count, 7 + w->options->seed, 0.3f);
    a.parameter = new_tensor(w, count, type, values);
    memopt_tensor row = new_tensor(w, stack * (rows ? rows : 1), MEMOPT_DTYPE_F32, NULL);
    memopt_tensor column = new_tensor(w, stack * columns, MEMOPT_DTYPE_F32, NULL);
    a.gradient.dtype = other;
    a.rows = rows ? rows : 1;
    a.columns = columns;
    a.row_var = rows ? row.data : NULL;
    a.column_var = column.data;
    a.weight_decay = 0.1;
    a.maximize = shape % 2;
    label(w, "%s by %s, %llu matrices of %llu x %llu", memopt_dtype_name(type),
          memopt_dtype_name(other), (unsigned long long)stack, (unsigned long long)rows,
          (unsigned long long)columns);
    for (uint64_t number = 1; number <= STEPS; number++) {
        fill_smooth(values, count, number, 2.0f);
        if (number == STEPS && shape % 3 == 1) /* an infinity */
            fill_any_floats(values, count < 50 ? count : 50, number);
        step(w, &a, number, values);
        result_of_tensor(w, &a.parameter);
        result_of_tensor(w, &row);
        result_of_tensor(w, &column);
    }
    free_tensor(w, &a.parameter);
    free_tensor(w, &row);
    free_tensor(w, &column);
}

static void steps_agree(world *w)
{
    float *values = host_memory(4 * 2 * 65 * 1025);
    uint32_t turn = 0;
    for (int shape = 0; shape < SHAPES; shape++)
        for (int type = 0; type < WIDE_TYPES; type++)
            for (int other = 0; other < WIDE_TYPES; other++, turn++)
                if (w->options->scale != SCALE_SMALL || turn % 4 == 0)
                    one_shape(w, shape, float_types[type], float_types[other], values);
    free(values);
}

const conformance_case adafactor_cases[] = {
    {"adafactor", steps_agree, 1, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
