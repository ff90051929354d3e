/* Device memory, page-locked host memory and fills: the checks of both vendors' calls. */
#include "calls.h"

sim_status sim_call_memory_info(size_t *out_free, size_t *out_total)
{
    const sim_device *d = &sim_devices[sim_here()->device];
    if (out_free == NULL || out_total == NULL)
        return SIM_INVALID_VALUE;
    *out_free = d->used < d->total ? d->total - d->used : 0;
    *out_total = d->total;
    return SIM_OK;
}

/* HIP takes an empty allocation and gives NULL, CUDA refuses it. */
sim_status sim_call_mem_alloc(void **out, size_t bytes)
{
    uintptr_t address = 0;
    if (out == NULL)
        return SIM_INVALID_VALUE;
    sim_status status =
        bytes == 0 && sim_is_hip ? SIM_OK : sim_mem_alloc(sim_here(), bytes, &address);
    if (status == SIM_OK)
        *out = (void *)address;
    return status;
}

sim_status sim_call_mem_free(void *pointer)
{
    return pointer != NULL ? sim_mem_free(sim_here(), (uintptr_t)pointer) : SIM_OK;
}

/* Flags: portable, mapped, write-combined; HIP adds NUMA and coherence at the upper end. */
sim_status sim_call_host_alloc(void **out, size_t bytes, unsigned flags)
{
    unsigned known = sim_is_hip ? 0xE0000007u : 7u;
    if (out == NULL || (flags & ~known) != 0)
        return SIM_INVALID_VALUE;
    return sim_host_alloc(bytes, out);
}

sim_status sim_call_host_free(void *pointer)
{
    return pointer == NULL && sim_is_hip ? SIM_OK : sim_host_free((uintptr_t)pointer);
}

sim_status sim_call_host_register(void *pointer, size_t bytes, unsigned flags)
{
    unsigned known = sim_is_hip ? 0x8000000Fu : 15u;
    return (flags & ~known) == 0 ? sim_host_register((uintptr_t)pointer, bytes) : SIM_INVALID_VALUE;
}

sim_status sim_call_host_unregister(void *pointer)
{
    return sim_host_unregister((uintptr_t)pointer);
}

sim_status sim_call_fill8(void *to, unsigned char value, size_t count, sim_stream *stream)
{
    sim_status status = sim_use_stream(&stream);
    return status == SIM_OK ? sim_fill(stream, (uintptr_t)to, value, 1, count) : status;
}
