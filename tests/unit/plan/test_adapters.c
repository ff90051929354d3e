/* LoRA's adapters have a type of their own: fp32 on weights of 16 bits, as PEFT keeps them. */
#include "support.h"

#include <stddef.h>

/* Of 4 layers, queries and values: 2 × rank × (256 + 256) each. */
enum { RANK = 16, ADAPTERS = 4 * 2 * RANK * 512, ROWS = 4 * 128, HIDDEN = 256 };

static memopt_plan_model adapted_model(void)
{
    memopt_plan_model m = small_model();
    m.lora_rank = RANK;
    return m;
}

static memopt_plan_run narrow_run(memopt_dtype adapters)
{
    memopt_plan_run r = small_run();
    r.weight_dtype = MEMOPT_DTYPE_BF16;
    r.adapter_dtype = adapters;
    return r;
}

static memopt_plan_report narrow_report(memopt_dtype adapters)
{
    const memopt_plan_model m = adapted_model();
    const memopt_plan_run r = narrow_run(adapters);
    return report_of(&m, &r, NULL);
}

static void they_are_of_fp32_unless_said(void **state)
{
    (void)state;
    memopt_plan_report given = narrow_report(MEMOPT_DTYPE_F32), plain = narrow_report(0);
    memopt_plan_report narrow = narrow_report(MEMOPT_DTYPE_BF16);
    assert_int_equal(plain.peak.total, given.peak.total);
    assert_int_equal(plain.trainable_count, ADAPTERS);
    assert_int_equal(plain.peak.parameters - narrow.peak.parameters, 2 * ADAPTERS);
    const memopt_plan_bytes *wide = plain.phases, *thin = narrow.phases;
    assert_int_equal(wide[MEMOPT_PLAN_PHASE_STEP].gradients, 4 * ADAPTERS);
    assert_int_equal(thin[MEMOPT_PLAN_PHASE_STEP].gradients, 2 * ADAPTERS);
    /* Two moments of AdamW, and a count of 4 bytes for each of 16 weights. */
    assert_int_equal(wide[MEMOPT_PLAN_PHASE_LOAD].optimizer, 8 * ADAPTERS + 64);
    assert_int_equal(thin[MEMOPT_PLAN_PHASE_LOAD].optimizer, 4 * ADAPTERS + 64);
}

/* Each adapted layer keeps its input in fp32 and what its first half makes of it. Queries and
 * values of 16 bits need not keep theirs: their weights are frozen. */
static void their_inputs_are_kept_in_their_type(void **state)
{
    (void)state;
    memopt_plan_report wide = narrow_report(0), thin = narrow_report(MEMOPT_DTYPE_BF16);
    const uint64_t inputs = 4 * 2 * ROWS * HIDDEN * 4, middles = 4 * 2 * ROWS * RANK * 2;
    /* Narrow ones keep one input of queries and values, which is the norm's output: 2 bytes. */
    const uint64_t shared = 4 * ROWS * HIDDEN * 2;
    assert_int_equal(wide.activation_bytes - thin.activation_bytes, inputs + middles - shared);
}

/* Wide adapters of an autocast run compute in its type: what they keep is as without. */
static void autocast_computes_them_in_its_type(void **state)
{
    (void)state;
    const memopt_plan_model m = adapted_model();
    memopt_plan_run r = small_run();
    memopt_plan_report plain = report_of(&m, &r, NULL);
    r.compute_dtype = MEMOPT_DTYPE_BF16;
    memopt_plan_report autocast = report_of(&m, &r, NULL);
    assert_int_equal(plain.phases[0].optimizer, autocast.phases[0].optimizer);
    assert_true(autocast.activation_bytes < plain.activation_bytes);
}

static void copies_are_of_what_is_narrower(void **state)
{
    (void)state;
    const memopt_plan_model m = adapted_model();
    memopt_plan_run r = narrow_run(0);
    r.master_dtype = MEMOPT_DTYPE_F32;
    assert_int_equal(report_of(&m, &r, NULL).phases[0].optimizer, 8 * ADAPTERS + 64);
    r.adapter_dtype = MEMOPT_DTYPE_BF16;
    assert_int_equal(report_of(&m, &r, NULL).phases[0].optimizer, 12 * ADAPTERS + 64);
}

