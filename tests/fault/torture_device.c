/* Every fallible call of a device, with each host allocation and device operation in it failed. */
#include "support/bench.h"
#include "support/torture.h"

#include "base/memory.h"

#include <string.h>

#define GRANULE ((uint64_t)2 << 20)
#define REGISTERED_BYTES 5000

typedef struct fixture {
    uint32_t order;
    memopt_stream stream, other;
    memopt_event *event, *second;
    void *pointer, *address;
    mo_vm_handle handle;
    double seconds;
    char from[64], to[64];
    _Alignas(4096) char host[REGISTERED_BYTES];
} fixture;

static memopt_device *open_cpu(void *context)
{
    return bench_open_cpu(&(bench_device){((fixture *)context)->order, 0, 32 * GRANULE, 2});
}

static void make(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(memopt_stream_create(device, &f->stream));
    OK(memopt_event_create(device, 1, &f->event));
    OK(memopt_event_create(device, 1, &f->second));
    OK(memopt_event_record(f->event, f->stream));
    OK(memopt_event_record(f->second, f->stream));
    OK(mo_vm_reserve(device, 2 * GRANULE, &f->address));
    OK(mo_vm_create(device, GRANULE, &f->handle));
    OK(mo_vm_map(device, f->address, GRANULE, f->handle));
    OK(mo_vm_set_access(device, f->address, GRANULE));
    memset(f->from, 5, sizeof f->from);
    memset(f->to, 9, sizeof f->to);
}

static void end(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(memopt_device_sync(device));
    OK(mo_vm_unmap(device, f->address, GRANULE));
    OK(mo_vm_release(device, f->handle, GRANULE));
    OK(mo_vm_unreserve(device, f->address, 2 * GRANULE));
    OK(memopt_event_destroy(f->event));
    OK(memopt_event_destroy(f->second));
    OK(memopt_stream_destroy(device, f->stream));
}

/* --- one call each; its undo ---------------------------------------------------------------- */

TORTURE_CALL(stream_create, memopt_stream_create(device, &f->other))
TORTURE_UNDO(stream_destroy, memopt_stream_destroy(device, f->other))
TORTURE_CALL(event_create, memopt_event_create(device, 1, (memopt_event **)&f->pointer))
TORTURE_UNDO(event_destroy, memopt_event_destroy(f->pointer))
TORTURE_CALL(event_record, memopt_event_record(f->event, f->stream))

/* The event still has its old record: the time between the two is known and not negative. */
static void record_unchanged(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(memopt_event_sync(f->second));
    OK(memopt_event_elapsed(f->event, f->second, &f->seconds));
    assert_true(f->seconds >= 0);
}

static memopt_status event_query(memopt_device *device, void *context)
{
    memopt_status status;
    do
        status = memopt_event_query(((fixture *)context)->event);
    while (status == MEMOPT_NOT_READY);
    return status;
}

TORTURE_CALL(event_sync, memopt_event_sync(f->event))
TORTURE_CALL(event_elapsed, memopt_event_elapsed(f->event, f->second, &f->seconds))
TORTURE_CALL(stream_wait_event, memopt_stream_wait_event(device, f->stream, f->event))

static memopt_status stream_query(memopt_device *device, void *context)
{
    memopt_status status;
    do
        status = memopt_stream_query(device, ((fixture *)context)->stream);
    while (status == MEMOPT_NOT_READY);
    return status;
}

TORTURE_CALL(stream_sync, memopt_stream_sync(device, f->stream))
TORTURE_CALL(device_sync, memopt_device_sync(device))

static memopt_status memory_info(memopt_device *device, void *context)
{
    memopt_memory_info info = {.struct_size = sizeof info};
    return memopt_device_get_memory_info(device, &info);
}

TORTURE_CALL(copy, memopt_copy(device, f->to, f->from, sizeof f->to, f->stream))
TORTURE_CALL(fill, memopt_fill(device, f->to, 5, sizeof f->to, f->stream))

static void nothing_written(memopt_device *device, void *context)
{
    const fixture *f = context;
    for (size_t i = 0; i < sizeof f->to; i++)
        assert_int_equal(f->to[i], 9);
}

static void written(memopt_device *device, void *context)
{
    const fixture *f = context;
    OK(memopt_stream_sync(device, f->stream));
    for (size_t i = 0; i < sizeof f->to; i++)
        assert_int_equal(f->to[i], 5);
}

static void set_five(void *user)
{
    memset(user, 5, 64);
}

TORTURE_CALL(host_callback, memopt_stream_host_callback(device, f->stream, set_five, f->to))

typedef struct five_args {
    char *out;
} five_args;

static void five(const void *args, uint64_t begin, uint64_t end_item)
{
    const five_args *a = args;
    memset(a->out + begin, 5, end_item - begin);
}

