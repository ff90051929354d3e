/*
 * Adam-mini over the vectors of one instruction set: include its state_codes_*.h first. Types are
 * constants to the compiler. What is left over of a row is the scalar form's.
 */
#include "kernels/adam_mini/adam_mini_cpu.h"
#include "kernels/optim/optim_cpu.h"

#include <string.h>

enum { ADAM_MINI_PAIR = 2 * MO_LANES_N };

/* --- elements -------------------------------------------------------------------------------- */

/* Parameters from element i on, with their new means, of which NaNs may be any. */
MO_INLINE VF adam_mini_moved(const mo_adam_mini_piece *p, int32_t dtype, uint64_t i, VF mean)
{
    VF value = v_load_as(p->parameter, i, dtype);
    return v_one_nan(v_fma(v_set(p->rate), mean, v_fma(v_set(p->decay), value, value)));
}

/* Two vectors: moves the parameters, and makes new means of `mean`. */
MO_INLINE void adam_mini_pair(const mo_adam_mini_piece *p, int32_t parameter, int32_t gradient,
                              uint64_t i, VF mean[2])
{
    VF moved[2];
    for (uint64_t k = 0; k < 2; k++) {
        uint64_t at = i + k * MO_LANES_N;
        VF fresh = v_mul(v_set(p->fresh1), v_load_as(p->gradient, at, gradient));
        mean[k] = v_fma(v_set(p->beta1), mean[k], fresh);
        moved[k] = adam_mini_moved(p, parameter, at, mean[k]);
    }
    if (parameter == MO_DTYPE_BF16) {
        v_store_bf16_pair((uint16_t *)(void *)p->parameter + i, moved[0], moved[1]);
        return;
    }
    for (uint64_t k = 0; k < 2; k++)
        v_store_as(p->parameter, i + k * MO_LANES_N, parameter, moved[k]);
}

MO_INLINE void adam_mini_row(const mo_adam_mini_piece *p, int32_t parameter, int32_t gradient)
{
    float *means = p->mean;
    uint64_t i = 0;
    for (; i + ADAM_MINI_PAIR <= p->count; i += ADAM_MINI_PAIR) {
        VF mean[2] = {v_load(means + i), v_load(means + i + MO_LANES_N)};
        adam_mini_pair(p, parameter, gradient, i, mean);
        v_store(means + i, v_one_nan(mean[0]));
        v_store(means + i + MO_LANES_N, v_one_nan(mean[1]));
    }
    if (i < p->count)
        mo_adam_mini_tail(p, parameter, gradient, i);
}

MO_INLINE void adam_mini_move_as(const mo_adam_mini_rows *r, int32_t parameter, int32_t gradient)
{
    MO_ADAM_MINI_EACH(r, piece, adam_mini_row(&piece, parameter, gradient));
}

/* --- codes ----------------------------------------------------------------------------------- */

/* Elements [at, at + n) with their means, which are decoded: the bits of the largest magnitude. */
MO_INLINE uint32_t adam_mini_block(const mo_adam_mini_piece *p, uint64_t at, uint32_t n,
                                   float *means, int32_t parameter, int32_t gradient)
{
    const VI magnitude = v_seti(0x7fffffff);
    VI top = v_seti(0);
    uint32_t i = 0;
    for (; i + ADAM_MINI_PAIR <= n; i += ADAM_MINI_PAIR) {
        VF mean[2] = {v_load(means + i), v_load(means + i + MO_LANES_N)};
        adam_mini_pair(p, parameter, gradient, at + i, mean);
        for (int k = 0; k < 2; k++) {
            v_store(means + i + k * MO_LANES_N, mean[k]);
            top = v_maxi(top, v_and(v_ints(mean[k]), magnitude));
        }
    }
    uint32_t largest = v_largest(top), rest = 0;
    if (i < n)
        rest = mo_adam_mini_tail8(p, parameter, gradient, at + i, at + n, means + i);
    return rest > largest ? rest : largest;
}

