/*
 * Schedules: each is replayed by a machine that knows only what the operations mean, and compared
 * with the best that an exhaustive search finds.
 */
#include "support.h"
#include "support/random.h"
#include "support/sweep.h"

#include "base/memory.h"

#include <math.h>

#define MOST 40
#define SMALL 5

/* One thread that computes: under a sanitizer a sample is enough. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 4, RECOMPUTING = 4, LONGEST = 100 };
#else
enum { ROUNDS = 80, RECOMPUTING = 100, LONGEST = 1024 };
#endif

static uint64_t state = 0x243F6A8885A308D3u;

typedef struct chain {
    memopt_chain_stage stages[MOST];
    uint64_t count, input;
    uint32_t input_gradient;
} chain;

static uint64_t value(const chain *c, uint64_t i)
{
    return i == 0 ? c->input : c->stages[i - 1].output_bytes;
}

/* Every second chain has large values and saves little beside them: there running forward can be
 * what takes the most. */
static chain random_chain(uint64_t count, uint64_t scale)
{
    chain c = {.count = count,
               .input = random_below(&state, 4 * scale),
               .input_gradient = (uint32_t)random_below(&state, 2)};
    uint64_t large = random_below(&state, 2), rest = large ? scale : 3 * scale;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t output = 1 + random_below(&state, large ? 12 * scale : 4 * scale);
        c.stages[i] = (memopt_chain_stage){(double)(1 + random_below(&state, 9)),
                                           (double)(1 + random_below(&state, 9)),
                                           output,
                                           output + random_below(&state, 2 * rest),
                                           random_below(&state, 3 * rest),
                                           random_below(&state, rest)};
    }
    return c;
}

/* --- a machine that runs steps --------------------------------------------------------------- */

/* Value i is alive, on its own; stage i has saved (and so value i + 1 is alive, too). */
typedef struct machine {
    const chain *c;
    unsigned char alive[MOST + 1], pinned[MOST + 1], saved[MOST];
    uint64_t next_backward; /* stages from here on are done */
    double seconds;
} machine;

static uint64_t held(const machine *m)
{
    uint64_t bytes = value(m->c, m->next_backward); /* the gradient that is alive */
    for (uint64_t i = 0; i <= m->c->count; i++)
        bytes += m->alive[i] ? value(m->c, i) : 0;
    for (uint64_t i = 0; i < m->c->count; i++)
        bytes += m->saved[i] ? m->c->stages[i].saved_bytes : 0;
    return bytes;
}

static int has(const machine *m, uint64_t i)
{
    return m->alive[i] || (i > 0 && m->saved[i - 1]);
}

/* 0 where the step is not possible; else 1 and the bytes at its worst moment. */
static int run_step(machine *m, uint32_t operation, uint64_t i, uint64_t *out_peak)
{
    const memopt_chain_stage *s = &m->c->stages[i];
    if (!has(m, i))
        return 0;
    if (operation == MEMOPT_SCHEDULE_BACKWARD) {
        if (m->next_backward != i + 1 || !m->saved[i])
            return 0;
        uint64_t made = i > 0 || m->c->input_gradient ? value(m->c, i) : 0;
        *out_peak = held(m) + made + s->backward_extra_bytes;
        m->saved[i] = m->alive[i + 1] = 0;
        if (i > 0)
            m->alive[i] = m->pinned[i] = 0;
        m->next_backward = i;
        m->seconds += s->backward_seconds;
        return 1;
    }
    if (i >= m->next_backward || has(m, i + 1))
        return 0;
    if (operation == MEMOPT_SCHEDULE_FORWARD && (!m->alive[i] || m->pinned[i] || i == 0))
        return 0;
    if (operation == MEMOPT_SCHEDULE_FORWARD_SAVE)
        m->saved[i] = 1;
    else
        m->alive[i + 1] = 1;
    *out_peak = held(m) + s->forward_extra_bytes;
    if (operation == MEMOPT_SCHEDULE_FORWARD)
        m->alive[i] = 0;
    else
        m->pinned[i] = 1;
    m->seconds += s->forward_seconds;
    return 1;
}

static machine new_machine(const chain *c)
{
    machine m = {.c = c, .next_backward = c->count};
    m.alive[0] = m.pinned[0] = 1;
    return m;
}

/* --- the best there is, by trying everything in order of time -------------------------------- */

static unsigned key_of(const machine *m)
{
    unsigned key = (unsigned)m->next_backward;
    for (unsigned i = 1; i < SMALL; i++)
        key = key << 3 | (unsigned)(m->alive[i] << 2 | m->pinned[i] << 1 | m->saved[i - 1]);
    return key << 2 | (unsigned)(m->alive[m->c->count] << 1 | m->saved[m->c->count - 1]);
}

