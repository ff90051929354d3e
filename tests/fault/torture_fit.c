/* Every host allocation of a plan within a budget fails once. */
#include "support/checks.h"
#include "support/torture.h"

#include "memopt/fit.h"

enum { LAYERS = 6, BYTES = 1000 };

/* A chain: each layer makes a value that backward needs, last first. */
typedef struct fixture {
    memopt_fit_event events[7 * LAYERS + 1];
    uint64_t sizes[LAYERS];
    memopt_fit_choice choices[2 * LAYERS];
    memopt_fit_tape tape;
    memopt_fit *fit;
    uint32_t chosen[2 * LAYERS];
    uint64_t count;
    memopt_fit_result result;
} fixture;

static void setup_tape(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_fit_event *e = f->events;
    (void)device;
    memset(f, 0, sizeof *f);
    for (uint32_t i = 0; i < LAYERS; i++) {
        *e++ = (memopt_fit_event){MEMOPT_FIT_ENTER, i, 0};
        *e++ = (memopt_fit_event){MEMOPT_FIT_BIRTH, i, 0};
        *e++ = (memopt_fit_event){MEMOPT_FIT_PACK, i, i};
        *e++ = (memopt_fit_event){MEMOPT_FIT_LEAVE, i, 0};
        *e++ = (memopt_fit_event){MEMOPT_FIT_DEATH, i, 0};
        f->sizes[i] = BYTES;
        f->choices[2 * i] =
            (memopt_fit_choice){.kind = MEMOPT_FIT_RECOMPUTE, .module = i, .seconds = 2};
        f->choices[2 * i + 1] = (memopt_fit_choice){
            .kind = MEMOPT_FIT_OFFLOAD, .storage = i, .first_pack = i, .seconds = 1};
    }
    *e++ = (memopt_fit_event){MEMOPT_FIT_BACKWARD, 0, 0};
    for (uint32_t i = LAYERS; i-- > 0;) {
        *e++ = (memopt_fit_event){MEMOPT_FIT_UNPACK, i, 0};
        *e++ = (memopt_fit_event){MEMOPT_FIT_RELEASE, i, 0};
    }
    f->tape = (memopt_fit_tape){.struct_size = sizeof f->tape,
                                .events = f->events,
                                .event_count = (uint64_t)(e - f->events),
                                .storage_bytes = f->sizes,
                                .storage_count = LAYERS,
                                .choices = f->choices,
                                .choice_count = 2 * LAYERS};
}

static void setup_fit(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_tape(device, context);
    OK(memopt_fit_create(&f->tape, &f->fit));
    f->count = 77;
    f->result = (memopt_fit_result){.struct_size = sizeof f->result, .peak_bytes = 77};
}

TORTURE_CALL(run_create, memopt_fit_create(&f->tape, &f->fit))
TORTURE_CALL(run_replay, memopt_fit_replay(f->fit, (const uint32_t[]){0, 3}, 2, &f->result))

static memopt_status run_solve(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_fit_options options = MEMOPT_FIT_OPTIONS_INIT;
    (void)device;
    options.budget = 3 * BYTES;
    return memopt_fit_solve(f->fit, &options, f->chosen, &f->count, &f->result);
}

static void no_fit(memopt_device *device, void *context)
{
    (void)device;
    assert_null(((fixture *)context)->fit);
}

static void no_result(memopt_device *device, void *context)
{
    const fixture *f = context;
    (void)device;
    assert_int_equal(f->count, 77);
    assert_int_equal(f->result.peak_bytes, 77);
}

static void solved(memopt_device *device, void *context)
{
    const fixture *f = context;
    (void)device;
    assert_true(f->count > 0 && f->count < LAYERS);
    assert_true(f->result.peak_bytes <= 3 * BYTES);
}

static void end_fit(memopt_device *device, void *context)
{
    (void)device;
    OK(memopt_fit_destroy(((fixture *)context)->fit));
}

TEST(test_fit)
{
    static const torture_scenario scenarios[] = {
        {"fit_create", NULL, setup_tape, run_create, NULL, no_fit, end_fit, 0, 0},
        {"fit_replay", NULL, setup_fit, run_replay, NULL, no_result, end_fit, 0, 0},
        {"fit_solve", NULL, setup_fit, run_solve, solved, no_result, end_fit, 0, 0},
    };
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        fixture f;
        assert_true(torture(&scenarios[i], &f) > 0);
    }
}
