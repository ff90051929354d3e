/* A trace that an allocator records, replayed: the same peaks, from all that takes memory there. */
#include "unit/allocator/support.h"

#include "allocator/blocks/state.h"
#include "memopt/checkpoint.h"
#include "memopt/offload.h"
#include "memopt/optim.h"
#include "trace/trace.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

static char path[] = "/tmp/memopt-record-XXXXXX";

static memopt_trace *read_back(void)
{
    memopt_trace *trace = NULL;
    int file = open(path, O_RDONLY);
    assert_true(file >= 0);
    OK(memopt_trace_create(NULL, &trace));
    OK(memopt_trace_read_csv(trace, file));
    close(file);
    return trace;
}

static memopt_trace_info told_of(const memopt_trace *trace)
{
    memopt_trace_info info = MEMOPT_TRACE_INFO_INIT;
    OK(memopt_trace_get_info(trace, &info));
    return info;
}

static memopt_status lease(void *user, memopt_region *region, memopt_region_pass pass,
                           memopt_stream stream)
{
    void *pointer = NULL;
    (void)user, (void)pass, (void)stream;
    return memopt_region_alloc(region, 3 * MIB, &pointer);
}

/* A region's lease, an optimizer's state, an offloaded value and back, a block on another stream.
 */
static void train(memopt_allocator *allocator, memopt_device *device, memopt_stream side)
{
    memopt_region_callbacks callbacks = MEMOPT_REGION_CALLBACKS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_offloader_options offloading = MEMOPT_OFFLOADER_OPTIONS_INIT;
    memopt_region *region = NULL;
    memopt_optimizer *optimizer = NULL;
    memopt_offloader *offloader = NULL;
    memopt_ticket ticket = 0;
    memopt_tensor weight = {alloc(allocator, 4 * MIB), MIB, MEMOPT_DTYPE_F32};
    void *back = NULL, *shared = alloc(allocator, 5 * MIB);
    uint64_t index = 0;
    uint32_t first = 0;
    offloading.flags = MEMOPT_OFFLOADER_NULL_STREAM; /* a copy's end depends on no worker */
    callbacks.run = lease;
    OK(memopt_region_create(device, allocator, &callbacks, NULL, &region));
    OK(memopt_region_forward(region, NULL));
    OK(memopt_region_recompute(region, NULL));
    OK(memopt_region_release(region));
    OK(memopt_optimizer_create(allocator, NULL, &optimizer));
    OK(memopt_optimizer_add_group(optimizer, &group, &first));
    OK(memopt_optimizer_add_parameter(optimizer, first, &weight, NULL, NULL, &index));
    OK(memopt_offloader_create(device, allocator, &offloading, &offloader));
    OK(memopt_offloader_pack(offloader, alloc(allocator, 7 * MIB), 7 * MIB, NULL, &ticket));
    OK(memopt_offloader_unpack(offloader, ticket, NULL, &back));
    OK(memopt_allocator_record_stream(allocator, shared, side));
    OK(memopt_allocator_free(allocator, shared));
    OK(memopt_offloader_release(offloader, ticket, NULL));
    OK(memopt_offloader_destroy(offloader));
    OK(memopt_optimizer_destroy(optimizer));
    OK(memopt_region_destroy(region));
    OK(memopt_allocator_free(allocator, weight.data));
}

TEST(test_same_peaks)
{
    memopt_device *device = open_cpu(256 * MIB, MEMOPT_STREAM_ORDER_EAGER, 1);
    memopt_allocator *allocator = new_allocator(device, "expandable_segments:True");
    memopt_replay_options options = MEMOPT_REPLAY_OPTIONS_INIT;
    memopt_replay_result result = MEMOPT_REPLAY_RESULT_INIT;
    memopt_stream side = NULL;
    uint64_t events = 0;
    memopt_tag tag = 0;
    void *before = alloc(allocator, 2 * MIB), *named = NULL;
    OK(memopt_stream_create(device, &side));
    OK(memopt_allocator_register_tag(allocator, "a,\"b\"\n", &tag));
    OK(memopt_allocator_trace(allocator, path, NULL));
    FAILS_SAYING(MEMOPT_BUSY, "end it first", memopt_allocator_trace(allocator, path, NULL));
    OK(memopt_allocator_alloc(allocator, MIB, tag, side, &named));
    train(allocator, device, side);
    OK(memopt_device_sync(device));
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY,
          memopt_allocator_alloc(allocator, 300 * MIB, tag, side, &(void *){NULL}));
    OK(memopt_allocator_free(allocator, named));
    OK(memopt_allocator_trace(allocator, NULL, &events));
    FAILS(MEMOPT_NOT_FOUND, memopt_allocator_trace(allocator, NULL, &events));
    memopt_trace *trace = read_back();
    memopt_trace_info info = told_of(trace);
    options.config = "expandable_segments:True";
    OK(memopt_trace_replay(trace, &options, &result));
    assert_int_equal(result.peak_live_bytes, stat_of(allocator, "requested_bytes.all.peak"));
    assert_int_equal(result.peak_reserved_bytes, stat_of(allocator, "reserved_bytes.all.peak"));
    assert_int_equal(info.lines, events + 1);
    assert_int_equal(info.streams, 2);
    assert_int_equal(info.live_bytes, 2 * MIB); /* what was there before */
    assert_int_equal(info.failed_bytes, 300 * MIB);
    assert_int_equal(info.unknown_frees + info.lost_frees + info.double_frees, 0);
    OK(memopt_trace_destroy(trace));
    OK(memopt_allocator_free(allocator, before));
    OK(memopt_stream_destroy(device, side));
    finish(allocator, device);
}

