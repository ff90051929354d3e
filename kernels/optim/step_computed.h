/* The steps with computed codes. */
#define LOWER(name) name##_avx512
#include "kernels/optim/step_coded.h"

MO_EACH_STEP_COMPUTED(STEP)
