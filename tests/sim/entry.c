/* What every entry point does before and after its work, and the numbers of outcomes. */
#include "calls.h"

#include <stddef.h>

static __thread sim_context *here;

typedef struct outcome {
    int32_t cuda, hip;
    const char *cuda_name, *hip_name, *text;
} outcome;

static const outcome outcomes[SIM_STATUS_COUNT] = {
#define OUTCOME(name, cuda, cuda_name, hip, hip_name, text)                                        \
    {cuda, hip, "CUDA_" #cuda_name, "hip" #hip_name, text},
    SIM_STATUSES(OUTCOME)
#undef OUTCOME
};

int32_t sim_status_code(sim_status status)
{
    return sim_is_hip ? outcomes[status].hip : outcomes[status].cuda;
}

int sim_status_texts(int32_t code, const char **out_name, const char **out_text)
{
    for (size_t i = 0; i < SIM_STATUS_COUNT; i++)
        if (code == sim_status_code((sim_status)i)) {
            *out_name = sim_is_hip ? outcomes[i].hip_name : outcomes[i].cuda_name;
            *out_text = outcomes[i].text;
            return 1;
        }
    return 0;
}

int sim_begin(const char *call, sim_need needs, sim_safety safety, int32_t *out_code)
{
    sim_status status = SIM_OK;
    if (!sim_enter(call, out_code)) {
        *out_code = sim_vendor_outcome(*out_code);
        return 0;
    }
    here = NULL;
    if (needs != SIM_NEEDS_NOTHING)
        status = sim_vendor_ready();
    if (status == SIM_OK && needs == SIM_NEEDS_CONTEXT)
        status = sim_vendor_context(&here);
    if (status == SIM_OK && safety == SIM_UNSAFE)
        status = sim_capture_forbids();
    if (status == SIM_OK)
        return 1;
    *out_code = sim_end(status);
    return 0;
}

int32_t sim_end(sim_status status)
{
    sim_leave();
    return sim_vendor_outcome(sim_status_code(status));
}

sim_context *sim_here(void)
{
    return here;
}

int sim_known_device(int device)
{
    return device >= 0 && device < sim_options.devices;
}

sim_status sim_use_stream(sim_stream **stream)
{
    if ((uintptr_t)*stream > 1)
        return sim_stream_check(*stream, here);
    *stream = here->legacy;
    return sim_capture_conflict(here, 1);
}

int sim_on_device(const void *pointer)
{
    const sim_arena *arena = sim_arena_of((uintptr_t)pointer);
    return arena != NULL && arena != &sim_host;
}