/* Every stream of a block that is recorded, once, is in the trace, and a replay records it too. */
TEST(test_streams)
{
    memopt_device *device = open_cpu(256 * MIB, MEMOPT_STREAM_ORDER_EAGER, 1);
    memopt_allocator *allocator = new_allocator(device, "");
    memopt_replay_result result = MEMOPT_REPLAY_RESULT_INIT;
    memopt_stream side[3];
    uint64_t events = 0, uses = 0;
    void *before = alloc(allocator, MIB);
    for (int i = 0; i < 3; i++)
        OK(memopt_stream_create(device, &side[i]));
    OK(memopt_allocator_record_stream(allocator, before, side[0]));
    OK(memopt_allocator_trace(allocator, path, NULL));
    void *shared = alloc(allocator, 2 * MIB);
    OK(memopt_allocator_record_stream(allocator, shared, side[1]));
    OK(memopt_allocator_record_stream(allocator, shared, side[0]));
    OK(memopt_allocator_record_stream(allocator, shared, side[1])); /* known */
    OK(memopt_allocator_record_stream(allocator, shared, NULL));    /* its own */
    OK(memopt_allocator_free(allocator, shared));
    OK(memopt_allocator_record_stream(allocator, before, side[2]));
    OK(memopt_allocator_free(allocator, before));
    OK(memopt_allocator_trace(allocator, NULL, &events));
    memopt_trace *trace = read_back();
    for (uint64_t i = 0; i < trace->count; i++)
        uses += mo_trace_is_use(&trace->steps[i]) != 0;
    assert_int_equal(uses, 4);
    assert_int_equal(events, 2 + 4 + 2);
    assert_int_equal(told_of(trace).events, events);
    assert_int_equal(told_of(trace).streams, 4);
    OK(memopt_trace_replay(trace, NULL, &result));
    assert_int_equal(result.events, events);
    assert_false(result.out_of_memory);
    OK(memopt_trace_destroy(trace));
    for (int i = 0; i < 3; i++)
        OK(memopt_stream_destroy(device, side[i]));
    finish(allocator, device);
}

/* --- threads ------------------------------------------------------------------------------- */

enum { THREADS = 3, ROUNDS = 1000 };

static void *churn(void *allocator)
{
    for (uint64_t i = 0; i < ROUNDS; i++) {
        void *pointer = NULL;
        if (memopt_allocator_alloc(allocator, 512 + i, MEMOPT_TAG_OTHER, NULL, &pointer) !=
                MEMOPT_OK ||
            memopt_allocator_free(allocator, pointer) != MEMOPT_OK)
            return allocator;
    }
    return NULL;
}

TEST(test_threads)
{
    memopt_device *device = open_cpu(64 * MIB, MEMOPT_STREAM_ORDER_EAGER, 1);
    memopt_allocator *allocator = new_allocator(device, "");
    pthread_t threads[THREADS];
    void *failed = NULL;
    OK(memopt_allocator_trace(allocator, path, NULL));
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, allocator), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    finish(allocator, device); /* ends the recording too */
    memopt_trace *trace = read_back();
    memopt_trace_info info = told_of(trace);
    assert_int_equal(info.allocations, THREADS * ROUNDS);
    assert_int_equal(info.events, 2 * THREADS * ROUNDS);
    assert_int_equal(info.unknown_frees + info.lost_frees + info.double_frees, 0);
    OK(memopt_trace_destroy(trace));
}

/* --- a full disk, as a limit of a file's size ------------------------------------------------ */

TEST(test_full_disk)
{
    memopt_device *device = open_cpu(64 * MIB, MEMOPT_STREAM_ORDER_EAGER, 1);
    memopt_allocator *allocator = new_allocator(device, "");
    struct rlimit before, small;
    FAILS_SAYING(MEMOPT_IO_ERROR, "writable directory",
                 memopt_allocator_trace(allocator, "/nowhere/at/all", NULL));
    OK(memopt_allocator_trace(allocator, path, NULL));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){70000, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    void *failed = churn(allocator);
    memopt_status status = memopt_allocator_trace(allocator, NULL, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_null(failed);
    assert_int_equal(status, MEMOPT_IO_ERROR);
    SAYS("record again");
    memopt_trace *trace = read_back(); /* whole lines */
    assert_true(told_of(trace).events > 500 && told_of(trace).events < 2 * ROUNDS);
    OK(memopt_trace_destroy(trace));
    finish(allocator, device);
}

static int make_file(void **state)
{
    int file = mkstemp(path);
    return file < 0 || close(file) != 0;
}

static int remove_file(void **state)
{
    return unlink(path);
}

int main(void)
{
    return run_all_tests(make_file, remove_file);
}
