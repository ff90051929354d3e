/*
 * The torture loop: fails the 1st, 2nd, … host allocation of some calls, then the 1st, 2nd, …
 * device operation, until nothing fails any more. After each failure it asserts (cmocka) that
 *   - the status is right: OUT_OF_HOST_MEMORY for host faults; DRIVER_ERROR, OUT_OF_DEVICE_MEMORY
 *     or OUT_OF_HOST_MEMORY for device faults; and memopt_last_error_info() tells the same status;
 *   - nothing leaked: live host blocks and every counter of memopt_device_get_memory_info() (but
 * the peaks) are what they were before the call;
 *   - nothing changed: your check_unchanged;
 *   - the library still works: the same calls succeed at once when nothing fails.
 * At the end of each round the device closes without anything left, and no host block is left.
 *
 * Each round has its own device and runs: open → setup → [armed: run] → (failed: check_unchanged →
 * run again, which must succeed) → undo → teardown → close. Any callback but run may be NULL.
 *
 *     typedef struct fixture { memopt_allocator *allocator; void *block; } fixture;
 *     static memopt_status run(memopt_device *device, void *context)
 *     {
 *         fixture *f = context;
 *         return memopt_allocator_alloc(f->allocator, 1000, NULL, 0, &f->block);
 *     }
 *     static const torture_scenario alloc = {.name = "alloc", .setup = make_allocator, .run = run,
 *                                            .undo = free_block, .teardown = end_allocator};
 *     assert_true(torture(&alloc, &f) > 0);
 *
 * run must return the first failing status, and must itself undo what its earlier calls made: a
 * scenario of one call is best. Calls in setup, undo, check_unchanged and teardown must succeed.
 */
#ifndef TEST_SUPPORT_TORTURE_H
#define TEST_SUPPORT_TORTURE_H

#include "device/device.h"

/* Rows of tables name the members in this order. */
typedef struct torture_scenario {
    const char *name;
    /* NULL: "cpu" with 64 MiB, 2 threads, eager order. */
    memopt_device *(*open)(void *context);
    void (*setup)(memopt_device *device, void *context);
    memopt_status (*run)(memopt_device *device, void *context);
    void (*undo)(memopt_device *device, void *context);
    void (*check_unchanged)(memopt_device *device, void *context);
    void (*teardown)(memopt_device *device, void *context);
    /* 1: run may succeed although a fault struck (it found another way, such as giving up a cache
     * and trying again). It still must leave what a success leaves. */
    int absorbs;
    /* 1: what is kept may grow in a failing call (a cache), so leaks are looked for only at the
     * end of the round. */
    int caches;
} torture_scenario;

/* A `run`, an `undo` of one call on the test's `fixture *f` and `device`. */
#define TORTURE_CALL(name, call)                                                                   \
    static memopt_status name(memopt_device *device, void *context)                                \
    {                                                                                              \
        fixture *f = context;                                                                      \
        (void)f;                                                                                   \
        return call;                                                                               \
    }
#define TORTURE_UNDO(name, call)                                                                   \
    static void name(memopt_device *device, void *context)                                         \
    {                                                                                              \
        fixture *f = context;                                                                      \
        (void)f;                                                                                   \
        assert_int_equal(call, MEMOPT_OK);                                                         \
    }

/* Returns how many faults struck; a caller asserts that there were some. */
int64_t torture(const torture_scenario *scenario, void *context);

#endif
