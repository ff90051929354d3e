/* Modules, functions and launches: the checks of both vendors' calls. */
#include "calls.h"

sim_status sim_call_module_load(sim_module **out, const void *image)
{
    return out != NULL && image != NULL ? sim_module_load(sim_here(), image, out)
                                        : SIM_INVALID_VALUE;
}

sim_status sim_call_module_load_options(sim_module **out, const void *image, unsigned count,
                                        int *options, void **values)
{
    if (count != 0 && (options == NULL || values == NULL))
        return SIM_INVALID_VALUE;
    return sim_call_module_load(out, image);
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

/* 0: the most threads of a block; 4: registers. */
sim_status sim_call_function_attribute(int *out, int attribute, sim_function *function)
{
    sim_status status = sim_function_check(function, sim_here());
    if (status == SIM_OK && out == NULL)
        status = SIM_INVALID_VALUE;
    if (status == SIM_OK)
        *out = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0;
    return status;
}

sim_status sim_call_launch(sim_function *function, unsigned grid_x, unsigned grid_y,
                           unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                           unsigned shared, sim_stream *stream, void **parameters, void **extra)
{
    sim_launch launch = {.grid = {grid_x, grid_y, grid_z},
                         .block = {block_x, block_y, block_z},
                         .shared = shared,
                         .parameters = parameters,
                         .extra = extra,
                         .buffer_key = 1,
                         .size_key = 2,
                         .end_key = sim_is_hip ? 3 : 0};
    sim_status status = sim_use_stream(&stream);
    return status == SIM_OK ? sim_module_launch(function, sim_here(), stream, &launch) : status;
}
