/*
 * Each call that a step makes for memory, copies and the update may fail: what is behind a failure is
 * what was before the step. And --budget: the plan holds it to the byte, whatever is on beside it, and losses and weights are those
 * of the plain run; what cannot be held is refused with the floor.
 */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static corpus text;

enum { STEPS = 3, BUDGETS = 5 };

/* What a run leaves behind. */
typedef struct outcome {
    double losses[STEPS];
    bytes weights;
    memory_figures memory;
    fit_figures plan;
    uint64_t allocated,
        active; /* the most bytes in blocks, and with those that a copy still reads */
} outcome;

static outcome run(const options *o)
{
    outcome out;
    trainer t;
    memset(&out, 0, sizeof out);
    assert_ok(trainer_create(&t, o, &text));
    for (int i = 0; i < STEPS; i++) {
        step_result r;
        assert_ok(trainer_step(&t, &r));
        out.losses[i] = r.loss;
    }
    out.plan = t.model.plan;
    assert_ok(memory_measure(&t.memory, &out.memory));
    assert_ok(
        memopt_allocator_get_stat(t.memory.allocator, "allocated_bytes.all.peak", &out.allocated));
    assert_ok(memopt_allocator_get_stat(t.memory.allocator, "active_bytes.all.peak", &out.active));
    out.weights = weight_bytes(&t);
    assert_ok(trainer_destroy(&t));
    return out;
}

static options budget_options(uint32_t way)
{
    options o = tiny_options();
    o.layers = 4;
    o.dtype = way % 2 ? MEMOPT_DTYPE_BF16 : MEMOPT_DTYPE_F32;
    o.master = way == 1;
    o.adamw8bit = way == 2;
    o.stream = way == 2;
    o.accumulation = 1 + way % 2;
    return o;
}

/* The floor, as the message of a budget of one byte says. */
static uint64_t floor_of(options o)
{
    trainer t;
    unsigned long long floor = 0;
    o.budget = 1;
    assert_int_equal(trainer_create(&t, &o, &text), MEMOPT_LIMIT_REACHED);
    assert_non_null(strstr(gpt_error(), "is below the floor of"));
    assert_non_null(strstr(gpt_error(), "weights, gradients and optimizer states"));
    assert_int_equal(sscanf(strchr(gpt_error(), '('), "(%llu bytes)", &floor), 1);
    gpt_error_clear();
    return floor;
}

TEST(budgets_from_the_floor_to_plain_are_held)
{
    for (uint32_t way = 0; way < 4; way++) {
        options o = budget_options(way);
        outcome plain = run(&o);
        uint64_t floor = floor_of(o), recomputed = 0, sent = 0;
        assert_true(floor < plain.memory.exact_peak);
        for (uint64_t i = 0; i < BUDGETS; i++) {
            o.budget = floor + (plain.memory.exact_peak - floor) * i / (BUDGETS - 1);
            o.adversarial = i % 2;
            o.host_limit = i == 2 ? 65536 : 0;
            outcome held = run(&o);
            assert_true(held.memory.exact_peak <= o.budget);
            assert_int_equal(held.memory.exact_peak, held.plan.planned);
            assert_int_equal(held.active, held.allocated); /* what is sent has left the device */
            assert_true(held.plan.planned >= o.budget / 10 * 9);
            assert_memory_equal(held.losses, plain.losses, sizeof plain.losses);
            assert_same_bytes(&held.weights, &plain.weights);
            if (o.host_limit && !o.stream)
                assert_true(held.memory.pinned_peak <= o.host_limit);
            recomputed += held.plan.recomputed;
            sent += held.plan.sent;
            free(held.weights.data);
        }
        assert_true(recomputed > 0 && sent > 0);
        free(plain.weights.data);
    }
}

/* --- faults: the n-th of the calls that the linker wraps fails */

static int64_t countdown;

static int strikes(void)
{
    return countdown > 0 && --countdown == 0;
}

#define WRAPPED(name, parameters, arguments)                                                       \
    memopt_status __real_##name parameters;                                                        \
    memopt_status __wrap_##name parameters;                                                        \
    memopt_status __wrap_##name parameters                                                         \
    {                                                                                              \
        return strikes() ? MEMOPT_OUT_OF_DEVICE_MEMORY : __real_##name arguments;                  \
    }
WRAPPED(memopt_allocator_alloc,
        (memopt_allocator * a, uint64_t size, memopt_tag tag, memopt_stream s, void **out),
        (a, size, tag, s, out))
