/*
 * Whether a device can reach a caller's memory.
 *
 * Memory of the handle itself is known from its sets. For foreign memory (a framework's, another
 * handle's, the host's) the driver is asked about both ends, and reachable ranges are remembered: a
 * training loop passes the same addresses again and again, and pays two driver calls for each once.
 * Frees by others are unknown, so a remembered range counts as reachable; page-locked memory that
 * ends through the handle clears the memory.
 */
#include "device/gpu/gpu.h"

#include "base/lock.h"

#include <inttypes.h>
#include <string.h>

/* Pre: gpu->lock is held. Addresses differ above their alignment, so those bits are spread. */
static mo_gpu_seen *place_of(mo_gpu_device *gpu, uintptr_t start)
{
    MO_PRE(mo_is_locked(&gpu->lock));
    return &gpu->seen[(start * UINT64_C(0x9E3779B97F4A7C15)) >> 54 & (MO_GPU_SEEN - 1)];
}

static int is_known(mo_gpu_device *gpu, uintptr_t start, uint64_t bytes)
{
    mo_lock(&gpu->lock);
    const mo_gpu_seen *seen = place_of(gpu, start);
    int known = (seen->start == start && seen->bytes >= bytes) ||
                mo_ranges_cover(&gpu->mappings, start, bytes) ||
                mo_ranges_cover(&gpu->plain, start, bytes);
    mo_unlock(&gpu->lock);
    return known;
}

static void remember(mo_gpu_device *gpu, uintptr_t start, uint64_t bytes)
{
    mo_lock(&gpu->lock);
    *place_of(gpu, start) = (mo_gpu_seen){start, bytes};
    mo_unlock(&gpu->lock);
}

void mo_gpu_forget_seen(mo_gpu_device *gpu)
{
    mo_lock(&gpu->lock);
    memset(gpu->seen, 0, sizeof gpu->seen);
    mo_unlock(&gpu->lock);
}

/* Pre: entered. The owner of both ends; if they differ, the one that is not the device. */
static int locate_ends(const mo_gpu_scope *in, const void *pointer, uint64_t bytes,
                       int32_t *out_owner)
{
    const mo_gpu_device *gpu = in->gpu;
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    MO_PRE(in->entered);
    int code = vendor->locate(gpu, pointer, out_owner);
    if (code != MO_GPU_SUCCESS || bytes == 1 ||
        (*out_owner != gpu->index && *out_owner != MO_GPU_EVERYWHERE))
        return code;
    return vendor->locate(gpu, (const char *)pointer + (bytes - 1), out_owner);
}

static memopt_status refuse(const mo_gpu_device *gpu, const char *subject, uint64_t index,
                            const void *pointer, uint64_t bytes, int32_t owner)
{
    const char *name = gpu->driver->vendor->name;
    if (owner == MO_GPU_NOWHERE)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s %" PRIu64 ": [%p, +%" PRIu64 ") is not all memory that %s:%d can reach: "
                       "it was freed, or it is host memory that is not page-locked",
                       subject, index, pointer, bytes, name, gpu->index);
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "%s %" PRIu64 ": [%p, +%" PRIu64 ") is memory of %s:%d, and this is %s:%d; copy "
                   "it there first",
                   subject, index, pointer, bytes, name, owner, name, gpu->index);
}

memopt_status mo_gpu_reachable(memopt_device *device, const char *subject, uint64_t index,
                               const void *pointer, uint64_t bytes)
{
    mo_gpu_device *gpu = mo_gpu(device);
    int32_t owner = MO_GPU_EVERYWHERE;
    mo_gpu_scope in;
    if (is_known(gpu, (uintptr_t)pointer, bytes))
        return MEMOPT_OK;
    if (mo_gpu_enter(&in, device, "reachable", MO_GPU_RELAXED))
        in.code = locate_ends(&in, pointer, bytes, &owner);
    MO_TRY(mo_gpu_leave(&in, MEMOPT_OUT_OF_HOST_MEMORY));
    if (owner != gpu->index && owner != MO_GPU_EVERYWHERE)
        return refuse(gpu, subject, index, pointer, bytes, owner);
    remember(gpu, (uintptr_t)pointer, bytes);
    return MEMOPT_OK;
}
