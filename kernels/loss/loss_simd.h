/* Cross-entropy over the vectors of one instruction set: include a vector_*.h first. */
#include "kernels/core/element_io.h"
#include "kernels/core/prefetch.h"
#include "kernels/loss/loss_cpu.h"

enum { LOSS_SUMS = MO_LOSS_LANES / MO_LANES_N };

/* mo_exp_down */
MO_INLINE VF loss_exp(VF z)
{
    VF shifted = v_fma(z, v_set(MO_EXP_LOG2E), v_set(MO_EXP_ROUND));
    VF k = v_sub(shifted, v_set(MO_EXP_ROUND));
    VF r = v_fma(k, v_set(-MO_EXP_LN2_LOW), v_fma(k, v_set(-MO_EXP_LN2_HIGH), z));
    VF q = v_fma(v_fma(v_set(MO_EXP_4), r, v_set(MO_EXP_3)), r, v_set(MO_EXP_2));
    q = v_fma(v_fma(q, r, v_set(MO_EXP_1)), r, v_set(MO_EXP_0));
    VF p = v_add(v_fma(q, v_mul(r, r), r), v_set(1.0f));
    VF power = v_bits(v_addi(v_sll(v_ints(shifted), 23), v_seti(0x3f800000)));
    return v_select(v_lt(z, v_set(MO_EXP_LEAST)), v_set(0.0f), v_mul(p, power));
}

/* The stripe as f32, and -infinity behind its end: that adds nothing to any lane. */
MO_INLINE void loss_stripe_as(const unsigned char *logits, uint32_t count, int32_t dtype,
                              float *largest, float *sum)
{
    _Alignas(64) float x[MO_LOSS_STRIPE], lanes[MO_LOSS_LANES];
    const VF least = v_set(-mo_f32_from_bits(MO_F32_INF_BITS));
    VF top[LOSS_SUMS], sums[LOSS_SUMS];
    uint32_t whole = count / MO_LOSS_LANES * MO_LOSS_LANES, end = whole;
    for (int k = 0; k < LOSS_SUMS; k++)
        top[k] = least, sums[k] = v_set(0.0f);
    if (whole < count) {
        end += MO_LOSS_LANES;
        for (uint32_t i = whole; i < end; i++)
            x[i] =
                i < count ? mo_load_element(logits, i, dtype) : -mo_f32_from_bits(MO_F32_INF_BITS);
    }
    for (uint32_t i = 0; i < end; i += MO_LOSS_LANES)
        for (uint32_t k = 0; k < LOSS_SUMS; k++) {
            VF value = i < whole ? v_load_as(logits, i + k * MO_LANES_N, dtype)
                                 : v_load(x + i + k * MO_LANES_N);
            v_store(x + i + k * MO_LANES_N, value);
            top[k] = v_select(v_lt(top[k], value), value, top[k]);
        }
    float highest = -mo_f32_from_bits(MO_F32_INF_BITS);
    for (int k = 0; k < LOSS_SUMS; k++)
        v_store(lanes + k * MO_LANES_N, top[k]);
    for (int k = 0; k < MO_LOSS_LANES; k++)
        highest = lanes[k] > highest ? lanes[k] : highest;
    const VF base = v_set(mo_loss_base(highest));
    for (uint32_t i = 0; i < end; i += MO_LOSS_LANES)
        for (uint32_t k = 0; k < LOSS_SUMS; k++)
            sums[k] = v_add(sums[k], loss_exp(v_sub(v_load(x + i + k * MO_LANES_N), base)));
    for (int k = 0; k < LOSS_SUMS; k++)
        v_store(lanes + k * MO_LANES_N, sums[k]);
    *largest = highest;
    *sum = mo_loss_tree(lanes);
}

static void loss_stripe(const unsigned char *logits, uint32_t count, uint32_t dtype, float *largest,
                        float *sum)
{
    if (dtype == MO_DTYPE_F32)
        loss_stripe_as(logits, count, MO_DTYPE_F32, largest, sum);
    else if (dtype == MO_DTYPE_F16)
        loss_stripe_as(logits, count, MO_DTYPE_F16, largest, sum);
    else
        loss_stripe_as(logits, count, MO_DTYPE_BF16, largest, sum);
}

MO_INLINE void loss_gradient_as(unsigned char *logits, uint32_t count, int32_t dtype, float base,
                                float factor)
{
    const VF b = v_set(base), f = v_set(factor);
    uint32_t i = 0;
    for (; i + MO_LANES_N <= count; i += MO_LANES_N) {
        VF d = v_mul(loss_exp(v_sub(v_load_as(logits, i, dtype), b)), f);
        v_store_as(logits, i, dtype, v_one_nan(d));
    }
    mo_gradient_scalar(logits + (uint64_t)i * mo_element_size((uint32_t)dtype), count - i,
                       (uint32_t)dtype, base, factor);
}

static void loss_gradient(unsigned char *logits, uint32_t count, uint32_t dtype, float base,
                          float factor)
{
    if (dtype == MO_DTYPE_F32)
        loss_gradient_as(logits, count, MO_DTYPE_F32, base, factor);
    else if (dtype == MO_DTYPE_F16)
        loss_gradient_as(logits, count, MO_DTYPE_F16, base, factor);
    else
        loss_gradient_as(logits, count, MO_DTYPE_BF16, base, factor);
}

void MO_FORM(mo_logits_add)(const void *args, uint64_t begin, uint64_t end)
{
    mo_logits_add_run(args, begin, end, loss_stripe);
}

void MO_FORM(mo_logits_gradient)(const void *args, uint64_t begin, uint64_t end)
{
    mo_logits_gradient_run(args, begin, end, loss_gradient);
}
