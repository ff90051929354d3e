/* What tests ask of a simulated driver, and faults of one call: of a device's operation or of the
 * driver. */
#ifndef TEST_SUPPORT_SIMULATED_H
#define TEST_SUPPORT_SIMULATED_H

#include "memopt/device.h"

#include <stdint.h>

/* What the simulated driver of a device offers to tests; NULL on the cpu device. */
typedef struct driver_hooks {
    void (*fail_at)(const char *call, int64_t n, int32_t code);
    int64_t (*pending)(void);
    int (*mapping)(int32_t device, uint64_t index, uint64_t *address, uint64_t *bytes);
    void (*seed)(uint64_t seed);
    void (*lag)(uint64_t lag);
    uint32_t (*violations)(void);
    int (*take_violation)(char *out, uint64_t bytes);
    int64_t (*calls)(void);
    uint64_t (*used)(int32_t device);
    void (*lose)(int32_t code);
    void (*pin_limit)(uint64_t bytes);
    void *library;
} driver_hooks;

const driver_hooks *driver_of(const char *device);

/* The n-th operation of the device fails, or, with a driver, its n-th call. */
void fault_begin(memopt_device *device, const driver_hooks *driver, int64_t n);
/* Nothing fails any more; whether something has. */
int fault_end(memopt_device *device, const driver_hooks *driver);

#endif
