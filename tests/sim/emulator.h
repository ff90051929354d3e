/* Runs a kernel launch block by block; see emulator.c. */
#ifndef MEMOPT_SIM_EMULATOR_H
#define MEMOPT_SIM_EMULATOR_H

#include "kernels.h"

struct sim_op;

/* 0 where a thread touched memory that it may not: the device stops. */
int sim_emulate(struct sim_op *op);
/* By the symbol's name; NULL: no such kernel. */
const mo_sim_kernel *sim_find_kernel(const char *name);
/* What MEMOPT_SIM_KERNELS names; NULL: nothing. A file that cannot be loaded ends the program. */
const mo_sim_loaded *sim_loaded_kernels(void);

#endif