WRAPPED(memopt_region_alloc, (memopt_region * r, uint64_t size, void **out), (r, size, out))
WRAPPED(memopt_region_recompute, (memopt_region * r, memopt_stream s), (r, s))
WRAPPED(memopt_offloader_pack,
        (memopt_offloader * o, void *data, uint64_t size, memopt_stream s, memopt_ticket *out),
        (o, data, size, s, out))
WRAPPED(memopt_offloader_unpack,
        (memopt_offloader * o, memopt_ticket t, memopt_stream s, void **out), (o, t, s, out))
WRAPPED(memopt_offloader_host,
        (memopt_offloader * o, memopt_ticket t, memopt_host_access access, void **out),
        (o, t, access, out))
WRAPPED(memopt_streamer_begin,
        (memopt_streamer * s, uint32_t number, memopt_stream stream, void **out),
        (s, number, stream, out))
WRAPPED(memopt_optimizer_step,
        (memopt_optimizer * o, const memopt_tensor *gradients, uint64_t count,
         const memopt_step_options *how, memopt_stream s),
        (o, gradients, count, how, s))

/* The step fails at its n-th call, and nothing has changed; 0: it has fewer calls, and was taken. */
static int fails_at(trainer *t, int64_t n, const bytes *weights, step_result *r)
{
    memory_figures before, after;
    random_state random = t->random;
    uint64_t step = t->step;
    assert_ok(memory_measure(&t->memory, &before));
    countdown = n;
    memopt_status status = trainer_step(t, r);
    int struck = countdown == 0;
    countdown = 0;
    if (!struck) {
        assert_ok(status);
        return 0;
    }
    bytes now = weight_bytes(t);
    assert_int_equal(status, MEMOPT_OUT_OF_DEVICE_MEMORY);
    assert_ok(memory_measure(&t->memory, &after));
    assert_int_equal(after.exact, before.exact);
    assert_int_equal(t->step, step);
    assert_memory_equal(&t->random, &random, sizeof random);
    assert_same_bytes(&now, weights);
    free(now.data);
    return 1;
}

TEST(a_step_that_fails_changes_nothing)
{
    for (uint32_t way = 0; way < 4; way++) {
        trainer t;
        options o = budget_options(way);
        o.layers = 2;
        outcome plain = run(&o);
        uint64_t floor = floor_of(o);
        int64_t n = 1;
        o.budget = floor + (plain.memory.exact_peak - floor) / 3;
        assert_ok(trainer_create(&t, &o, &text));
        for (int i = 0; i < STEPS; i++) {
            step_result r;
            bytes weights = weight_bytes(&t);
            for (n = 1; fails_at(&t, n, &weights, &r); n += i == 1 ? 1 : 17)
                ;
            assert_true(r.loss == plain.losses[i]);
            free(weights.data);
        }
        bytes end = weight_bytes(&t);
        assert_true(n > 60);
        assert_same_bytes(&end, &plain.weights);
        assert_ok(trainer_destroy(&t));
        free(end.data);
        free(plain.weights.data);
    }
}

TEST(one_memory_for_device_and_host)
{
    options o = budget_options(0);
    outcome plain = run(&o);
    o.unified = 1;
    uint64_t floor = floor_of(o); /* without the host there is no lower one */
    o.budget = floor + (plain.memory.exact_peak - floor) / 4;
    outcome held = run(&o);
    assert_true(held.memory.exact_peak <= o.budget && held.plan.recomputed > 0);
    assert_int_equal(held.plan.sent + held.plan.host + held.memory.pinned_peak, 0);
    assert_same_bytes(&held.weights, &plain.weights);
    free(held.weights.data);
    free(plain.weights.data);
}

TEST(a_budget_below_the_floor_is_refused)
{
    options o = budget_options(0);
    trainer t;
    uint64_t floor = floor_of(o);
    o.budget = floor - 1;
    assert_int_equal(trainer_create(&t, &o, &text), MEMOPT_LIMIT_REACHED);
    gpt_error_clear();
    assert_null(t.memory.device);
    o.budget = floor;
    assert_ok(trainer_create(&t, &o, &text));
    assert_ok(trainer_destroy(&t));
}

int main(void)
{
    tiny_text(&text);
    int failed = run_all_tests(NULL, NULL);
    text_free(&text);
    return failed;
}
