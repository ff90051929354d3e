/* Steps on a device that keeps time take no longer than the limit that the streamer says, and its copies. */
#include "device/cpu/cpu.h"
#include "memopt/stream.h"
#include "support.h"

enum { LAYERS = 8, BYTES = 64 * KIB, WORK = 100000, STEPS = 4 };

static uint64_t step_time(memopt_device *device, memopt_streamer *streamer, memopt_stream stream)
{
    uint64_t start = 0;
    void *part;
    for (int step = 0; step < STEPS; step++) {
        OK(memopt_device_sync(device));
        start = mo_cpu_now(device);
        for (uint32_t i = 0; i < 2 * LAYERS; i++) {
            uint32_t layer = i < LAYERS ? i : 2 * LAYERS - 1 - i;
            OK(memopt_streamer_begin(streamer, layer, stream, &part));
            OK(mo_cpu_work(device, stream, WORK));
            OK(memopt_streamer_end(streamer, layer, stream));
        }
    }
    OK(memopt_device_sync(device));
    return mo_cpu_now(device) - start;
}

/* A copy takes `share` of a layer's work, and `fit` layers are in the budget. */
static void compare(double share, uint32_t fit)
{
    const double link = BYTES / (share * WORK); /* bytes in a nanosecond */
    const mo_cpu_rates rates = {1, 0, link, link, 1000};
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_stream_part part = {0, BYTES};
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_offloader *offloader;
    memopt_streamer *streamer;
    memopt_stream stream;
    double work[2 * LAYERS], limit;
    uint32_t number;
    void *host;
    options.capacity = (uint64_t)16 * MIB;
    options.threads = 1;
    options.lag = UINT64_MAX;
    OK(memopt_device_open("cpu", &options, &device));
    mo_cpu_keep_time(device, &rates);
    OK(memopt_allocator_create(device, NULL, NULL, &allocator));
    OK(memopt_offloader_create(device, allocator, NULL, &offloader));
    OK(memopt_stream_create(device, &stream));
    OK(memopt_streamer_create(device, offloader, (uint64_t)fit * BYTES, &streamer));
    for (int i = 0; i < LAYERS; i++) {
        OK(memopt_offloader_reserve(offloader, BYTES, &part.ticket, &host));
        memset(host, i, BYTES);
        OK(memopt_offloader_host_end(offloader, part.ticket));
        OK(memopt_streamer_add(streamer, &part, 1, &number));
    }
    for (int i = 0; i < 2 * LAYERS; i++)
        work[i] = 1e-9 * WORK;
    OK(memopt_streamer_get_limit(streamer, NULL, 0, work, 1e9 * link, &limit));
    double time = 1e-9 * (double)step_time(device, streamer, stream);
    if (time > 1.005 * limit || time < 0.995 * limit)
        fail_msg("copies of %g of the work, %u layers: %g s, and the limit is %g s", share, fit,
                 time, limit);
    OK(memopt_streamer_destroy(streamer));
    OK(memopt_offloader_destroy_force(offloader));
    OK(memopt_allocator_destroy(allocator));
    OK(memopt_stream_destroy(device, stream));
    OK(memopt_device_close(device));
}

TEST(steps_reach_the_limit)
{
    static const double shares[] = {0.2, 0.7, 1.0, 1.5, 4.0};
    for (int s = 0; s < 5; s++)
        for (uint32_t fit = 1; fit <= LAYERS; fit++)
            compare(shares[s], fit);
}
