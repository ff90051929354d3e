/* Fills many tensors in one call: all are checked before the first is touched. */
#include "cast/tensors.h"
#include "memopt/cast.h"

#include "device/device.h"

static int any_type(memopt_dtype dtype)
{
    (void)dtype;
    return 1;
}

memopt_status memopt_fill_tensors(memopt_device *device, const memopt_tensor *tensors,
                                  uint64_t count, int32_t value, memopt_stream stream)
{
    if (device == NULL || (tensors == NULL && count != 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "fill_tensors: %s is NULL",
                       device == NULL ? "device" : "tensors");
    if (mo_device_inherited(device))
        return mo_fail_inherited("fill_tensors");
    for (uint64_t i = 0; i < count; i++)
        MO_TRY(mo_tensor_check("fill_tensors: tensors", i, &tensors[i], any_type));
    MO_TRY(mo_tensors_reachable(device, "fill_tensors: tensors", tensors, count));
    /* The value and the stream are checked too if there is nothing to fill. */
    MO_TRY(memopt_fill(device, NULL, value, 0, stream));
    for (uint64_t i = 0; i < count; i++)
        MO_TRY(memopt_fill(device, tensors[i].data, value,
                           tensors[i].count * memopt_dtype_size(tensors[i].dtype), stream));
    return MEMOPT_OK;
}
