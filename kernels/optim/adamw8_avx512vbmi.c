/* The steps of AdamW and Adam on AVX-512 with VBMI. */
#define MO_FORM(name) name##_avx512vbmi
#include "kernels/optim/adamw8_avx512.h"
