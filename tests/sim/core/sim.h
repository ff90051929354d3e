/*
 * The core of the simulated drivers: what CUDA and HIP have in common.
 *
 * Each simulated library holds its own copy of everything here. One lock (sim_lock) guards all
 * state; every entry point takes it through sim_enter and gives it up with sim_leave. It is given
 * up in the middle only around host functions, while `busy` keeps other threads from running
 * operations.
 *
 * A device's physical memory is a sparse file, mapped once at `alias` where only the simulator
 * looks, and at the addresses that the program sees without any access: a program that reads a
 * device pointer on the host crashes as it would with a GPU. Kernels open what they touch.
 */
#ifndef MEMOPT_SIM_CORE_H
#define MEMOPT_SIM_CORE_H

#include "core/status.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SIM_SLOTS = 192,   /* streams alive at a time, default streams included */
    SIM_DEVICES = 8,   /* at most */
    SIM_FRAMES = 10,   /* of a call's backtrace */
    SIM_PAGE = 4096,   /* of the host, and of host registration */
    SIM_PARAMS = 4096, /* bytes of a launch's parameters */
    SIM_MULTIPROCESSORS = 8
};

/* How far each stream has come, as one operation must find it: clock[slot] operations done. */
typedef struct sim_clock {
    uint32_t at[SIM_SLOTS];
} sim_clock;

/* Who did something, for messages; kept for the life of the process. */
typedef struct sim_site {
    const char *call;   /* the entry point */
    const char *kernel; /* of a launch, or NULL */
    uint16_t slot;
    uint16_t depth;
    uint32_t clock;
    void *frames[SIM_FRAMES];
} sim_site;

typedef struct sim_mapping sim_mapping;
typedef struct sim_stream sim_stream;
typedef struct sim_event sim_event;
typedef struct sim_graph sim_graph;
typedef struct sim_op sim_op;

typedef struct sim_chunk {
    uint64_t offset, bytes;
} sim_chunk;

/* Physical memory (of a device, or the pinned memory of the host) and the addresses it shows at. */
typedef struct sim_arena {
    int index; /* the device, -1 for the host */
    int file;
    char *alias;            /* [0, SIM_SPAN): the physical bytes */
    struct sim_cell *cells; /* by alias offset / 4: see shadow.c */
    struct sim_tag *tags;   /* by alias offset: see race.c */
    uintptr_t va;           /* [va, va + SIM_VA): addresses for the program */
    uint64_t va_used, physical_used;
    sim_chunk *spare; /* released physical ranges, oldest first */
    uint64_t spare_count, spare_capacity;
    sim_mapping **mappings; /* by address */
    uint64_t mapping_count, mapping_capacity;
} sim_arena;

/* A physical allocation. */
typedef struct sim_physical {
    sim_arena *arena;
    uint64_t offset, bytes;
    uint32_t mapped; /* mappings that show it */
    uint32_t ghosts; /* addresses that keep it although it is unmapped */
    int file;        /* the descriptor that it costs, or -1 */
    int shared;      /* the file that it lies in since it was exported or imported, or -1 */
    int exportable;  /* it was made for that */
    int imported;    /* another process counts it */
    int released;    /* by the program; gone when mapped is 0 too */
    uint64_t magic;
} sim_physical;

/* What shows at an address: a mapping of virtual memory, or the whole of a plain allocation. */
struct sim_mapping {
    uintptr_t address;
    uint64_t bytes;
    sim_physical *physical;
    int plain;       /* from mem_alloc or host_alloc */
    uint32_t access; /* a bit for each device that has it */
    int open;        /* a running kernel has touched it */
    int late;        /* what runs first does not see it yet */
};

typedef struct sim_range {
    uintptr_t start;
    uint64_t bytes;
    int stuck; /* the driver has lost count of its mappings */
} sim_range;

typedef struct sim_ranges {
    sim_range *items;
    uint64_t count, capacity;
} sim_ranges;

/* Where a mapping was, in a driver that keeps the memory until the addresses go. */
typedef struct sim_ghost {
    uintptr_t address;
    sim_physical *physical;
} sim_ghost;

