/*
 * The optimizer's handle, and which file owns what:
 *
 *   optimizer.c   create, destroy, groups
 *   streams.c     the streams that have used it
 *   parameters.c  parameters, their states
 *   views.c       state tensors as the caller sees them
 *   add.c         adding a parameter, whose states the caller may own
 *   tables.c      the tables in device memory that the kernels read
 *   step.c        one step: checks, reductions, prologue, update
 *   adafactor.c   the launches of Adafactor in place of the update's; trust.c those of LAMB and LARS
 *   paged.c       states in host memory, brought to the device page by page; paged_life.c makes and
 *                 ends what that needs
 *   steps.c       step counts of parameters
 *   layout.c      the export format; export.c writes it, exported.c and import.c read it; save.c has
 *                 files
 *   convert.c     states of an export in another format
 *   blockwise.c   block-wise quantisation of the caller's tensors
 *   arguments.c   checks of tensors
 *
 * Invariants. Everything the kernels read lies in device memory and is written in stream order:
 * nothing changes what a pending step reads. A parameter's state is one block of the allocator that
 * holds its step count too, or the caller's memory; only the update kernel (and an import) writes
 * there. The host keeps copies of the tables to know what the device has; `uploaded` parts are
 * equal on the host and the device.
 */
#ifndef MO_OPTIM_OPTIM_H
#define MO_OPTIM_OPTIM_H

#include "kernels/optim/optim_step.h"
#include "memopt/optim.h"

#include "device/device.h"

#include <pthread.h>

/* Steps beyond this do not fit a double exactly. */
#define MO_STEPS_LIMIT (UINT64_C(1) << 53)

/* State tensors of a parameter, at most. */
enum { MO_STATES_MAX = 7 };

typedef struct mo_parameter {
    memopt_tensor tensor;
    memopt_tensor copy; /* data NULL: none */
    uint32_t group;
    uint32_t format;        /* a memopt_state_format */
    uint32_t block;         /* elements that share a scale, where the format has scales */
    uint32_t moments;       /* kept: 1 to 3; 0 of SGD while its group has no momentum */
    uint32_t split;         /* bytes of an element's residual: 1 or 2; 0: not split */
    uint32_t rows, columns; /* of matrices of Adafactor, which have two moments; else 0 */
    uint64_t first, whole;  /* its place in the whole parameter; not cut: 0 and its count */
    void *state;            /* the allocator's block; NULL: the caller owns the states */
    uint64_t state_bytes;
    void *host;    /* with pages: the states, where the state block has the step count alone */
    uint64_t page; /* its number, and the place of the states in the page's area */
    uint64_t page_offset;
    /* What the device's table says; with pages, the host's addresses of the states. */
    mo_optim_tensor device;
} mo_parameter;

/* A table in device memory. */
typedef struct mo_table {
    void *data;
    uint64_t capacity; /* bytes */
    int current;       /* 1: the device has what the host has */
} mo_table;

typedef struct mo_optimizer_stream {
    memopt_stream stream;
    int ending; /* 1: the handle must not be used any more */
} mo_optimizer_stream;

/* States in host memory: paged.c. */
typedef struct mo_paged {
    memopt_stream in, out;
    /* By area: the states are there; the step is done; they are back. */
    memopt_event *arrived[2], *stepped[2], *left[2];
    void *areas[2];
    uint64_t area_bytes, count;
    int opened;  /* streams and events are made */
    int planned; /* each parameter has its page, and the areas have room */
    int torn;    /* a step ended in part; of trust too */
} mo_paged;

struct memopt_optimizer {
    memopt_allocator *allocator;
    memopt_device *device;
    memopt_optimizer_options options; /* defaults filled in */

    memopt_optimizer_group *groups;
    uint64_t group_count, group_capacity;
    mo_parameter *parameters;
    uint64_t parameter_count, parameter_capacity;

    mo_tensor_segment *segments; /* the gradients of the last step, as uploaded */
    mo_tensor_segment *next;     /* those of the step being made */
    uint64_t segment_count, segments_capacity, next_capacity;

    mo_table tensor_table, segment_table, group_table, coef_table, scratch;
    mo_table control;
    mo_paged pages;
    int is_cut;  /* a parameter is a shard */
    int halfway; /* of trust: the first half of a step is made, not the second; 2: of a direct one */
    int recorded; /* a graph has recorded a step of trust */

    pthread_mutex_t streams_lock; /* guards what follows, up to the listener */
    mo_optimizer_stream *streams; /* that have used any of it */
    uint64_t stream_count, stream_capacity;
    int unwaited; /* 1: a stream has ended whose work may still run */
    mo_stream_listener listener;
    uint64_t mailbox; /* receives step counts; valid after a failed wait */
};

/* streams.c */
void mo_optimizer_listen(memopt_optimizer *o);
void mo_optimizer_unlisten(memopt_optimizer *o);
memopt_status mo_optimizer_use_stream(memopt_optimizer *o, memopt_stream stream);
/* Frees a block in order of all streams that have used it. */
memopt_status mo_optimizer_release(memopt_optimizer *o, void *block);

/* optimizer.c */
memopt_status mo_optimizer_group_check(const memopt_optimizer_group *group);

/* tables.c */
/* Makes room for `bytes` in a table; what was in it is lost and it is no longer current. */
memopt_status mo_table_reserve(memopt_optimizer *o, mo_table *table, uint64_t bytes,
                               memopt_stream stream);
/* Writes host bytes to device memory in stream order; the host's may change at once. */
memopt_status mo_upload(memopt_optimizer *o, void *destination, const void *source, uint64_t bytes,
                        memopt_stream stream);
