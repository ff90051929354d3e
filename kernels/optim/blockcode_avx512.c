/* Block-wise quantise and dequantise on AVX-512. */
#define MO_FORM(name) name##_avx512
#include "kernels/optim/blockcode_quantize_avx512.h"
