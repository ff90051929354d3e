/* A cpu device whose work lags behind the host. */
#include "support.h"

#include "device/cpu/cpu.h"

#include <memopt/allocator.h>

#include <string.h>

static memopt_device *open_lagging(uint64_t lag, memopt_stream_order order)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device;
    options.capacity = 64 << 20;
    options.lag = lag;
    options.stream_order = order;
    OK(memopt_device_open("cpu", &options, &device));
    return device;
}

static memopt_stream new_stream(memopt_device *device)
{
    memopt_stream stream = stream_on(device);
    return stream;
}

/* So many operations on a stream, each on a byte of its own. */
static void work(memopt_device *device, unsigned char *bytes, int count, memopt_stream stream)
{
    for (int i = 0; i < count; i++)
        OK(memopt_fill(device, bytes + i, 1, 1, stream));
}

DEVICE_TEST(completes_when_the_host_is_ahead, device, open_lagging(3, MEMOPT_STREAM_ORDER_EAGER))
{
    memopt_stream a = new_stream(device), b = new_stream(device);
    unsigned char bytes[16] = {0};
    memopt_event *event = event_on(device);
    work(device, bytes, 1, a);
    OK(memopt_event_record(event, a));
    assert_int_equal(memopt_stream_query(device, a), MEMOPT_NOT_READY);
    work(device, bytes + 8, 2, b);
    assert_int_equal(bytes[0], 1); /* three operations ahead */
    assert_int_equal(memopt_event_query(event), MEMOPT_NOT_READY);
    work(device, bytes + 10, 1, NULL); /* the NULL stream is a queue like the others */
    assert_int_equal(bytes[10], 0);
    OK(memopt_event_query(event));
    OK(memopt_stream_query(device, a));
    assert_int_equal(memopt_stream_query(device, b), MEMOPT_NOT_READY);
    OK(memopt_device_sync(device));
    assert_int_equal(bytes[10], 1);
    OK(memopt_stream_query(device, NULL));
    OK(memopt_event_destroy(event));
}

/* Nothing is complete that is not waited for; a wait completes what came before it on any stream. */
DEVICE_TEST(waits_are_counted, device, open_lagging(UINT64_MAX, MEMOPT_STREAM_ORDER_EAGER))
{
    const mo_cpu_lag_stats *waits = &mo_cpu(device)->waits;
    memopt_stream a = new_stream(device), b = new_stream(device);
    unsigned char bytes[64] = {0};
    memopt_event *event = event_on(device);
    work(device, bytes, 5, a);
    OK(memopt_event_record(event, a));
    OK(memopt_stream_wait_event(device, b, event));
    work(device, bytes + 8, 4, b);
    assert_int_equal(bytes[0], 0);
    OK(memopt_event_sync(event));
    assert_int_equal(waits->waits, 1);
    assert_int_equal(waits->waited, 6);
    assert_int_equal(waits->drains, 0);
    assert_int_equal(bytes[4], 1);
    assert_int_equal(bytes[8], 0);
    OK(memopt_event_sync(event)); /* complete: no wait */
    OK(memopt_stream_sync(device, b));
    assert_int_equal(bytes[11], 1);
    assert_int_equal(waits->waits, 2);
    assert_int_equal(waits->waited, 11);
    assert_int_equal(waits->waited_most, 6);
    assert_int_equal(waits->drains, 1);
    OK(memopt_event_destroy(event));
}

/* Allocations and frees of an allocator move the clock. */
DEVICE_TEST(an_allocator_moves_the_clock, device, open_lagging(4, MEMOPT_STREAM_ORDER_EAGER))
{
    memopt_stream stream = new_stream(device);
    memopt_allocator *allocator;
    unsigned char byte = 0;
    void *block;
    OK(memopt_allocator_create(device, "", NULL, &allocator));
    work(device, &byte, 1, stream);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(byte, 0);
        OK(memopt_allocator_alloc(allocator, 1000, 0, stream, &block));
        OK(memopt_allocator_free(allocator, block));
    }
    assert_int_equal(byte, 1);
    OK(memopt_allocator_destroy(allocator));
}

