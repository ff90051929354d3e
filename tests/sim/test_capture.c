/*
 * Capture by its rules, on both simulated drivers (cuda or hip, by the argument): which calls a
 * capture forbids, how it is broken and how it must be ended; and that a replay keeps the recorded
 * dependencies and nothing else.
 */
#include "entry_points.h"

#include <pthread.h>

enum { GLOBAL, THREAD, RELAXED };
enum { BYTES = 4096 };

/* F(field, parameters, CUDA symbol, HIP symbol) */
#define FUNCTIONS(F)                                                                               \
    F(init, (unsigned), cuInit, hipInit)                                                           \
    F(mem_alloc, (void **, size_t), cuMemAlloc_v2, hipMalloc)                                      \
    F(mem_free, (void *), cuMemFree_v2, hipFree)                                                   \
    F(host_alloc, (void **, size_t, unsigned), cuMemHostAlloc, hipHostMalloc)                      \
    F(host_free, (void *), cuMemFreeHost, hipHostFree)                                             \
    F(fill, (void *, unsigned char, size_t, handle), cuMemsetD8Async, hipMemsetD8Async)            \
    F(synchronize, (void), cuCtxSynchronize, hipDeviceSynchronize)                                 \
    F(stream_create, (handle *, unsigned), cuStreamCreate, hipStreamCreateWithFlags)               \
    F(stream_destroy, (handle), cuStreamDestroy_v2, hipStreamDestroy)                              \
    F(stream_sync, (handle), cuStreamSynchronize, hipStreamSynchronize)                            \
    F(stream_query, (handle), cuStreamQuery, hipStreamQuery)                                       \
    F(stream_wait, (handle, handle, unsigned), cuStreamWaitEvent, hipStreamWaitEvent)              \
    F(host_function, (handle, void (*)(void *), void *), cuLaunchHostFunc, hipLaunchHostFunc)      \
    F(event_create, (handle *, unsigned), cuEventCreate, hipEventCreateWithFlags)                  \
    F(event_destroy, (handle), cuEventDestroy_v2, hipEventDestroy)                                 \
    F(event_record, (handle, handle), cuEventRecord, hipEventRecord)                               \
    F(event_query, (handle), cuEventQuery, hipEventQuery)                                          \
    F(event_sync, (handle), cuEventSynchronize, hipEventSynchronize)                               \
    F(begin, (handle, int), cuStreamBeginCapture_v2, hipStreamBeginCapture)                        \
    F(end, (handle, handle *), cuStreamEndCapture, hipStreamEndCapture)                            \
    F(capturing, (handle, int *), cuStreamIsCapturing, hipStreamIsCapturing)                       \
    F(exchange, (int *), cuThreadExchangeStreamCaptureMode, hipThreadExchangeStreamCaptureMode)    \
    F(instantiate, (handle *, handle, uint64_t), cuGraphInstantiateWithFlags,                      \
      hipGraphInstantiateWithFlags)                                                                \
    F(replay, (handle, handle), cuGraphLaunch, hipGraphLaunch)                                     \
    F(graph_destroy, (handle), cuGraphDestroy, hipGraphDestroy)                                    \
    F(run_destroy, (handle), cuGraphExecDestroy, hipGraphExecDestroy)

static struct driver {
#define FIELD(field, parameters, cuda, hip) int(*field) parameters;
    FUNCTIONS(FIELD)
    void (*seed)(uint64_t seed);
    uint32_t (*violations)(void);
    int (*take_violation)(char *out, uint64_t bytes);
} gpu;

static handle a, b, blocking, event, later;
static void *memory, *other;

