/*
 * The operations of a GPU back end on a simulated driver: cuda or hip, by the argument. The
 * simulator's control functions arm faults and end the device.
 */
#include "support.h"

#include "base/memory.h"
#include "device/gpu/gpu.h"
#include "memopt/cast.h"

#include <dlfcn.h>

static const char *backend = "cuda";
static char second[16];
static void (*fail_at)(const char *call, int64_t n, int32_t code);
static void (*lose_device)(int32_t code);
static uint32_t (*violations)(void);

static int is_cuda(void)
{
    return backend[0] == 'c';
}

static memopt_device *open_gpu(const char *name)
{
    memopt_device *device = NULL;
    OK(memopt_device_open(name, NULL, &device));
    return device;
}

/* Finds the control functions in the driver that the library has loaded. */
static int find_controls(void **state)
{
    (void)state;
    memopt_backend_info info = {.struct_size = sizeof info};
    OK(memopt_backend_get_info(backend, &info));
    void *library = dlopen(info.library, RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(library);
    void *const found[] = {dlsym(library, "memopt_sim_fail_at"),
                           dlsym(library, "memopt_sim_lose_device"),
                           dlsym(library, "memopt_sim_violations")};
    assert_true(found[0] != NULL && found[1] != NULL && found[2] != NULL);
    memcpy(&fail_at, &found[0], sizeof fail_at);
    memcpy(&lose_device, &found[1], sizeof lose_device);
    memcpy(&violations, &found[2], sizeof violations);
    return 0;
}

static void names_and_properties(void **state)
{
    (void)state;
    int32_t count = 0;
    memopt_device *device = NULL;
    memopt_device_properties p = {.struct_size = sizeof p};
    OK(memopt_device_count(backend, &count));
    assert_int_equal(count, 2);
    FAILS(MEMOPT_NOT_FOUND, memopt_device_open(is_cuda() ? "cuda:2" : "hip:2", NULL, &device));
    SAYS("2 devices");
    device = open_gpu(second);
    OK(memopt_device_get_properties(device, &p));
    assert_string_equal(p.backend, backend);
    assert_string_equal(p.isa, is_cuda() ? "sm_80" : "gfx90a");
    assert_int_equal(p.index, 1);
    assert_int_equal(p.warp_size, is_cuda() ? 32 : 64);
    assert_int_equal(p.threads, 8);
    assert_int_equal(p.virtual_memory, 1);
    assert_int_equal(p.granularity, 2 * MIB);
    assert_int_equal(p.total_memory, 64 * MIB);
    FAILS_SAYING(MEMOPT_UNSUPPORTED, backend, memopt_device_set_threads(device, 2));
    OK(memopt_device_close(device));
}

static void memory(void **state)
{
    (void)state;
    memopt_device *device = open_gpu(backend), *other = open_gpu(second);
    void *a = NULL, *none = (void *)1;
    OK(mo_mem_alloc(device, MIB, &a));
    assert_int_equal((uintptr_t)a % 512, 0);
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, mo_mem_alloc(device, 256 * MIB, &none));
    SAYS("256.00 MiB asked");
    SAYS("of 64.00 MiB");
    assert_true(none == (void *)1);
    FAILS(MEMOPT_INVALID_ARGUMENT, mo_mem_free(other, a, MIB));
    FAILS(MEMOPT_INVALID_ARGUMENT, mo_mem_free(device, a, 2 * MIB));
    assert_int_equal(info_of(device).used, MIB);
    OK(mo_mem_free(device, a, MIB));
    FAILS(MEMOPT_INVALID_ARGUMENT, mo_mem_free(device, a, MIB));
    OK(memopt_device_close(device));
    OK(memopt_device_close(other));
}

