/*
 * Bytes that come from elsewhere: here from plans themselves, so that what is measured and what is
 * played must be told alike.
 */
#include "solve_support.h"

#include "base/memory.h"

#include <string.h>

#define USER_STATUS ((memopt_status)0x10007)

static memopt_plan_report report_of(const mo_case *c)
{
    memopt_plan *plan;
    memopt_plan_report report = {.struct_size = sizeof report};
    OK(memopt_plan_create(&c->model, &c->run, &c->card, &plan));
    OK(memopt_plan_get_report(plan, &report));
    OK(memopt_plan_destroy(plan));
    return report;
}

/* A card's overhead beside bytes from elsewhere is that of a plan with the same bytes. */
static void test_overhead_of_other_bytes(void **state)
{
    (void)state;
    mo_case c = small_case();
    c.card.device = MEMOPT_PLAN_DEVICE_CUDA;
    c.card.margin = 0.5;
    memopt_plan *plan;
    OK(memopt_plan_create(&c.model, &c.run, &c.card, &plan));
    memopt_plan_report report = {.struct_size = sizeof report};
    OK(memopt_plan_get_report(plan, &report));
    OK(memopt_plan_destroy(plan));
    memopt_plan_bytes bytes = report.peak;
    uint64_t limit = 0;
    bytes.overhead = bytes.total = 0;
    OK(memopt_plan_add_overhead(&c.card, &bytes, &limit));
    assert_int_equal(bytes.overhead, report.peak.overhead);
    assert_int_equal(bytes.total, report.peak.total);
    assert_int_equal(limit, report.limit_bytes);
    OK(memopt_plan_add_overhead(NULL, &bytes, NULL));
    assert_int_equal(bytes.overhead, 0);
    c.card.margin = 2;
    assert_int_equal(memopt_plan_add_overhead(&c.card, &bytes, NULL), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_plan_add_overhead(NULL, NULL, NULL), MEMOPT_INVALID_ARGUMENT);
}

static void test_a_measured_plan(void **state)
{
    (void)state;
    static const uint32_t devices[] = {MEMOPT_PLAN_DEVICE_CPU, MEMOPT_PLAN_DEVICE_CUDA};
    for (size_t i = 0; i < 2; i++) {
        mo_case c = small_case();
        c.run.batch = 3;
        c.run.accumulation = 2;
        c.run.world_size = 2;
        c.card.device = devices[i];
        c.card.margin = 0.8;
        c.card.capacity = UINT64_C(2) << 30;
        memopt_plan_report played = report_of(&c), told = {.struct_size = sizeof told};
        memopt_plan_bytes phases[MEMOPT_PLAN_PHASES];
        memcpy(phases, played.phases, sizeof phases);
        for (int k = 0; k < MEMOPT_PLAN_PHASES; k++)
            phases[k].overhead = phases[k].total = 12345; /* not read */
        memopt_plan *plan;
        OK(memopt_plan_create_measured(phases, &c.run, &c.card, &plan));
        OK(memopt_plan_get_report(plan, &told));
        assert_memory_equal(&told.peak, &played.peak, sizeof told.peak);
        assert_memory_equal(told.phases, played.phases, sizeof told.phases);
        assert_int_equal(told.peak_phase, played.peak_phase);
        assert_int_equal(told.fits, played.fits);
        assert_int_equal(told.limit_bytes, played.limit_bytes);
        assert_int_equal(told.samples, 12);
        assert_string_equal(told.overhead_reason, played.overhead_reason);
        assert_non_null(strstr(told.peak_reason, "backward: most of it is "));
        assert_non_null(strstr(told.peak_reason, MO_SIZE(told.peak.activations)));
        assert_int_equal(told.layer_count + told.parameter_count + told.held_bytes, 0);
        assert_true(told.time_factor > 0.999 && told.time_factor < 1.001);
        memopt_plan_run run = {.struct_size = sizeof run};
        memopt_plan_layer layer = {.struct_size = sizeof layer};
        OK(memopt_plan_get_settings(plan, NULL, &run, NULL));
        assert_int_equal(run.batch, 3);
        assert_int_equal(run.sequence, c.run.sequence);
        assert_int_equal(memopt_plan_get_layer(plan, 0, &layer), MEMOPT_NOT_FOUND);
        OK(memopt_plan_destroy(plan));
    }
}

