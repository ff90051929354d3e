/* Every call of cast.h with each host allocation and device operation in it failed. */
#include "support/torture.h"

#include "support/unit.h"

#include "memopt/cast.h"

#include <string.h>

enum { COUNT = 1000, FLOATS = 4096, BYTES = 4 * FLOATS };

/* Device memory: COUNT gradients, then the outputs. Its contents before the call are in `before`.
 */
typedef struct fixture {
    memopt_scaler *scaler;
    float *memory;
    float before[FLOATS];
    memopt_scaler_state state; /* before the call */
    memopt_scaler_state result;
    memopt_tensor gradients, wide, half; /* COUNT each; the latter two lie behind the first */
    memopt_blocks codes, made;
} fixture;

static void read_state(fixture *f, memopt_scaler_state *state)
{
    memset(state, 0, sizeof *state);
    state->struct_size = sizeof *state;
    assert_int_equal(memopt_scaler_get_state_sync(f->scaler, NULL, state), MEMOPT_OK);
}

static void make(memopt_device *device, void *context)
{
    fixture *f = context;
    void *memory = NULL;
    assert_int_equal(mo_mem_alloc(device, BYTES, &memory), MEMOPT_OK);
    f->memory = memory;
    for (int i = 0; i < FLOATS; i++)
        f->memory[i] = (float)(i % 97) - 40.0f;
    memcpy(f->before, f->memory, BYTES);
    f->gradients = (memopt_tensor){f->memory, COUNT, MEMOPT_DTYPE_F32};
    f->wide = (memopt_tensor){f->memory + 2 * COUNT, COUNT, MEMOPT_DTYPE_F32};
    f->half = (memopt_tensor){f->memory + 2 * COUNT, COUNT, MEMOPT_DTYPE_BF16};
    f->codes = (memopt_blocks){.codes = f->memory,
                               .scales = f->memory + COUNT,
                               .rows = 1,
                               .columns = COUNT,
                               .format = MEMOPT_BLOCKS_E4M3_1X128};
    f->made = f->codes;
    f->made.codes = f->memory + 2 * COUNT;
    f->made.scales = f->memory + 3 * COUNT;
    f->made.format = MEMOPT_BLOCKS_NVFP4;
    assert_int_equal(memopt_scaler_create(device, NULL, &f->scaler), MEMOPT_OK);
    read_state(f, &f->state);
}

static void end(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_int_equal(memopt_scaler_destroy(f->scaler), MEMOPT_OK);
    assert_int_equal(mo_mem_free(device, f->memory, BYTES), MEMOPT_OK);
}

/* Gradients and outputs of the failed call are as before, and so is the scaler. The norm, which
 * clip writes before it scales, is left out. */
static void unchanged(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_scaler_state now;
    assert_memory_equal(f->memory, f->before, BYTES - sizeof(float));
    read_state(f, &now);
    assert_memory_equal(&now, &f->state, sizeof now);
    assert_true(*memopt_scaler_get_found_inf(f->scaler) == 0.0f);
}

/* The last two floats are the calls' cells. */
TORTURE_CALL(cast, memopt_cast(device, &f->half, &f->gradients, 1, NULL, NULL))
TORTURE_CALL(amax, memopt_cast(device, NULL, &f->gradients, 1,
                               &(memopt_cast_options){.struct_size = sizeof(memopt_cast_options),
                                                      .amax = f->memory + FLOATS - 1},
                               NULL))
TORTURE_CALL(quantize, memopt_blocks_quantize(device, &f->made, &f->gradients, 1, NULL, NULL))
TORTURE_CALL(dequantize, memopt_blocks_dequantize(device, &f->wide, &f->codes, 1, NULL))
TORTURE_CALL(accumulate, memopt_accumulate(device, &f->wide, &f->gradients, 1, 1.0f, NULL))
TORTURE_CALL(scale, memopt_scale(device, &f->gradients, 1, f->memory + FLOATS - 2, NULL, NULL))
TORTURE_CALL(check_finite,
             memopt_check_finite(device, &f->gradients, 1, f->memory + FLOATS - 1, NULL))
TORTURE_CALL(unscale, memopt_scaler_unscale(f->scaler, &f->gradients, 1, NULL))
TORTURE_CALL(check, memopt_check_finite(device, &f->gradients, 1,
                                        memopt_scaler_get_found_inf(f->scaler), NULL))
TORTURE_CALL(norm, memopt_norm(device, f->memory + FLOATS - 1, &f->gradients, 1, 0, NULL))
TORTURE_CALL(clip, memopt_norm(device, f->memory + FLOATS - 1, &f->gradients, 1, 1.0, NULL))
TORTURE_CALL(update, memopt_scaler_update(f->scaler, NULL))

static memopt_status get_state(memopt_device *device, void *context)
{
    fixture *f = context;
    f->result.struct_size = sizeof f->result;
    return memopt_scaler_get_state_sync(f->scaler, NULL, &f->result);
}

/* The same state again: where waiting fails, the state may be set all the same. */

TORTURE_CALL(set_state, memopt_scaler_set_state_sync(f->scaler, &f->state, NULL))

static memopt_status create(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_scaler *untouched = f->scaler = (memopt_scaler *)(void *)&f->result;
    memopt_status status = memopt_scaler_create(device, NULL, &f->scaler);
    if (status != MEMOPT_OK)
        assert_ptr_equal(f->scaler, untouched);
    return status;
}

TORTURE_UNDO(destroy, memopt_scaler_destroy(f->scaler))

#define SCENARIO(call, keeps)                                                                      \
    {                                                                                              \
        .name = #call, .setup = make, .run = call, .check_unchanged = unchanged, .teardown = end,  \
        .caches = keeps                                                                            \
    }

TEST(each_call)
{
    static const torture_scenario calls[] = {
        SCENARIO(cast, 0),      SCENARIO(unscale, 0),      SCENARIO(check, 0),
        SCENARIO(norm, 1),      SCENARIO(clip, 1),         SCENARIO(update, 0),
        SCENARIO(get_state, 0), SCENARIO(set_state, 0),    SCENARIO(accumulate, 0),
        SCENARIO(scale, 0),     SCENARIO(check_finite, 0), SCENARIO(amax, 0),
        SCENARIO(quantize, 0),  SCENARIO(dequantize, 0),
    };
    static fixture f;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        assert_true(torture(&calls[i], &f) > 0);
}

TEST(making_one)
{
    static const torture_scenario making = {.name = "create", .run = create, .undo = destroy};
    static fixture f;
    assert_true(torture(&making, &f) > 0);
}
