/* A scaler: one block in device memory (kernels/reduce/scale.h). One thread at a time per scaler;
 * no lock. */
#ifndef MO_CAST_SCALER_H
#define MO_CAST_SCALER_H

#include "cast/gradients.h"

struct memopt_scaler {
    memopt_device *device;
    mo_scaler_block *block; /* device memory */
    uint32_t disabled;
};

#endif