static void load(int hip)
{
    void *library = open_library(hip ? "libamdhip64.so" : "libcuda.so.1");
#define FIND_FIELD(field, parameters, cuda, name)                                                  \
    *(void **)&gpu.field = find_symbol(library, hip ? #name : #cuda);
    FUNCTIONS(FIND_FIELD)
    *(void **)&gpu.seed = find_symbol(library, "memopt_sim_seed");
    *(void **)&gpu.violations = find_symbol(library, "memopt_sim_violations");
    *(void **)&gpu.take_violation = find_symbol(library, "memopt_sim_take_violation");
    if (!hip) {
        handle context = NULL;
        int (*retain)(handle *, int), (*set)(handle);
        *(void **)&retain = find_symbol(library, "cuDevicePrimaryCtxRetain");
        *(void **)&set = find_symbol(library, "cuCtxSetCurrent");
        if (gpu.init(0) != 0 || retain(&context, 0) != 0 || set(context) != 0)
            exit(1);
    }
}

static int setup(void **state)
{
    OK(gpu.stream_create(&a, 1));
    OK(gpu.stream_create(&b, 1));
    OK(gpu.stream_create(&blocking, 0));
    OK(gpu.event_create(&event, 2));
    OK(gpu.event_create(&later, 2));
    OK(gpu.mem_alloc(&memory, BYTES));
    OK(gpu.mem_alloc(&other, BYTES));
    return 0;
}

static int teardown(void **state)
{
    assert_int_equal(gpu.violations(), 0);
    OK(gpu.stream_destroy(a));
    OK(gpu.stream_destroy(b));
    OK(gpu.stream_destroy(blocking));
    OK(gpu.event_destroy(event));
    OK(gpu.event_destroy(later));
    OK(gpu.mem_free(memory));
    OK(gpu.mem_free(other));
    return 0;
}

static int state_of(handle stream)
{
    int state = -1;
    OK(gpu.capturing(stream, &state));
    return state;
}

/* The capture that begins on `stream` in the mode has been broken. */
static void ends_broken(handle stream)
{
    handle graph = (handle)1;
    assert_int_equal(state_of(stream), 2);
    FAILS(901, gpu.fill(memory, 1, BYTES, stream));
    FAILS(901, gpu.end(stream, &graph));
    assert_null(graph);
    assert_int_equal(state_of(stream), 0);
    OK(gpu.fill(memory, 1, BYTES, stream));
    OK(gpu.stream_sync(stream));
}

static void ends_whole(handle stream)
{
    handle graph = NULL;
    assert_int_equal(state_of(stream), 1);
    OK(gpu.end(stream, &graph));
    OK(gpu.graph_destroy(graph));
}

/* --- what a capture forbids ---------------------------------------------------------------- */

static int try_mem_alloc(void)
{
    void *out = NULL;
    int code = gpu.mem_alloc(&out, BYTES);
    if (code == 0)
        OK(gpu.mem_free(out));
    return code;
}

static int try_mem_free(void)
{
    return gpu.mem_free(NULL);
}

static int try_host_alloc(void)
{
    void *out = NULL;
    int code = gpu.host_alloc(&out, BYTES, 0);
    if (code == 0)
        OK(gpu.host_free(out));
    return code;
}

static int try_event_query(void)
{
    return gpu.event_query(later);
}

static int try_event_sync(void)
{
    return gpu.event_sync(later);
}

static int (*const unsafe[])(void) = {try_mem_alloc, try_mem_free, try_host_alloc, try_event_query,
                                      try_event_sync};
enum { UNSAFE = sizeof unsafe / sizeof unsafe[0] };

static void exchange(int mode, int expected)
{
    OK(gpu.exchange(&mode));
    assert_int_equal(mode, expected);
}

/* In the thread that captures: each mode but the relaxed one forbids, unless the thread itself is
 * relaxed. */
TEST_WITH(own_captures_forbid, setup, teardown)
{
    for (int mode = GLOBAL; mode <= RELAXED; mode++)
        for (int i = 0; i < UNSAFE; i++) {
            OK(gpu.begin(a, mode));
            if (mode == RELAXED) {
                OK(unsafe[i]());
                ends_whole(a);
                continue;
            }
            exchange(RELAXED, GLOBAL);
            OK(unsafe[i]());
            exchange(GLOBAL, RELAXED);
            assert_int_equal(state_of(a), 1);
            FAILS(900, unsafe[i]());
            ends_broken(a);
        }
}

typedef struct visit {
    int mode, code;
    int (*call)(void);
} visit;

static void *try_elsewhere(void *user)
{
    visit *v = user;
    int mode = v->mode;
    (void)gpu.exchange(&mode);
    v->code = v->call();
    return NULL;
}

/* CUDA's contexts are current for each thread: the other one needs it too. */
static void *library_context;
static int (*set_context)(handle);

static void *enter_and_try(void *user)
{
    if (set_context != NULL && set_context(library_context) != 0)
        abort();
    return try_elsewhere(user);
}

static int elsewhere(int mode, int (*call)(void))
{
    visit v = {mode, -1, call};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, enter_and_try, &v), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return v.code;
}

/* In another thread: only a global capture forbids, and only a thread in the global mode. */
TEST_WITH(captures_of_other_threads_forbid, setup, teardown)
{
    for (int mode = GLOBAL; mode <= RELAXED; mode++)
        for (int thread = GLOBAL; thread <= RELAXED; thread++)
            for (int i = 0; i < UNSAFE; i++) {
                int forbidden = mode == GLOBAL && thread == GLOBAL;
                OK(gpu.begin(a, mode));
                FAILS(forbidden ? 900 : 0, elsewhere(thread, unsafe[i]));
                if (forbidden)
                    ends_broken(a);
                else
                    ends_whole(a);
            }
}

