/* Adafactor: the same bits as on the cpu for every pair of types and alignment, in steps of many
 * shapes. */
#include "conformance.h"

#include <stdlib.h>

/* Rows 0: a vector. Ragged and whole, narrower and wider than tiles. */
static const struct {
    uint64_t stack, rows, columns;
} shapes[] = {{1, 0, 1},     {1, 0, 3001},  {1, 1, 1},   {40, 3, 3},
              {2, 65, 1025}, {1, 64, 1024}, {1, 1300, 7}};
enum { SHAPES = sizeof shapes / sizeof shapes[0], STEPS = 2 };

/* One step of all shapes. */
static void step(world *w, memopt_optimizer *o, const memopt_tensor *parameters, memopt_dtype type,
                 uint64_t number, float *values)
{
    memopt_tensor gradients[SHAPES];
    for (int k = 0; k < SHAPES; k++) {
        const uint64_t count = parameters[k].count;
        fill_smooth(values, count, number + (uint64_t)k, 2.0f);
        if (number == STEPS && k % 3 == 1) /* an infinity */
            fill_any_floats(values, count < 50 ? count : 50, number);
        gradients[k] = new_shifted_tensor(w, count, type, values, number % 2);
    }
    OK(memopt_optimizer_step(o, gradients, SHAPES, NULL, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    for (int k = 0; k < SHAPES; k++)
        free_tensor(w, &gradients[k]);
}

static void two_types(world *w, memopt_dtype type, memopt_dtype other, uint32_t maximize,
                      float *values)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_ADAFACTOR_INIT;
    memopt_optimizer *o = NULL;
    memopt_tensor parameters[SHAPES];
    uint32_t number;
    options.kind = MEMOPT_OPTIMIZER_ADAFACTOR;
    group.weight_decay = 0.1;
    group.maximize = maximize;
    OK(memopt_optimizer_create(w->allocator, &options, &o));
    OK(memopt_optimizer_add_group(o, &group, &number));
    for (int k = 0; k < SHAPES; k++) {
        const uint64_t rows = shapes[k].rows, columns = shapes[k].columns;
        const uint64_t count = shapes[k].stack * (rows ? rows : 1) * columns;
        memopt_parameter_options own = MEMOPT_PARAMETER_OPTIONS_INIT;
        uint64_t index;
        own.rows = rows;
        own.columns = rows ? columns : 0;
        fill_smooth(values, count, 7 + w->options->seed, 0.3f);
        parameters[k] = new_tensor(w, count, type, values);
        OK(memopt_optimizer_add_parameter(o, number, &parameters[k], &own, w->stream, &index));
    }
    for (uint64_t steps = 1; steps <= STEPS; steps++) {
        step(w, o, parameters, other, steps, values);
        for (int k = 0; k < SHAPES; k++) {
            label(w, "%s by %s, %llu matrices of %llu x %llu, step %llu", memopt_dtype_name(type),
                  memopt_dtype_name(other), (unsigned long long)shapes[k].stack,
                  (unsigned long long)shapes[k].rows, (unsigned long long)shapes[k].columns,
                  (unsigned long long)steps);
            result_of_tensor(w, &parameters[k]);
            for (uint64_t i = 0; i < (shapes[k].rows ? 2 : 1); i++) {
                memopt_state_view view = MEMOPT_STATE_VIEW_INIT;
                OK(memopt_optimizer_get_state(o, (uint64_t)k, i, &view));
                result_of_tensor(w, &view.tensor);
            }
        }
    }
    OK(memopt_optimizer_destroy(o));
    for (int k = 0; k < SHAPES; k++)
        free_tensor(w, &parameters[k]);
}

static void steps_agree(world *w)
{
    float *values = host_memory(4 * 2 * 65 * 1025);
    uint32_t turn = 0;
    for (int type = 0; type < WIDE_TYPES; type++)
        for (int other = 0; other < WIDE_TYPES; other++, turn++)
            if (w->options->scale != SCALE_SMALL || turn % 4 == 0)
                two_types(w, float_types[type], float_types[other], turn % 2, values);
    free(values);
}

const conformance_case adafactor_cases[] = {
    {"adafactor", steps_agree, 1, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
