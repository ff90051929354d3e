/* Plans of each kind with each host allocation in them failed. */
#include "support/torture.h"

#include "support/unit.h"

#include "memopt/plan.h"

typedef struct fixture {
    const char *settings;
    memopt_plan *plan;
} fixture;

static memopt_status create(memopt_device *device, void *context)
{
    fixture *f = context;
    (void)device;
    return memopt_plan_create(f->settings, NULL, NULL, &f->plan);
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

static memopt_status list(memopt_device *device, void *context)
{
    fixture *f = context;
    uint64_t count = 0;
    (void)device;
    return memopt_plan_get_events(f->plan, NULL, 0, &count);
}

static void make(memopt_device *device, void *context)
{
    assert_int_equal(create(device, context), MEMOPT_OK);
}

#define SHAPE "model.hidden=64;model.layers=2;model.heads=4;run.sequence=16;"
#define SHARED SHAPE "run.world_size=3;run.accumulation=2;"

TEST(each_kind_of_plan)
{
    static const char *const all[] = {
        SHAPE "model.vision_layers=1;model.vision_hidden=64;model.image_size=32;"
              "run.sequence_mean=8;run.checkpointing=full;run.compute_dtype=bf16",
        SHAPE "model.family=mixtral;run.checkpointing=selective",
        SHAPE "model.family=gpt2;run.checkpointing=every;run.offload=activations",
        SHAPE "model.family=bert;model.variant=roberta",
        SHAPE "model.family=vit;model.image_size=32",
        SHARED "run.sharding=zero1",
        SHARED "run.sharding=zero3;run.gather_dtype=bf16;run.gradient_sync=no",
    };
    static const torture_scenario making = {
        .name = "create", .run = create, .undo = destroy, .check_unchanged = unchanged};
    static const torture_scenario listing = {
        .name = "events", .setup = make, .run = list, .teardown = destroy};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        fixture f = {all[i], NULL};
        assert_true(torture(&making, &f) > 0);
        assert_true(torture(&listing, &f) > 0);
    }
}
