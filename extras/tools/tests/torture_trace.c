/* Every host allocation of traces and replays fails once, and every operation of the device that a
 * replay makes for itself. */
#include "support/checks.h"
#include "support/torture.h"

#include "base/memory.h"
#include "trace/replayer.h"

static const char text[] = "Action,Pointer,Size,Stream\n"
                           "allocate,0x10,5000,0\n"
                           "allocate,0x20,3000000,7\n"
                           "allocate,0x30,100,7\n"
                           "record stream,0x20,0,11\n"
                           "free,0x20,0,9\n"
                           "free,0x10,0,0\n"
                           "allocate,0x40,30000000,9\n"
                           "free,0x40,0,9\n";

typedef struct fixture {
    const char *config;
    memopt_trace *trace;
    memopt_trace_info before;
    uint64_t capacity; /* of the replay */
    memopt_replay_result result;
    uint64_t smallest;
} fixture;

static void must(memopt_status status)
{
    if (status != MEMOPT_OK)
        fail_msg("%s: %s", memopt_status_name(status), memopt_last_error());
}

static memopt_status read_text(memopt_trace **out_trace)
{
    memopt_status status = memopt_trace_create(NULL, out_trace);
    if (status == MEMOPT_OK)
        status = memopt_trace_parse_csv(*out_trace, text, sizeof text - 1);
    return status == MEMOPT_OK ? memopt_trace_end_csv(*out_trace) : status;
}

static void make_trace(memopt_device *device, void *context)
{
    fixture *f = context;
    (void)device;
    f->trace = NULL;
    must(read_text(&f->trace));
    f->before = (memopt_trace_info){.struct_size = sizeof f->before};
    must(memopt_trace_get_info(f->trace, &f->before));
    f->result = (memopt_replay_result){.struct_size = sizeof f->result, .events = 77};
    f->smallest = 77;
}

static void end_trace(memopt_device *device, void *context)
{
    (void)device;
    must(memopt_trace_destroy(((fixture *)context)->trace));
}

static void trace_unchanged(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_trace_info now = {.struct_size = sizeof now};
    (void)device;
    must(memopt_trace_get_info(f->trace, &now));
    assert_memory_equal(&now, &f->before, sizeof now);
    assert_int_equal(f->result.events, 77);
    assert_int_equal(f->smallest, 77);
}

static memopt_status run_read(memopt_device *device, void *context)
{
    fixture *f = context;
    (void)device;
    f->trace = NULL;
    memopt_status status = read_text(&f->trace);
    if (status != MEMOPT_OK) {
        must(memopt_trace_destroy(f->trace));
        f->trace = NULL;
    }
    return status;
}

/* Grows the steps, the unused numbers, both tables: all or nothing. */
static memopt_status run_add(memopt_device *device, void *context)
{
    static memopt_trace_event events[6000];
    fixture *f = context;
    (void)device;
    for (uint64_t i = 0; i < 6000; i++)
        events[i] = (memopt_trace_event){i << 20, i % 97, i, MEMOPT_TRACE_ALLOC};
    return memopt_trace_add(f->trace, events, 6000);
}

static memopt_status run_file(memopt_device *device, void *context)
{
    fixture *f = context;
    (void)device;
    memopt_status status = memopt_trace_read_csv(f->trace, -1);
    return status == MEMOPT_IO_ERROR ? MEMOPT_OK : status; /* the buffer is all it needs */
}

static memopt_status run_replay(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_replay_options options = MEMOPT_REPLAY_OPTIONS_INIT;
    memopt_replay_sample samples[4];
    (void)device;
    options.config = f->config;
    options.capacity = f->capacity;
    options.warm_passes = 1;
    options.samples = samples;
    options.sample_room = 4;
    return memopt_trace_replay(f->trace, &options, &f->result);
}

static memopt_status run_find(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_replay_options options = MEMOPT_REPLAY_OPTIONS_INIT;
    (void)device;
    options.config = f->config;
    options.capacity = f->capacity;
    return memopt_trace_find_capacity(f->trace, &options, &f->smallest);
}

/* Found, whatever failed on the way. */
static void check_result(memopt_device *device, void *context)
{
    fixture *f = context;
    (void)device;
    if (f->result.events == 77) { /* it was the search */
        assert_int_equal(f->smallest, 32 * MIB);
        return;
    }
    assert_int_equal(f->result.events, 8);
    assert_false(f->result.out_of_memory);
    assert_int_equal(f->result.sample_count, 4);
}

static const torture_scenario scenarios[] = {
    {"read", NULL, NULL, run_read, NULL, NULL, end_trace, 0, 0},
    {"add", NULL, make_trace, run_add, NULL, trace_unchanged, end_trace, 0, 1},
    {"file", NULL, make_trace, run_file, NULL, NULL, end_trace, 0, 0},
    {"replay", NULL, make_trace, run_replay, check_result, trace_unchanged, end_trace, 1, 0},
    {"find", NULL, make_trace, run_find, check_result, trace_unchanged, end_trace, 1, 0},
};

TEST(test_host)
{
    static const char *const configs[] = {"", "expandable_segments:True"};
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        for (int c = 0; c < 2; c++) {
            fixture f = {.config = configs[c], .capacity = 60 * MIB};
            int64_t struck = torture(&scenarios[i], &f);
            print_message("%s, \"%s\": %lld faults\n", scenarios[i].name, configs[c],
                          (long long)struck);
            assert_true(struck > 0);
        }
    }
}

/* One pass with the n-th operation of its own device failing; 0 where nothing failed any more. A
 * fault in an allocation may look like memory that runs out, or be made good by another attempt. */
static int pass_with_fault(memopt_trace *trace, const char *config, int64_t n, int *refused)
{
    mo_trace_meter meter = {0};
    mo_trace_machine machine;
    mo_trace_pass pass = {0};
    int64_t blocks = mo_memory_live_blocks();
    memopt_replay_options options = MEMOPT_REPLAY_OPTIONS_INIT;
    options.config = config;
    must(mo_trace_machine_open(&machine, trace, &options, 60 * MIB, &meter));
    mo_device_fail_at(machine.device, n);
    memopt_status status = mo_trace_machine_pass(&machine, MO_TRACE_RANGE, NULL, NULL, &pass);
    int struck = mo_device_fault_struck(machine.device);
    mo_device_fail_at(machine.device, 0);
    if (status != MEMOPT_OK) {
        memopt_error_info info = {.struct_size = sizeof info};
        assert_true(status == MEMOPT_DRIVER_ERROR || status == MEMOPT_OUT_OF_HOST_MEMORY);
        must(memopt_last_error_info(&info));
        assert_int_equal(info.status, status);
        (*refused)++;
    } else if (!struck) {
        assert_int_equal(pass.done, trace->count);
    }
    mo_trace_machine_close(&machine);
    assert_int_equal(mo_memory_live_blocks(), blocks);
    return struck;
}

TEST(test_device)
{
    static const char *const configs[] = {"", "expandable_segments:True"};
    for (int c = 0; c < 2; c++) {
        memopt_trace *trace = NULL;
        int refused = 0;
        int64_t n = 1;
        must(read_text(&trace));
        while (pass_with_fault(trace, configs[c], n, &refused))
            n++;
        print_message("device, \"%s\": %lld faults, %d told\n", configs[c], (long long)n - 1,
                      refused);
        assert_true(n > 3 && refused > 0);
        must(memopt_trace_destroy(trace));
    }
}
