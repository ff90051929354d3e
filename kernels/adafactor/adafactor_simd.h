/*
 * Adafactor over the vectors of one instruction set: include a vector_*.h first. Types are
 * constants to the compiler. 32 columns at a time, those left over by the scalar form.
 */
#include "kernels/adafactor/adafactor_cpu.h"

enum { ADAFACTOR_VECTORS = MO_STRIPE_LANES / MO_LANES_N };

MO_INLINE void adafactor_lanes(const VF sums[ADAFACTOR_VECTORS], float lanes[MO_STRIPE_LANES])
{
    for (int k = 0; k < ADAFACTOR_VECTORS; k++)
        v_store(lanes + k * MO_LANES_N, sums[k]);
}

MO_INLINE VF adafactor_value(const mo_adafactor_piece *p, uint64_t j, int32_t dtype)
{
    return v_mul(v_load_as(p->gradient, j, dtype), v_set(p->scale));
}

/* mo_adafactor_moment. */
MO_INLINE VF adafactor_moment_lanes(const mo_adafactor_piece *p, uint64_t j, int32_t dtype)
{
    VF x = adafactor_value(p, j, dtype), mean = v_mul(x, x), old = v_load(p->columns + j);
    VF way = v_sub(mean, old);
    return v_one_nan(p->fresh < 0.5f ? v_fma(v_set(p->fresh), way, old)
                                     : v_fma(v_set(p->fresh - 1.0f), way, mean));
}

/* `column`: its factor, of a vector its new moments. NaN of a factor stays. */
MO_INLINE VF adafactor_update_lanes(const mo_adafactor_piece *p, uint64_t j, int32_t dtype,
                                    VF column, int vector)
{
    VF factor = vector ? v_div(v_set(1.0f), v_sqrt(column)) : v_mul(v_set(p->row), column);
    return v_mul(adafactor_value(p, j, dtype), v_min(v_set(p->cap), factor));
}

MO_INLINE VF adafactor_column_lanes(const mo_adafactor_piece *p, uint64_t j, int32_t dtype,
                                    int vector)
{
    return vector ? adafactor_moment_lanes(p, j, dtype) : v_load(p->columns + j);
}

MO_INLINE float adafactor_squares_as(const mo_adafactor_piece *p, int32_t dtype)
{
    VF sums[ADAFACTOR_VECTORS];
    uint32_t j = 0;
    for (int k = 0; k < ADAFACTOR_VECTORS; k++)
        sums[k] = v_set(0.0f);
    for (; j + MO_STRIPE_LANES <= p->count; j += MO_STRIPE_LANES)
        for (uint32_t k = 0; k < ADAFACTOR_VECTORS; k++) {
            VF x = adafactor_value(p, j + k * MO_LANES_N, dtype);
            float *column = p->columns + j + k * MO_LANES_N;
            sums[k] = v_fma(x, x, sums[k]);
            v_store(column, v_fma(x, x, v_load(column)));
        }
    float lanes[MO_STRIPE_LANES];
    adafactor_lanes(sums, lanes);
    mo_adafactor_squares_tail(p, (uint32_t)dtype, j, lanes);
    return mo_adafactor_tree(lanes);
}

MO_INLINE float adafactor_length_as(const mo_adafactor_piece *p, int32_t dtype, int vector)
{
    VF sums[ADAFACTOR_VECTORS];
    uint32_t j = 0;
    for (int k = 0; k < ADAFACTOR_VECTORS; k++)
        sums[k] = v_set(0.0f);
    for (; j + MO_STRIPE_LANES <= p->count; j += MO_STRIPE_LANES)
        for (uint32_t k = 0; k < ADAFACTOR_VECTORS; k++) {
            uint64_t at = j + k * MO_LANES_N;
            VF column = adafactor_column_lanes(p, at, dtype, vector);
            VF u = adafactor_update_lanes(p, at, dtype, column, vector);
            sums[k] = v_fma(u, u, sums[k]);
        }
    float lanes[MO_STRIPE_LANES];
    adafactor_lanes(sums, lanes);
    mo_adafactor_length_tail(p, (uint32_t)dtype, j, lanes);
    return mo_adafactor_tree(lanes);
}

