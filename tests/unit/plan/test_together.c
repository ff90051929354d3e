/*
 * Several devices with what else a run may have: adapters, a vision tower, micro-batches that are
 * not reduced. Counted by hand; batches are of a few tokens.
 */
#include "several_support.h"

enum { RANK = 4, TARGETS = 2 };

static const uint64_t adapters = TARGETS * 2 * RANK * HIDDEN; /* of a layer: query and value */

/* A small Llava: a tower of `layers`, the last of which is skipped. */
static memopt_plan_model with_tower(uint32_t mode)
{
    memopt_plan_model m = small_model();
    m.vision_layers = 3;
    m.vision_hidden = 64;
    m.vision_heads = 2;
    m.vision_skipped = 1;
    m.vision_mode = mode;
    m.image_size = 32;
    m.patch_size = 8;
    return m;
}

/* Elements of a layer of the tower: projections and MLP with biases, two norms. */
static const uint64_t seen = 4 * (64 * 64 + 64) + 2 * 64 * 256 + 256 + 64 + 4 * 64;

static void gradients_wait_for_the_last(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_ZERO3);
    (void)state;
    const uint64_t all = 4 * (LAYERS * layer + root);
    r.gradient_sync = MEMOPT_PLAN_NO;
    memopt_plan_report one = report_of(&m, &r, NULL);
    assert_int_equal(phase(&one, MEMOPT_PLAN_PHASE_FORWARD)->gradients, 0);
    r.accumulation = 2;
    memopt_plan_report waits = report_of(&m, &r, NULL);
    assert_int_equal(phase(&waits, MEMOPT_PLAN_PHASE_FORWARD)->gradients, all);
    assert_int_equal(phase(&waits, MEMOPT_PLAN_PHASE_STEP)->gradients, all / 2);
    /* Gathered in 16 bits they wait in 32, as they rest. */
    r.gather_dtype = MEMOPT_DTYPE_BF16;
    memopt_plan_report narrow = report_of(&m, &r, NULL);
    assert_int_equal(phase(&narrow, MEMOPT_PLAN_PHASE_FORWARD)->gradients, all);
    /* Each reduced: shares. */
    r.gradient_sync = MEMOPT_PLAN_YES;
    memopt_plan_report reduced = report_of(&m, &r, NULL);
    assert_int_equal(phase(&reduced, MEMOPT_PLAN_PHASE_FORWARD)->gradients, all / 2);
}

/* Between the first and the last all layers' gradients are still whole when those of the
 * embeddings, which the head has too, meet at the end of backward. */
static void one_in_the_middle_is_not_reduced(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_ZERO3);
    (void)state;
    m.vocabulary = 60000;
    m.tied = MEMOPT_PLAN_YES;
    const uint64_t words = 60000 * HIDDEN, all = 4 * (LAYERS * layer + words + HIDDEN);
    r.gradient_sync = MEMOPT_PLAN_NO;
    r.accumulation = 2;
    memopt_plan_report two = report_of(&m, &r, NULL);
    r.accumulation = 3;
    memopt_plan_report three = report_of(&m, &r, NULL);
    assert_true(phase(&three, MEMOPT_PLAN_PHASE_BACKWARD)->total >
                phase(&two, MEMOPT_PLAN_PHASE_BACKWARD)->total);
    assert_true(phase(&three, MEMOPT_PLAN_PHASE_BACKWARD)->gradients >= all + 2 * 4 * words);
}

static void adapters_are_gathered_in_their_type(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_ZERO3);
    (void)state;
    m.lora_rank = RANK;
    r.weight_dtype = MEMOPT_DTYPE_BF16;
    memopt_plan_report own = report_of(&m, &r, NULL);
    const uint64_t rest = LAYERS * layer + root;
    const uint64_t half = (2 * rest + 4 * LAYERS * adapters) / 2 + own.buffer_bytes;
    assert_int_equal(phase(&own, MEMOPT_PLAN_PHASE_LOAD)->parameters, half);
    assert_int_equal(phase(&own, MEMOPT_PLAN_PHASE_FORWARD)->parameters,
                     half + 2 * root + 2 * (2 * layer + 4 * adapters));
    assert_int_equal(phase(&own, MEMOPT_PLAN_PHASE_STEP)->gradients, 4 * LAYERS * adapters / 2);
    /* Told to, they are gathered in 16 bits as the weights are. */
    r.gather_dtype = MEMOPT_DTYPE_BF16;
    memopt_plan_report told = report_of(&m, &r, NULL);
    assert_int_equal(phase(&told, MEMOPT_PLAN_PHASE_LOAD)->parameters, half);
    assert_int_equal(phase(&told, MEMOPT_PLAN_PHASE_FORWARD)->parameters,
                     half + 2 * root + 2 * (2 * layer + 2 * adapters));
}

/* A shard of 2048 elements of a weight of 4096 has states of 8 bits. */
static void states_are_coded_by_the_whole_weight(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_ZERO3);
    (void)state;
    m.lora_rank = 16; /* × 256 */
    r.optimizer = MEMOPT_PLAN_ADAMW_8BIT;
    memopt_plan_report report = report_of(&m, &r, NULL);
    const uint64_t one = 2 * (2048 + 2048 / 256 * 4) + 8;
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->optimizer, LAYERS * 4 * one);
}

