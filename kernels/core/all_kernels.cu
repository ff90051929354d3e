/* Every GPU kernel in one unit: what the images are made of. */
#include "kernels/core/gpu_compat.h"

#include "kernels/adafactor/adafactor.cu"
#include "kernels/cast/accumulate.cu"
#include "kernels/cast/blocks.cu"
#include "kernels/cast/cast.cu"
#include "kernels/hash/hash.cu"
#include "kernels/loss/loss.cu"
#include "kernels/optim/optim.cu"
#include "kernels/reduce/reduce.cu"
#include "kernels/trust/trust.cu"

#if defined(MO_GPU_SIM)
#define STEP(kernel, rule, format) mo_step_##kernel##_sim,
#define CODES(suffix, format) mo_quantize##suffix##_sim, mo_dequantize##suffix##_sim,
extern "C" const mo_sim_kernel mo_sim_kernels[];
const mo_sim_kernel mo_sim_kernels[] = {
    mo_accumulate_sim,
    mo_blocks_quantize_sim,
    mo_blocks_dequantize_sim,
    mo_cast_sim,
    mo_cast_amax_sim,
    mo_hash_granules_sim,
    mo_hash_compare_sim,
    mo_optim_upload_sim,
    MO_EACH_STEP(STEP) MO_EACH_CODE(CODES) mo_optim_prologue_sim,
    mo_adafactor_squares_sim,
    mo_adafactor_rows_sim,
    mo_adafactor_columns_sim,
    mo_adafactor_update_sim,
    mo_adafactor_rate_sim,
    mo_adafactor_apply_sim,
    mo_trust_plan_sim,
    mo_trust_totals_sim,
    mo_trust_rates_sim,
    mo_square_sum_sim,
    mo_check_sim,
    mo_sum_sim,
    mo_scale_sim,
    mo_norm_sim,
    mo_scaler_update_sim,
    mo_scaler_set_sim,
    mo_logits_add_sim,
    mo_logits_gradient_sim,
    mo_losses_sim,
    {0, 0, 0},
};
#endif
