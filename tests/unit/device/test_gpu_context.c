/*
 * What a GPU back end owes its caller, on a simulated driver (cuda or hip, by the argument): the
 * thread's current context or device is the same after every call as before, whatever it was and
 * whether the call succeeds; streams of others are taken.
 */
#include "support.h"

#include "device/gpu/gpu.h"
#include "kernels/cast/cast.h"
#include "memopt/allocator.h"
#include "memopt/cast.h"
#include "support/simulated.h"

#include <dlfcn.h>

static const char *backend = "cuda";
static char own_name[16];
static const driver_hooks *sim;
static memopt_device *device; /* "…:1" */

static int is_cuda(void)
{
    return backend[0] == 'c';
}

/* --- what is current on the thread --------------------------------------------------------- */

static int (*get_context)(void **), (*set_context)(void *), (*pop_context)(void **);
static int (*get_device)(int *), (*set_device)(int);
static int (*make_stream)(void **, unsigned), (*end_stream)(void *);
static void *contexts[2];

static void find(void *function, const char *symbol)
{
    void *address = dlsym(sim->library, symbol);
    assert_non_null(address);
    memcpy(function, &address, sizeof address);
}

static int find_driver(void **state)
{
    sim = driver_of(backend);
    find(&make_stream, is_cuda() ? "cuStreamCreate" : "hipStreamCreateWithFlags");
    find(&end_stream, is_cuda() ? "cuStreamDestroy_v2" : "hipStreamDestroy");
    if (!is_cuda()) {
        find(&get_device, "hipGetDevice");
        find(&set_device, "hipSetDevice");
        return 0;
    }
    int (*retain)(void **, int);
    find(&get_context, "cuCtxGetCurrent");
    find(&set_context, "cuCtxSetCurrent");
    find(&pop_context, "cuCtxPopCurrent_v2");
    find(&retain, "cuDevicePrimaryCtxRetain");
    assert_int_equal(retain(&contexts[0], 0), 0);
    assert_int_equal(retain(&contexts[1], 1), 0);
    return 0;
}

/* 0 and 1: that device is current; -1: nothing is (CUDA only). */
static void make_current(int which)
{
    void *gone;
    if (!is_cuda()) {
        assert_int_equal(set_device(which), 0);
        return;
    }
    while (pop_context(&gone) == 0)
        ;
    if (which >= 0)
        assert_int_equal(set_context(contexts[which]), 0);
}

static int expected;

/* The same is current, and for CUDA on a stack that has not grown. */
static void still_current(const char *call)
{
    void *now = NULL;
    int number = -2;
    if (!is_cuda()) {
        (void)get_device(&number);
    } else {
        (void)get_context(&now);
        number = now == NULL ? -1 : now == contexts[0] ? 0 : now == contexts[1] ? 1 : -2;
        if (expected >= 0 && number == expected) {
            assert_int_equal(pop_context(&now), 0);
            (void)get_context(&now);
            if (now != NULL)
                fail_msg("%s: a context is left on the stack", call);
            assert_int_equal(set_context(contexts[expected]), 0);
        }
    }
    if (number != expected)
        fail_msg("%s: device %d was current, now %d is", call, expected, number);
}

