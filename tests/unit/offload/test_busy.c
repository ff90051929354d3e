/* Layers that are packed on a device that is far behind the host: they leave the device. */
#include "support.h"

#include "device/cpu/cpu.h"

enum { LAYERS = 16, LAYER = 4 * MIB, AHEAD = 2 };

/* On a device with time, whose copies take longer than its kernels. */
TEST(few_layers_are_held_and_nothing_is_waited_for)
{
    static const mo_cpu_rates rates = {
        .call = 1000, .setup = 5000, .in = 10, .out = 10, .within = 500};
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_ticket tickets[LAYERS];
    memopt_stream stream;
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_offloader *offloader;
    uint64_t held = 0;
    static unsigned char seen[LAYERS][LAYER];
    (void)no_fixture;
    options.capacity = (uint64_t)256 * MIB;
    options.threads = 1;
    options.lag = UINT64_MAX;
    OK(memopt_device_open("cpu", &options, &device));
    mo_cpu_keep_time(device, &rates);
    OK(memopt_allocator_create(device, "expandable_segments:True", NULL, &allocator));
    OK(memopt_offloader_create(device, allocator, NULL, &offloader));
    OK(memopt_stream_create(device, &stream));
    for (int i = 0; i < LAYERS; i++) {
        void *saved;
        OK(memopt_allocator_alloc(allocator, LAYER, MEMOPT_TAG_ACTIVATIONS, stream, &saved));
        OK(memopt_fill(device, saved, (uint8_t)(i + 1), LAYER, stream));
        OK(memopt_offloader_pack(offloader, saved, LAYER, stream, &tickets[i]));
    }
    for (int i = LAYERS - 1, next = i; i >= 0; i--) {
        void *saved;
        for (; next >= 0 && next >= i - AHEAD; next--)
            OK(memopt_offloader_prefetch(offloader, tickets[next]));
        OK(memopt_offloader_unpack(offloader, tickets[i], stream, &saved));
        OK(memopt_copy(device, seen[i], saved, LAYER, stream));
        OK(memopt_offloader_release(offloader, tickets[i], stream));
    }
    assert_int_equal(mo_cpu(device)->waits.waits, 0);
    OK(memopt_allocator_get_stat(allocator, "reserved_bytes.all.peak", &held));
    assert_in_range(held, LAYER, (uint64_t)(AHEAD + 2) * LAYER);
    OK(memopt_device_sync(device));
    for (int i = 0; i < LAYERS; i++)
        assert_true(all_bytes(seen[i], i + 1, LAYER));
    OK(memopt_offloader_destroy(offloader));
    OK(memopt_allocator_destroy(allocator));
    OK(memopt_stream_destroy(device, stream));
    OK(memopt_device_close(device));
}