/* What is filled in means the same when it is given. */
static void settings_can_be_given_again(void **state)
{
    (void)state;
    const memopt_plan_model m = adapted_model();
    const uint32_t optimizers[] = {MEMOPT_PLAN_ADAMW, MEMOPT_PLAN_ADAMW_8BIT,
                                   MEMOPT_PLAN_SGD_MOMENTUM};
    for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++) {
        memopt_plan_run r = narrow_run(i == 2 ? MEMOPT_DTYPE_BF16 : 0);
        memopt_plan_run filled = {.struct_size = sizeof filled};
        memopt_plan_report report = {.struct_size = sizeof report};
        memopt_plan *plan = NULL;
        r.optimizer = optimizers[i];
        OK(memopt_plan_create(&m, &r, NULL, &plan));
        OK(memopt_plan_get_report(plan, &report));
        OK(memopt_plan_get_settings(plan, NULL, &filled, NULL));
        OK(memopt_plan_destroy(plan));
        assert_int_equal(filled.adapter_dtype, i == 2 ? MEMOPT_DTYPE_BF16 : MEMOPT_DTYPE_F32);
        assert_int_equal(report_of(&m, &filled, NULL).peak.total, report.peak.total);
    }
}

/* A program that was built before the field was there gets what it would get with a zero. */
static void older_programs_do_not_have_it(void **state)
{
    (void)state;
    const memopt_plan_model m = adapted_model();
    memopt_plan_run r = narrow_run(MEMOPT_DTYPE_U8);
    r.struct_size = offsetof(memopt_plan_run, adapter_dtype);
    assert_int_equal(report_of(&m, &r, NULL).peak.total, narrow_report(0).peak.total);
}

static void layers_tell_their_bytes(void **state)
{
    (void)state;
    const memopt_plan_model m = adapted_model();
    const memopt_plan_run r = narrow_run(0);
    memopt_plan *plan = NULL;
    memopt_plan_layer layer = {.struct_size = sizeof layer};
    OK(memopt_plan_create(&m, &r, NULL, &plan));
    OK(memopt_plan_get_layer(plan, 1, &layer));
    OK(memopt_plan_destroy(plan));
    assert_int_equal(layer.gradient_bytes, ADAPTERS);
    assert_int_equal(layer.optimizer_bytes, 2 * ADAPTERS + 16);
    assert_int_equal(layer.parameter_bytes,
                     2 * (layer.parameter_count - ADAPTERS / 4) + 4 * (ADAPTERS / 4));
}

static void what_is_no_type_is_refused(void **state)
{
    (void)state;
    const memopt_plan_model m = adapted_model();
    memopt_plan_run r = narrow_run(MEMOPT_DTYPE_U8);
    memopt_plan *plan = NULL;
    assert_int_equal(memopt_plan_create(&m, &r, NULL, &plan), MEMOPT_INVALID_ARGUMENT);
    assert_non_null(strstr(memopt_last_error(), "adapter_dtype"));
    assert_non_null(strstr(memopt_last_error(), "u8"));
    r = narrow_run(0);
    r.reserved_end = 1;
    assert_int_equal(memopt_plan_create(&m, &r, NULL, &plan), MEMOPT_INVALID_ARGUMENT);
    assert_null(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_are_of_fp32_unless_said),
        cmocka_unit_test(their_inputs_are_kept_in_their_type),
        cmocka_unit_test(autocast_computes_them_in_its_type),
        cmocka_unit_test(copies_are_of_what_is_narrower),
        cmocka_unit_test(settings_can_be_given_again),
        cmocka_unit_test(older_programs_do_not_have_it),
        cmocka_unit_test(layers_tell_their_bytes),
        cmocka_unit_test(what_is_no_type_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