MO_INLINE void adafactor_apply_as(const mo_adafactor_piece *p, int32_t parameter, int32_t gradient,
                                  int vector)
{
    const VF rate = v_set(-p->rate), keep = v_set(p->keep);
    uint32_t j = 0;
    for (; j + MO_LANES_N <= p->count; j += MO_LANES_N) {
        VF kept = v_mul(v_load_as(p->parameter, j, parameter), keep);
        VF column = adafactor_column_lanes(p, j, gradient, vector);
        VF moved = v_fma(rate, adafactor_update_lanes(p, j, gradient, column, vector), kept);
        if (vector)
            v_store(p->columns + j, column);
        v_store_as(p->parameter, j, parameter, v_one_nan(moved));
    }
    mo_adafactor_apply_tail(p, (uint32_t)parameter, (uint32_t)gradient, j);
}

static float adafactor_squares(const mo_adafactor_piece *piece, uint32_t gradient)
{
    if (gradient == MO_DTYPE_F32)
        return adafactor_squares_as(piece, MO_DTYPE_F32);
    return gradient == MO_DTYPE_F16 ? adafactor_squares_as(piece, MO_DTYPE_F16)
                                    : adafactor_squares_as(piece, MO_DTYPE_BF16);
}

MO_INLINE float adafactor_length_of(const mo_adafactor_piece *piece, uint32_t gradient, int vector)
{
    if (gradient == MO_DTYPE_F32)
        return adafactor_length_as(piece, MO_DTYPE_F32, vector);
    return gradient == MO_DTYPE_F16 ? adafactor_length_as(piece, MO_DTYPE_F16, vector)
                                    : adafactor_length_as(piece, MO_DTYPE_BF16, vector);
}

static float adafactor_length(const mo_adafactor_piece *piece, uint32_t gradient)
{
    return piece->vector ? adafactor_length_of(piece, gradient, 1)
                         : adafactor_length_of(piece, gradient, 0);
}

MO_INLINE void adafactor_apply_to(const mo_adafactor_piece *piece, int32_t parameter,
                                  uint32_t gradient, int vector)
{
    if (gradient == MO_DTYPE_F32)
        adafactor_apply_as(piece, parameter, MO_DTYPE_F32, vector);
    else if (gradient == MO_DTYPE_F16)
        adafactor_apply_as(piece, parameter, MO_DTYPE_F16, vector);
    else
        adafactor_apply_as(piece, parameter, MO_DTYPE_BF16, vector);
}

MO_INLINE void adafactor_apply_of(const mo_adafactor_piece *piece, uint32_t parameter,
                                  uint32_t gradient, int vector)
{
    if (parameter == MO_DTYPE_F32)
        adafactor_apply_to(piece, MO_DTYPE_F32, gradient, vector);
    else if (parameter == MO_DTYPE_F16)
        adafactor_apply_to(piece, MO_DTYPE_F16, gradient, vector);
    else
        adafactor_apply_to(piece, MO_DTYPE_BF16, gradient, vector);
}

static void adafactor_apply(const mo_adafactor_piece *piece, uint32_t parameter, uint32_t gradient)
{
    if (piece->vector)
        adafactor_apply_of(piece, parameter, gradient, 1);
    else
        adafactor_apply_of(piece, parameter, gradient, 0);
}

/* The forms of an instruction set. */
void MO_FORM(mo_adafactor_squares)(const void *args, uint64_t begin, uint64_t end)
{
    mo_adafactor_squares_run(args, begin, end, adafactor_squares);
}

void MO_FORM(mo_adafactor_update)(const void *args, uint64_t begin, uint64_t end)
{
    mo_adafactor_update_run(args, begin, end, adafactor_length);
}

void MO_FORM(mo_adafactor_apply)(const void *args, uint64_t begin, uint64_t end)
{
    mo_adafactor_apply_run(args, begin, end, adafactor_apply);
}