#define KEYS (1u << (3 + 3 * (SMALL - 1) + 2))

/* The least time within a budget, INFINITY where nothing fits. Dijkstra over all machine states. */
static double best_seconds(const chain *c, uint64_t budget)
{
    static machine open[KEYS];
    static double best[KEYS];
    unsigned count = 0;
    for (unsigned k = 0; k < KEYS; k++)
        best[k] = INFINITY;
    open[count++] = new_machine(c);
    while (count > 0) {
        unsigned at = 0;
        for (unsigned n = 1; n < count; n++)
            at = open[n].seconds < open[at].seconds ? n : at;
        machine m = open[at];
        open[at] = open[--count];
        if (m.next_backward == 0)
            return m.seconds;
        for (uint32_t operation = 1; operation <= 4; operation++)
            for (uint64_t i = 0; i < c->count; i++) {
                machine next = m;
                uint64_t peak;
                if (!run_step(&next, operation, i, &peak) || peak > budget)
                    continue;
                unsigned key = key_of(&next);
                if (next.seconds >= best[key])
                    continue;
                best[key] = next.seconds;
                assert_true(count < KEYS);
                open[count++] = next;
            }
    }
    return INFINITY;
}

/* --- tests ----------------------------------------------------------------------------------- */

static memopt_status make(const chain *c, uint64_t budget, uint32_t slots, memopt_schedule **out)
{
    memopt_schedule_options options = MEMOPT_SCHEDULE_OPTIONS_INIT;
    options.budget = budget;
    options.input_bytes = c->input;
    options.input_gradient = c->input_gradient;
    options.slots = slots;
    return memopt_schedule_create(c->stages, c->count, &options, out);
}

static memopt_schedule_info schedule_info(const memopt_schedule *s)
{
    memopt_schedule_info info = {.struct_size = sizeof info};
    OK(memopt_schedule_get_info(s, &info));
    return info;
}

/* Runs all steps: they are possible, do all the work, and cost what is told. */
static memopt_schedule_info replay(const chain *c, memopt_schedule *s)
{
    memopt_schedule_info info = schedule_info(s);
    memopt_schedule_step step = {.struct_size = sizeof step};
    machine m = new_machine(c);
    uint64_t steps = 0, peak = held(&m), forwards = 0;
    while (memopt_schedule_next(s, &step) == MEMOPT_OK) {
        uint64_t now = 0;
        assert_true(run_step(&m, step.operation, step.stage, &now));
        peak = now > peak ? now : peak;
        forwards += step.operation != MEMOPT_SCHEDULE_BACKWARD;
        steps++;
    }
    assert_int_equal(m.next_backward, 0);
    assert_int_equal(memopt_schedule_next(s, &step), MEMOPT_NOT_READY);
    assert_int_equal(steps, info.steps);
    assert_int_equal(peak, info.peak_bytes);
    assert_int_equal(forwards, info.recomputed + c->count);
    assert_true(fabs(m.seconds - info.seconds) <= 1e-9 * info.seconds);
    return info;
}

static uint64_t floor_of(const chain *c)
{
    memopt_schedule *s = NULL;
    OK(make(c, 0, 0, &s));
    uint64_t floor = schedule_info(s).minimum_budget;
    memopt_schedule_destroy(s);
    return floor;
}

/* All budgets from the floor on to where nothing is recomputed; how many recomputed. */
static int compare_with_best(const chain *c)
{
    int recomputing = 0;
    uint64_t floor = floor_of(c);
    assert_true(isinf(best_seconds(c, floor - 1)));
    for (uint64_t budget = floor;; budget++) {
        memopt_schedule *s = NULL;
        OK(make(c, budget, 1000, &s)); /* a slot is a byte */
        memopt_schedule_info info = replay(c, s);
        memopt_schedule_destroy(s);
        assert_true(info.peak_bytes <= budget);
        assert_true(info.seconds == best_seconds(c, budget));
        if (info.recomputed == 0)
            return recomputing;
        recomputing++;
    }
}

TEST(test_best_of_all)
{
    int recomputing = 0;
    for (int round = 0; round < ROUNDS; round++) {
        chain c = random_chain(1 + random_below(&state, SMALL), 1);
        recomputing += compare_with_best(&c);
    }
    assert_true(recomputing > RECOMPUTING);
}

