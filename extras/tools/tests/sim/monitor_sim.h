/*
 * What the simulated libraries for monitoring (nvml_api.c, rocm_smi_api.c) share. Settings are read
 * from the environment at every call, so a test may change them in between. control.h's
 * memopt_sim_fail_at, _fault_pending, _calls, _violations and _take_violation work here too.
 */
#ifndef MEMOPT_SIM_MONITOR_H
#define MEMOPT_SIM_MONITOR_H

#include "core/control.h"

#include <stddef.h>
#include <stdint.h>

enum { MOST_PROCESSES = 256 };

typedef struct sim_process {
    uint32_t pid;
    int device, compute, graphics, known;
    uint64_t bytes;
} sim_process;

/* Counts the call and returns the code that it must fail with, or 0. */
int sim_monitor_call(const char *call);
/* Something that a real library lets pass or crashes on. */
void sim_monitor_violation(const char *format, ...) __attribute__((format(printf, 1, 2)));

uint64_t sim_number(const char *name, uint64_t missing);
const char *sim_text(const char *name, const char *missing);
/* Devices and their bytes. */
int sim_device_count(void);
uint64_t sim_total(void);
uint64_t sim_used(int device);
/* What is in MEMOPT_SIM_PROCESSES, and what has started since; returns how many. */
size_t sim_processes(sim_process out[MOST_PROCESSES]);

#endif
