/* What both vendors tell of their devices in the same words. */
#include "calls.h"

#include <stdio.h>

sim_status sim_call_driver_version(int *out)
{
    if (out == NULL)
        return SIM_INVALID_VALUE;
    *out = (int)sim_options.driver_version;
    return SIM_OK;
}

sim_status sim_call_device_count(int *out)
{
    if (out == NULL)
        return SIM_INVALID_VALUE;
    *out = sim_options.devices;
    return SIM_OK;
}

/* Whether the first device can use memory of the second; MEMOPT_SIM_PEERS=0: no other device's. */
sim_status sim_call_can_access_peer(int *out, int device, int peer)
{
    if (out == NULL)
        return SIM_INVALID_VALUE;
    if (!sim_known_device(device) || !sim_known_device(peer))
        return SIM_INVALID_DEVICE;
    *out = sim_options.peers && device != peer;
    return SIM_OK;
}

sim_status sim_call_device_name(char *out, int length, int device)
{
    if (!sim_known_device(device))
        return SIM_INVALID_DEVICE;
    if (out == NULL || length <= 0)
        return SIM_INVALID_VALUE;
    snprintf(out, (size_t)length, "%s", sim_options.name);
    return SIM_OK;
}

sim_status sim_call_device_memory(size_t *out, int device)
{
    if (!sim_known_device(device))
        return SIM_INVALID_DEVICE;
    if (out == NULL)
        return SIM_INVALID_VALUE;
    *out = sim_devices[device].total;
    return SIM_OK;
}