static void virtual_memory(void **state)
{
    (void)state;
    memopt_device *device = open_gpu(backend), *other = open_gpu(second);
    void *address = NULL;
    mo_vm_handle handle, large;
    OK(mo_vm_reserve(device, 4 * GRANULE, &address));
    char *at = address;
    OK(mo_vm_create(device, 2 * GRANULE, &handle));
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, mo_vm_create(device, 128 * MIB, &large));
    FAILS(MEMOPT_INVALID_ARGUMENT, mo_vm_map(other, at, 2 * GRANULE, handle));
    FAILS(MEMOPT_INVALID_ARGUMENT, mo_vm_map(device, at + 3 * GRANULE, 2 * GRANULE, handle));
    OK(mo_vm_map(device, at, 2 * GRANULE, handle));
    FAILS(MEMOPT_INVALID_ARGUMENT, mo_vm_map(device, at + GRANULE, 2 * GRANULE, handle));
    OK(mo_vm_set_access(device, at, 2 * GRANULE));
    OK(memopt_fill(device, at, 7, 2 * GRANULE, NULL));
    OK(memopt_stream_sync(device, NULL));
    FAILS(MEMOPT_INVALID_ARGUMENT, mo_vm_unmap(device, at, GRANULE));
    FAILS(MEMOPT_BUSY, mo_vm_unreserve(device, at, 4 * GRANULE));
    OK(mo_vm_unmap(device, at, 2 * GRANULE));
    OK(mo_vm_map(device, at + 2 * GRANULE, 2 * GRANULE, handle)); /* contents move along */
    OK(mo_vm_set_access(device, at + 2 * GRANULE, 2 * GRANULE));
    unsigned char byte = 0;
    OK(memopt_copy(device, &byte, at + 4 * GRANULE - 1, 1, NULL));
    OK(memopt_stream_sync(device, NULL));
    assert_int_equal(byte, 7);
    OK(mo_vm_unmap(device, at + 2 * GRANULE, 2 * GRANULE));
    OK(mo_vm_release(device, handle, 2 * GRANULE));
    OK(mo_vm_unreserve(device, at, 4 * GRANULE));
    OK(memopt_device_close(device));
    OK(memopt_device_close(other));
}

static void count_up(void *user)
{
    ++*(int *)user;
}

static void streams_and_events(void **state)
{
    (void)state;
    enum { BYTES = 100000 };
    memopt_device *device = open_gpu(backend);
    memopt_stream first, next;
    memopt_event *done, *timed;
    void *pinned = NULL, *memory = NULL;
    int called = 0;
    double seconds = -1;
    char message[64];
    OK(memopt_stream_create(device, &first));
    OK(memopt_stream_create(device, &next));
    OK(memopt_event_create(device, 0, &done));
    OK(memopt_event_create(device, 1, &timed));
    OK(memopt_event_query(done)); /* never recorded */
    OK(mo_mem_alloc(device, BYTES, &memory));
    OK(memopt_host_alloc(device, BYTES, &pinned));
    memset(pinned, 3, BYTES);
    OK(memopt_event_record(timed, first));
    OK(memopt_copy(device, memory, pinned, BYTES, first));
    OK(memopt_fill(device, memory, 9, 10, first));
    OK(memopt_event_record(done, first));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_event_elapsed(timed, done, &seconds)); /* no timing */
    snprintf(message, sizeof message, "%.60s", memopt_last_error());
    assert_int_equal(memopt_event_query(done), MEMOPT_NOT_READY);
    assert_int_equal(memopt_stream_query(device, first), MEMOPT_NOT_READY);
    assert_memory_equal(message, memopt_last_error(), strlen(message)); /* not written */
    OK(memopt_stream_wait_event(device, next, done));
    OK(memopt_copy(device, pinned, memory, 20, next));
    OK(memopt_stream_host_callback(device, next, count_up, &called));
    OK(memopt_stream_sync(device, next));
    OK(memopt_event_query(done));
    assert_int_equal(called, 1);
    assert_int_equal(((char *)pinned)[9], 9);
    assert_int_equal(((char *)pinned)[10], 3);
    OK(memopt_event_record(timed, next));
    OK(memopt_device_sync(device));
    OK(memopt_event_elapsed(timed, timed, &seconds));
    assert_true(seconds >= 0);
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_stream_destroy(device, (memopt_stream)&called));
    OK(memopt_host_free(device, pinned));
    OK(mo_mem_free(device, memory, BYTES));
    OK(memopt_event_destroy(done));
    OK(memopt_event_destroy(timed));
    OK(memopt_stream_destroy(device, first));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_stream_destroy(device, first));
    OK(memopt_stream_destroy(device, next));
    OK(memopt_device_close(device));
}

