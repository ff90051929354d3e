/* The steps of AdamW and Adam on AVX-512 with VBMI and BF16. */
#define MO_FORM(name) name##_avx512bf16
#include "kernels/optim/adamw8_avx512.h"
