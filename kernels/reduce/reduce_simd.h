/*
 * The reductions and the scale kernel over the vectors of one instruction set: include a vector_*.h
 * first. Types are constants to the compiler.
 */
#include "kernels/core/prefetch.h"
#include "kernels/reduce/reduce_cpu.h"

/* --- sum of squares -------------------------------------------------------------------------- */

enum { REDUCE_SUMS = MO_STRIPE_LANES / MO_LANES_D };

/* The tree of mo_stripe_tree: whole vectors first. The vectors are used up. */
MO_INLINE double reduce_tree(VD sums[REDUCE_SUMS])
{
    double lanes[MO_LANES_D];
    for (int n = REDUCE_SUMS / 2; n > 0; n /= 2)
        for (int k = 0; k < n; k++)
            sums[k] = v_addd(sums[k], sums[k + n]);
    v_stored(lanes, sums[0]);
    for (int n = MO_LANES_D / 2; n > 0; n /= 2)
        for (int k = 0; k < n; k++)
            lanes[k] += lanes[k + n];
    return lanes[0];
}

/* A square is exact, so fma gives what a multiplication and an addition give. */
MO_INLINE double reduce_stripe(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    const uint64_t size = mo_element_size(dtype);
    VD sums[REDUCE_SUMS];
    uint64_t i = 0;
    for (int k = 0; k < REDUCE_SUMS; k++)
        sums[k] = v_setd(0.0);
    for (; i + MO_STRIPE_LANES <= count; i += MO_STRIPE_LANES) {
        mo_prefetch_page_ahead(data + i * size, MO_STRIPE_LANES * size);
        for (int k = 0; k < REDUCE_SUMS; k += 2) {
            VF values = v_load_as(data, i + (uint64_t)k * MO_LANES_D, (int32_t)dtype);
            VD low = v_double_low(values), high = v_double_high(values);
            sums[k] = v_fmad(low, low, sums[k]);
            sums[k + 1] = v_fmad(high, high, sums[k + 1]);
        }
    }
    if (i == count)
        return reduce_tree(sums);
    double lanes[MO_STRIPE_LANES];
    for (int k = 0; k < REDUCE_SUMS; k++)
        v_stored(lanes + k * MO_LANES_D, sums[k]);
    mo_square_tail(data + i * size, count - i, dtype, lanes);
    return mo_stripe_tree(lanes);
}

MO_INLINE double reduce_square_as(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i += MO_STRIPE_ELEMENTS) {
        uint64_t rest = count - i < MO_STRIPE_ELEMENTS ? count - i : MO_STRIPE_ELEMENTS;
        sum += reduce_stripe(data + i * mo_element_size(dtype), rest, dtype);
    }
    return sum;
}

MO_INLINE double reduce_square(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    if (dtype == MO_DTYPE_F32)
        return reduce_square_as(data, count, MO_DTYPE_F32);
    return dtype == MO_DTYPE_F16 ? reduce_square_as(data, count, MO_DTYPE_F16)
                                 : reduce_square_as(data, count, MO_DTYPE_BF16);
}

/* --- check ----------------------------------------------------------------------------------- */

/* Lanes are compared without a conversion; one holds two elements of 16 bits. */
static int reduce_check(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    const int exponent = dtype == MO_DTYPE_F16 ? 0x7c00 : 0x7f80;
    const VI high = v_seti(exponent << 16), low = dtype == MO_DTYPE_F32 ? high : v_seti(exponent);
    uint64_t size = mo_element_size(dtype), bytes = count * size, at = 0;
    VI found = v_seti(0);
    for (; at + sizeof(VI) <= bytes; at += sizeof(VI)) {
        VI u = v_loadi(data + at);
        mo_prefetch_page_ahead(data + at, 64);
        found = v_count(found, v_eqi(v_and(u, high), high));
        found = v_count(found, v_eqi(v_and(u, low), low));
    }
    return v_largest(found) != 0 || mo_check_scalar(data + at, (bytes - at) / size, dtype);
}

/* --- scale ----------------------------------------------------------------------------------- */

/* mo_scale_element; *bad counts values that were not finite. */
MO_INLINE VF reduce_scale_lanes(VF value, VF factor, VI *bad)
{
    const VI exponent = v_seti((int)MO_F32_INF_BITS);
    VI u = v_ints(value);
    VF quiet = v_bits(v_or(u, v_seti((int)MO_F32_QUIET_BIT)));
    *bad = v_count(*bad, v_eqi(v_and(u, exponent), exponent));
    return v_select(v_is_nan(value), quiet, v_one_nan(v_mul(value, factor)));
}

