/* Modules, functions and launches: the checks of both vendors' calls. */
#include "calls.h"

sim_status sim_call_module_load(sim_module **out, const void *image)
{
    return out != NULL && image != NULL ? sim_module_load(sim_here(), image, out)
                                        : SIM_INVALID_VALUE;
}

sim_status sim_call_module_unload(sim_module *module)
{
    return sim_module_unload(module, sim_here());
}

sim_status sim_call_module_function(sim_function **out, sim_module *module, const char *name)
{
    return out != NULL && name != NULL ? sim_module_function(module, sim_here(), name, out)
                                       : SIM_INVALID_VALUE;
}

sim_status sim_call_launch(sim_function *function, unsigned grid_x, unsigned grid_y,
                           unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                           unsigned shared, sim_stream *stream, void **parameters, void **extra)
{
    sim_launch launch = {.grid = {grid_x, grid_y, grid_z},
                         .block = {block_x, block_y, block_z},
                         .shared = shared,
                         .parameters = parameters};
    sim_status status = extra == NULL ? sim_use_stream(&stream) : SIM_INVALID_VALUE;
    return status == SIM_OK ? sim_module_launch(function, sim_here(), stream, &launch) : status;
}
