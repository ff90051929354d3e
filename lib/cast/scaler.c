/* The loss scaler, one block in device memory (kernels/reduce/scale.h): making, ending, unscale,
 * check, update and state. One thread at a time per scaler; no lock. */
#include "cast/gradients.h"

#include "allocator/allocator.h"
#include "memopt/allocator.h"

#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>

struct memopt_scaler {
    memopt_device *device;
    memopt_allocator *allocator; /* that the block is of; NULL: of the device */
    mo_scaler_block *block;      /* device memory */
    uint32_t disabled;
};

/* --- states ---------------------------------------------------------------------------------- */

static memopt_status check_state(const char *subject, const memopt_scaler_state *state)
{
    float scale = (float)state->scale;
    if (!(scale > 0.0f) || !mo_f32_is_finite(scale))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: the scale %g is not a positive finite f32",
                       subject, state->scale);
    if (!(state->growth_factor > 1.0) || !(state->growth_factor <= 3.4028234663852886e38))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: growth_factor is %g; it must be finite and above 1", subject,
                       state->growth_factor);
    if (!(state->backoff_factor > 0.0) || !(state->backoff_factor < 1.0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: backoff_factor is %g; it must be between 0 and 1", subject,
                       state->backoff_factor);
    if (state->growth_interval == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: growth_interval is 0", subject);
    if (state->growth_tracker >= state->growth_interval)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: growth_tracker is %" PRIu32 "; it must be below growth_interval, "
                       "%" PRIu32,
                       subject, state->growth_tracker, state->growth_interval);
    return MEMOPT_OK;
}

static memopt_status read_options(memopt_device *device, const memopt_scaler_options *options,
                                  memopt_scaler_state *state, memopt_scaler *made,
                                  memopt_tag *out_tag)
{
    memopt_scaler_options o;
    MO_TRY(mo_options_read(&o, sizeof o, options, "memopt_scaler_options"));
    if (o.disabled > 1)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "scaler: disabled is %" PRIu32 "; it is 0 or 1",
                       o.disabled);
    state->scale = o.init_scale != 0 ? o.init_scale : 65536.0;
    state->growth_factor = o.growth_factor != 0 ? o.growth_factor : 2.0;
    state->backoff_factor = o.backoff_factor != 0 ? o.backoff_factor : 0.5;
    state->growth_interval = o.growth_interval != 0 ? o.growth_interval : 2000;
    state->growth_tracker = 0;
    MO_TRY(check_state("scaler", state));
    if (o.allocator != NULL && mo_allocator_device(o.allocator) != device)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "scaler: the allocator is of another device");
    if (o.allocator == NULL && o.tag != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "scaler: tag is %" PRIu32 ", but allocator is NULL; set both or neither",
                       o.tag);
    *made = (memopt_scaler){.device = device, .allocator = o.allocator, .disabled = o.disabled};
    *out_tag = o.tag;
    if (o.disabled)
        state->scale = 1.0;
    return MEMOPT_OK;
}

/* Writes a state into a block and waits. Where waiting fails, the work may still be under way. */
static memopt_status write_block(memopt_device *device, mo_scaler_block *block,
                                 const memopt_scaler_state *state, uint32_t clear,
                                 memopt_stream stream)
{
    mo_scaler_set_args args = {.block = block,
                               .scale = (float)state->scale,
                               .growth_tracker = state->growth_tracker,
                               .growth_interval = state->growth_interval,
                               .clear = clear,
                               .growth_factor = state->growth_factor,
                               .backoff_factor = state->backoff_factor};
    mo_writes(device, stream, "scaler state", block, sizeof *block);
    MO_TRY(mo_launch(device, stream, &mo_kernel_scaler_set, &args, 1));
    return memopt_stream_sync(device, stream);
}

/* --- life ------------------------------------------------------------------------------------ */

static memopt_status take_block(memopt_scaler *scaler, memopt_tag tag)
{
    void *block = NULL;
    memopt_status status =
        scaler->allocator != NULL
            ? memopt_allocator_alloc(scaler->allocator, sizeof *scaler->block, tag, NULL, &block)
            : mo_mem_alloc(scaler->device, sizeof *scaler->block, &block);
    scaler->block = block;
    return status;
}

/* Pre: no work uses it. */
static memopt_status give_block(memopt_scaler *scaler)
{
    return scaler->allocator != NULL
               ? memopt_allocator_free(scaler->allocator, scaler->block)
               : mo_mem_free(scaler->device, scaler->block, sizeof *scaler->block);
}

