/* The library's kernels, compiled for the host: what the simulated drivers run. */
#define MO_GPU_SIM 1

#include "kernels/core/all_kernels.cu"