static void test_refusals_of_measured_plans(void **state)
{
    (void)state;
    memopt_plan *plan = NULL;
    memopt_plan_bytes phases[MEMOPT_PLAN_PHASES] = {{0, 0, 0, 0, 0, 0, 0, 0}};
    memopt_plan_run run = MEMOPT_PLAN_RUN_INIT;
    assert_int_equal(memopt_plan_create_measured(NULL, NULL, NULL, &plan), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_plan_create_measured(phases, NULL, NULL, NULL),
                     MEMOPT_INVALID_ARGUMENT);
    run.optimizer = 99;
    assert_int_equal(memopt_plan_create_measured(phases, &run, NULL, &plan),
                     MEMOPT_INVALID_ARGUMENT);
    run.optimizer = 0;
    run.batch = UINT64_C(1) << 40;
    assert_int_equal(memopt_plan_create_measured(phases, &run, NULL, &plan),
                     MEMOPT_INVALID_ARGUMENT);
    phases[3].gradients = phases[3].logits = UINT64_MAX / 2 + 1;
    assert_int_equal(memopt_plan_create_measured(phases, NULL, NULL, &plan),
                     MEMOPT_INVALID_ARGUMENT);
    assert_null(plan);
    phases[3].logits = 5;
    OK(memopt_plan_create_measured(phases, NULL, NULL, &plan));
    memopt_plan_run filled = {.struct_size = sizeof filled};
    OK(memopt_plan_get_settings(plan, NULL, &filled, NULL));
    assert_int_equal(filled.sequence, 0); /* not known */
    assert_int_equal(filled.batch * filled.accumulation * filled.world_size, 1);
    OK(memopt_plan_destroy(plan));
}

/* A function that plays a model; and what it was asked. */
typedef struct player {
    mo_case c;
    memopt_plan_run asked[512];
    uint64_t count, again;
    uint32_t known;       /* the one optimizer that is known; ANY: all */
    memopt_status status; /* of what is not known */
} player;

enum { ANY = 1000 };

static memopt_status play(void *user, const memopt_plan_run *run, memopt_plan_bytes *phases)
{
    player *p = user;
    mo_case c = p->c;
    for (uint64_t i = 0; i < p->count; i++)
        p->again += memcmp(&p->asked[i], run, sizeof *run) == 0;
    assert_true(p->count < 512);
    p->asked[p->count++] = *run;
    for (int i = 0; i < MEMOPT_PLAN_PHASES; i++)
        assert_int_equal(phases[i].total + phases[i].parameters + phases[i].gradients, 0);
    if (p->known != ANY && run->optimizer != p->known)
        return p->status;
    c.run = *run;
    c.card = (memopt_plan_card)MEMOPT_PLAN_CARD_INIT;
    c.card.device = p->c.card.device;
    memopt_plan_report report = report_of(&c);
    memcpy(phases, report.phases, sizeof report.phases);
    return MEMOPT_OK;
}

static memopt_plan_fit solve_measured(player *p, const memopt_plan_target_options *target,
                                      memopt_plan_solution **solution)
{
    memopt_plan_fit fit = {.struct_size = sizeof fit};
    OK(memopt_plan_solve_measured(play, p, &p->c.run, &p->c.card, target, solution));
    OK(memopt_plan_solution_get_fit(*solution, &fit));
    assert_int_equal(p->again, 0);
    return fit;
}

/* Batches are found as of the model that is played; so are the changes that cost no time. */
static void test_solutions_of_measured_runs(void **state)
{
    (void)state;
    uint64_t seed = 5, alike = 0;
    for (int i = 0; i < 60; i++) {
        player p = {.c = small_case(), .known = ANY};
        memopt_plan_target_options target = MEMOPT_PLAN_TARGET_OPTIONS_INIT;
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        p.c.card.capacity = (UINT64_C(540) << 20) + (seed >> 33) % (500 * MIB);
        p.c.card.device = MEMOPT_PLAN_DEVICE_CUDA;
        p.c.run.batch = (seed >> 20) % 9;
        p.c.run.world_size = 1 + (seed >> 16) % 3;
        target.effective_batch = (seed >> 24) % 60;
        target.keep_weights = 1;
        memopt_plan_solution *measured, *played;
        memopt_plan_fit a = solve(&p.c, &target, &played),
                        b = solve_measured(&p, &target, &measured);
        assert_int_equal(a.fits, b.fits);
        assert_int_equal(a.fits_after, b.fits_after);
        assert_int_equal(a.target_batch, b.target_batch);
        assert_int_equal(a.limit_bytes, b.limit_bytes);
        if (a.time_factor < 1.0005) {
            alike += a.fits_after;
            assert_int_equal(a.micro_batch, b.micro_batch);
            assert_int_equal(a.accumulation, b.accumulation);
            assert_int_equal(a.largest_micro_batch, b.largest_micro_batch);
            assert_int_equal(a.peak_bytes, b.peak_bytes);
            assert_int_equal(a.start_peak_bytes, b.start_peak_bytes);
            assert_int_equal(a.change_count, b.change_count);
        }
        OK(memopt_plan_solution_destroy(played));
        OK(memopt_plan_solution_destroy(measured));
    }
    assert_true(alike > 20);
}

