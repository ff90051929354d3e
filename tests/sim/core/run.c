/* Operations: what is checked when they are enqueued, and what they do when they run. */
#include "core/sim.h"

#include "emulator.h"

#include <stdlib.h>
#include <string.h>

sim_op *sim_op_new(sim_op_kind kind, sim_context *context)
{
    sim_op *op = calloc(1, sizeof *op);
    if (op == NULL)
        return NULL;
    op->kind = kind;
    op->context = context;
    return op;
}

const char *sim_kernel_name(const sim_op *op)
{
    return op->launch != NULL ? op->launch->kernel->name : NULL;
}

void sim_op_free(sim_op *op)
{
    free(op->staged);
    free(op->launch);
    free(op);
}

/* A graph's operation, once more. */
sim_op *sim_op_clone(const sim_op *op)
{
    sim_op *copy = malloc(sizeof *copy);
    if (copy == NULL)
        return NULL;
    *copy = *op;
    if (op->launch != NULL) {
        copy->launch = malloc(sizeof *copy->launch);
        if (copy->launch == NULL) {
            free(copy);
            return NULL;
        }
        *copy->launch = *op->launch;
    }
    if (op->staged != NULL) {
        copy->staged = malloc(op->bytes);
        if (copy->staged == NULL) {
            free(copy->launch);
            free(copy);
            return NULL;
        }
        memcpy(copy->staged, op->staged, op->bytes);
    }
    return copy;
}

/* --- running ------------------------------------------------------------------------------- */

/* Where the simulator finds the bytes behind an address; *out_bytes of them are adjacent. */
static unsigned char *bytes_at(uintptr_t address, uint64_t wanted, uint64_t *out_bytes)
{
    const sim_arena *arena = sim_arena_of(address);
    *out_bytes = wanted;
    if (arena == NULL)
        return (unsigned char *)address;
    const sim_mapping *m = sim_find_mapping(arena, address);
    uint64_t within = address - m->address;
    if (m->bytes - within < wanted)
        *out_bytes = m->bytes - within;
    return (unsigned char *)arena->alias + m->physical->offset + within;
}

static int reachable(const sim_context *by, uintptr_t address, uint64_t bytes)
{
    return sim_arena_of(address) == NULL || sim_accessible(by->device, address, bytes);
}

static void fault(sim_op *op, uintptr_t address, const char *what)
{
    sim_violation(0, op->site, "%s at %p: no accessible memory there when the operation ran", what,
                  (void *)address);
    op->context->sticky = SIM_ILLEGAL_ADDRESS;
}

static void run_copy(sim_op *op)
{
    if (!reachable(op->context, op->source, op->bytes)) {
        fault(op, op->source, "copy from");
        return;
    }
    if (!reachable(op->context, op->destination, op->bytes)) {
        fault(op, op->destination, "copy to");
        return;
    }
    if (op->staged == NULL) {
        (void)sim_shadow_initialised(op, op->source, op->bytes);
        sim_shadow_range(op, op->source, op->bytes, 0);
    }
    sim_shadow_range(op, op->destination, op->bytes, 1);
    for (uint64_t done = 0; done < op->bytes;) {
        uint64_t left = op->bytes - done, here = left;
        const unsigned char *from =
            op->staged != NULL ? op->staged + done : bytes_at(op->source + done, left, &here);
        unsigned char *to = bytes_at(op->destination + done, here, &here);
        memmove(to, from, here);
        done += here;
    }
}

static void run_fill(sim_op *op)
{
    if (!reachable(op->context, op->destination, op->bytes)) {
        fault(op, op->destination, "fill");
        return;
    }
    sim_shadow_range(op, op->destination, op->bytes, 1);
    for (uint64_t done = 0; done < op->bytes;) {
        uint64_t here = 0;
        unsigned char *to = bytes_at(op->destination + done, op->bytes - done, &here);
        if (op->value_bytes == 1)
            memset(to, (unsigned char)op->value, here);
        for (uint64_t i = 0; i < here && op->value_bytes != 1; i++) /* 2 or 4 bytes */
            to[i] = (unsigned char)(op->value >> 8 * ((done + i) & (op->value_bytes - 1)));
        done += here;
    }
}

static void run_host_function(sim_op *op)
{
    pthread_mutex_unlock(&sim_lock);
    sim_enter_host_function(1);
    op->function(op->user);
    sim_enter_host_function(0);
    pthread_mutex_lock(&sim_lock);
}

static void run(sim_op *op)
{
    switch (op->kind) {
    case SIM_COPY:
        run_copy(op);
        break;
    case SIM_FILL:
        run_fill(op);
        break;
    case SIM_LAUNCH:
        if (!sim_emulate(op))
            op->context->sticky = SIM_ILLEGAL_ADDRESS;
        break;
    case SIM_HOST:
        run_host_function(op);
        break;
    case SIM_RECORD:
        if (op->event_record >= op->event->records)
            op->event->nanoseconds = sim_nanoseconds();
        break;
    case SIM_NOTHING:
        break;
    }
}

