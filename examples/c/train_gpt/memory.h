/*
 * Everything of the trainer that asks the library for memory: the device, the caching allocator,
 * the store of offloaded values, and the short-lived fp32 views through which kernels read and
 * write tensors that are kept in bf16 or fp16.
 *
 * The trainer's kernels are ordinary C functions that run on the calling thread (OpenBLAS does the
 * matrix products), in the place where a GPU program would launch kernels on a stream. So every
 * function here that enqueues work of the library on the default stream waits for it before it
 * returns: with the eager "cpu" device that is free, since that stream runs inline; with the
 * adversarial one it is what makes the order right.
 */
#ifndef GPT_MEMORY_H
#define GPT_MEMORY_H

#include "options.h"
#include "status.h"
#include "tape.h"

typedef struct memory {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_offloader *offloader; /* NULL where nothing is offloaded */
    memopt_offloader *store;     /* of weights that stream; NULL where none do, as the next */
    memopt_streamer *streamer;   /* made with the parameters */
    tape *tape;                  /* not NULL: this is a rehearsal (tape.h) */
    uint32_t unified;            /* the host's memory is the device's */
    memopt_tag workspace;        /* the tag of short-lived scratch memory */
} memory;

/* Opens the device and what stands on it, as the options say. */
memopt_status memory_open(memory *m, const options *o);

/* Closes all of it; what is still allocated (after a failure) is freed. */
memopt_status memory_close(memory *m);

/* Waits for the default stream. */
memopt_status memory_sync(memory *m);

/* A tensor of `count` elements; its contents are undefined. */
memopt_status memory_tensor(memory *m, memopt_dtype dtype, uint64_t count, memopt_tag tag,
                            memopt_tensor *out_tensor);

/* Frees a tensor and forgets it; one without memory is fine. */
memopt_status memory_free(memory *m, memopt_tensor *tensor);

/* Converts one tensor into another of the same count (rounding to nearest even). */
memopt_status memory_cast(memory *m, const memopt_tensor *destination, const memopt_tensor *source);

/* --- views --------------------------------------------------------------------------------- */

/* The views and scratch of one kernel. Errors stick: after the first one everything returns NULL,
 * the kernel is skipped with `if (frame_ok(&f))`, as in a rehearsal, and frame_end() returns the
 * error. */
#define FRAME_VIEWS 12
typedef struct frame {
    memory *memory;
    memopt_status status;
    int count;
    struct {
        memopt_tensor wide;   /* fp32 scratch; no memory where the tensor is fp32 itself */
        memopt_tensor narrow; /* where it goes back to; no memory where it was only read */
    } views[FRAME_VIEWS];
} frame;

frame frame_begin(memory *m);

static inline int frame_ok(const frame *f)
{
    return f->status == MEMOPT_OK && !f->memory->tape;
}

/* A tensor's values as fp32: itself, or a converted copy until frame_end(). */
const float *frame_read(frame *f, const memopt_tensor *tensor);

/* Memory for new values of a tensor; frame_end() rounds them into it where it is narrower. */
float *frame_write(frame *f, const memopt_tensor *tensor);

/* A tensor's values to be changed in place. */
float *frame_update(frame *f, const memopt_tensor *tensor);

/* Scratch of `count` floats until frame_end(). */
float *frame_scratch(frame *f, uint64_t count);

/* Writes back, frees, and returns the first error. */
memopt_status frame_end(frame *f);

/* --- figures ------------------------------------------------------------------------------- */

/* What the memory of a run came to, in bytes. */
typedef struct memory_figures {
    uint64_t weights, gradients, optimizer, activations, workspace; /* peaks by tag */
    uint64_t live, live_peak;                                       /* bytes in blocks */
    uint64_t exact, exact_peak; /* bytes that were asked for, with the streamed weights' arena */
    uint64_t reserved, reserved_peak; /* bytes held from the device */
    uint64_t capacity;
    uint64_t pinned_peak; /* page-locked host memory */
    memopt_stream_stats streamed;
    memopt_stream_plan plan; /* of the streamed weights; no layers where there are none */
} memory_figures;

/* What streamed so far; all 0 where no weights stream. */
memopt_status memory_streamed(memory *m, memopt_stream_stats *out_stats);

memopt_status memory_measure(memory *m, memory_figures *out_figures);

/* "1.50 GiB" into text[SIZE_TEXT]; returns text. */
#define SIZE_TEXT 24
const char *size_text(char *text, uint64_t bytes);

#endif
