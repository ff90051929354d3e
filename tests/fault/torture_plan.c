/* Every call of plan.h with each host allocation in it failed. */
#include "support/torture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "memopt/plan.h"

typedef struct fixture {
    memopt_plan_model model;
    memopt_plan_run run;
    memopt_plan *plan;
} fixture;

static memopt_status create(memopt_device *device, void *context)
{
    fixture *f = context;
    (void)device;
    return memopt_plan_create(&f->model, &f->run, NULL, &f->plan);
}

static void destroy(memopt_device *device, void *context)
{
    fixture *f = context;
    (void)device;
    assert_int_equal(memopt_plan_destroy(f->plan), MEMOPT_OK);
    f->plan = NULL;
}

static void unchanged(memopt_device *device, void *context)
{
    fixture *f = context;
    (void)device;
    assert_null(f->plan);
}

static void each_kind_of_run(void **state)
{
    static const torture_scenario making = {
        .name = "create", .run = create, .undo = destroy, .check_unchanged = unchanged};
    (void)state;
    for (uint32_t family = MEMOPT_PLAN_LLAMA; family <= MEMOPT_PLAN_VIT; family++)
        for (uint32_t mode = 0; mode <= MEMOPT_PLAN_CHECKPOINT_BUDGET; mode++) {
            fixture f = {.model = {.struct_size = sizeof f.model,
                                   .family = family,
                                   .hidden = 64,
                                   .layers = 3,
                                   .heads = 4,
                                   .image_size = 32,
                                   .vision_layers = family == MEMOPT_PLAN_LLAMA,
                                   .vision_hidden = 64},
                         .run = {.struct_size = sizeof f.run,
                                 .batch = 2,
                                 .sequence = 32,
                                 .sequence_mean = 16,
                                 .compute_dtype = MEMOPT_DTYPE_BF16,
                                 .accumulation = 2,
                                 .checkpointing = mode,
                                 .checkpoint_budget = UINT64_C(1) << 30}};
            assert_true(torture(&making, &f) > 0);
        }
}

static void each_kind_of_sharding(void **state)
{
    static const torture_scenario making = {
        .name = "create", .run = create, .undo = destroy, .check_unchanged = unchanged};
    (void)state;
    for (uint32_t sharding = MEMOPT_PLAN_DDP; sharding <= MEMOPT_PLAN_ZERO3; sharding++) {
        fixture f = {
            .model = {.struct_size = sizeof f.model, .hidden = 64, .layers = 3, .heads = 4},
            .run = {.struct_size = sizeof f.run,
                    .sequence = 32,
                    .world_size = 3,
                    .sharding = sharding,
                    .gather_dtype = MEMOPT_DTYPE_BF16,
                    .accumulation = 2}};
        assert_true(torture(&making, &f) > 0);
    }
}

static void each_stage_of_deepspeed(void **state)
{
    static const torture_scenario making = {
        .name = "create", .run = create, .undo = destroy, .check_unchanged = unchanged};
    (void)state;
    for (uint32_t sharding = MEMOPT_PLAN_ZERO1; sharding <= MEMOPT_PLAN_ZERO3; sharding++) {
        fixture f = {
            .model = {.struct_size = sizeof f.model, .hidden = 64, .layers = 3, .heads = 4},
            .run = {.struct_size = sizeof f.run,
                    .sequence = 32,
                    .world_size = 3,
                    .sharding = sharding,
                    .zero_engine = MEMOPT_PLAN_ENGINE_DEEPSPEED,
                    .persistence_threshold = 100,
                    .bucket_bytes = 100000,
                    .accumulation = 2}};
        assert_true(torture(&making, &f) > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_kind_of_run),
                                       cmocka_unit_test(each_stage_of_deepspeed),
                                       cmocka_unit_test(each_kind_of_sharding)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