TEST_WITH(modes_are_checked, setup, teardown)
{
    int mode = 3;
    FAILS(1, gpu.exchange(&mode));
    FAILS(1, gpu.exchange(NULL));
    exchange(THREAD, GLOBAL);
    exchange(GLOBAL, THREAD);
    FAILS(1, gpu.begin(a, 3));
    assert_int_equal(state_of(a), 0);
}

/* Waiting for what only a replay will do, in any mode. */
TEST_WITH(waiting_breaks_a_capture, setup, teardown)
{
    OK(gpu.begin(a, RELAXED));
    FAILS(900, gpu.stream_sync(a));
    FAILS(901, gpu.stream_sync(a));
    ends_broken(a);
    OK(gpu.begin(a, RELAXED));
    FAILS(900, gpu.stream_query(a));
    ends_broken(a);
    OK(gpu.begin(a, RELAXED));
    FAILS(900, gpu.synchronize());
    ends_broken(a);
    OK(gpu.begin(a, RELAXED));
    OK(gpu.event_record(event, a));
    FAILS(907, gpu.event_query(event));
    ends_broken(a);
    FAILS(907, gpu.event_sync(event)); /* until it is recorded again */
    OK(gpu.event_record(event, a));
    OK(gpu.event_sync(event));
    OK(gpu.begin(a, RELAXED));
    OK(gpu.stream_sync(b)); /* another stream is another matter */
    ends_whole(a);
}

/* --- the legacy stream --------------------------------------------------------------------- */

TEST_WITH(the_legacy_stream_is_kept_out, setup, teardown)
{
    int capturing = -7;
    FAILS(900, gpu.begin(NULL, GLOBAL));
    OK(gpu.begin(blocking, RELAXED));
    FAILS(906, gpu.capturing(NULL, &capturing));
    assert_int_equal(capturing, -7);
    assert_int_equal(state_of(blocking), 1); /* asking does no harm */
    FAILS(906, gpu.fill(memory, 1, BYTES, NULL));
    ends_broken(blocking);
    OK(gpu.begin(blocking, RELAXED));
    FAILS(906, gpu.stream_sync(NULL));
    ends_broken(blocking);
    OK(gpu.begin(a, RELAXED)); /* a stream that the legacy one does not wait for */
    OK(gpu.fill(memory, 1, BYTES, NULL));
    OK(gpu.stream_sync(NULL));
    assert_int_equal(state_of(a), 1);
    OK(gpu.event_record(event, a));
    FAILS(906, gpu.stream_wait(NULL, event, 0));
    ends_broken(a);
}

/* --- forks and joins ----------------------------------------------------------------------- */

TEST_WITH(forks_must_join, setup, teardown)
{
    handle graph = (handle)1;
    OK(gpu.begin(a, GLOBAL));
    OK(gpu.fill(memory, 1, 10, a));
    OK(gpu.event_record(event, a));
    OK(gpu.stream_wait(b, event, 0));
    assert_int_equal(state_of(b), 1);
    FAILS(903, gpu.end(b, &graph));
    OK(gpu.fill(other, 1, 10, b));
    OK(gpu.event_record(later, b));
    OK(gpu.stream_wait(a, later, 0));
    OK(gpu.fill(other, 2, 10, b)); /* after the join */
    FAILS(904, gpu.end(a, &graph));
    assert_null(graph);
    assert_int_equal(state_of(a), 0);
    assert_int_equal(state_of(b), 0);
    OK(gpu.begin(a, GLOBAL));
    OK(gpu.event_record(event, a));
    OK(gpu.stream_wait(b, event, 0));
    OK(gpu.fill(other, 1, 10, b));
    OK(gpu.event_record(later, b));
    OK(gpu.stream_wait(a, later, 0));
    ends_whole(a);
    assert_int_equal(state_of(b), 0);
    OK(gpu.stream_sync(b));
}

TEST_WITH(captures_are_isolated, setup, teardown)
{
    handle graph = NULL;
    OK(gpu.event_record(event, b)); /* outside */
    OK(gpu.begin(a, GLOBAL));
    FAILS(905, gpu.stream_wait(a, event, 0));
    ends_broken(a);
    OK(gpu.begin(a, GLOBAL));
    OK(gpu.begin(b, GLOBAL));
    OK(gpu.event_record(event, a));
    FAILS(902, gpu.stream_wait(b, event, 0));
    ends_broken(a);
    ends_broken(b);
    OK(gpu.begin(a, GLOBAL));
    OK(gpu.event_record(event, a));
    OK(gpu.end(a, &graph));
    OK(gpu.graph_destroy(graph));
    FAILS(907, gpu.stream_wait(b, event, 0)); /* that capture is over */
}

static int end_here(void)
{
    handle graph = NULL;
    return gpu.end(a, &graph);
}

