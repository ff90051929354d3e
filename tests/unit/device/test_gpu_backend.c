/*
 * What the conformance suite does not ask of a GPU back end: properties, messages, memory for
 * remote access. On a simulated driver, cuda or hip, by the argument.
 */
#include "support.h"

#include "device/gpu/gpu.h"
#include "support/simulated.h"

static const char *backend = "cuda";
static char second[16];

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

TEST(names_and_properties)
{
    memopt_backend_info info = MEMOPT_BACKEND_INFO_INIT;
    memopt_device *device = NULL;
    memopt_device_properties p = {.struct_size = sizeof p};
    OK(memopt_backend_get_info(backend, &info));
    assert_int_equal(info.device_count, 2);
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

TEST(memory)
{
    memopt_device *device = open_gpu(backend), *other = open_gpu(second);
    void *a = NULL, *none = (void *)1;
    OK(mo_mem_alloc(device, MIB, &a));
    assert_int_equal((uintptr_t)a % 512, 0);
    FAILS_SAYING(MEMOPT_OUT_OF_DEVICE_MEMORY, "256.00 MiB asked",
                 mo_mem_alloc(device, 256 * MIB, &none));
    SAYS("of 64.00 MiB");
    assert_true(none == (void *)1);
    REFUSED(mo_mem_free(other, a, MIB));
    REFUSED(mo_mem_free(device, a, 2 * MIB));
    assert_int_equal(info_of(device).used, MIB);
    OK(mo_mem_free(device, a, MIB));
    REFUSED(mo_mem_free(device, a, MIB));
    OK(memopt_device_close(device));
    OK(memopt_device_close(other));
}

/* A handle, and a reservation, of another device. */
TEST(virtual_memory_of_another_device)
{
    memopt_device *device = open_gpu(backend), *other = open_gpu(second);
    void *address = NULL, *pinned = NULL;
    mo_vm_handle handle;
    OK(mo_vm_reserve(device, GRANULE, &address));
    OK(mo_vm_create(other, GRANULE, &handle));
    OK(memopt_host_alloc(other, 100, &pinned));
    REFUSED(mo_vm_map(device, address, GRANULE, handle));
    REFUSED(mo_vm_unreserve(other, address, GRANULE));
    REFUSED(memopt_host_free(device, pinned));
    OK(memopt_host_free(other, pinned));
    OK(mo_vm_release(other, handle, GRANULE));
    OK(mo_vm_unreserve(device, address, GRANULE));
    OK(memopt_device_close(device));
    OK(memopt_device_close(other));
}

/* What is not ready is no failure: the last error stays. */
DEVICE_TEST(not_ready_is_no_error, device, open_gpu(backend))
{
    memopt_event *done, *timed;
    double seconds = -1;
    void *memory = NULL;
    memopt_stream stream = stream_on(device);
    OK(memopt_event_create(device, 0, &done));
    OK(memopt_event_create(device, 1, &timed));
    OK(memopt_event_query(done)); /* never recorded */
    OK(mo_mem_alloc(device, MIB, &memory));
    int event_waits = 0, stream_waits = 0;
    for (int round = 0; round < 100; round++) { /* the device may be done before it is asked */
        OK(memopt_fill(device, memory, 9, MIB, stream));
        OK(memopt_event_record(done, stream));
        REFUSED(memopt_event_elapsed(timed, done, &seconds)); /* no timing */
        memopt_status event = memopt_event_query(done);
        memopt_status whole = memopt_stream_query(device, stream);
        assert_true(event == MEMOPT_NOT_READY || event == MEMOPT_OK);
        assert_true(whole == MEMOPT_NOT_READY || whole == MEMOPT_OK);
        event_waits += event == MEMOPT_NOT_READY;
        stream_waits += whole == MEMOPT_NOT_READY;
        SAYS("elapsed");
        OK(memopt_stream_sync(device, stream));
    }
    assert_true(event_waits > 0 && stream_waits > 0);
    OK(mo_mem_free(device, memory, MIB));
    OK(memopt_event_destroy(done));
    OK(memopt_event_destroy(timed));
    OK(memopt_stream_destroy(device, stream));
    REFUSED(memopt_stream_destroy(device, stream));
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
TEST(remote_access_is_asked_once)
{
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

TEST(no_violations)
{
    assert_int_equal(driver_of(backend)->violations(), 0);
}

int main(int count, char **values)
{
    if (count > 1)
        backend = values[1];
    snprintf(second, sizeof second, "%s:1", backend);
    return run_all_tests(NULL, NULL);
}
