/* The scalar steps that the forms for AVX2 and AVX-512 use in rare cases. */
#include "kernels/optim/step_scalar.h"