TEST_WITH(captures_end_where_they_began, setup, teardown)
{
    handle graph = NULL;
    FAILS(401, gpu.end(a, &graph));
    FAILS(401, gpu.end(NULL, &graph));
    OK(gpu.begin(a, THREAD));
    FAILS(401, gpu.begin(a, THREAD));
    FAILS(1, gpu.end(a, NULL));
    FAILS(908, elsewhere(GLOBAL, end_here));
    ends_whole(a);
    OK(gpu.begin(a, RELAXED));
    OK(elsewhere(GLOBAL, end_here));
    assert_int_equal(state_of(a), 0);
}

/* --- replay -------------------------------------------------------------------------------- */

static char order[8];
static uint32_t length;

static void note(void *user)
{
    order[length++] = *(const char *)user;
}

/* 1, then 2 on one branch and 3, 4 on the other, then 5. */
static handle record_diamond(void)
{
    handle graph = NULL, run = NULL;
    OK(gpu.begin(a, GLOBAL));
    OK(gpu.host_function(a, note, "1"));
    OK(gpu.event_record(event, a));
    OK(gpu.stream_wait(b, event, 0));
    OK(gpu.host_function(a, note, "2"));
    OK(gpu.host_function(b, note, "3"));
    OK(gpu.host_function(b, note, "4"));
    OK(gpu.event_record(later, b));
    OK(gpu.stream_wait(a, later, 0));
    OK(gpu.host_function(a, note, "5"));
    OK(gpu.end(a, &graph));
    OK(gpu.instantiate(&run, graph, 0));
    OK(gpu.graph_destroy(graph));
    return run;
}

/* Every order that the dependencies allow comes up, and no other. */
TEST_WITH(replays_keep_dependencies_only, setup, teardown)
{
    static const char *const allowed[] = {"12345", "13245", "13425"};
    int seen[3] = {0, 0, 0};
    handle run = record_diamond();
    for (uint64_t seed = 1; seed <= 60; seed++) {
        gpu.seed(seed);
        for (int twice = 0; twice < 2; twice++) {
            length = 0;
            memset(order, 0, sizeof order);
            OK(gpu.replay(run, a));
            OK(gpu.stream_sync(a));
            int known = 0;
            for (int i = 0; i < 3; i++)
                if (strcmp(order, allowed[i]) == 0)
                    known = ++seen[i];
            if (!known)
                fail_msg("seed %d: the nodes ran as %s", (int)seed, order);
        }
    }
    assert_true(seen[0] > 0 && seen[1] > 0 && seen[2] > 0);
    OK(gpu.run_destroy(run));
    FAILS(1, gpu.replay(run, a));
}

/* What the stream had before comes first, what it gets afterwards comes last, and a launch on
 * another stream waits for the one before. */
TEST_WITH(replays_are_in_the_order_of_their_stream, setup, teardown)
{
    handle run = record_diamond();
    for (uint64_t seed = 1; seed <= 20; seed++) {
        gpu.seed(seed);
        length = 0;
        memset(order, 0, sizeof order);
        OK(gpu.host_function(b, note, "0"));
        OK(gpu.replay(run, b));
        OK(gpu.host_function(b, note, "6"));
        OK(gpu.stream_sync(b));
        assert_int_equal(length, 7);
        assert_int_equal(order[0], '0');
        assert_int_equal(order[6], '6');
    }
    OK(gpu.run_destroy(run));
}

/* Two branches that touch the same bytes, one writing. */
TEST_WITH(hazards_within_a_graph_are_told, setup, teardown)
{
    handle graph = NULL, run = NULL;
    char text[2048];
    OK(gpu.begin(a, GLOBAL));
    OK(gpu.event_record(event, a));
    OK(gpu.stream_wait(b, event, 0));
    OK(gpu.fill(memory, 1, BYTES, a));
    OK(gpu.fill(memory, 2, BYTES, b));
    OK(gpu.event_record(later, b));
    OK(gpu.stream_wait(a, later, 0));
    OK(gpu.end(a, &graph));
    OK(gpu.instantiate(&run, graph, 0));
    OK(gpu.replay(run, a));
    OK(gpu.stream_sync(a));
    assert_int_equal(gpu.take_violation(text, sizeof text), 1);
    assert_non_null(strstr(text, "two writes without an order between them"));
    while (gpu.violations() > 0)
        (void)gpu.take_violation(text, sizeof text);
    OK(gpu.run_destroy(run));
    OK(gpu.graph_destroy(graph));
}

static void keep_context(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    int (*get)(handle *);
    *(void **)&get = find_symbol(library, "cuCtxGetCurrent");
    *(void **)&set_context = find_symbol(library, "cuCtxSetCurrent");
    if (get(&library_context) != 0)
        exit(1);
}

int main(int count, char **values)
{
    int hip = count > 1 && strcmp(values[1], "hip") == 0;
    load(hip);
    if (!hip)
        keep_context();
    return run_all_tests(NULL, NULL);
}