/* Only what is known of is proposed; of the model, of which nothing is known, no change. */
static void test_what_is_not_known_is_not_proposed(void **state)
{
    (void)state;
    player p = {.c = small_case(), .known = MEMOPT_PLAN_ADAMW, .status = MEMOPT_UNSUPPORTED};
    memopt_plan_target_options all = MEMOPT_PLAN_TARGET_OPTIONS_INIT;
    memopt_plan_solution *solution;
    all.all_changes = 1;
    p.c.run.batch = 2;
    p.c.card.device = MEMOPT_PLAN_DEVICE_CUDA;
    int dtypes = 0, segments = 0;
    memopt_plan_fit fit = solve_measured(&p, &all, &solution);
    assert_true(fit.change_count > 3);
    for (uint64_t i = 0; i < fit.change_count; i++) {
        uint32_t kind = change_of(solution, i).kind;
        assert_true(kind != MEMOPT_PLAN_CHANGE_OPTIMIZER && kind != MEMOPT_PLAN_CHANGE_LORA);
        dtypes += kind == MEMOPT_PLAN_CHANGE_DTYPE;
        segments += kind == MEMOPT_PLAN_CHANGE_ALLOCATOR;
    }
    assert_true(dtypes > 0 && segments == 1);
    OK(memopt_plan_solution_destroy(solution));
    p.count = 0;
    p.known = ANY;
    fit = solve_measured(&p, &all, &solution);
    int bits = 0;
    for (uint64_t i = 0; i < fit.change_count; i++) {
        memopt_plan_change change = change_of(solution, i);
        if (change.kind == MEMOPT_PLAN_CHANGE_OPTIMIZER) {
            assert_true(change.time_factor > 1.019 && change.time_factor < 1.021);
            bits++;
        }
    }
    assert_int_equal(bits, 1);
    OK(memopt_plan_solution_destroy(solution));
}

/* What the function returns comes out; and nothing is made. */
static void test_failures_of_the_function(void **state)
{
    (void)state;
    static const memopt_status all[] = {USER_STATUS, MEMOPT_UNSUPPORTED, MEMOPT_INVALID_ARGUMENT,
                                        MEMOPT_LIMIT_REACHED};
    memopt_plan_solution *solution = NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        player p = {.c = small_case(), .known = MEMOPT_PLAN_SGD, .status = all[i]};
        assert_int_equal(memopt_plan_solve_measured(play, &p, &p.c.run, &p.c.card, NULL, &solution),
                         all[i]);
        assert_int_equal(p.count, 1);
    }
    assert_non_null(strstr(memopt_last_error(), "nothing is known"));
    /* In the midst of the search, too: 8-bit states are the first that is not known. */
    player p = {.c = small_case(), .known = MEMOPT_PLAN_ADAMW, .status = USER_STATUS};
    p.c.card.capacity = 8 * MIB;
    assert_int_equal(memopt_plan_solve_measured(play, &p, &p.c.run, &p.c.card, NULL, &solution),
                     USER_STATUS);
    assert_int_equal(memopt_plan_solve_measured(NULL, &p, &p.c.run, &p.c.card, NULL, &solution),
                     MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_plan_solve_measured(play, &p, &p.c.run, &p.c.card, NULL, NULL),
                     MEMOPT_INVALID_ARGUMENT);
    p.c.card.capacity = 0;
    assert_int_equal(memopt_plan_solve_measured(play, &p, &p.c.run, &p.c.card, NULL, &solution),
                     MEMOPT_INVALID_ARGUMENT);
    assert_null(solution);
}

/* So many bytes a sample; no allocation of its own. */
static memopt_status line(void *user, const memopt_plan_run *run, memopt_plan_bytes *phases)
{
    (void)user;
    phases[MEMOPT_PLAN_PHASE_BACKWARD].activations = run->batch * MIB;
    phases[MEMOPT_PLAN_PHASE_STEP].optimizer = MIB + MIB / 2;
    return MEMOPT_OK;
}

static void test_measured_without_host_memory(void **state)
{
    (void)state;
    mo_case c = small_case();
    c.card.capacity = 10 * MIB;
    int64_t blocks = mo_memory_live_blocks();
    memopt_status status = MEMOPT_OUT_OF_HOST_MEMORY;
    for (int64_t n = 1; status != MEMOPT_OK; n++) {
        memopt_plan_solution *solution = NULL;
        mo_memory_fail_at(n);
        status = memopt_plan_solve_measured(line, NULL, &c.run, &c.card, NULL, &solution);
        int struck = mo_memory_fault_struck();
        mo_memory_fail_at(0);
        assert_int_equal(status, struck ? MEMOPT_OUT_OF_HOST_MEMORY : MEMOPT_OK);
        if (status == MEMOPT_OK) {
            memopt_plan_fit fit = {.struct_size = sizeof fit};
            OK(memopt_plan_solution_get_fit(solution, &fit));
            assert_int_equal(fit.micro_batch, 10);
            assert_int_equal(fit.peak_bytes, 10 * MIB);
        }
        OK(memopt_plan_solution_destroy(solution));
        assert_int_equal(mo_memory_live_blocks(), blocks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overhead_of_other_bytes),
        cmocka_unit_test(test_a_measured_plan),
        cmocka_unit_test(test_refusals_of_measured_plans),
        cmocka_unit_test(test_solutions_of_measured_runs),
        cmocka_unit_test(test_what_is_not_known_is_not_proposed),
        cmocka_unit_test(test_failures_of_the_function),
        cmocka_unit_test(test_measured_without_host_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