/* The call succeeds, or fails with the status, and leaves what is current. */
#define KEEPS(call)                                                                                \
    do {                                                                                           \
        OK(call);                                                                                  \
        still_current(#call);                                                                      \
    } while (0)
#define KEEPS_FAILING(wanted, call)                                                                \
    do {                                                                                           \
        FAILS(wanted, call);                                                                       \
        still_current(#call);                                                                      \
    } while (0)

/* --- every operation ----------------------------------------------------------------------- */

static void nothing(void *user)
{
}

static void memory_calls(void)
{
    char *block = malloc(MIB);
    void *plain = NULL, *pinned = NULL, *address = NULL, *none = NULL;
    mo_vm_handle handle;
    memopt_memory_info info = {.struct_size = sizeof info};
    memopt_device_properties p = {.struct_size = sizeof p};
    KEEPS(memopt_device_get_properties(device, &p));
    KEEPS(memopt_device_get_memory_info(device, &info));
    KEEPS(mo_mem_alloc(device, MIB, &plain));
    KEEPS_FAILING(MEMOPT_OUT_OF_DEVICE_MEMORY, mo_mem_alloc(device, 256 * MIB, &none));
    KEEPS_FAILING(MEMOPT_INVALID_ARGUMENT, mo_mem_free(device, plain, 5));
    KEEPS(mo_mem_free(device, plain, MIB));
    KEEPS(memopt_host_alloc(device, 100, &pinned));
    KEEPS(memopt_host_free(device, pinned));
    KEEPS(memopt_host_register(device, block, MIB));
    KEEPS_FAILING(MEMOPT_INVALID_ARGUMENT, memopt_host_register(device, block, MIB));
    KEEPS(memopt_host_unregister(device, block));
    KEEPS(mo_vm_reserve(device, 2 * GRANULE, &address));
    KEEPS_FAILING(MEMOPT_OUT_OF_DEVICE_MEMORY, mo_vm_create(device, 256 * MIB, &handle));
    KEEPS(mo_vm_create(device, GRANULE, &handle));
    KEEPS(mo_vm_map(device, address, GRANULE, handle));
    KEEPS(mo_vm_set_access(device, address, GRANULE));
    KEEPS_FAILING(MEMOPT_INVALID_ARGUMENT, mo_vm_set_access(device, address, 2 * GRANULE));
    KEEPS_FAILING(MEMOPT_BUSY, mo_vm_unreserve(device, address, 2 * GRANULE));
    KEEPS(mo_vm_unmap(device, address, GRANULE));
    KEEPS(mo_vm_release(device, handle, GRANULE));
    KEEPS(mo_vm_unreserve(device, address, 2 * GRANULE));
    free(block);
}

static void cast_on(memopt_stream stream, void *memory)
{
    memopt_tensor in = {memory, 100, MEMOPT_DTYPE_F32};
    memopt_tensor out = {(char *)memory + 4096, 100, MEMOPT_DTYPE_BF16};
    KEEPS(memopt_cast(device, &out, &in, 1, NULL, stream));
}

static void stream_calls(memopt_stream stream)
{
    memopt_event *event = NULL, *timed = NULL;
    void *memory = NULL, *pinned = NULL;
    int32_t capturing = 1;
    double seconds = 0;
    OK(mo_mem_alloc(device, MIB, &memory));
    OK(memopt_host_alloc(device, MIB, &pinned));
    memset(pinned, 1, MIB);
    KEEPS(memopt_event_create(device, 0, &event));
    KEEPS(memopt_event_create(device, 1, &timed));
    KEEPS(memopt_event_record(timed, stream));
    KEEPS(memopt_copy(device, memory, pinned, MIB, stream));
    KEEPS(memopt_fill(device, memory, 0, 100, stream));
    KEEPS_FAILING(MEMOPT_INVALID_ARGUMENT, memopt_fill(device, pinned, 0, 2 * MIB, stream));
    KEEPS(memopt_copy(device, memory, pinned, 0, stream));
    KEEPS(memopt_fill(device, memory, 0, 0, stream));
    cast_on(stream, memory);
    KEEPS(memopt_stream_host_callback(device, stream, nothing, NULL));
    KEEPS(mo_stream_capturing(device, stream, &capturing));
    assert_int_equal(capturing, 0);
    KEEPS(memopt_event_record(event, stream));
    (void)memopt_stream_query(device, stream); /* ready or not */
    still_current("memopt_stream_query");
    (void)memopt_event_query(event);
    still_current("memopt_event_query");
    KEEPS(memopt_stream_wait_event(device, stream, event));
    KEEPS(memopt_event_sync(event));
    KEEPS(memopt_stream_sync(device, stream));
    KEEPS(memopt_stream_query(device, stream));
    KEEPS(memopt_event_query(event));
    KEEPS(memopt_event_elapsed(timed, timed, &seconds));
    KEEPS(memopt_device_sync(device));
    KEEPS(memopt_event_destroy(event));
    KEEPS(memopt_event_destroy(timed));
    OK(memopt_host_free(device, pinned));
    OK(mo_mem_free(device, memory, MIB));
}

TEST(every_call_keeps_what_is_current)
{
    for (expected = is_cuda() ? -1 : 0; expected <= 1; expected++) {
        memopt_stream stream = NULL;
        memopt_backend_info info = {.struct_size = sizeof info};
        make_current(expected);
        KEEPS(memopt_backend_get_info(backend, &info));
        KEEPS(memopt_device_open(own_name, NULL, &device));
        memory_calls();
        KEEPS(memopt_stream_create(device, &stream));
        stream_calls(stream);
        stream_calls(NULL);
        KEEPS(memopt_stream_destroy(device, stream));
        KEEPS(memopt_device_close(device));
    }
}

typedef struct things {
    memopt_stream stream;
    memopt_event *event;
    void *memory, *pinned, *addresses;
} things;

/* Opening, and then some work, of which any call may fail. */
static memopt_status some_work(things *t)
{
    memopt_status status = memopt_device_open(own_name, NULL, &device);
#define NEXT(call) status = status == MEMOPT_OK ? call : status
    NEXT(memopt_stream_create(device, &t->stream));
    NEXT(mo_mem_alloc(device, MIB, &t->memory));
    NEXT(memopt_host_alloc(device, MIB, &t->pinned));
    NEXT(mo_vm_reserve(device, GRANULE, &t->addresses));
    NEXT(memopt_event_create(device, 1, &t->event));
    NEXT(memopt_fill(device, t->memory, 1, MIB, t->stream));
    NEXT(memopt_copy(device, t->pinned, t->memory, MIB, t->stream));
    NEXT(memopt_stream_host_callback(device, t->stream, nothing, NULL));
    NEXT(memopt_event_record(t->event, t->stream));
    NEXT(memopt_stream_wait_event(device, NULL, t->event));
    NEXT(memopt_event_sync(t->event));
    NEXT(memopt_stream_sync(device, t->stream));
#undef NEXT
    return status;
}

static void end_work(things *t)
{
    if (device != NULL)
        OK(memopt_device_sync(device)); /* what was enqueued before the failure */
    if (t->event != NULL)
        OK(memopt_event_destroy(t->event));
    if (t->addresses != NULL)
        OK(mo_vm_unreserve(device, t->addresses, GRANULE));
    if (t->pinned != NULL)
        OK(memopt_host_free(device, t->pinned));
    if (t->memory != NULL)
        OK(mo_mem_free(device, t->memory, MIB));
    if (t->stream != NULL)
        OK(memopt_stream_destroy(device, t->stream));
    if (device != NULL)
        OK(memopt_device_close(device));
}

/* With the n-th driver call failing. */
TEST(failing_calls_keep_what_is_current)
{
    int succeeded = 0;
    expected = 0;
    for (int64_t n = 1; n < 300 && !succeeded; n++) {
        things t = {NULL, NULL, NULL, NULL, NULL};
        make_current(expected);
        device = NULL;
        sim->fail_at("*", n, 0);
        succeeded = some_work(&t) == MEMOPT_OK && n > 60;
        sim->fail_at("*", 0, 0);
        still_current("a failing call");
        end_work(&t);
        still_current("the end");
    }
    assert_true(succeeded);
}

/* --- what belongs to others ---------------------------------------------------------------- */

/* A stream that the program made with the vendor's own interface. */
TEST(foreign_streams_are_taken)
{
    void *foreign = NULL;
    make_current(1);
    assert_int_equal(make_stream(&foreign, 1), 0);
    expected = 0;
    make_current(0);
    OK(memopt_device_open(own_name, NULL, &device));
    stream_calls((memopt_stream)foreign);
    KEEPS_FAILING(MEMOPT_INVALID_ARGUMENT, memopt_stream_destroy(device, (memopt_stream)foreign));
    SAYS("not a live stream that this device made");
    OK(memopt_device_close(device));
    make_current(1);
    assert_int_equal(end_stream(foreign), 0);
}

/* The owner of a stream destroys it and tells nobody, and the driver says "context destroyed". What
 * the stream used is free after a wait for the device; the device lives on. */
TEST(streams_may_be_destroyed_by_others)
{
    static const char *const configs[] = {"", "expandable_segments:True"};
    static uint64_t no_stream[64];
    expected = 1;
    make_current(1);
    for (int c = 0; c < 2; c++) {
        memopt_allocator *allocator = NULL;
        void *foreign = NULL, *shared = NULL, *own = NULL, *most = NULL, *none = NULL;
        uint64_t active = 0;
        assert_int_equal(make_stream(&foreign, 1), 0);
        memopt_stream stream = (memopt_stream)foreign;
        OK(memopt_device_open(own_name, NULL, &device));
        OK(memopt_allocator_create(device, configs[c], NULL, &allocator));
        KEEPS_FAILING(MEMOPT_INVALID_ARGUMENT,
                      memopt_allocator_alloc(allocator, MIB, 0, (memopt_stream)no_stream, &none));
        OK(memopt_allocator_alloc(allocator, 16 * MIB, 0, NULL, &shared));
        KEEPS_FAILING(MEMOPT_INVALID_ARGUMENT,
                      memopt_allocator_record_stream(allocator, shared, (memopt_stream)no_stream));
        OK(memopt_allocator_alloc(allocator, 16 * MIB, 0, stream, &own));
        OK(memopt_fill(device, shared, 1, 16 * MIB, stream));
        OK(memopt_allocator_record_stream(allocator, shared, stream));
        assert_int_equal(end_stream(foreign), 0);
        KEEPS_FAILING(MEMOPT_INVALID_ARGUMENT, memopt_stream_sync(device, stream));
        SAYS("the device is not lost");
        KEEPS(memopt_allocator_free(allocator, shared));
        KEEPS(memopt_allocator_free(allocator, own));
        OK(memopt_allocator_get_stat(allocator, "active.all.current", &active));
        assert_int_equal(active, 1);
        KEEPS(memopt_allocator_alloc(allocator, 48 * MIB, 0, NULL, &most));
        KEEPS(memopt_fill(device, most, 2, 48 * MIB, NULL));
        OK(memopt_stream_sync(device, NULL));
        OK(memopt_allocator_free(allocator, most));
        OK(memopt_allocator_destroy(allocator));
        OK(memopt_device_close(device));
    }
}

/* --- captures of the program --------------------------------------------------------------- */

/* The program captures a stream in the strictest mode. What the library does meanwhile, and the
 * loading of its kernels, are no part of the graph and do not break it; what it puts on the stream
 * is in the graph. */
TEST(captures_of_the_program_survive)
{
    int (*begin)(void *, int), (*end)(void *, void **), (*instantiate)(void **, void *, uint64_t);
    int (*replay)(void *, void *), (*destroy)(void *), (*destroy_run)(void *);
    void *captured = NULL, *graph = NULL, *run = NULL, *pinned = NULL, *memory = NULL,
         *other = NULL;
    char *block = malloc(MIB);
    int32_t capturing = 0;
    float values[4] = {1, 2, 3, 4};
    uint16_t bits[4] = {0, 0, 0, 0};
    find(&begin, is_cuda() ? "cuStreamBeginCapture_v2" : "hipStreamBeginCapture");
    find(&end, is_cuda() ? "cuStreamEndCapture" : "hipStreamEndCapture");
    find(&instantiate, is_cuda() ? "cuGraphInstantiateWithFlags" : "hipGraphInstantiateWithFlags");
    find(&replay, is_cuda() ? "cuGraphLaunch" : "hipGraphLaunch");
    find(&destroy, is_cuda() ? "cuGraphDestroy" : "hipGraphDestroy");
    find(&destroy_run, is_cuda() ? "cuGraphExecDestroy" : "hipGraphExecDestroy");
    expected = 1;
    make_current(1);
    assert_int_equal(make_stream(&captured, 1), 0);
    memopt_stream stream = (memopt_stream)captured;
    OK(memopt_device_open(own_name, NULL, &device));
    memopt_event *event = event_on(device);
    OK(mo_mem_alloc(device, 4096, &memory));
    OK(memopt_copy(device, memory, values, sizeof values, NULL));
    OK(memopt_stream_sync(device, NULL));
    memopt_tensor in = {memory, 4, MEMOPT_DTYPE_F32};
    memopt_tensor out = {(char *)memory + 2048, 4, MEMOPT_DTYPE_BF16};
    assert_int_equal(begin(captured, 0), 0);
    KEEPS(mo_stream_capturing(device, stream, &capturing));
    assert_int_equal(capturing, 1);
    KEEPS(mo_mem_alloc(device, MIB, &other));
    KEEPS(memopt_host_alloc(device, MIB, &pinned));
    KEEPS(memopt_host_free(device, pinned));
    KEEPS(memopt_host_register(device, block, MIB));
    KEEPS(memopt_host_unregister(device, block));
    KEEPS(memopt_event_record(event, NULL)); /* another stream, which it does not wait for */
    KEEPS(memopt_event_sync(event));
    KEEPS(memopt_event_query(event));
    KEEPS(memopt_cast(device, &out, &in, 1, NULL, stream)); /* the first: loads the kernels */
    assert_int_equal(end(captured, &graph), 0);
    assert_int_equal(instantiate(&run, graph, 0), 0);
    assert_int_equal(replay(run, captured), 0);
    OK(memopt_copy(device, bits, out.data, sizeof bits, stream));
    OK(memopt_stream_sync(device, stream));
    assert_int_equal(bits[0], 0x3F80); /* 1 and 4 in bf16 */
    assert_int_equal(bits[3], 0x4080);
    assert_int_equal(destroy_run(run), 0);
    assert_int_equal(destroy(graph), 0);
    OK(mo_mem_free(device, memory, 4096));
    OK(mo_mem_free(device, other, MIB));
    OK(memopt_event_destroy(event));
    OK(memopt_device_close(device));
    assert_int_equal(end_stream(captured), 0);
    free(block);
}

/* --- grids larger than the driver takes ---------------------------------------------------- */

enum { MOST_PIECES = 600 };

static uint64_t pieces[MOST_PIECES], firsts[MOST_PIECES];
static int piece_count, failing_piece;

/* In place of the driver's launch: notes the grid and its first item. */
static int note_launch(mo_gpu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                       mo_gpu_stream stream, void **parameters, void **extra)
{
    assert_int_equal(grid_y * grid_z * block_y * block_z, 1);
    assert_true(extra == NULL && grid_x <= INT32_MAX);
    assert_true(is_cuda() || (uint64_t)grid_x * block_x <= UINT32_MAX);
    assert_true(piece_count < MOST_PIECES);
    if (piece_count + 1 == failing_piece)
        return 701;
    pieces[piece_count] = grid_x;
    memcpy(&firsts[piece_count++], parameters[1], sizeof firsts[0]);
    return 0;
}

static int launched(uint64_t items)
{
    static const mo_kernel *kernel = &mo_kernel_cast;
    static const unsigned char args[MO_KERNEL_ARGS_MAX];
    piece_count = 0;
    OK(mo_launch(device, NULL, kernel, args, items));
    uint64_t sum = 0;
    for (int i = 0; i < piece_count; i++) {
        assert_true(firsts[i] == sum && pieces[i] > 0); /* one after the other, without gaps */
        sum += pieces[i];
    }
    assert_true(sum == items);
    return piece_count;
}

TEST(large_grids_are_split)
{
    mo_gpu_driver *loaded = is_cuda() ? &mo_cuda_driver : &mo_hip_driver;
    static const unsigned char args[MO_KERNEL_ARGS_MAX];
    expected = 0;
    make_current(0);
    OK(memopt_device_open(own_name, NULL, &device));
    uint64_t most = is_cuda() ? INT32_MAX : UINT32_MAX / mo_kernel_cast.threads;
    int (*real)(mo_gpu_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                unsigned, mo_gpu_stream, void **, void **) = loaded->calls.launch;
    loaded->calls.launch = note_launch;
    assert_int_equal(launched(1), 1);
    assert_int_equal(launched(most), 1);
    assert_int_equal(launched(most + 1), 2);
    assert_int_equal(launched(5 * most), 5);
    assert_int_equal(launched((uint64_t)INT32_MAX + 2),
                     is_cuda() ? 2 : (int)(INT32_MAX / most) + 1);
    piece_count = 0;
    failing_piece = 3;
    KEEPS_FAILING(MEMOPT_DRIVER_ERROR, mo_launch(device, NULL, &mo_kernel_cast, args, 5 * most));
    assert_int_equal(piece_count, 2);
    loaded->calls.launch = real;
    OK(memopt_device_close(device));
}

TEST(a_lost_device_keeps_what_is_current)
{
    void *memory = NULL;
    expected = 0;
    make_current(0);
    OK(memopt_device_open(own_name, NULL, &device));
    memopt_stream stream = stream_on(device);
    OK(mo_mem_alloc(device, MIB, &memory));
    sim->lose(719);
    FAILS(MEMOPT_DEVICE_LOST, memopt_stream_sync(device, stream));
    FAILS(MEMOPT_DEVICE_LOST, memopt_fill(device, memory, 1, MIB, stream));
    OK(mo_mem_free(device, memory, MIB));
    OK(memopt_stream_destroy(device, stream));
    OK(memopt_device_close(device));
    sim->lose(0);
    still_current("the calls of a lost device");
}

TEST(no_violations)
{
    assert_int_equal(sim->violations(), 0);
}

int main(int count, char **values)
{
    if (count > 1)
        backend = values[1];
    snprintf(own_name, sizeof own_name, "%s:1", backend);
    return run_all_tests(find_driver, NULL);
}