void sim_op_run(sim_op *op)
{
    if (op->context->sticky != SIM_OK && op->kind != SIM_HOST)
        return; /* the device has stopped */
    struct sim_late *late = sim_begin_late(op);
    run(op);
    sim_end_late(late);
}

/* --- enqueueing ---------------------------------------------------------------------------- */

static int is_pageable(uintptr_t address, uint64_t bytes)
{
    return sim_arena_of(address) == NULL && !sim_registered(address, bytes);
}

/* Pageable sources are read at the call, pageable destinations are written before it returns, as
 * real drivers do it by staging. An address without memory is told at the call, or when it runs
 * where the memory went away in between. */
/* HIP was seen to refuse what does not lie in one mapping (MEMOPT_SIM_SEAMS). */
static int crosses_seam(uintptr_t address, uint64_t bytes)
{
    const sim_arena *arena = sim_options.seams ? sim_arena_of(address) : NULL;
    const sim_mapping *m = arena != NULL ? sim_find_mapping(arena, address) : NULL;
    return m != NULL && bytes > m->bytes - (address - m->address);
}

sim_status sim_copy(sim_stream *stream, uintptr_t destination, uintptr_t source, uint64_t bytes)
{
    if (bytes == 0)
        return stream->context->sticky;
    if (source == 0 || destination == 0 || source + bytes < source ||
        destination + bytes < destination || !reachable(stream->context, source, bytes) ||
        !reachable(stream->context, destination, bytes) || crosses_seam(source, bytes) ||
        crosses_seam(destination, bytes))
        return SIM_INVALID_VALUE;
    sim_op *op = sim_op_new(SIM_COPY, stream->context);
    if (op == NULL)
        return SIM_OUT_OF_MEMORY;
    op->destination = destination;
    op->source = source;
    op->bytes = bytes;
    if (is_pageable(source, bytes) && stream->capture == NULL) {
        op->staged = malloc(bytes);
        if (op->staged == NULL) {
            sim_op_free(op);
            return SIM_OUT_OF_MEMORY;
        }
        memcpy(op->staged, (const void *)source, bytes);
    }
    sim_status status = sim_submit(stream, op);
    if (status == SIM_OK && is_pageable(destination, bytes) && stream->capture == NULL)
        status = sim_stream_sync(stream);
    return status;
}

sim_status sim_fill(sim_stream *stream, uintptr_t destination, uint32_t value, uint32_t value_bytes,
                    uint64_t count)
{
    uint64_t bytes = count * value_bytes;
    if (count == 0)
        return stream->context->sticky;
    const sim_arena *arena = sim_arena_of(destination);
    int device = stream->context->device;
    if (destination % value_bytes != 0 || arena == NULL ||
        !sim_accessible(device, destination, bytes) || crosses_seam(destination, bytes) ||
        (sim_find_mapping(arena, destination)->access >> device & 1) == 0)
        return SIM_INVALID_VALUE;
    sim_op *op = sim_op_new(SIM_FILL, stream->context);
    if (op == NULL)
        return SIM_OUT_OF_MEMORY;
    op->destination = destination;
    op->bytes = bytes;
    op->value = value;
    op->value_bytes = value_bytes;
    return sim_submit(stream, op);
}

sim_status sim_host_function(sim_stream *stream, void (*function)(void *), void *user)
{
    if (function == NULL)
        return SIM_INVALID_VALUE;
    sim_op *op = sim_op_new(SIM_HOST, stream->context);
    if (op == NULL)
        return SIM_OUT_OF_MEMORY;
    op->function = function;
    op->user = user;
    return sim_submit(stream, op);
}

typedef struct callback {
    void (*function)(sim_stream *, int32_t, void *);
    sim_stream *stream;
    void *user;
} callback;

static void run_callback(void *user)
{
    callback c = *(callback *)user;
    free(user);
    c.function(c.stream, 0, c.user);
}

sim_status sim_stream_callback(sim_stream *stream, sim_stream *handle,
                               void (*function)(sim_stream *, int32_t, void *), void *user)
{
    if (function == NULL)
        return SIM_INVALID_VALUE;
    if (stream->capture != NULL)
        return sim_capture_break(stream->capture, SIM_CAPTURE_UNSUPPORTED);
    callback *c = malloc(sizeof *c);
    if (c == NULL)
        return SIM_OUT_OF_MEMORY;
    *c = (callback){function, handle, user};
    sim_status status = sim_host_function(stream, run_callback, c);
    if (status != SIM_OK)
        free(c);
    return status;
}