/* Work on memory that is unmapped before it ran is found, as in the adversarial order. */
DEVICE_TEST(unmapped_too_early, device, open_lagging(100, MEMOPT_STREAM_ORDER_EAGER))
{
    memopt_stream stream = new_stream(device);
    mapped memory = map_new(device, GRANULE);
    OK(memopt_fill(device, memory.address, 7, 100, stream));
    OK(mo_vm_unmap(device, memory.address, GRANULE));
    FAILS_SAYING(MEMOPT_DEVICE_FAULT, "nothing was mapped there",
                 memopt_stream_sync(device, stream));
    OK(mo_vm_release(device, memory.handle, GRANULE));
    OK(mo_vm_unreserve(device, memory.address, GRANULE));
}

/* In the adversarial order nothing that is within the lag is reported as complete. */
DEVICE_TEST(with_the_adversary, device, open_lagging(20, MEMOPT_STREAM_ORDER_ADVERSARIAL))
{
    memopt_stream stream = new_stream(device);
    unsigned char bytes[64] = {0};
    int ready = 0;
    work(device, bytes, 1, stream);
    for (int i = 0; i < 100; i++)
        assert_int_equal(memopt_stream_query(device, stream), MEMOPT_NOT_READY);
    work(device, bytes + 8, 20, NULL);
    for (int i = 0; i < 100 && !ready; i++)
        ready = memopt_stream_query(device, stream) == MEMOPT_OK;
    assert_true(ready);
}

/* Copies of both directions and kernels run side by side; each stream and each engine in order. */
TEST(operations_take_time)
{
    static const mo_cpu_rates rates = {.call = 1, .setup = 10, .in = 2, .out = 1, .within = 100};
    memopt_device *device = open_lagging(UINT64_MAX, MEMOPT_STREAM_ORDER_EAGER);
    memopt_stream a = new_stream(device), b = new_stream(device);
    mapped memory = map_new(device, GRANULE);
    char *block = memory.address, host[4000] = {0};
    memopt_event *first, *last;
    double seconds = 0;
    mo_cpu_keep_time(device, &rates);
    OK(memopt_event_create(device, 1, &first));
    OK(memopt_event_create(device, 1, &last));
    OK(mo_cpu_work(device, a, 1000));             /* 1 to 1001 */
    OK(memopt_copy(device, host, block, 500, b)); /* 2 to 512 */
    OK(memopt_copy(device, block, host + 1000, 100,
                   b)); /* behind it, by the other engine: to 572 */
    OK(memopt_event_record(first, b));
    assert_int_equal(memopt_stream_query(device, b), MEMOPT_NOT_READY);
    assert_int_equal(mo_cpu_now(device), 5);
    OK(memopt_event_sync(first));
    assert_int_equal(mo_cpu_now(device), 572);
    assert_int_equal(memopt_stream_query(device, b), MEMOPT_OK);
    assert_int_equal(memopt_stream_query(device, a), MEMOPT_NOT_READY);
    OK(memopt_event_record(last, a));
    OK(memopt_stream_wait_event(device, b, last));
    OK(memopt_copy(device, host, block, 500, b));       /* 1001 to 1511 */
    OK(memopt_copy(device, host + 500, block, 500, a)); /* the engine is busy: to 2021 */
    OK(memopt_event_record(last, a));
    OK(memopt_device_sync(device));
    assert_int_equal(mo_cpu_now(device), 2021);
    assert_int_equal(mo_cpu(device)->waits.nanoseconds, 572 - 5 + 2021 - 579);
    OK(memopt_event_elapsed(first, last, &seconds));
    assert_int_equal((int)(1e9 * seconds + 0.5), 2021 - 572);
    OK(memopt_event_destroy(first));
    OK(memopt_event_destroy(last));
    OK(memopt_stream_destroy(device, a));
    OK(memopt_stream_destroy(device, b));
    OK(mo_vm_unmap(device, memory.address, GRANULE));
    OK(mo_vm_release(device, memory.handle, GRANULE));
    OK(mo_vm_unreserve(device, memory.address, GRANULE));
    OK(memopt_device_close(device));
}
