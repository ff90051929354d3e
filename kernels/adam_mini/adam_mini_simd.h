/*
 * Adam-mini over the vectors of one instruction set: include its state_codes_*.h first. Types are
 * constants to the compiler. What is left over of a row is the scalar form's.
 */
#include "kernels/adam_mini/adam_mini_cpu.h"
#include "kernels/optim/optim_cpu.h"

#include <string.h>

/* --- elements -------------------------------------------------------------------------------- */

typedef struct adam_mini_lanes {
    VF rate, beta1, fresh1, decay;
} adam_mini_lanes;

MO_INLINE adam_mini_lanes adam_mini_lanes_of(const mo_adam_mini_piece *p)
{
    return (adam_mini_lanes){v_set(p->rate), v_set(p->beta1), v_set(p->fresh1), v_set(p->decay)};
}

/* Moves the parameters from element i on; their new means, of which NaNs may be any. */
MO_INLINE VF adam_mini_elements(const mo_adam_mini_piece *p, const adam_mini_lanes *c,
                                int32_t parameter, int32_t gradient, uint64_t i, VF mean)
{
    VF value = v_load_as(p->parameter, i, parameter);
    mean = v_fma(c->beta1, mean, v_mul(c->fresh1, v_load_as(p->gradient, i, gradient)));
    value = v_fma(c->rate, mean, v_fma(c->decay, value, value));
    v_store_as(p->parameter, i, parameter, v_one_nan(value));
    return mean;
}

MO_INLINE void adam_mini_move_as(const mo_adam_mini_piece *p, int32_t parameter, int32_t gradient)
{
    const adam_mini_lanes c = adam_mini_lanes_of(p);
    float *means = p->mean;
    uint64_t i = 0;
    for (; i + MO_LANES_N <= p->count; i += MO_LANES_N)
        v_store(means + i,
                v_one_nan(adam_mini_elements(p, &c, parameter, gradient, i, v_load(means + i))));
    mo_adam_mini_tail(p, parameter, gradient, i);
}

/* --- codes ----------------------------------------------------------------------------------- */

/* Elements [at, at + n) with their means, which are decoded: the bits of the largest magnitude. */
MO_INLINE uint32_t adam_mini_block_as(const mo_adam_mini_piece *p, uint64_t at, uint32_t n,
                                      float *means, int32_t parameter, int32_t gradient)
{
    const adam_mini_lanes c = adam_mini_lanes_of(p);
    VI top = v_seti(0);
    uint32_t i = 0;
    for (; i + MO_LANES_N <= n; i += MO_LANES_N) {
        VF mean = adam_mini_elements(p, &c, parameter, gradient, at + i, v_load(means + i));
        v_store(means + i, mean);
        top = v_maxi(top, v_and(v_ints(mean), v_seti(0x7fffffff)));
    }
    uint32_t largest = v_largest(top);
    if (i == n)
        return largest;
    uint32_t rest = mo_adam_mini_tail8(p, parameter, gradient, at + i, at + n, means + i);
    return rest > largest ? rest : largest;
}

MO_INLINE void adam_mini_encode(const mo_adam_mini_piece *p, uint64_t at, uint32_t n,
                                const float *means, uint32_t largest)
{
    if (__builtin_expect(largest >= MO_F32_INF_BITS, 0)) {
        mo_block_encode(MO_STATE_8BIT, 1, means, at, n, p->mean, p->scales);
        return;
    }
    const mo_block_scale scale = mo_block_scale_of(largest);
    uint8_t room[MO_BLOCK_SIZE], *codes = (uint8_t *)p->mean + at;
    p->scales[at / MO_BLOCK_SIZE] = scale.absmax;
    v_encode_8bit(1, means, &scale, n == MO_BLOCK_SIZE ? codes : room);
    if (n != MO_BLOCK_SIZE)
        memcpy(codes, room, n);
}

/* A block that is shorter is padded with zeros. */
MO_INLINE void adam_mini_move8_as(const mo_adam_mini_piece *p, int32_t parameter, int32_t gradient)
{
    _Alignas(32) float means[MO_BLOCK_SIZE];
    uint8_t room[MO_BLOCK_SIZE];
    for (uint64_t at = 0; at < p->count; at += MO_BLOCK_SIZE) {
        const uint32_t n = mo_block_length(MO_STATE_8BIT, p->count, at);
        const uint8_t *codes = (const uint8_t *)p->mean + at;
        if (n != MO_BLOCK_SIZE) {
            memset(room, MO_SIGNED_ZERO, sizeof room);
            codes = memcpy(room, codes, n);
        }
        v_decode_8bit(1, codes, p->scales[at / MO_BLOCK_SIZE], means);
        adam_mini_encode(p, at, n, means, adam_mini_block_as(p, at, n, means, parameter, gradient));
    }
}

/* --- types ----------------------------------------------------------------------------------- */

#define ADAM_MINI_TYPES(name)                                                                      \
    MO_INLINE void name##_to(const mo_adam_mini_piece *piece, int32_t parameter, int32_t gradient) \
    {                                                                                              \
        if (gradient == MO_DTYPE_F32)                                                              \
            name##_as(piece, parameter, MO_DTYPE_F32);                                             \
        else if (gradient == MO_DTYPE_F16)                                                         \
            name##_as(piece, parameter, MO_DTYPE_F16);                                             \
        else                                                                                       \
            name##_as(piece, parameter, MO_DTYPE_BF16);                                            \
    }                                                                                              \
    static void name(const mo_adam_mini_piece *piece, int32_t parameter, int32_t gradient)         \
    {                                                                                              \
        if (parameter == MO_DTYPE_F32)                                                             \
            name##_to(piece, MO_DTYPE_F32, gradient);                                              \
        else if (parameter == MO_DTYPE_F16)                                                        \
            name##_to(piece, MO_DTYPE_F16, gradient);                                              \
        else                                                                                       \
            name##_to(piece, MO_DTYPE_BF16, gradient);                                             \
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
