/* The NEON forms of Adam-mini. */
#include "kernels/optim/state_codes_neon.h"

#include "kernels/adam_mini/adam_mini_simd.h"

MO_ADAM_MINI_FORMS(neon)