static const mo_kernel five_kernel = {
    "test_five", sizeof(five_args), 1, {five, NULL, NULL}, NULL, NULL, NULL};

static memopt_status launch(memopt_device *device, void *context)
{
    fixture *f = context;
    five_args args = {f->to};
    return mo_launch(device, f->stream, &five_kernel, &args, sizeof f->to);
}

TORTURE_CALL(mem_alloc, mo_mem_alloc(device, 1000, &f->pointer))
TORTURE_UNDO(mem_free, mo_mem_free(device, f->pointer, 1000))
TORTURE_CALL(vm_reserve, mo_vm_reserve(device, 3 * GRANULE, &f->pointer))
TORTURE_UNDO(vm_unreserve, mo_vm_unreserve(device, f->pointer, 3 * GRANULE))
TORTURE_CALL(vm_create, mo_vm_create(device, GRANULE, (mo_vm_handle *)&f->pointer))
TORTURE_UNDO(vm_release, mo_vm_release(device, f->pointer, GRANULE))
TORTURE_CALL(vm_map, mo_vm_map(device, (char *)f->address + GRANULE, GRANULE, f->handle))

static memopt_status vm_map_and_access(memopt_device *device, void *context)
{
    memopt_status status = vm_map(device, context);
    if (status != MEMOPT_OK)
        return status;
    char *address = (char *)((fixture *)context)->address + GRANULE;
    status = mo_vm_set_access(device, address, GRANULE);
    if (status == MEMOPT_OK)
        address[0] = 1;
    else
        OK(mo_vm_unmap(device, address, GRANULE));
    return status;
}

TORTURE_UNDO(vm_unmap, mo_vm_unmap(device, (char *)f->address + GRANULE, GRANULE))
TORTURE_CALL(host_alloc, memopt_host_alloc(device, 10000, &f->pointer))
TORTURE_UNDO(host_free, memopt_host_free(device, f->pointer))
TORTURE_CALL(host_register, memopt_host_register(device, f->host, REGISTERED_BYTES))
TORTURE_UNDO(host_unregister, memopt_host_unregister(device, f->host))

#define ONE(call, undo_call, unchanged)                                                            \
    {                                                                                              \
        .name = #call, .open = open_cpu, .setup = make, .run = call, .undo = undo_call,            \
        .check_unchanged = unchanged, .teardown = end                                              \
    }

static const torture_scenario scenarios[] = {
    ONE(stream_create, stream_destroy, NULL),
    ONE(event_create, event_destroy, NULL),
    ONE(event_record, NULL, record_unchanged),
    ONE(event_query, NULL, NULL),
    ONE(event_sync, NULL, NULL),
    ONE(event_elapsed, NULL, NULL),
    ONE(stream_wait_event, NULL, NULL),
    ONE(stream_query, NULL, NULL),
    ONE(stream_sync, NULL, NULL),
    ONE(device_sync, NULL, NULL),
    ONE(memory_info, NULL, NULL),
    ONE(copy, written, nothing_written),
    ONE(fill, written, nothing_written),
    ONE(host_callback, written, nothing_written),
    ONE(launch, written, nothing_written),
    ONE(mem_alloc, mem_free, NULL),
    ONE(vm_reserve, vm_unreserve, NULL),
    ONE(vm_create, vm_release, NULL),
    ONE(vm_map, vm_unmap, NULL),
    ONE(vm_map_and_access, vm_unmap, NULL),
    ONE(host_alloc, host_free, NULL),
    ONE(host_register, host_unregister, NULL),
};

static void each_call(uint32_t order)
{
    static fixture f;
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        f.order = order;
        assert_true(torture(&scenarios[i], &f) > 0);
    }
}

TEST(eager)
{
    each_call(MEMOPT_STREAM_ORDER_EAGER);
}

TEST(adversarial)
{
    each_call(MEMOPT_STREAM_ORDER_ADVERSARIAL);
}

/* There is no device yet whose operations could fail, so only host memory is refused. */
TEST(opening)
{
    for (uint32_t order = 0; order < 2; order++) {
        memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
        options.capacity = GRANULE;
        options.stream_order = order;
        memopt_device *device = NULL;
        int64_t blocks = mo_memory_live_blocks();
        for (int64_t n = 1; device == NULL; n++) {
            mo_memory_fail_at(n);
            memopt_status status = memopt_device_open("cpu", &options, &device);
            int struck = mo_memory_fault_struck();
            mo_memory_fail_at(0);
            assert_int_equal(status, struck ? MEMOPT_OUT_OF_HOST_MEMORY : MEMOPT_OK);
            assert_true(n > 4 || struck);
            if (struck)
                assert_int_equal(mo_memory_live_blocks(), blocks);
        }
        OK(memopt_device_close(device));
        assert_int_equal(mo_memory_live_blocks(), blocks);
    }
}
