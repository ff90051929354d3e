/* Trust ratios: the same bits as on the cpu for every type, size and alignment. */
#include "conformance.h"

#include <stdlib.h>

enum { MOST_SIZES = 32 };

static void ratios_agree(world *w)
{
    uint32_t sizes = 0;
    const uint64_t *size = odd_sizes(w->options->scale, &sizes);
    float *values = host_memory(4 * size[sizes - 1]);
    memopt_tensor parameters[MOST_SIZES], updates[MOST_SIZES];
    CHECK(sizes <= MOST_SIZES);
    for (int type = 0; type < WIDE_TYPES; type++) {
        memopt_trust what = MEMOPT_TRUST_INIT;
        what.weight_decay = 0.1;
        what.max_ratio = type == 1 ? 0.02 : 1.0;
        what.clip = type != 2;
        what.negated = type == 1;
        for (uint32_t i = 0; i < sizes; i++) {
            fill_smooth(values, size[i], 7 + i, 0.3f);
            parameters[i] = new_shifted_tensor(w, size[i], float_types[type], values, i % 2);
            fill_smooth(values, size[i], 70 + i, i % 3 ? 2.0f : 0.01f);
            if (i == 1) /* infinities and NaNs */
                fill_any_floats(values, size[i], i);
            updates[i] = new_tensor(w, size[i], MEMOPT_DTYPE_F32, values);
        }
        memopt_tensor squares = new_raw_tensor(w, 16 * sizes, MEMOPT_DTYPE_U8, NULL, 0);
        OK(memopt_trust_squares(w->device, &what, parameters, updates, sizes, squares.data,
                                w->stream));
        OK(memopt_trust_apply(w->device, &what, parameters, updates, sizes, squares.data,
                              w->stream));
        for (uint32_t i = 0; i < sizes; i++) {
            label(w, "%llu of %s", (unsigned long long)size[i],
                  memopt_dtype_name(float_types[type]));
            result_of_tensor(w, &parameters[i]);
            result_of_tensor(w, &updates[i]);
            free_tensor(w, &parameters[i]);
            free_tensor(w, &updates[i]);
        }
        free_tensor(w, &squares);
    }
    free(values);
}

const conformance_case trust_cases[] = {
    {"trust", ratios_agree, 1, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
