/* The scalar steps that the forms for NEON use in rare cases. */
#include "kernels/optim/step_scalar.h"