/* Two vectors of products. bf16: the elements of even and of odd index, each already in the upper
 * half of its lane or moved there. */
MO_INLINE void reduce_products(const unsigned char *data, uint64_t i, int32_t dtype, VF factor,
                               VF out[2])
{
    if (dtype == MO_DTYPE_BF16) {
        VI pairs = v_loadi(data + 2 * i);
        out[0] = v_mul(v_bits(v_sll(pairs, 16)), factor);
        out[1] = v_mul(v_bits(v_and(pairs, v_seti((int)0xffff0000u))), factor);
        return;
    }
    for (uint64_t k = 0; k < 2; k++)
        out[k] = v_mul(v_load_as(data, i + k * MO_LANES_N, dtype), factor);
}

/* To nearest even in the upper halves; not of NaN. */
MO_INLINE VI reduce_round_bf16(VF x)
{
    VI u = v_ints(x), odd = v_and(v_srl(u, 16), v_seti(1));
    return v_addi(v_addi(u, v_seti(0x7fff)), odd);
}

/* What reduce_products gave, none of it NaN. */
MO_INLINE void reduce_store_products(unsigned char *data, uint64_t i, int32_t dtype, const VF x[2])
{
    if (dtype == MO_DTYPE_BF16) {
        VI odd = v_and(reduce_round_bf16(x[1]), v_seti((int)0xffff0000u));
        v_put(data + 2 * i, v_or(v_srl(reduce_round_bf16(x[0]), 16), odd), 0);
        return;
    }
    for (uint64_t k = 0; k < 2; k++)
        v_store_as(data, i + k * MO_LANES_N, dtype, x[k]);
}

/* Four vectors at a time; lane by lane only where a product is not finite, which the sum of zero
 * times each of them shows. */
MO_INLINE int reduce_scale_as(unsigned char *data, uint64_t count, int32_t dtype, float factor)
{
    enum { GROUP = 4 * MO_LANES_N };
    const uint64_t size = mo_element_size((uint32_t)dtype);
    const VF f = v_set(factor), zero = v_set(0.0f);
    VI bad = v_seti(0);
    uint64_t i = 0;
    for (; i + GROUP <= count; i += GROUP) {
        VF x[2][2];
        mo_prefetch_page_ahead(data + i * size, GROUP * size);
        for (uint64_t k = 0; k < 2; k++)
            reduce_products(data, i + k * GROUP / 2, dtype, f, x[k]);
        VF low = v_fma(x[0][0], zero, v_mul(x[0][1], zero));
        VF high = v_fma(x[1][0], zero, v_mul(x[1][1], zero));
        if (__builtin_expect(!v_any_nan(v_add(low, high)), 1)) {
            for (uint64_t k = 0; k < 2; k++)
                reduce_store_products(data, i + k * GROUP / 2, dtype, x[k]);
            continue;
        }
        for (uint64_t k = i; k < i + GROUP; k += MO_LANES_N)
            v_store_as(data, k, dtype, reduce_scale_lanes(v_load_as(data, k, dtype), f, &bad));
    }
    int found = mo_scale_scalar(data + i * size, count - i, (uint32_t)dtype, factor);
    return found || v_largest(bad) != 0;
}

static int reduce_scale(unsigned char *data, uint64_t count, uint32_t dtype, float factor)
{
    if (dtype == MO_DTYPE_F32)
        return reduce_scale_as(data, count, MO_DTYPE_F32, factor);
    return dtype == MO_DTYPE_F16 ? reduce_scale_as(data, count, MO_DTYPE_F16, factor)
                                 : reduce_scale_as(data, count, MO_DTYPE_BF16, factor);
}

/* The forms of an instruction set. */
double MO_FORM(mo_squares)(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    return reduce_square(data, count, dtype);
}

void MO_FORM(mo_square_sum)(const void *args, uint64_t begin, uint64_t end)
{
    mo_square_sum_run(args, begin, end, MO_FORM(mo_squares));
}

void MO_FORM(mo_check)(const void *args, uint64_t begin, uint64_t end)
{
    mo_check_run(args, begin, end, reduce_check);
}

void MO_FORM(mo_scale)(const void *args, uint64_t begin, uint64_t end)
{
    mo_scale_run(args, begin, end, reduce_scale);
}