/* The kernels run there, with the bits of the CPU. */
static void a_kernel(void **state)
{
    (void)state;
    enum { COUNT = 10007 };
    static float from[COUNT];
    static uint16_t gpu_bits[COUNT], cpu_bits[COUNT];
    memopt_device *device = open_gpu(backend), *cpu = open_cpu(8 * MIB, 0, 0);
    void *in = NULL, *out = NULL;
    for (int i = 0; i < COUNT; i++)
        from[i] = (float)(i - 5000) * 0.3137f;
    memopt_tensor host_in = {from, COUNT, MEMOPT_DTYPE_F32};
    memopt_tensor host_out = {cpu_bits, COUNT, MEMOPT_DTYPE_BF16};
    OK(memopt_cast(cpu, &host_out, &host_in, 1, NULL, NULL));
    OK(mo_mem_alloc(device, sizeof from, &in));
    OK(mo_mem_alloc(device, sizeof gpu_bits, &out));
    memopt_tensor device_in = {in, COUNT, MEMOPT_DTYPE_F32};
    memopt_tensor device_out = {out, COUNT, MEMOPT_DTYPE_BF16};
    OK(memopt_copy(device, in, from, sizeof from, NULL));
    OK(memopt_cast(device, &device_out, &device_in, 1, NULL, NULL));
    OK(memopt_copy(device, gpu_bits, out, sizeof gpu_bits, NULL));
    OK(memopt_stream_sync(device, NULL));
    assert_memory_equal(gpu_bits, cpu_bits, sizeof gpu_bits);
    OK(mo_mem_free(device, in, sizeof from));
    OK(mo_mem_free(device, out, sizeof gpu_bits));
    OK(memopt_device_close(device));
    OK(memopt_device_close(cpu));
}

/* Counts the calls of cuMemCreate, with memory for remote access and without. */
static int created[2];
static int (*real_create)(uint64_t *, size_t, const mo_gpu_allocation *, uint64_t);

static int counted_create(uint64_t *out, size_t bytes, const mo_gpu_allocation *wanted,
                          uint64_t flags)
{
    created[wanted->rdma_capable]++;
    return real_create(out, bytes, wanted, flags);
}

/* A device that says it can map for remote access in a machine that does not let it
 * (MEMOPT_SIM_RDMA=2): asked once, and no more after the refusal. A device without: never. */
static void remote_access_is_asked_once(void **state)
{
    (void)state;
    if (!is_cuda())
        return; /* HIP has no such flag */
    const char *wish = getenv("MEMOPT_SIM_RDMA");
    memopt_device *device = open_gpu(backend);
    mo_vm_handle handles[2];
    real_create = mo_cuda_driver.calls.vm_create;
    mo_cuda_driver.calls.vm_create = counted_create;
    OK(mo_vm_create(device, GRANULE, &handles[0]));
    OK(mo_vm_create(device, GRANULE, &handles[1]));
    mo_cuda_driver.calls.vm_create = real_create;
    assert_int_equal(created[1], wish == NULL ? 0 : wish[0] == '2' ? 1 : 2);
    assert_int_equal(created[0], wish != NULL && wish[0] == '1' ? 0 : 2);
    OK(mo_vm_release(device, handles[0], GRANULE));
    OK(mo_vm_release(device, handles[1], GRANULE));
    OK(memopt_device_close(device));
}

