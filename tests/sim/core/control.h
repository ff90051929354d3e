/*
 * What a test asks of a simulated driver at run time. The symbols are found with dlsym in the
 * loaded libcuda.so.1 or libamdhip64.so; they do not take part in counting calls.
 */
#ifndef MEMOPT_SIM_CONTROL_H
#define MEMOPT_SIM_CONTROL_H

#include <stdint.h>

#define SIM_EXPORT __attribute__((visibility("default")))

/* The n-th call from now of the entry point (its plain name, "*" for any) fails with the vendor's
 * error `code`; code 0: running out of memory where the call allocates, else 46. n = 0 disarms. */
SIM_EXPORT void memopt_sim_fail_at(const char *call, int64_t n, int32_t code);
/* Calls until an armed fault strikes; 0: none is armed. */
SIM_EXPORT int64_t memopt_sim_fault_pending(void);
/* Entry points called so far. */
SIM_EXPORT int64_t memopt_sim_calls(void);
/* Every later call fails with `code`; 0: the device is back. */
SIM_EXPORT void memopt_sim_lose_device(int32_t code);
SIM_EXPORT void memopt_sim_seed(uint64_t seed);
/* As MEMOPT_SIM_LAG. */
SIM_EXPORT void memopt_sim_lag(uint64_t lag);
/* The program is so many operations further: it counts what the driver does not see of it. */
SIM_EXPORT void memopt_sim_advance(uint64_t operations);
/* Violations not taken yet; a program that ends with one exits with 98. */
SIM_EXPORT uint32_t memopt_sim_violations(void);
/* Removes the oldest one and writes its text; 0: there is none. */
SIM_EXPORT int memopt_sim_take_violation(char *out, uint64_t bytes);
/* The index-th range of device memory that can be used now, by address; 0: there are no more. */
SIM_EXPORT int memopt_sim_mapping(int32_t device, uint64_t index, uint64_t *out_address,
                                  uint64_t *out_bytes);
/* The most bytes that the process may page-lock; UINT64_MAX: no limit. */
SIM_EXPORT void memopt_sim_pin_limit(uint64_t bytes);
/* Bytes of device memory in use. */
SIM_EXPORT uint64_t memopt_sim_used(int32_t device);

#endif
