/* The fault points of tests: the n-th operation of a device fails. */
#include "device/front/handle.h"

#ifdef MEMOPT_TEST_HOOKS
memopt_status mo_device_fault(memopt_device *device, const char *operation, memopt_status status)
{
    if (atomic_load_explicit(&device->fault_countdown, memory_order_relaxed) <= 0 ||
        atomic_fetch_sub(&device->fault_countdown, 1) != 1)
        return MEMOPT_OK;
    atomic_store(&device->fault_struck, 1);
    return mo_fail_driver(status, -1, "INJECTED_FAULT", "%s: %s failed by an injected fault",
                          device->properties.backend, operation);
}

void mo_device_fail_at(memopt_device *device, int64_t n)
{
    atomic_store(&device->fault_struck, 0);
    atomic_store(&device->fault_countdown, n);
}

int mo_device_fault_struck(memopt_device *device)
{
    return atomic_load(&device->fault_struck);
}
#endif