/* Every call to the driver while opening may fail: a clear status, and nothing leaks. */
static void opening_with_faults(void **state)
{
    (void)state;
    int64_t blocks = mo_memory_live_blocks(), n = 1;
    for (; n < 200; n++) {
        memopt_device *device = NULL;
        fail_at("*", n, 999);
        memopt_status status = memopt_device_open(backend, NULL, &device);
        fail_at("*", 0, 0);
        if (status == MEMOPT_OK) {
            OK(memopt_device_close(device));
            memopt_device *again = open_gpu(backend);
            OK(memopt_device_close(again));
            if (n > 20)
                break; /* optional questions may fail; past all of them opening succeeds */
            continue;
        }
        assert_int_equal(status, MEMOPT_DRIVER_ERROR);
        SAYS("999");
        assert_int_equal(mo_memory_live_blocks(), blocks);
    }
    assert_true(n > 5 && n < 200);
    assert_int_equal(mo_memory_live_blocks(), blocks);
}

/* Lost in the middle: each call says so, and everything can be taken down. */
static void a_lost_device(void **state)
{
    (void)state;
    int64_t blocks = mo_memory_live_blocks();
    memopt_device *device = open_gpu(backend);
    memopt_stream stream;
    memopt_event *event;
    void *memory = NULL, *pinned = NULL, *none = NULL;
    memopt_error_info error = {sizeof error, 0, 0, NULL, NULL};
    OK(memopt_stream_create(device, &stream));
    OK(memopt_event_create(device, 0, &event));
    OK(mo_mem_alloc(device, MIB, &memory));
    OK(memopt_host_alloc(device, MIB, &pinned));
    mapped m = map_new(device, GRANULE);
    OK(memopt_fill(device, memory, 0, MIB, stream));
    lose_device(719);
    FAILS(MEMOPT_DEVICE_LOST, memopt_stream_sync(device, stream));
    OK(memopt_last_error_info(&error));
    assert_int_equal(error.driver_code, 719);
    assert_true(strlen(error.driver_message) > 0);
    FAILS(MEMOPT_DEVICE_LOST, memopt_copy(device, memory, pinned, 100, stream));
    SAYS("lost before");
    FAILS(MEMOPT_DEVICE_LOST, mo_mem_alloc(device, MIB, &none));
    FAILS(MEMOPT_DEVICE_LOST, memopt_event_record(event, stream));
    FAILS(MEMOPT_DEVICE_LOST, memopt_event_query(event));
    OK(memopt_event_destroy(event));
    OK(memopt_stream_destroy(device, stream));
    OK(mo_mem_free(device, memory, MIB));
    OK(memopt_host_free(device, pinned));
    OK(mo_vm_unmap(device, m.address, GRANULE));
    OK(mo_vm_release(device, m.handle, GRANULE));
    OK(mo_vm_unreserve(device, m.address, GRANULE));
    OK(memopt_device_close(device));
    assert_int_equal(mo_memory_live_blocks(), blocks);
}

static void no_violations(void **state)
{
    (void)state;
    assert_int_equal(violations(), 0);
}

int main(int count, char **values)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_properties),
        cmocka_unit_test(memory),
        cmocka_unit_test(virtual_memory),
        cmocka_unit_test(streams_and_events),
        cmocka_unit_test(a_kernel),
        cmocka_unit_test(remote_access_is_asked_once),
        cmocka_unit_test(opening_with_faults),
        cmocka_unit_test(no_violations),
        cmocka_unit_test(a_lost_device), /* the last: the driver does not come back */
    };
    if (count > 1)
        backend = values[1];
    snprintf(second, sizeof second, "%s:1", backend);
    return cmocka_run_group_tests(tests, find_controls, NULL);
}
