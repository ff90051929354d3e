#include "core/context.h"

#include <stdio.h>
#include <stdlib.h>

#define CONTEXT_MAGIC 0x636F6E7465787431u

enum { STACK = 32 };

static __thread sim_context *stack[STACK];
static __thread int depth;

/* Drivers write to standard error as they please. */
static void make_noise(int device)
{
    static int made;
    if (sim_options.noise && !made)
        fprintf(stderr, "simulated %s: a context of device %d, with regards to the terminal\n",
                sim_is_hip ? "HIP" : "CUDA", device);
    made = 1;
}

static sim_context *new_context(int device)
{
    sim_context *context = sim_handle_new(sizeof *context);
    if (context == NULL)
        return NULL;
    context->magic = CONTEXT_MAGIC;
    context->device = device;
    if (sim_stream_create(context, 1, &context->legacy) != SIM_OK) {
        free(context);
        return NULL;
    }
    context->legacy->legacy = 1;
    return context;
}

sim_status sim_context_retain(int device, sim_context **out_context)
{
    sim_device *d = &sim_devices[device];
    if (d->retains == 0) {
        d->context = new_context(device);
        if (d->context == NULL)
            return SIM_OUT_OF_MEMORY;
        make_noise(device);
    }
    d->retains++;
    *out_context = d->context;
    return SIM_OK;
}

/* Structs of dead contexts stay, so that their handles are known for what they are. */
sim_status sim_context_release(int device)
{
    sim_device *d = &sim_devices[device];
    if (d->retains == 0)
        return SIM_INVALID_CONTEXT;
    if (--d->retains > 0)
        return SIM_OK;
    sim_context *context = d->context;
    for (sim_stream *s = sim_streams, *next; s != NULL; s = next) {
        next = s->next;
        if (s->context == context)
            (void)sim_stream_destroy(s);
    }
    sim_context_sweep(device);
    context->destroyed = 1;
    d->context = NULL;
    return SIM_OK;
}

sim_status sim_context_check(const sim_context *context)
{
    if ((uintptr_t)context < SIM_PAGE || (uintptr_t)context % sizeof(void *) != 0 ||
        context->magic != CONTEXT_MAGIC)
        return SIM_INVALID_CONTEXT;
    return context->destroyed ? SIM_CONTEXT_DESTROYED : SIM_OK;
}

sim_context *sim_context_current(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

sim_status sim_context_push(sim_context *context)
{
    if (depth == STACK)
        return SIM_INVALID_VALUE;
    stack[depth++] = context;
    return SIM_OK;
}

sim_status sim_context_pop(sim_context **out_context)
{
    if (depth == 0)
        return SIM_INVALID_CONTEXT;
    *out_context = stack[--depth];
    return SIM_OK;
}

void sim_context_set(sim_context *context)
{
    if (context == NULL) {
        if (depth > 0)
            depth--;
        return;
    }
    if (depth == 0)
        depth = 1;
    stack[depth - 1] = context;
}

sim_status sim_context_require(sim_context **out_context)
{
    sim_context *context = sim_context_current();
    if (context == NULL)
        return SIM_INVALID_CONTEXT;
    if (context->destroyed)
        return SIM_CONTEXT_DESTROYED;
    *out_context = context;
    return context->sticky;
}
