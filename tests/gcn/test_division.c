/*
 * The steps that AMD's compiler makes of a division give the IEEE quotient, on whichever side of
 * the exact value the reciprocal lies: what says that div_scale, div_fmas and div_fixup are right.
 */
#define LANES 32
#include "numbers.h"

char translated_ran[1];
const unsigned char gcn_image[1];
const uint64_t gcn_image_bytes = 1, translated_digests[] = {0};
const mo_sim_kernel translated_kernels[] = {{NULL, 0, NULL}};

enum { ROUNDS = 4000, N = 0, D = 2, SCALED_D = 4, SCALED_N = 6, R = 8, E = 10, Q = 12, OUT = 14 };

static uint64_t random_bits(void)
{
    static uint64_t state = 88172645463325252;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

/* Any bits; half of them with an exponent at an end or in the middle. */
static uint64_t operand(const number_format *f)
{
    const uint64_t where[6] = {0, 0, (uint64_t)f->most_exponent - 3,
                               (uint64_t)f->most_exponent / 2 - 8};
    uint64_t bits = random_bits(), kind = random_bits() % 6;
    uint64_t exponents = (uint64_t)f->most_exponent << f->fraction_bits;
    if (kind == 0 || kind > 3)
        return bits;
    return (bits & ~exponents) | (where[kind] + random_bits() % (kind == 3 ? 16 : 4))
                                     << f->fraction_bits;
}

static const uint32_t *minus(wave *w, int r, int bits)
{
    return sign_of(w, 0, w->v[r], bits / 64, UINT32_MAX, 1u << 31);
}

#define DIVIDE(bits, one, refine)                                                                  \
    static void divide##bits(wave *w)                                                              \
    {                                                                                              \
        uint32_t(*v)[LANES] = w->v;                                                                \
        (void)v_div_scale_f##bits(w, v[SCALED_D], v[D], v[D], v[N]);                               \
        uint64_t flags = v_div_scale_f##bits(w, v[SCALED_N], v[N], v[D], v[N]);                    \
        v_rcp_f##bits(w, v[R], v[SCALED_D]);                                                       \
        for (int k = 0; k < bits / 32; k++) {                                                      \
            v_fma_f##bits(w, v[E], minus(w, SCALED_D, bits), v[R], all(w, 1, one));                \
            v_fma_f##bits(w, v[R], v[E], v[R], v[R]);                                              \
        }                                                                                          \
        v_mul_f##bits(w, v[Q], v[SCALED_N], v[R]);                                                 \
        v_fma_f##bits(w, v[E], minus(w, SCALED_D, bits), v[Q], v[SCALED_N]);                       \
        if (refine) {                                                                              \
            v_fma_f##bits(w, v[Q], v[E], v[R], v[Q]);                                              \
            v_fma_f##bits(w, v[E], minus(w, SCALED_D, bits), v[Q], v[SCALED_N]);                   \
        }                                                                                          \
        v_div_fmas_f##bits(w, v[Q], v[E], v[R], v[Q], flags);                                      \
        v_div_fixup_f##bits(w, v[OUT], v[Q], v[D], v[N]);                                          \
    }
DIVIDE(32, 0x3F800000, 1)
DIVIDE(64, 0x3FF0000000000000, 0)

#define COUNT_WRONG(bits)                                                                          \
    static int wrong##bits(wave *w)                                                                \
    {                                                                                              \
        int wrong = 0;                                                                             \
        for (uint32_t i = 0; i < LANES; i++) {                                                     \
            PUT_##bits(w->v[N], operand(&format##bits));                                           \
            PUT_##bits(w->v[D], operand(&format##bits));                                           \
        }                                                                                          \
        divide##bits(w);                                                                           \
        for (uint32_t i = 0; i < LANES; i++) {                                                     \
            uint##bits##_t is = GET_##bits(w->v[OUT]);                                             \
            uint##bits##_t ought =                                                                 \
                bits_f##bits(f##bits(GET_##bits(w->v[N])) / f##bits(GET_##bits(w->v[D])));         \
            wrong += is != ought && !(is_nan##bits(is) && is_nan##bits(ought));                    \
        }                                                                                          \
        return wrong;                                                                              \
    }
COUNT_WRONG(32)
COUNT_WRONG(64)

int main(void)
{
    wave *w = &waves[0];
    int wrong = 0;
    put_mask(w, EXEC, UINT32_MAX);
    for (approximation = -1; approximation <= 1; approximation++)
        for (int i = 0; i < ROUNDS; i++)
            wrong += wrong32(w) + wrong64(w);
    printf("%d quotients, %d wrong\n", 3 * 2 * ROUNDS * LANES, wrong);
    return wrong != 0;
}
