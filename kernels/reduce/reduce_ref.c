/* The scalar forms of the reductions and of the loss scaler's kernels, and the loops over chunks
 * that all CPU forms share. */
#include "kernels/core/element_io.h"
#include "kernels/reduce/reduce_cpu.h"

/* --- sum of squares -------------------------------------------------------------------------- */

void mo_square_tail(const unsigned char *data, uint64_t count, uint32_t dtype,
                    double lanes[MO_STRIPE_LANES])
{
    for (uint64_t i = 0; i < count; i++) {
        double value = (double)mo_load_element(data, i, (int32_t)dtype);
        lanes[i] += value * value;
    }
}

static double square_stripe(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    double lanes[MO_STRIPE_LANES] = {0};
    uint32_t size = mo_element_size(dtype);
    for (uint64_t i = 0; i < count; i += MO_STRIPE_LANES) {
        uint64_t rest = count - i < MO_STRIPE_LANES ? count - i : MO_STRIPE_LANES;
        mo_square_tail(data + i * size, rest, dtype, lanes);
    }
    return mo_stripe_tree(lanes);
}

double mo_squares_ref(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i += MO_STRIPE_ELEMENTS) {
        uint64_t rest = count - i < MO_STRIPE_ELEMENTS ? count - i : MO_STRIPE_ELEMENTS;
        sum += square_stripe(data + i * mo_element_size(dtype), rest, dtype);
    }
    return sum;
}

/* --- check and scale ------------------------------------------------------------------------- */

int mo_check_scalar(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    int found = 0;
    for (uint64_t i = 0; i < count; i++)
        found |= !mo_f32_is_finite(mo_load_element(data, i, (int32_t)dtype));
    return found;
}

/* The type is a constant to the compiler. */
static inline __attribute__((always_inline)) int scale_typed(unsigned char *data, uint64_t count,
                                                             uint32_t dtype, float factor)
{
    int found = 0;
    for (uint64_t i = 0; i < count; i++) {
        float value = mo_load_element(data, i, (int32_t)dtype);
        found |= !mo_f32_is_finite(value);
        mo_store_element(data, i, (int32_t)dtype, mo_scale_element(value, factor));
    }
    return found;
}

int mo_scale_scalar(unsigned char *data, uint64_t count, uint32_t dtype, float factor)
{
    if (dtype == MO_DTYPE_F32)
        return scale_typed(data, count, MO_DTYPE_F32, factor);
    return dtype == MO_DTYPE_F16 ? scale_typed(data, count, MO_DTYPE_F16, factor)
                                 : scale_typed(data, count, MO_DTYPE_BF16, factor);
}

/* --- the loops over chunks ------------------------------------------------------------------- */

/* Several chunks may set the flag at once; all write the same. */
static void raise_flag(float *flag)
{
    uint32_t one = mo_f32_bits(1.0f);
    __atomic_store((uint32_t *)(void *)flag, &one, __ATOMIC_RELAXED);
}

void mo_square_sum_run(const void *args, uint64_t begin, uint64_t end, mo_square_function square)
{
    const mo_reduce_args *a = args;
    const mo_tensor_segment *segments = a->table ? a->table : a->segments;
    mo_tensor_chunk chunk;
    for (uint64_t item = begin; item < end; item++) {
        mo_tensor_chunk_of(segments, a->count, item, &chunk);
        a->partials[item] = square(chunk.data, chunk.count, chunk.dtype);
    }
}

void mo_check_run(const void *args, uint64_t begin, uint64_t end, mo_check_function check)
{
    const mo_reduce_args *a = args;
    const mo_tensor_segment *segments = a->table ? a->table : a->segments;
    mo_tensor_chunk chunk;
    int found = 0;
    for (uint64_t item = begin; item < end && !found; item++) {
        mo_tensor_chunk_of(segments, a->count, item, &chunk);
        found = check(chunk.data, chunk.count, chunk.dtype);
    }
    if (found)
        raise_flag(a->found_inf);
}

void mo_scale_run(const void *args, uint64_t begin, uint64_t end, mo_scale_function scale)
{
    const mo_scale_args *a = args;
    const mo_tensor_segment *segments = a->table ? a->table : a->segments;
    mo_tensor_chunk chunk;
    float factor = a->scale ? mo_inverse_scale(*a->scale) : *a->factor;
    int found = 0;
    if (!a->scale && factor == 1.0f && !a->found_inf)
        return;
    for (uint64_t item = begin; item < end; item++) {
        mo_tensor_chunk_of(segments, a->count, item, &chunk);
        found |= scale(chunk.data, chunk.count, chunk.dtype, factor);
    }
    if (found && a->found_inf)
        raise_flag(a->found_inf);
}

/* --- the forms
 * ------------------------------------------------------------------------------------ */

void mo_square_sum_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_square_sum_run(args, begin, end, mo_squares_ref);
}

void mo_check_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_check_run(args, begin, end, mo_check_scalar);
}

/* Compilers vectorise the rows of a stripe without changing the order of any lane's additions. */
void mo_sum_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_sum_args *a = args;
    for (uint64_t item = begin; item < end; item++) {
        const double *values = a->values + item * MO_STRIPE_ELEMENTS;
        uint64_t rest = a->count - item * MO_STRIPE_ELEMENTS, i = 0;
        double lanes[MO_STRIPE_LANES] = {0};
        if (rest > MO_STRIPE_ELEMENTS)
            rest = MO_STRIPE_ELEMENTS;
        for (; i + MO_STRIPE_LANES <= rest; i += MO_STRIPE_LANES)
            for (uint32_t lane = 0; lane < MO_STRIPE_LANES; lane++)
                lanes[lane] += values[i + lane];
        for (uint32_t lane = 0; i + lane < rest; lane++)
            lanes[lane] += values[i + lane];
        a->destination[item] = mo_stripe_tree(lanes);
    }
}

void mo_scale_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_scale_run(args, begin, end, mo_scale_scalar);
}

void mo_norm_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_norm_args *a = args;
    double sum = a->sum ? *a->sum : 0.0;
    (void)begin;
    (void)end;
    if (a->norm)
        *a->norm = mo_norm_of(sum);
    if (a->coefficient)
        *a->coefficient = mo_clip_coefficient(sum, a->max_norm);
}

void mo_scaler_update_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_scaler_update_args *a = args;
    (void)begin;
    (void)end;
    mo_scaler_step(a->block, a->disabled);
}

void mo_scaler_set_ref(const void *args, uint64_t begin, uint64_t end)
{
    (void)begin;
    (void)end;
    mo_scaler_assign(args);
}
