/*
 * The forms made of step_simd.h: block-wise codes, states without scales, the 32-bit states of
 * steps that have coded ones. VBMI only makes codes faster.
 */
#include "kernels/optim/step_simd.h"

#define CODES(suffix, format)                                                                      \
    void MO_FORM(mo_quantize##suffix)(const void *args, uint64_t begin, uint64_t end)              \
    {                                                                                              \
        lane_quantize(MO_STATE_##format, args, begin, end);                                        \
    }                                                                                              \
    void MO_FORM(mo_dequantize##suffix)(const void *args, uint64_t begin, uint64_t end)            \
    {                                                                                              \
        lane_dequantize(MO_STATE_##format, args, begin, end);                                      \
    }
MO_EACH_CODE(CODES)

#if !defined(__AVX512VBMI__)

#define STEP(kernel, rule, format)                                                                 \
    static void kernel##_span(const mo_optim_span *s)                                              \
    {                                                                                              \
        lane_step(MO_RULE_##rule, MO_STATE_##format, s);                                           \
    }                                                                                              \
    void MO_FORM(mo_step_##kernel)(const void *args, uint64_t begin, uint64_t end)                 \
    {                                                                                              \
        mo_each_span(args, begin, end, kernel##_span);                                             \
    }
MO_EACH_STEP_PLAIN(STEP)

#define SPAN32(kernel, rule, format)                                                               \
    static __attribute__((noinline)) void kernel##_span32(const mo_optim_span *s)                  \
    {                                                                                              \
        lane_step(MO_RULE_##rule, MO_STATE_F32, s);                                                \
    }
#define SPAN32_OF(kernel, rule, format) [MO_RULE_##rule] = kernel##_span32,
MO_EACH_STEP_8BIT(SPAN32)

void MO_FORM(mo_span32)(uint32_t rule, const mo_optim_span *s)
{
    static void (*const forms[MO_RULES])(const mo_optim_span *) = {MO_EACH_STEP_8BIT(SPAN32_OF)};
    forms[rule](s);
}
#endif
