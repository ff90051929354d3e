/* Block-wise quantise and dequantise on AVX-512 with VBMI. */
#define MO_FORM(name) name##_avx512vbmi
#include "kernels/optim/blockcode_quantize_avx512.h"
