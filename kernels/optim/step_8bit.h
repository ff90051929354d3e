/* The steps with codes of tables. */
#define LOWER(name) name##_avx512vbmi
#include "kernels/optim/step_coded.h"

MO_EACH_STEP_8BIT(STEP)