memopt_status mo_upload_tensors(memopt_optimizer *o, memopt_stream stream);
memopt_status mo_upload_groups(memopt_optimizer *o, memopt_stream stream);
/* Takes o->next[0 .. count) as the gradients of this step. */
memopt_status mo_upload_segments(memopt_optimizer *o, uint64_t count, memopt_stream stream);

/* paged_life.c */
/* CORRUPT if a step ended in part. */
memopt_status mo_paged_check(const memopt_optimizer *o, const char *call);
memopt_status mo_paged_open(memopt_optimizer *o);
/* Waits for all copies. */
memopt_status mo_paged_settle(memopt_optimizer *o);
/* Waits for all copies. Frees everything, whatever the status. */
memopt_status mo_paged_close(memopt_optimizer *o);

/* paged.c */
/* The tensor as the device's table has it. */
mo_optim_tensor mo_paged_tensor(const memopt_optimizer *o, const mo_parameter *p);
/* Everything that a step of pages needs and that can fail on the host. */
memopt_status mo_paged_prepare(memopt_optimizer *o, memopt_stream stream);
/* A step: begin; bring and return for each page, whose segments, `count` of them, are uploaded;
 * end. Between bring and return the page's step is launched. */
memopt_status mo_paged_begin(memopt_optimizer *o, memopt_stream stream);
memopt_status mo_paged_bring(memopt_optimizer *o, uint64_t page, uint64_t count,
                             memopt_stream stream);
memopt_status mo_paged_return(memopt_optimizer *o, uint64_t page, uint64_t count,
                              memopt_stream stream);
memopt_status mo_paged_end(memopt_optimizer *o, memopt_stream stream);

/* optimizer.c: what a kind and a format are made of. */
/* What a step needs of a parameter of the group: 0 to 3. */
uint32_t mo_optimizer_moments(const memopt_optimizer *o, uint32_t group);
const mo_kernel *mo_optimizer_kernel(uint32_t kind, uint32_t format); /* NULL: not supported */
/* "8-bit" or the like; "no" for 0. */
const char *mo_format_name(uint32_t format);
/* Formats that only exports of older libraries have, and a message that names the heir. */
int mo_format_is_old(uint32_t format);
memopt_status mo_format_fail_old(const char *subject, uint32_t format);
/* Room for a list of all formats. */
enum { MO_FORMAT_LIST = 128 };
/* Writes "32-bit (1), 8-bit (2)", the formats whose bit is in the set; returns text. */
const char *mo_format_list(char *text, uint32_t set);

/* adafactor.c: room for its scratch, and the step of all segments behind the prologue. */
memopt_status mo_adafactor_prepare(memopt_optimizer *o, memopt_stream stream);
memopt_status mo_adafactor_launch(memopt_optimizer *o, memopt_stream stream);
/* Rows and columns of a new parameter. */
memopt_status mo_matrices_check(const memopt_optimizer *o, const memopt_tensor *parameter,
                                const memopt_parameter_options *options);

/* trust.c: room for its scratch, and the step of all segments behind the prologue, or a half. */
memopt_status mo_trust_prepare(memopt_optimizer *o, const memopt_step_options *s,
                               memopt_stream stream);
memopt_status mo_trust_launch(memopt_optimizer *o, const memopt_step_options *s,
                              memopt_stream stream);

/* parameters.c */
uint64_t mo_parameter_blocks(const mo_parameter *p);
/* State tensors: moments, their scales, the residual. */
uint64_t mo_parameter_states(const mo_parameter *p);
/* Type and elements of one of them; data is NULL. */
memopt_tensor mo_parameter_state(const mo_parameter *p, uint64_t index);
/* Points a table's entry at states, which are in the order of memopt_optimizer_get_state(). */
void mo_parameter_place(const mo_parameter *p, void *const *states, mo_optim_tensor *out);
/* Fills p->device. */
void mo_parameter_describe(mo_parameter *p, void *const *states, void *steps);
static inline int mo_parameter_is_cut(const mo_parameter *p)
{
    return p->tensor.count != p->whole;
}
/* A shard of `count` elements from `first` on: within its whole, and cut where blocks are. */
int mo_shard_is_right(uint64_t first, uint64_t count, uint64_t whole);
/* What is known of a new one before its states are. */
mo_parameter mo_parameter_of(const memopt_optimizer *o, uint32_t group,
                             const memopt_tensor *parameter,
                             const memopt_parameter_options *options);
memopt_status mo_parameter_check(const memopt_optimizer *o, uint32_t group,
                                 const memopt_tensor *parameter, const memopt_tensor *copy,
                                 const memopt_shard *shard);
/* Makes room for one more; then append cannot fail. */
memopt_status mo_parameter_room(memopt_optimizer *o);
void mo_parameter_append(memopt_optimizer *o, const mo_parameter *p, uint64_t *out_index);
/* Appends it with states of the allocator, zeroed in stream order. Pre: there is room. */
memopt_status mo_parameter_add(memopt_optimizer *o, mo_parameter *p, memopt_stream stream,
                               uint64_t *out_index);
/* Gives it the moments that its group now needs, zeroed in stream order. */
memopt_status mo_parameter_grow(memopt_optimizer *o, uint64_t index, memopt_stream stream);

/* arguments.c: subject is "optimizer: gradient" or the like; index names the tensor, which has
 * `least` elements. */
memopt_status mo_optim_tensor_check(const char *subject, uint64_t index,
                                    const memopt_tensor *tensor, uint64_t least);
/* For one that has passed the check. */
memopt_status mo_optim_tensor_reachable(memopt_device *device, const char *subject, uint64_t index,
                                        const memopt_tensor *tensor);
int mo_optim_tensors_overlap(const memopt_tensor *a, const memopt_tensor *b);

#endif
