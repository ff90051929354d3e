/* The steps of AdamW and Adam on AVX-512. */
#define MO_FORM(name) name##_avx512
#include "kernels/optim/adamw8_avx512.h"
