/* Modules, functions and launches, the same for both vendors. */
#ifndef MEMOPT_SIM_MODULE_H
#define MEMOPT_SIM_MODULE_H

#include "core/sim.h"

typedef struct sim_module sim_module;
typedef struct sim_function sim_function;

typedef struct sim_launch {
    uint32_t grid[3], block[3], shared;
    void **parameters;
} sim_launch;

/* An image: PTX text, a fatbin, an ELF of the GPU or a bundle of them. */
sim_status sim_module_load(sim_context *context, const void *image, sim_module **out_module);
sim_status sim_module_unload(sim_module *module, const sim_context *context);
sim_status sim_module_function(sim_module *module, const sim_context *context, const char *name,
                               sim_function **out_function);
sim_status sim_function_check(const sim_function *function, const sim_context *context);
sim_status sim_module_launch(sim_function *function, sim_context *context, sim_stream *stream,
                             const sim_launch *launch);

#endif