typedef struct sim_ghosts {
    sim_ghost *items;
    uint64_t count, capacity;
} sim_ghosts;

/* Nodes of a graph, by their numbers. */
typedef struct sim_nodes {
    uint32_t *items;
    uint64_t count, capacity;
} sim_nodes;

typedef struct sim_device {
    sim_arena arena;
    uint64_t total, used;
    sim_ranges reservations;
    sim_ghosts ghosts;
    uint32_t retains;
    struct sim_context *context; /* the live primary context, or NULL */
    int lost;
} sim_device;

typedef struct sim_context {
    uint64_t magic;
    int device;
    int destroyed;
    sim_status sticky; /* every later call fails with it */
    sim_stream *legacy;
    sim_clock ended; /* what its destroyed streams did: a wait for the context covers it */
} sim_context;

/* The environment (README.md tells each variable). */
typedef struct sim_config {
    int devices;
    uint64_t total;
    uint32_t major, minor, warp_size;
    uint32_t driver_version;
    const char *gfx, *name, *missing;
    int virtual_memory, fill, dead_stream, rdma, pageable;
    int noise, handle_files, tail_access, late_maps;
    int keeps, seams, unmap_many, share, peers;
    uint64_t seed, lag;
} sim_config;

typedef enum sim_op_kind {
    SIM_COPY,
    SIM_FILL,
    SIM_LAUNCH,
    SIM_HOST,
    SIM_RECORD,
    SIM_NOTHING
} sim_op_kind;

typedef struct sim_kernel_call {
    const struct mo_sim_kernel *kernel;
    uint32_t grid, block;
    unsigned char args[SIM_PARAMS];
    uint64_t first_item;
} sim_kernel_call;

struct sim_op {
    sim_op *next;
    sim_op_kind kind;
    uint32_t site, clock;
    sim_context *context;
    sim_clock needs;
    uintptr_t destination, source;
    uint64_t bytes;
    uint32_t value, value_bytes;
    unsigned char *staged; /* pageable source taken at the call */
    void (*function)(void *user);
    void *user;
    sim_event *event;
    uint32_t event_record;
    sim_kernel_call *launch;
};

struct sim_stream {
    uint64_t magic;
    sim_context *context;
    sim_stream *next; /* of all live streams */
    uint16_t slot;
    int legacy, blocking, destroyed;
    uint32_t submitted, completed;
    uint64_t number; /* of the last operation, among those of all streams */
    sim_op *head, *tail;
    sim_clock clock; /* what later operations of this stream come after */
    uint32_t polls;
    sim_graph *capture; /* recording into this graph */
    sim_nodes ends;     /* the nodes that the next one comes after */
};

struct sim_event {
    uint64_t magic;
    sim_context *context;
    sim_stream *stream; /* of the last record; NULL: never recorded */
    sim_clock clock;    /* including the record */
    uint16_t slot;
    uint32_t record_clock, records;
    uint64_t number;      /* as a stream's */
    uint64_t nanoseconds; /* when the last record ran */
    int timing, destroyed, blocking;
    uint32_t polls;
    sim_graph *capture; /* of the last record, also once it has ended */
    sim_nodes ends;
};

extern pthread_mutex_t sim_lock;
extern sim_config sim_options;
extern sim_device sim_devices[SIM_DEVICES];
extern sim_arena sim_host;
extern sim_stream *sim_streams;
extern sim_clock sim_host_clock; /* what the host has seen to be done */
extern const int sim_is_hip;

/* A page of virtual memory: HIP says 4 KiB. */
static inline uint64_t sim_granule(void)
{
    return sim_is_hip ? 4u << 10 : 2u << 20;
}

/* --- state.c: environment, faults, violations ---------------------------------------------- */

/* Takes the lock; *out_code is the vendor's error where a fault is armed for this call, the device
 * is lost or the caller is a host function. Returns 0 then (the lock is not held). */
