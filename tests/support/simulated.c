/* The hooks of the simulated driver that the library has loaded. */
#define _GNU_SOURCE /* RTLD_NOLOAD */
#include "support/simulated.h"

#include "device/front/handle.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOOK(field, name)                                                                          \
    do {                                                                                           \
        void *hook_ = dlsym(hooks.library, name);                                                  \
        memcpy(&hooks.field, &hook_, sizeof hook_);                                                \
        found &= hook_ != NULL;                                                                    \
    } while (0)

const driver_hooks *driver_of(const char *device)
{
    static driver_hooks hooks;
    memopt_backend_info info = {.struct_size = sizeof info};
    char backend[8] = "";
    int found = 1;
    if (strcmp(device, "cpu") == 0)
        return NULL;
    if (hooks.library != NULL)
        return &hooks;
    snprintf(backend, sizeof backend, "%.*s", (int)strcspn(device, ":"), device);
    if (memopt_backend_get_info(backend, &info) == MEMOPT_OK)
        hooks.library = dlopen(info.library, RTLD_NOW | RTLD_NOLOAD);
    if (hooks.library != NULL) {
        HOOK(fail_at, "memopt_sim_fail_at");
        HOOK(pending, "memopt_sim_fault_pending");
        HOOK(mapping, "memopt_sim_mapping");
        HOOK(seed, "memopt_sim_seed");
        HOOK(lag, "memopt_sim_lag");
        HOOK(violations, "memopt_sim_violations");
        HOOK(take_violation, "memopt_sim_take_violation");
        HOOK(calls, "memopt_sim_calls");
        HOOK(used, "memopt_sim_used");
        HOOK(lose, "memopt_sim_lose_device");
        HOOK(pin_limit, "memopt_sim_pin_limit");
    }
    if (hooks.library == NULL || !found) {
        fprintf(stderr, "%s: the driver is no simulated one\n", device);
        abort();
    }
    return &hooks;
}

void fault_begin(memopt_device *device, const driver_hooks *driver, int64_t n)
{
    if (driver != NULL)
        driver->fail_at("*", n, 0);
    else
        mo_device_fail_at(device, n);
}

int fault_end(memopt_device *device, const driver_hooks *driver)
{
    int struck = driver != NULL ? driver->pending() == 0 : mo_device_fault_struck(device);
    fault_begin(device, driver, 0);
    return struck;
}
