/* The list of kernels; all_kernels.cu is the same for GPUs. */
#include "kernels/core/all_kernels.h"

#include "kernels/adafactor/adafactor.h"
#include "kernels/cast/accumulate.h"
#include "kernels/cast/blocks.h"
#include "kernels/cast/cast.h"
#include "kernels/hash/hash.h"
#include "kernels/loss/loss.h"
#include "kernels/optim/optim_step.h"
#include "kernels/reduce/reduce.h"
#include "kernels/reduce/scale.h"
#include "kernels/trust/trust.h"

#define STEP(kernel, rule, format) &mo_kernel_step_##kernel,
#define CODES(suffix, format) &mo_kernel_quantize##suffix, &mo_kernel_dequantize##suffix,

const mo_kernel *const mo_all_kernels[] = {&mo_kernel_accumulate,
                                           &mo_kernel_cast,
                                           &mo_kernel_hash_granules,
                                           &mo_kernel_hash_compare,
                                           &mo_kernel_optim_upload,
                                           &mo_kernel_optim_prologue,
                                           &mo_kernel_adafactor_squares,
                                           &mo_kernel_adafactor_rows,
                                           &mo_kernel_adafactor_columns,
                                           &mo_kernel_adafactor_update,
                                           &mo_kernel_adafactor_rate,
                                           &mo_kernel_step_adafactor,
                                           &mo_kernel_trust_plan,
                                           &mo_kernel_trust_totals,
                                           &mo_kernel_trust_rates,
                                           &mo_kernel_square_sum,
                                           &mo_kernel_check,
                                           &mo_kernel_sum,
                                           &mo_kernel_scale,
                                           &mo_kernel_norm,
                                           &mo_kernel_scaler_update,
                                           &mo_kernel_scaler_set,
                                           &mo_kernel_blocks_quantize,
                                           &mo_kernel_blocks_dequantize,
                                           &mo_kernel_cast_amax,
                                           &mo_kernel_logits_add,
                                           &mo_kernel_logits_gradient,
                                           &mo_kernel_losses,
                                           MO_EACH_STEP(STEP) MO_EACH_CODE(CODES)};
const uint32_t mo_all_kernels_count = sizeof mo_all_kernels / sizeof mo_all_kernels[0];