int sim_enter(const char *call, int32_t *out_code);
void sim_leave(void);
/* Names the call for sites; set by sim_enter. */
const char *sim_call(void);
int sim_initialise(void); /* once; 0 when memory ran out */
uint64_t sim_random(void);
uint64_t sim_nanoseconds(void);
/* The site of the running call, as an index for sim_site_at. */
uint32_t sim_site_here(uint16_t slot, uint32_t clock, const char *kernel);
const sim_site *sim_site_at(uint32_t index);
/* Misuse that a real driver would let pass. Sites may be 0. */
void sim_violation(uint32_t first, uint32_t second, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int sim_symbol_missing(const char *symbol);
void sim_enter_host_function(int inside);
/* Zeroed memory for a struct that stays for the life of the process: what the program holds a
 * handle to, so that dead handles are known for what they are. */
void *sim_handle_new(size_t bytes);
void *sim_grow(void *items, uint64_t count, uint64_t *capacity, size_t size);

/* --- arena.c, memory.c -------------------------------------------------------------------- */

int sim_arena_init(sim_arena *arena, int index);
sim_arena *sim_arena_of(uintptr_t address); /* NULL: not device or pinned memory */
sim_mapping *sim_find_mapping(const sim_arena *arena, uintptr_t address);
/* True if the device can copy and fill every byte of the range: the driver stages copies of other
 * devices' plain memory. */
int sim_accessible(int device, uintptr_t address, uint64_t bytes);
/* True if the range lies in registered host memory. */
int sim_registered(uintptr_t address, uint64_t bytes);
sim_status sim_mem_alloc(sim_context *context, uint64_t bytes, uintptr_t *out_address);
sim_status sim_mem_free(sim_context *context, uintptr_t address);
sim_status sim_vm_reserve(int device, uint64_t bytes, uint64_t align, uintptr_t *out_address);
sim_status sim_vm_unreserve(uintptr_t address, uint64_t bytes);
sim_status sim_vm_create(int device, uint64_t bytes, sim_physical **out_physical);
sim_status sim_vm_map(uintptr_t address, uint64_t bytes, uint64_t offset, sim_physical *physical);
/* For the devices of the two masks. */
sim_status sim_vm_set_access(uintptr_t address, uint64_t bytes, uint32_t give, uint32_t take);
sim_status sim_vm_unmap(uintptr_t address, uint64_t bytes);
sim_status sim_vm_release(sim_physical *physical);
/* share.c */
sim_status sim_vm_export(sim_physical *physical, int *out_file);
sim_status sim_vm_import(int file, sim_physical **out_physical);
/* Its bytes are where those of the arena are again. */
void sim_unshare(sim_physical *physical);
/* Marks memory as written, by an operation before all others. */
void sim_shadow_written(const sim_arena *arena, uint64_t offset, uint64_t bytes);
sim_status sim_host_alloc(uint64_t bytes, void **out_pointer);
sim_status sim_host_free(uintptr_t address);
sim_status sim_host_register(uintptr_t address, uint64_t bytes);
sim_status sim_host_unregister(uintptr_t address);
/* Before and after an operation: mappings that it is the first to touch look as if nothing were
 * there. Returns what sim_end_late needs, NULL where there are none. */
struct sim_late *sim_begin_late(const sim_op *op);
void sim_end_late(struct sim_late *late);
void sim_open_mapping(const sim_arena *arena, sim_mapping *mapping);
void sim_close_mappings(void);
/* Frees what a dying primary context still holds; every leak is a violation. */
void sim_context_sweep(int device);

/* --- shadow.c ------------------------------------------------------------------------------ */

/* One access of op to mapped device or pinned memory, in the order of execution. */
void sim_shadow_access(const sim_op *op, const sim_arena *arena, uint64_t offset, uint64_t bytes,
                       int write);
/* The same for a range of addresses, over mappings; skips what is neither device nor pinned. */
void sim_shadow_range(const sim_op *op, uintptr_t address, uint64_t bytes, int write);
/* The whole range must have been written: 0 where it was not (and the violation is told). */
int sim_shadow_initialised(const sim_op *op, uintptr_t address, uint64_t bytes);

/* --- stream.c ------------------------------------------------------------------------------ */

sim_status sim_stream_create(sim_context *context, int blocking, sim_stream **out_stream);
sim_status sim_stream_check(const sim_stream *stream, const sim_context *context);
sim_status sim_stream_destroy(sim_stream *stream);
sim_status sim_stream_sync(sim_stream *stream);
sim_status sim_stream_query(sim_stream *stream);
sim_status sim_stream_wait(sim_stream *stream, sim_event *event);
sim_status sim_event_create(sim_context *context, int timing, sim_event **out_event);
sim_status sim_event_check(const sim_event *event);
sim_status sim_event_destroy(sim_event *event);
sim_status sim_event_record(sim_event *event, sim_stream *stream);
sim_status sim_event_query(sim_event *event);
sim_status sim_event_sync(sim_event *event);
sim_status sim_event_elapsed(const sim_event *start, const sim_event *end, float *out_milliseconds);
sim_status sim_context_sync(sim_context *context);
/* Enqueues a heap-allocated operation; takes it over. */
sim_status sim_submit(sim_stream *stream, sim_op *op);
/* The same, never into a capture, after all that `also` holds. */
sim_status sim_submit_after(sim_stream *stream, sim_op *op, const sim_clock *also);
void sim_join(sim_clock *into, const sim_clock *other);
/* Waits for what a context's streams were given, capturing ones included. */
void sim_context_wait(const sim_context *context);

/* --- run.c --------------------------------------------------------------------------------- */

/* The name of a launch's kernel. */
const char *sim_kernel_name(const sim_op *op);
sim_op *sim_op_new(sim_op_kind kind, sim_context *context);
void sim_op_free(sim_op *op);
sim_op *sim_op_clone(const sim_op *op);
/* Runs one operation; gives up the lock around host functions. */
void sim_op_run(sim_op *op);
sim_status sim_copy(sim_stream *stream, uintptr_t destination, uintptr_t source, uint64_t bytes);
sim_status sim_fill(sim_stream *stream, uintptr_t destination, uint32_t value, uint32_t value_bytes,
                    uint64_t count);
sim_status sim_host_function(sim_stream *stream, void (*function)(void *), void *user);
/* The older form, which is told the stream's handle and an outcome; not in a capture. */
sim_status sim_stream_callback(sim_stream *stream, sim_stream *handle,
                               void (*function)(sim_stream *, int32_t, void *), void *user);

/* --- graph.c ------------------------------------------------------------------------------- */

sim_status sim_capture_begin(sim_stream *stream, int mode);
sim_status sim_capture_end(sim_stream *stream, sim_graph **out_graph);
/* 0: none, 1: active, 2: invalidated. */
int sim_capture_state(const sim_stream *stream);
/* The calling thread's mode: 0 global, 1 of the thread, 2 relaxed; returns the earlier one. */
int sim_capture_exchange(int mode);
/* Whether a capture forbids this thread an unsafe call: it fails, and so do those captures. */
sim_status sim_capture_forbids(void);
/* The legacy stream of the context is used. CAPTURE_IMPLICIT where a stream captures that it would
 * wait for; `ends`: these captures are invalidated. */
sim_status sim_capture_conflict(const sim_context *context, int ends);
/* What cannot be done with a capturing stream or a captured event was tried: its capture ends. */
sim_status sim_capture_break(sim_graph *graph, sim_status status);
/* Takes the operation over, as the next node of the stream. */
sim_status sim_capture_append(sim_stream *stream, sim_op *op);
sim_status sim_capture_record(sim_event *event, const sim_stream *stream);
/* For an event of a capture, or a stream that captures. */
sim_status sim_capture_wait(sim_stream *stream, const sim_event *event);
void sim_capture_leave(sim_stream *stream); /* the stream ends */
sim_status sim_graph_check(const sim_graph *graph);
sim_status sim_graph_instantiate(sim_graph *graph, sim_graph **out_executable);
sim_status sim_graph_launch(sim_graph *executable, sim_stream *stream);
sim_status sim_graph_destroy(sim_graph *graph);

#endif
