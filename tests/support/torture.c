#include "support/torture.h"

#include "support/unit.h"

#include "base/memory.h"

#include <inttypes.h>

enum { ROUNDS_AT_MOST = 20000 };

typedef enum fault_kind { HOST_FAULT, DEVICE_FAULT, FAULT_KINDS } fault_kind;

static const char *const kind_names[FAULT_KINDS] = {"host allocation", "device operation"};

typedef struct round_state {
    const torture_scenario *scenario;
    void *context;
    memopt_device *device;
    fault_kind kind;
    int64_t n;
} round_state;

typedef struct held {
    int64_t blocks;
    memopt_memory_info info;
} held;

static void must(const round_state *r, const char *what, memopt_status status)
{
    if (status != MEMOPT_OK)
        fail_msg("%s, %s %" PRId64 ": %s: %s: %s", r->scenario->name, kind_names[r->kind], r->n,
                 what, memopt_status_name(status), memopt_last_error());
}

static void same(const round_state *r, const char *what, uint64_t before, uint64_t after)
{
    if (before != after)
        fail_msg("%s, %s %" PRId64 ": %s was %" PRIu64 ", is %" PRIu64 " after the failed call",
                 r->scenario->name, kind_names[r->kind], r->n, what, before, after);
}

static held what_is_held(const round_state *r)
{
    held h = {.info = {.struct_size = sizeof h.info}};
    must(r, "device_sync", memopt_device_sync(r->device));
    must(r, "memory_info", memopt_device_get_memory_info(r->device, &h.info));
    h.blocks = mo_memory_live_blocks();
    return h;
}

static void check_held(const round_state *r, const held *before)
{
    held after = what_is_held(r);
    same(r, "live host blocks", (uint64_t)before->blocks, (uint64_t)after.blocks);
    same(r, "device memory used", before->info.used, after.info.used);
    same(r, "device memory free", before->info.free, after.info.free);
    same(r, "reserved addresses", before->info.reserved_va, after.info.reserved_va);
    same(r, "page-locked memory", before->info.pinned, after.info.pinned);
    same(r, "registered memory", before->info.registered, after.info.registered);
}

static memopt_device *open_default(void)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device = NULL;
    options.capacity = (uint64_t)64 << 20;
    options.threads = 2;
    if (memopt_device_open("cpu", &options, &device) != MEMOPT_OK)
        fail_msg("torture: device_open: %s", memopt_last_error());
    return device;
}

static void call(void (*step)(memopt_device *, void *), const round_state *r)
{
    if (step != NULL)
        step(r->device, r->context);
}

static void check_status(const round_state *r, memopt_status status)
{
    memopt_error_info info = {sizeof info, 0, 0, NULL, NULL};
    int right = status == MEMOPT_OUT_OF_HOST_MEMORY ||
                (r->kind == DEVICE_FAULT &&
                 (status == MEMOPT_DRIVER_ERROR || status == MEMOPT_OUT_OF_DEVICE_MEMORY));
    if (!right)
        fail_msg("%s, %s %" PRId64 ": returned %s: %s", r->scenario->name, kind_names[r->kind],
                 r->n, memopt_status_name(status), memopt_last_error());
    must(r, "last_error_info", memopt_last_error_info(&info));
    same(r, "the status of the last error", (uint64_t)status, (uint64_t)info.status);
}

/* Runs the calls with the n-th fault armed; 1 if it struck. */
static int armed_run(const round_state *r, memopt_status *out_status)
{
    if (r->kind == HOST_FAULT)
        mo_memory_fail_at(r->n);
    else
        mo_device_fail_at(r->device, r->n);
    *out_status = r->scenario->run(r->device, r->context);
    int struck =
        r->kind == HOST_FAULT ? mo_memory_fault_struck() : mo_device_fault_struck(r->device);
    mo_memory_fail_at(0);
    mo_device_fail_at(r->device, 0);
    return struck;
}

/* 1 if the n-th fault struck, 0 if there are fewer. */
static int one_round(round_state *r)
{
    const torture_scenario *s = r->scenario;
    memopt_status status;
    int64_t blocks = mo_memory_live_blocks();
    r->device = s->open != NULL ? s->open(r->context) : open_default();
    call(s->setup, r);
    held before = what_is_held(r);
    int struck = armed_run(r, &status);
    if (!struck || s->absorbs) {
        if (!struck)
            must(r, "run without a fault", status);
    } else if (status == MEMOPT_OK) {
        fail_msg("%s: %s %" PRId64 " failed, but the call succeeded", s->name, kind_names[r->kind],
                 r->n);
    }
    if (status != MEMOPT_OK) {
        check_status(r, status);
        if (!s->caches)
            check_held(r, &before);
        call(s->check_unchanged, r);
        must(r, "the next call", s->run(r->device, r->context));
    }
    call(s->undo, r);
    call(s->teardown, r);
    must(r, "device_close", memopt_device_close(r->device));
    same(r, "live host blocks of the round", (uint64_t)blocks, (uint64_t)mo_memory_live_blocks());
    return struck;
}

int64_t torture(const torture_scenario *scenario, void *context)
{
    int64_t struck = 0;
    for (int kind = HOST_FAULT; kind < FAULT_KINDS; kind++) {
        round_state r = {scenario, context, NULL, (fault_kind)kind, 1};
        while (one_round(&r)) {
            struck++;
            if (++r.n > ROUNDS_AT_MOST)
                fail_msg("%s: faults go on after %d rounds", scenario->name, ROUNDS_AT_MOST);
        }
    }
    return struck;
}