static void mixed_types_are_refused(void **state)
{
    memopt_plan_model m = with_tower(MEMOPT_PLAN_TOWER_FROZEN); /* whose projector learns */
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_ZERO1);
    memopt_plan *plan = NULL;
    (void)state;
    m.lora_rank = RANK;
    r.weight_dtype = MEMOPT_DTYPE_BF16;
    assert_int_equal(memopt_plan_create(&m, &r, NULL, &plan), MEMOPT_INVALID_ARGUMENT);
    assert_non_null(strstr(memopt_last_error(), "adapters of bf16"));
    r.sharding = MEMOPT_PLAN_ZERO3; /* they are of different groups */
    (void)report_of(&m, &r, NULL);
    m.lora_targets = MEMOPT_PLAN_TARGET_HEAD; /* of the projector's */
    assert_int_equal(memopt_plan_create(&m, &r, NULL, &plan), MEMOPT_INVALID_ARGUMENT);
    r.adapter_dtype = MEMOPT_DTYPE_BF16;
    (void)report_of(&m, &r, NULL);
    r.adapter_dtype = 0;
    r.sharding = MEMOPT_PLAN_DDP;
    (void)report_of(&m, &r, NULL);
}

/* The last layer of the tower and the norm after it ask for gradients that never come. */
static void unused_weights_have_room_in_buckets(void **state)
{
    memopt_plan_model learns = with_tower(MEMOPT_PLAN_TOWER_TRAINED),
                      frozen = with_tower(MEMOPT_PLAN_TOWER_FROZEN);
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_DDP);
    (void)state;
    r.optimizer = MEMOPT_PLAN_SGD_MOMENTUM;
    memopt_plan_report report = report_of(&learns, &r, NULL);
    const memopt_plan_bytes *load = phase(&report, MEMOPT_PLAN_PHASE_LOAD);
    uint64_t map = load->gradients - 4 * report.parameter_count; /* 4 bytes a weight */
    assert_true(map > 0 && map < 4 * 200);
    assert_int_equal(load->optimizer, 4 * (report.parameter_count - seen - 2 * 64));
    report = report_of(&frozen, &r, NULL);
    load = phase(&report, MEMOPT_PLAN_PHASE_LOAD);
    assert_int_equal(load->gradients, load->optimizer);
}

/* What FSDP keeps of a tower are all its layers, the one whose output nobody takes too. */
static void skipped_layers_are_gathered(void **state)
{
    memopt_plan_model m = with_tower(MEMOPT_PLAN_TOWER_FROZEN);
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_ZERO2);
    (void)state;
    memopt_plan_report report = report_of(&m, &r, NULL);
    uint64_t load = phase(&report, MEMOPT_PLAN_PHASE_LOAD)->parameters;
    uint64_t whole = phase(&report, MEMOPT_PLAN_PHASE_LOSS)->parameters;
    assert_true(whole >= load + 4 * report.parameter_count + 4 * layer);
    assert_true(whole < load + 4 * report.parameter_count + 4 * layer + 4096);
}

/* gradient_checkpointing_enable has the patches of a frozen tower learn: its layers hold inputs. */
static void a_frozen_tower_runs_again(void **state)
{
    memopt_plan_model m = with_tower(MEMOPT_PLAN_TOWER_FROZEN), more = m;
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_DDP);
    (void)state;
    more.vision_layers = 13;
    r.checkpointing = MEMOPT_PLAN_CHECKPOINT_FULL;
    memopt_plan_report few = report_of(&m, &r, NULL), many = report_of(&more, &r, NULL);
    assert_int_equal(phase(&many, MEMOPT_PLAN_PHASE_LOSS)->activations -
                         phase(&few, MEMOPT_PLAN_PHASE_LOSS)->activations,
                     10 * 17 * 64 * 4);
    r.checkpointing = MEMOPT_PLAN_CHECKPOINT_NONE;
    few = report_of(&m, &r, NULL);
    many = report_of(&more, &r, NULL);
    assert_int_equal(phase(&many, MEMOPT_PLAN_PHASE_LOSS)->activations,
                     phase(&few, MEMOPT_PLAN_PHASE_LOSS)->activations);
}

/* Of frozen weights under autocast a layer that runs again has all casts when its backward starts:
 * of one layer and few tokens, they are what backward holds. */
static void casts_of_frozen_weights_come_again(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_DDP);
    (void)state;
    m.layers = 1;
    m.lora_rank = RANK;
    m.vocabulary = 8;
    r.world_size = 1;
    r.compute_dtype = MEMOPT_DTYPE_BF16;
    r.checkpointing = MEMOPT_PLAN_CHECKPOINT_FULL;
    memopt_plan_report report = report_of(&m, &r, NULL);
    assert_true(phase(&report, MEMOPT_PLAN_PHASE_BACKWARD)->activations >=
                2 * (layer - 2 * HIDDEN));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_wait_for_the_last),
        cmocka_unit_test(one_in_the_middle_is_not_reduced),
        cmocka_unit_test(adapters_are_gathered_in_their_type),
        cmocka_unit_test(states_are_coded_by_the_whole_weight),
        cmocka_unit_test(mixed_types_are_refused),
        cmocka_unit_test(unused_weights_have_room_in_buckets),
        cmocka_unit_test(skipped_layers_are_gathered),
        cmocka_unit_test(a_frozen_tower_runs_again),
        cmocka_unit_test(casts_of_frozen_weights_come_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
