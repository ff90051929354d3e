/* Opening by name, options, properties, closing, page-locked host memory, bad handles. */
#include "support.h"

#include "base/memory.h"

#include <sys/mman.h>

TEST(names)
{
    memopt_device *device = (memopt_device *)1;
    memopt_backend_info info = MEMOPT_BACKEND_INFO_INIT;
    OK(memopt_backend_get_info("cpu", &info));
    assert_int_equal(info.device_count, 1);
    info.device_count = -1;
    FAILS(MEMOPT_NOT_FOUND, memopt_backend_get_info("tpu", &info));
    SAYS("\"tpu\"");
    SAYS("\"cuda:N\"");
    REFUSED(memopt_backend_get_info(NULL, &info));
    REFUSED(memopt_backend_get_info("cpu", NULL));
    assert_int_equal(info.device_count, -1);
    static const char *const unknown[] = {"",      "CPU",   "cpu:",   "cpu:1",      "cpu:-1",
                                          "cpu:x", "cpux",  "cpu:0x", "cpu:999999", ":0",
                                          "cp",    "cuda:", "rocm:0"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        FAILS(MEMOPT_NOT_FOUND, memopt_device_open(unknown[i], NULL, &device));
    /* Options of "cpu" are refused before a driver is looked for. */
    memopt_device_options of_cpu = MEMOPT_DEVICE_OPTIONS_INIT;
    of_cpu.capacity = GRANULE;
    FAILS(MEMOPT_UNSUPPORTED, memopt_device_open("hip:0", &of_cpu, &device));
    FAILS(MEMOPT_UNSUPPORTED, memopt_device_open("cuda", &of_cpu, &device));
    REFUSED(memopt_device_open(NULL, NULL, &device));
    REFUSED(memopt_device_open("cpu", NULL, NULL));
    assert_true(device == (memopt_device *)1);
    OK(memopt_device_open("cpu:0", NULL, &device));
    OK(memopt_device_close(device));
    OK(memopt_device_close(NULL));
}

TEST(options)
{
    memopt_device *device = (memopt_device *)1;
    int64_t blocks = mo_memory_live_blocks();
#define WRONG(member, value)                                                                       \
    do {                                                                                           \
        memopt_device_options o = MEMOPT_DEVICE_OPTIONS_INIT;                                      \
        o.member = (value);                                                                        \
        REFUSED(memopt_device_open("cpu", &o, &device));                                           \
    } while (0)
    WRONG(struct_size, 4);
    WRONG(capacity, GRANULE - 1);
    SAYS("at least one granule of 2.00 MiB");
    WRONG(capacity, UINT64_MAX);
    WRONG(granularity, 3 * MIB);
    WRONG(granularity, 2048);
    WRONG(threads, 100000);
    WRONG(stream_order, 2);
    WRONG(race, 4);
    WRONG(unified, 2);
#undef WRONG
    struct {
        memopt_device_options known;
        uint64_t newer;
    } larger = {MEMOPT_DEVICE_OPTIONS_INIT, 1};
    larger.known.struct_size = sizeof larger;
    FAILS(MEMOPT_UNSUPPORTED, memopt_device_open("cpu", &larger.known, &device));
    assert_true(device == (memopt_device *)1);
    assert_int_equal(mo_memory_live_blocks(), blocks);
    larger.newer = 0;
    OK(memopt_device_open("cpu", &larger.known, &device));
    OK(memopt_device_close(device));
    assert_int_equal(mo_memory_live_blocks(), blocks);
}

DEVICE_TEST(properties, device, open_cpu(10 * MIB + 77, MEMOPT_STREAM_ORDER_EAGER, 0))
{
    memopt_device_properties p = {.struct_size = sizeof p};
    OK(memopt_device_get_properties(device, &p));
    assert_string_equal(p.backend, "cpu");
    assert_true(strlen(p.name) > 0);
    assert_true(strcmp(p.isa, "scalar") == 0 || strcmp(p.isa, "avx2") == 0 ||
                strcmp(p.isa, "avx512") == 0);
    assert_int_equal(p.threads, 2);
    assert_int_equal(p.warp_size, 1);
    assert_int_equal(p.virtual_memory, 1);
    assert_int_equal(p.total_memory, 10 * MIB);
    assert_int_equal(p.granularity, GRANULE);
    memopt_device_properties small = {.struct_size = offsetof(memopt_device_properties, backend)};
    OK(memopt_device_get_properties(device, &small));
    assert_string_equal(small.name, p.name);
    assert_string_equal(small.backend, "");
    small.struct_size = 3;
    REFUSED(memopt_device_get_properties(device, &small));
    REFUSED(memopt_device_get_properties(device, NULL));
    REFUSED(memopt_device_get_properties(NULL, &p));
    REFUSED(memopt_device_get_memory_info(device, NULL));
}

static void no_work(const void *args, uint64_t begin, uint64_t end)
{
}

DEVICE_TEST(closing_with_live_objects, device, open_cpu(8 * MIB, MEMOPT_STREAM_ORDER_EAGER, 0))
{
    void *pinned, *plain, *address;
    mo_vm_handle handle;
    char registered[100];
    memopt_stream stream = stream_on(device);
    memopt_event *event = event_on(device);
    OK(memopt_host_alloc(device, 10, &pinned));
    OK(memopt_host_register(device, registered, sizeof registered));
    OK(mo_mem_alloc(device, 512, &plain));
    OK(mo_vm_create(device, GRANULE, &handle));
    OK(mo_vm_reserve(device, GRANULE, &address));
#define LEFT(text, end)                                                                            \
    FAILS(MEMOPT_BUSY, memopt_device_close(device));                                               \
    SAYS(text);                                                                                    \
    OK(end)
    LEFT("1 streams", memopt_stream_destroy(device, stream));
    LEFT("1 events", memopt_event_destroy(event));
    LEFT("1 page-locked", memopt_host_free(device, pinned));
    LEFT("1 registered", memopt_host_unregister(device, registered));
    LEFT("1 allocations", mo_mem_free(device, plain, 512));
    LEFT("1 mapped memory handles (2.00 MiB)", mo_vm_release(device, handle, GRANULE));
    LEFT("1 reservations", mo_vm_unreserve(device, address, GRANULE));
#undef LEFT
}

DEVICE_TEST(page_locked_memory, device, open_cpu(8 * MIB, MEMOPT_STREAM_ORDER_EAGER, 0))
{
    void *a = NULL, *b = NULL, *none = (void *)1;
    OK(memopt_host_alloc(device, 5000, &a));
    OK(memopt_host_alloc(device, 20 * MIB, &b)); /* more than systems lock by default */
    assert_int_equal((uintptr_t)a % 4096, 0);
    memset(a, 1, 5000);
    memset(b, 2, 20 * MIB);
    assert_int_equal(info_of(device).pinned, 8192 + 20 * MIB);
    REFUSED(memopt_host_alloc(device, 0, &none));
    REFUSED(memopt_host_alloc(device, 1, NULL));
    FAILS(MEMOPT_OUT_OF_HOST_MEMORY, memopt_host_alloc(device, UINT64_MAX, &none));
    FAILS(MEMOPT_OUT_OF_HOST_MEMORY, memopt_host_alloc(device, (uint64_t)1 << 60, &none));
    assert_true(none == (void *)1);
    REFUSED(memopt_host_free(device, (char *)b + 4096));
    REFUSED(memopt_host_free(NULL, b));
    OK(memopt_host_free(device, b));
    REFUSED(memopt_host_free(device, b));
    OK(memopt_host_free(device, NULL));
    OK(memopt_host_free(device, a));
    memopt_memory_info info = info_of(device);
    assert_int_equal(info.pinned, 0);
    assert_int_equal(info.pinned_peak, 8192 + 20 * MIB);
}

DEVICE_TEST(registered_memory, device, open_cpu(8 * MIB, MEMOPT_STREAM_ORDER_EAGER, 0))
{
    char *host = malloc(10000);
    void *pinned;
    OK(memopt_host_register(device, host + 3, 4000));
    OK(memopt_host_register(device, host + 4003, 1)); /* beside it, in one page: fine */
    assert_int_equal(info_of(device).registered, 4001);
    REFUSED_SAYING("page-locked already", memopt_host_register(device, host + 4002, 10));
    REFUSED(memopt_host_register(device, host, 4));
    REFUSED(memopt_host_register(device, host, 10000));
    REFUSED(memopt_host_register(device, host, 0));
    REFUSED(memopt_host_register(device, NULL, 4));
    REFUSED(memopt_host_register(device, host, UINT64_MAX));
    OK(memopt_host_alloc(device, 100, &pinned));
    REFUSED(memopt_host_register(device, pinned, 100));
    OK(memopt_host_free(device, pinned));
    void *gone = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(gone, 4096);
    REFUSED_SAYING("not all mapped", memopt_host_register(device, gone, 4096));
    REFUSED(memopt_host_unregister(device, host));
    OK(memopt_host_unregister(device, host + 3));
    REFUSED(memopt_host_unregister(device, host + 3));
    OK(memopt_host_unregister(device, host + 4003));
    assert_int_equal(info_of(device).registered, 0);
    free(host);
}

static void nothing_to_call(void *user)
{
}

static void each_call_refuses_a_stream(memopt_device *device, memopt_stream bad)
{
    char x[4] = {0}, y[4] = {0};
    static const mo_kernel kernel = {"test_none", 0, 1, {no_work, NULL, NULL}, NULL, NULL, NULL};
    memopt_event *event = event_on(device);
    REFUSED(memopt_stream_sync(device, bad));
    REFUSED(memopt_stream_query(device, bad));
    REFUSED(memopt_stream_destroy(device, bad));
    REFUSED(memopt_stream_wait_event(device, bad, event));
    OK(memopt_event_record(event, NULL));
    REFUSED(memopt_stream_wait_event(device, bad, event));
    REFUSED(memopt_event_record(event, bad));
    REFUSED(memopt_copy(device, x, y, 4, bad));
    REFUSED(memopt_copy(device, x, y, 0, bad));
    REFUSED(memopt_fill(device, x, 0, 4, bad));
    REFUSED(memopt_stream_host_callback(device, bad, nothing_to_call, NULL));
    REFUSED(mo_launch(device, bad, &kernel, &kernel, 1));
    OK(memopt_event_sync(event)); /* the record on the NULL stream is still the last */
    OK(memopt_event_destroy(event));
}

TEST(foreign_and_dead_streams)
{
    for (uint32_t order = 0; order < 2; order++) {
        memopt_device *device = open_cpu(8 * MIB, order, 0), *other = open_cpu(8 * MIB, order, 0);
        memopt_stream dead, foreign;
        int not_a_stream = 0;
        OK(memopt_stream_create(device, &dead));
        OK(memopt_stream_destroy(device, dead));
        OK(memopt_stream_create(other, &foreign));
        each_call_refuses_a_stream(device, dead);
        each_call_refuses_a_stream(device, foreign);
        each_call_refuses_a_stream(device, (memopt_stream)&not_a_stream);
        memopt_event *event = event_on(other);
        REFUSED_SAYING("of another device", memopt_stream_wait_event(device, NULL, event));
        OK(memopt_event_destroy(event));
        OK(memopt_stream_destroy(other, foreign));
        OK(memopt_device_close(device));
        OK(memopt_device_close(other));
    }
}

DEVICE_TEST(bad_arguments, device, open_cpu(8 * MIB, MEMOPT_STREAM_ORDER_EAGER, 0))
{
    memopt_stream stream;
    memopt_event *event = NULL;
    char x[64];
    double seconds;
    memset(x, 1, sizeof x);
    REFUSED(memopt_stream_create(device, NULL));
    REFUSED(memopt_stream_create(NULL, &stream));
    REFUSED(memopt_event_create(device, 2, &event));
    REFUSED(memopt_event_create(device, -1, &event));
    REFUSED(memopt_event_create(device, 0, NULL));
    REFUSED(memopt_event_record(NULL, NULL));
    REFUSED(memopt_event_query(NULL));
    REFUSED(memopt_event_sync(NULL));
    REFUSED(memopt_event_elapsed(NULL, NULL, &seconds));
    OK(memopt_event_destroy(NULL));
    REFUSED(memopt_stream_wait_event(device, NULL, NULL));
    REFUSED(memopt_stream_sync(NULL, NULL));
    REFUSED(memopt_stream_query(NULL, NULL));
    REFUSED(memopt_stream_destroy(NULL, NULL));
    OK(memopt_stream_destroy(device, NULL));
    REFUSED(memopt_stream_host_callback(device, NULL, NULL, NULL));
    REFUSED(memopt_device_sync(NULL));
    REFUSED(memopt_copy(NULL, x, x + 32, 32, NULL));
    REFUSED(memopt_copy(device, NULL, x, 1, NULL));
    REFUSED(memopt_copy(device, x, NULL, 1, NULL));
    REFUSED_SAYING("overlap", memopt_copy(device, x, x + 31, 32, NULL));
    REFUSED(memopt_copy(device, x, x + 32, UINT64_MAX, NULL));
    OK(memopt_copy(device, NULL, NULL, 0, NULL));
    OK(memopt_copy(device, x, x, 0, NULL));
    REFUSED(memopt_fill(NULL, x, 0, 1, NULL));
    REFUSED(memopt_fill(device, NULL, 0, 1, NULL));
    REFUSED(memopt_fill(device, x, 256, 1, NULL));
    REFUSED(memopt_fill(device, x, -1, 1, NULL));
    REFUSED(memopt_fill(device, x, 0, UINT64_MAX, NULL));
    OK(memopt_fill(device, NULL, 0, 0, NULL));
    assert_true(all_bytes(x, 1, sizeof x));
    static const mo_kernel no_form = {"test_empty", 0, 1, {NULL}, NULL, NULL, NULL};
    static const mo_kernel too_large = {
        "test_large", MO_KERNEL_ARGS_MAX + 1, 1, {no_work}, NULL, NULL, NULL};
    FAILS(MEMOPT_INTERNAL, mo_launch(device, NULL, &no_form, x, 1));
    FAILS(MEMOPT_INTERNAL, mo_launch(device, NULL, &too_large, x, 1));
}

TEST(the_default_capacity_is_the_machine)
{
    memopt_device *device;
    OK(memopt_device_open("cpu", NULL, &device));
    assert_true(mo_device_total_memory(device) > 256 * MIB);
    assert_int_equal(info_of(device).used, 0);
    OK(memopt_device_close(device));
}