memopt_status memopt_scaler_create(memopt_device *device, const memopt_scaler_options *options,
                                   memopt_scaler **out_scaler)
{
    memopt_scaler_state state = MEMOPT_SCALER_STATE_INIT;
    memopt_scaler made;
    memopt_tag tag = 0;
    MO_NOT_NULL("scaler", device, out_scaler);
    MO_TRY(mo_check_process(device, "scaler_create"));
    MO_TRY(read_options(device, options, &state, &made, &tag));
    memopt_scaler *scaler = mo_malloc(sizeof *scaler);
    if (scaler == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    *scaler = made;
    memopt_status status = take_block(scaler, tag);
    if (status != MEMOPT_OK) {
        mo_free(scaler);
        return status;
    }
    status = write_block(device, scaler->block, &state, 1, NULL);
    if (status != MEMOPT_OK) {
        memopt_device_sync(device); /* the work may still write to the block */
        give_block(scaler);
        mo_free(scaler);
        return status;
    }
    *out_scaler = scaler;
    return MEMOPT_OK;
}

memopt_status memopt_scaler_destroy(memopt_scaler *scaler)
{
    memopt_status status, first;
    if (scaler == NULL)
        return MEMOPT_OK;
    MO_TRY(mo_check_process(scaler->device, "scaler_destroy"));
    int lost = mo_device_lost(scaler->device);
    first = lost ? MEMOPT_OK : memopt_device_sync(scaler->device);
    status = give_block(scaler);
    first = first == MEMOPT_OK ? status : first;
    mo_free(scaler);
    return mo_end_status(lost, first);
}

const float *memopt_scaler_get_scale(const memopt_scaler *scaler)
{
    return scaler == NULL ? NULL : &scaler->block->scale;
}

float *memopt_scaler_get_found_inf(const memopt_scaler *scaler)
{
    return scaler == NULL ? NULL : &scaler->block->found_inf;
}

/* --- steps ----------------------------------------------------------------------------------- */

memopt_status memopt_scaler_unscale(memopt_scaler *scaler, const memopt_tensor *gradients,
                                    uint64_t count, memopt_stream stream)
{
    uint64_t chunks;
    MO_NOT_NULL("scaler unscale", scaler);
    MO_TRY(mo_check_process(scaler->device, "scaler_unscale"));
    MO_TRY(mo_gradient_list_check(scaler->device, "scaler unscale", gradients, count, 1, &chunks));
    mo_scale_args args = {.scale = &scaler->block->scale, .found_inf = &scaler->block->found_inf};
    return mo_gradients_scale(scaler->device, &args, gradients, count, stream);
}

memopt_status memopt_scaler_update(memopt_scaler *scaler, memopt_stream stream)
{
    MO_NOT_NULL("scaler update", scaler);
    MO_TRY(mo_check_process(scaler->device, "scaler_update"));
    mo_scaler_update_args args = {scaler->block, scaler->disabled, 0};
    mo_writes(scaler->device, stream, "scaler update", scaler->block, sizeof *scaler->block);
    return mo_launch(scaler->device, stream, &mo_kernel_scaler_update, &args, 1);
}

/* --- state ----------------------------------------------------------------------------------- */

memopt_status memopt_scaler_get_state_sync(memopt_scaler *scaler, memopt_stream stream,
                                           memopt_scaler_state *out_state)
{
    mo_scaler_block block;
    MO_NOT_NULL("scaler get state", scaler, out_state);
    MO_TRY(mo_check_process(scaler->device, "scaler_get_state_sync"));
    if (out_state->struct_size < sizeof out_state->struct_size)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "scaler get state: struct_size is %zu; set it to "
                       "sizeof(memopt_scaler_state)",
                       out_state->struct_size);
    MO_TRY(memopt_copy_sync(scaler->device, &block, scaler->block, sizeof block, stream));
    const memopt_scaler_state state = {sizeof state,          block.scale,
                                       block.growth_factor,   block.backoff_factor,
                                       block.growth_interval, block.growth_tracker};
    return mo_result_write(out_state, &state, sizeof state, "memopt_scaler_state");
}

memopt_status memopt_scaler_set_state_sync(memopt_scaler *scaler, const memopt_scaler_state *state,
                                           memopt_stream stream)
{
    memopt_scaler_state copy;
    MO_NOT_NULL("scaler set state", scaler, state);
    MO_TRY(mo_check_process(scaler->device, "scaler_set_state_sync"));
    MO_TRY(mo_options_read(&copy, sizeof copy, state, "memopt_scaler_state"));
    MO_TRY(check_state("scaler set state", &copy));
    if (scaler->disabled)
        copy.scale = 1.0;
    return write_block(scaler->device, scaler->block, &copy, 0, stream);
}