/* Blocks of fewer elements go through memory in which they have whole groups of 32. */
typedef struct adam_mini_room {
    _Alignas(32) float means[MO_BLOCK_SIZE];
    uint8_t codes[MO_BLOCK_SIZE];
} adam_mini_room;

MO_INLINE void adam_mini_row8(const v_steps *steps, adam_mini_room *room,
                              const mo_adam_mini_piece *p, int32_t parameter, int32_t gradient)
{
    for (uint64_t at = 0; at < p->count; at += MO_BLOCK_SIZE) {
        const uint32_t n = mo_block_length(MO_BLOCK_SIZE, p->count, at), groups = (n + 31) & ~31u;
        uint8_t *codes = (uint8_t *)p->mean + at, *whole = n == groups ? codes : room->codes;
        float *scale = &p->scales[at / MO_BLOCK_SIZE];
        if (n != groups)
            memcpy(room->codes, codes, n);
        v_decode_8bit(1, whole, *scale, room->means, groups);
        uint32_t largest = adam_mini_block(p, at, n, room->means, parameter, gradient);
        if (__builtin_expect(largest >= MO_F32_INF_BITS, 0)) {
            mo_block_encode(MO_STATE_8BIT, 1, room->means, at, n, p->mean, scale);
            continue;
        }
        const mo_block_scale made = mo_block_scale_of(largest);
        *scale = made.absmax;
        v_encode_part(steps, 1, room->means, groups, &made, whole);
        if (n != groups)
            memcpy(codes, room->codes, n);
    }
}

MO_INLINE void adam_mini_move8_as(const mo_adam_mini_rows *r, int32_t parameter, int32_t gradient)
{
    const v_steps steps = v_steps_of(1);
    adam_mini_room room;
    memset(room.codes, MO_SIGNED_ZERO, sizeof room.codes);
    MO_ADAM_MINI_EACH(r, piece, adam_mini_row8(&steps, &room, &piece, parameter, gradient));
}

/* --- types ----------------------------------------------------------------------------------- */

#define ADAM_MINI_TYPES(name)                                                                      \
    MO_INLINE void name##_to(const mo_adam_mini_rows *r, int32_t parameter)                        \
    {                                                                                              \
        if (r->gradient_dtype == MO_DTYPE_F32)                                                     \
            name##_as(r, parameter, MO_DTYPE_F32);                                                 \
        else if (r->gradient_dtype == MO_DTYPE_F16)                                                \
            name##_as(r, parameter, MO_DTYPE_F16);                                                 \
        else                                                                                       \
            name##_as(r, parameter, MO_DTYPE_BF16);                                                \
    }                                                                                              \
    static void name(const mo_adam_mini_rows *r)                                                   \
    {                                                                                              \
        if (r->parameter_dtype == MO_DTYPE_F32)                                                    \
            name##_to(r, MO_DTYPE_F32);                                                            \
        else if (r->parameter_dtype == MO_DTYPE_F16)                                               \
            name##_to(r, MO_DTYPE_F16);                                                            \
        else                                                                                       \
            name##_to(r, MO_DTYPE_BF16);                                                           \
    }
ADAM_MINI_TYPES(adam_mini_move)
ADAM_MINI_TYPES(adam_mini_move8)

/* The forms of an instruction set. */
#define MO_ADAM_MINI_FORMS(isa)                                                                    \
    void mo_adam_mini_squares_##isa(const void *args, uint64_t begin, uint64_t end)                \
    {                                                                                              \
        mo_adam_mini_squares_run(args, begin, end, mo_squares_##isa);                              \
    }                                                                                              \
    void mo_adam_mini_step_##isa(const void *args, uint64_t begin, uint64_t end)                   \
    {                                                                                              \
        mo_adam_mini_step_run(args, begin, end, mo_squares_##isa, adam_mini_move);                 \
    }                                                                                              \
    void mo_adam_mini_step8_##isa(const void *args, uint64_t begin, uint64_t end)                  \
    {                                                                                              \
        mo_adam_mini_step_run(args, begin, end, mo_squares_##isa, adam_mini_move8);                \
    }
