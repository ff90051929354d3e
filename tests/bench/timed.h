/* What the benches on a device that keeps time share: a call must succeed; cards and their links. */
#ifndef BENCH_TIMED_H
#define BENCH_TIMED_H

#include "device/cpu/cpu.h"
#include "memopt/allocator.h"

#include <stdio.h>
#include <stdlib.h>

enum { SETUP = 8000, MIB = 1 << 20 };

#define NEED(call) need(call, #call)

static void need(memopt_status status, const char *what)
{
    if (status == MEMOPT_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, memopt_last_error());
    exit(1);
}

/* Operations in a nanosecond that a card reaches in training; bytes in a nanosecond of its link. */
typedef struct card {
    const char *name;
    double operations, link;
} card;

/* Kernels take what they are told, copies what the card's link needs, of which there is 1 / scale. */
static memopt_device *open_timed(const card *c, double scale, uint64_t granularity)
{
    const mo_cpu_rates rates = {2000, SETUP, c->link / scale, c->link / scale, 500.0 / scale};
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device;
    options.capacity = (uint64_t)4 << 30;
    options.granularity = granularity;
    options.threads = 1;
    options.lag = UINT64_MAX;
    NEED(memopt_device_open("cpu", &options, &device));
    mo_cpu_keep_time(device, &rates);
    return device;
}

#endif
