/* The steps and codes of step_simd.h on AVX-512. */
#define MO_FORM(name) name##_avx512
#include "kernels/optim/step_simd_avx512.h"

MO_LANE_ADAMW32(mo_adamw32_span_avx512)

/* Adam with the types that have no form of their own. */
void mo_adam8_span_avx512(const mo_optim_span *span)
{
    lane_step(MO_RULE_ADAM, MO_STATE_8BIT, span);
}