/* Running forward over large values in the middle is what takes the most. */
TEST(test_forward_is_the_peak)
{
    const uint64_t outputs[] = {1, 20, 20, 1, 20}, extras[] = {0, 0, 30, 0, 0};
    chain c = {.count = 5, .input = 1};
    for (uint64_t i = 0; i < c.count; i++)
        c.stages[i] = (memopt_chain_stage){1, 1, outputs[i], outputs[i] + 2, extras[i], 0};
    assert_true(compare_with_best(&c) > 0);
}

TEST(test_long_chains_stay_in_budget)
{
    for (int round = 0; round < (ROUNDS + 1) / 2; round++) {
        chain c = random_chain(2 + random_below(&state, MOST - 1), 1 << 20);
        uint64_t floor = floor_of(&c);
        memopt_schedule *s = NULL;
        OK(make(&c, 0, 0, &s));
        uint64_t all = replay(&c, s).peak_bytes;
        memopt_schedule_destroy(s);
        double before = INFINITY;
        for (uint64_t budget = floor; budget <= all; budget += (all - floor) / 5 + 1) {
            OK(make(&c, budget, 0, &s));
            memopt_schedule_info info = replay(&c, s);
            memopt_schedule_destroy(s);
            assert_true(info.peak_bytes <= budget);
            assert_true(info.seconds <= before * 1.1);
            assert_true(info.seconds_plain <= info.seconds);
            before = info.seconds;
        }
        assert_int_equal(make(&c, floor - 1, 0, &s), MEMOPT_LIMIT_REACHED);
    }
}

static void expect_refused(const chain *c, uint64_t count, const char *text)
{
    memopt_schedule *s = (void *)&state;
    memopt_schedule_options options = MEMOPT_SCHEDULE_OPTIONS_INIT;
    options.input_bytes = c->input;
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_schedule_create(c->stages, count, &options, &s));
    assert_non_null(strstr(memopt_last_error(), text));
    assert_ptr_equal(s, &state);
}

TEST(test_bad_input)
{
    chain c = random_chain(4, 10), bad = c;
    expect_refused(&c, 0, "0 stages");
    expect_refused(&c, 1025, "1025 stages");
    bad.stages[2].forward_seconds = NAN;
    expect_refused(&bad, 4, "stage 2");
    bad = c;
    bad.stages[3].backward_seconds = -1;
    expect_refused(&bad, 4, "stage 3");
    bad = c;
    bad.stages[1].saved_bytes = bad.stages[1].output_bytes - 1;
    expect_refused(&bad, 4, "includes the output");
    bad = c;
    bad.stages[1].saved_bytes = bad.stages[2].saved_bytes = UINT64_MAX / 2;
    expect_refused(&bad, 4, "64 bits");
    bad = c;
    bad.input = UINT64_MAX;
    expect_refused(&bad, 4, "too large");
    memopt_schedule_step step = {.struct_size = sizeof step};
    memopt_schedule *s = NULL;
    assert_int_equal(memopt_schedule_next(NULL, &step), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_schedule_get_info(NULL, NULL), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_schedule_create(NULL, 1, NULL, &s), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(make(&c, 0, 65537, &s), MEMOPT_INVALID_ARGUMENT);
    assert_null(s);
}

TEST(test_no_host_memory)
{
    chain c = random_chain(9, 100);
    uint64_t floor = floor_of(&c);
    int64_t blocks = mo_memory_live_blocks(), failures = 0;
    memopt_schedule *s = NULL;
    for (int64_t n = 1;; n++) {
        mo_memory_fail_at(n);
        memopt_status status = make(&c, floor + 50, 0, &s);
        int struck = mo_memory_fault_struck();
        mo_memory_fail_at(0);
        if (!struck) {
            OK(status);
            break;
        }
        assert_int_equal(status, MEMOPT_OUT_OF_HOST_MEMORY);
        assert_int_equal(mo_memory_live_blocks(), blocks);
        failures++;
    }
    assert_true(failures >= 5);
    (void)replay(&c, s);
    memopt_schedule_destroy(s);
    assert_int_equal(mo_memory_live_blocks(), blocks);
}

TEST(test_longest_chain)
{
    static memopt_chain_stage stages[LONGEST];
    uint64_t count = is_long() ? LONGEST : LONGEST / 2; /* the time grows with its cube */
    for (uint64_t i = 0; i < count; i++)
        stages[i] = (memopt_chain_stage){1, 2, 100, 500 + random_below(&state, 100), 10, 10};
    memopt_schedule_options options = MEMOPT_SCHEDULE_OPTIONS_INIT;
    options.budget = count * 100;
    memopt_schedule *s = NULL;
    OK(memopt_schedule_create(stages, count, &options, &s));
    assert_true(schedule_info(s).peak_bytes <= count * 100);
    assert_true(schedule_info(s).recomputed > 0);
    memopt_schedule_destroy(s);
}
