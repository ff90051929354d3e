/*
 * Which device steps which weight, and what engines refuse. Real steps of all engines are measured
 * in extras/planner/tests/truth.
 */
#include "support.h"

#include "parallel/parallel.h"

/* The largest first, each to the device that has the least; of equal ones to the first. */
TEST(whole_weights_are_given_away)
{
    const mo_plan_weight w[] = {
        {.count = 30, .learns = 1}, {.count = 50, .learns = 1}, {.count = 99},
        {.count = 30, .learns = 1}, {.count = 10, .learns = 1}, {.count = 40, .learns = 1}};
    const uint64_t counts[] = {50, 30, 40, 30, 10}, device[] = {0, 0, 1, 1, 1};
    const uint32_t index[] = {1, 3, 5, 0, 4};
    mo_plan_weight out[6];
    uint64_t count = 0, own = 0, states = 0, step = 0;
    mo_plan_tape t = {0};
    OK(mo_plan_partition(w, 6, 2, out, &count));
    assert_int_equal(count, 5);
    for (uint64_t i = 0; i < count; i++) {
        assert_int_equal(out[i].count, counts[i]);
        assert_int_equal(out[i].chunks, device[i]);
        assert_int_equal(out[i].layer, index[i]);
    }
    mo_plan_run r = {.optimizer = MO_PLAN_ADAMW, .state_dtype = MEMOPT_DTYPE_F32};
    assert_ptr_equal(mo_plan_partition_largest(&t, &r, out, count, &own, &states, &step), out + 2);
    assert_int_equal(own, 3);
    assert_int_equal(states, 8 * 80 + 3 * 4);
    assert_int_equal(step, 4 * (50 + 30 + 30)); /* of 50 one is left while 30 make two */
    t.gpu = 1;                                  /* where torch takes foreach */
    (void)mo_plan_partition_largest(&t, &r, out, count, &own, &states, &step);
    assert_int_equal(step, 4 * 80);
}

/* Beside a search for the device with the least, over random weights. */
TEST(the_least_is_found)
{
    enum { WEIGHTS = 500, DEVICES = 37 };
    mo_plan_weight w[WEIGHTS], out[WEIGHTS];
    uint64_t count = 0, random = 9, has[DEVICES];
    for (uint64_t world = 1; world <= DEVICES; world += 4) {
        memset(has, 0, sizeof has);
        for (uint64_t i = 0; i < WEIGHTS; i++) {
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
            w[i] = (mo_plan_weight){.count = 1 + (random >> 33) % 9, .learns = 1};
        }
        OK(mo_plan_partition(w, WEIGHTS, world, out, &count));
        assert_int_equal(count, WEIGHTS);
        for (uint64_t size = 9; size > 0; size--)
            for (uint64_t i = 0; i < WEIGHTS; i++) {
                uint64_t least = 0, at = 0;
                if (w[i].count != size)
                    continue;
                for (uint64_t d = 1; d < world; d++)
                    least = has[d] < has[least] ? d : least;
                has[least] += size;
                while (out[at].layer != i)
                    at++;
                assert_int_equal(out[at].chunks, least);
            }
    }
}

static mo_plan_run few_tokens(uint32_t sharding)
{
    return (mo_plan_run){
        .batch = 1, .sequence = 4, .world_size = 2, .sharding = sharding, .optimizer = MO_PLAN_SGD};
}

/* A shard of 2048 elements of a weight of 4096 has states of 8 bits. */
TEST(states_are_coded_by_the_whole_weight)
{
    mo_plan_model m = small_model();
    mo_plan_run r = few_tokens(MO_PLAN_ZERO3);
    m.lora_rank = 16; /* × 256 */
    r.optimizer = MO_PLAN_ADAMW_8BIT;
    mo_plan_report report = report_of(&m, &r, NULL);
    const uint64_t one = 2 * (2048 + 2048 / 256 * 4) + 8;
    assert_int_equal(phase(&report, MO_PLAN_PHASE_LOAD)->optimizer, m.layers * 4 * one);
}

/* One optimizer and one group of FSDP take weights of one type: adapters of fp32 do not go with a
 * projector of bf16 that learns. */
TEST(mixed_types_are_refused)
{
    mo_plan_model m = small_model();
    mo_plan_run r = few_tokens(MO_PLAN_ZERO1);
    mo_plan_report report;
    m.vision_layers = 2;
    m.vision_hidden = 64;
    m.vision_mode = MO_PLAN_TOWER_FROZEN; /* whose projector learns */
    m.lora_rank = 4;
    r.weight_dtype = MEMOPT_DTYPE_BF16;
    GIVES(MEMOPT_INVALID_ARGUMENT, mo_plan_outline(&m, &r, NULL, &report));
    assert_non_null(strstr(memopt_last_error(), "adapters of bf16"));
    r.sharding = MO_PLAN_ZERO3; /* they are of different groups */
    OK(mo_plan_outline(&m, &r, NULL, &report));
    m.lora_targets = MO_PLAN_TARGET_HEAD; /* of the projector's */
    GIVES(MEMOPT_INVALID_ARGUMENT, mo_plan_outline(&m, &r, NULL, &report));
    r.adapter_dtype = MEMOPT_DTYPE_BF16;
    OK(mo_plan_outline(&m, &r, NULL, &report));
}
