/*
 * The "cpu" back end: host memory with a capacity, and streams that are queues of operations.
 *
 * Eager order: the NULL stream runs operations on the calling thread; every other stream has a
 * worker. Adversarial order, and any order with a lag: all streams, NULL too, are queues without a
 * thread, and a thread that waits for something runs what it needs (adversary.c).
 *
 * Locks: mo_cpu_device.lock guards streams, their queues and markers; mo_cpu_memory.lock guards
 * memory; mo_cpu_pool.lock is held while a kernel is split over the pool's threads. The first two
 * are taken in that order; none is held while an operation of a queue runs, but pool.lock, which
 * is taken last. memopt_device.lock may be taken under any of them.
 */
#ifndef MO_DEVICE_CPU_CPU_H
#define MO_DEVICE_CPU_CPU_H

#include "device/cpu/threads.h"
#include "device/front/handle.h"

#include <pthread.h>
#include <stdatomic.h>

/* --- memory (memory.c) --------------------------------------------------------------------- */

/* Physical memory is a sparse memfd: a handle is a run of its bytes, at any place, so that it never
 * fragments, and only the capacity limits it. */
typedef struct mo_cpu_memory {
    pthread_mutex_t lock;
    int fd;
    uint64_t granularity, capacity, used;
    uint64_t file_size;
    uint64_t exported;      /* handles that have been */
    mo_ranges lingering;    /* offsets of the file: released, but other processes may have them */
    mo_ranges free_offsets; /* of the file; value unused */
    mo_ranges handles;      /* live handles by address */
    mo_ranges reservations; /* addresses */
    mo_ranges mappings;     /* addresses; value is the handle */
    mo_ranges accessible;   /* addresses: mappings that may be touched */
    mo_ranges plain;        /* plain allocations */
    uintptr_t unused;       /* where the next of them should be; unused_end: and the last */
    uintptr_t unused_end;
} mo_cpu_memory;

typedef struct mo_cpu_handle {
    uint64_t offset, size;
    uint64_t mapped; /* how many times */
    int file;        /* of an import; -1: the device's own */
    int exported;
} mo_cpu_handle;

/* OK, or INVALID_ARGUMENT and NULL; lock held. */
mo_cpu_handle *mo_cpu_find_handle(mo_cpu_memory *memory, mo_vm_handle handle, uint64_t size,
                                  const char *operation);
/* The system has refused something; errno tells. */
memopt_status mo_cpu_system_refused(const char *what, uint64_t size);
/* Ends what lingers and nobody has any more. Lock held. */
void mo_cpu_reap(mo_cpu_memory *memory);

/* page_lock.c; lock held. A descriptor that other processes may have; -1 and errno where the system
 * gives none. 1 if one of the run is open or mapped somewhere. */
int mo_cpu_open_locked(const mo_cpu_memory *memory, uint64_t offset, uint64_t size);
int mo_cpu_is_shared(const mo_cpu_memory *memory, uint64_t offset, uint64_t size);

memopt_status mo_cpu_memory_init(mo_cpu_memory *memory, uint64_t capacity, uint64_t granularity);
void mo_cpu_memory_fini(mo_cpu_memory *memory);

/* --- the processor (isa.c) ----------------------------------------------------------------- */

enum { MO_ISA_WHY = 160 };

/* The instruction set that kernels use: MEMOPT_ISA, or else the best that this machine has. Writes
 * why kernels use no better one ("" if they use the best), at most MO_ISA_WHY bytes. */
mo_isa mo_cpu_choose_isa(char *why, size_t size);
mo_isa mo_cpu_best_isa(void); /* the same without the reason */
const char *mo_isa_name(mo_isa isa);
const char *mo_isa_family(mo_isa isa); /* "scalar", "avx2" or "avx512" */
/* The kernel's form for the set, or for the next lower one that it has. */
mo_cpu_kernel mo_cpu_form(const mo_kernel *kernel, mo_isa isa);
void mo_cpu_model(char *name, size_t size);

/* --- kernels (launch.c) -------------------------------------------------------------------- */

typedef struct mo_cpu_pool {
    pthread_mutex_t lock;
    mo_threads threads;                       /* started by the first launch that needs them */
    atomic_uint thread_count;                 /* changes under lock */
    atomic_uint_fast64_t published, finished; /* the pool's own hand-over, seen by sanitizers */
    mo_cpu_kernel function;
    const void *args;
} mo_cpu_pool;

void mo_cpu_pool_init(mo_cpu_pool *pool, uint32_t thread_count);
void mo_cpu_pool_fini(mo_cpu_pool *pool);

/* --- how many threads (thread_count.c) ----------------------------------------------------- */

enum { MO_MOST_THREADS = 1024 };

/* From the environment, the affinity mask and the CPU quota; says which of them. `root` stands
 * before every path: "" but in tests. */
uint32_t mo_cpu_default_threads(const char *root, const char **out_why);

/* --- operations and streams (queue.c, submit.c, stream.c) -------------------------------------------- */

/* One record of an event: waits keep the record they were given, whatever the event does later.
 * Guarded by mo_cpu_device.lock. */
typedef struct mo_cpu_marker {
    uint32_t references;
    int32_t done;
    double time;                  /* seconds of the monotonic clock, once done */
    struct mo_cpu_stream *stream; /* where it was recorded; valid until done */
    uint64_t number;              /* of the record's operation */
    uint64_t due;                 /* as its operation's */
    uint32_t polls;               /* adversarial: queries answered so far */
    memopt_race *race;            /* NULL: it is not told */
    uint64_t race_event;          /* of the finder; 0: none */
} mo_cpu_marker;

typedef enum mo_cpu_op_kind {
    MO_CPU_COPY,
    MO_CPU_FILL,
    MO_CPU_CALLBACK,
    MO_CPU_LAUNCH,
    MO_CPU_RECORD,
    MO_CPU_WAIT,
    MO_CPU_NOTE_ALLOC,
    MO_CPU_NOTE_FREE
} mo_cpu_op_kind;

typedef struct mo_cpu_op {
    struct mo_cpu_op *next;
    mo_cpu_op_kind kind;
    uint8_t value;     /* fill */
    uint64_t number;   /* order of the calls */
    uint64_t due;      /* when it is complete: its number, or a time (clock.c) */
    uint64_t length;   /* of a kernel, in nanoseconds; 0: not told */
    void *destination; /* copy, fill, notes */
    const void *source;
    uint64_t bytes;
    const mo_kernel *kernel; /* launch */
    const void *args;        /* launch: behind the op once it is queued */
    uint64_t items;
    void (*function)(void *user); /* callback */
    void *user;
    uint64_t race_event;   /* callback: of the finder; 0: none */
    mo_cpu_marker *marker; /* record, wait: one reference once it is queued */
} mo_cpu_op;

typedef struct mo_cpu_stream {
    struct mo_cpu_device *device;
    struct mo_cpu_stream *next; /* by age, the default stream first */
    uint64_t ordinal;           /* of its creation */
    mo_cpu_op *head, **tail;    /* the head stays in the queue while it runs */
    uint64_t submitted, completed;
    uint64_t waiters; /* threads in a wait for it; its end waits for them */
    int closing;
    pthread_t worker;    /* eager */
    pthread_cond_t work; /* eager */
    uint32_t polls;      /* adversarial: queries answered since it was last idle */
    uint64_t due;        /* of the last operation */
    uint64_t last_number, overtaken_number;
    int may_overtake;
    uint32_t actor; /* of the race finder */
} mo_cpu_stream;

/* Waits for work that was not complete: how many, by how many operations in all and at most, how
 * many left the device without any work, and the time they took where the device has one. */
typedef struct mo_cpu_lag_stats {
    uint64_t waits, waited, waited_most, drains, nanoseconds;
} mo_cpu_lag_stats;

/* --- time (clock.c) ------------------------------------------------------------------------ */

/* What things take on a device that keeps time. */
typedef struct mo_cpu_rates {
    uint64_t call;  /* nanoseconds of the host for an operation that it enqueues, or a query */
    uint64_t setup; /* nanoseconds of the device for a copy or a fill beside its bytes, and for a
                       kernel whose length is not told */
    double in, out, within; /* bytes in a nanosecond: from the host, to the host, on the device */
} mo_cpu_rates;

typedef struct mo_cpu_clock {
    int runs;
    mo_cpu_rates rates;
    uint64_t now;     /* the host's time; guarded by the device's lock, as the rest */
    uint64_t in, out; /* until when the copy engines have work */
} mo_cpu_clock;

/* From now on an operation is complete at a time: a copy engine for each direction takes one copy
 * after the other, a stream one operation after the other, and kernels of different streams run
 * side by side. Equal calls give equal times. Pre: the device was opened with a lag, in the eager
 * order, and has had no work. */
void mo_cpu_keep_time(memopt_device *device, const mo_cpu_rates *rates);
/* Enqueues a kernel that does nothing for so long. */
memopt_status mo_cpu_work(memopt_device *device, memopt_stream stream, uint64_t nanoseconds);
uint64_t mo_cpu_now(memopt_device *device);

/* --- the adversarial order (adversary.c) --------------------------------------------------- */

typedef struct mo_cpu_adversary {
    uint64_t random;
    uint64_t next_number;
    int busy; /* a thread runs operations; others wait for device.progress */
    mo_ranges freed;
    struct mo_cpu_tombstone *tombstones;
    uint64_t tombstone_count, tombstone_capacity;
    uint64_t violations;
    char first[640];
} mo_cpu_adversary;

typedef struct mo_cpu_race mo_cpu_race;

typedef struct mo_cpu_device {
    memopt_device base;
    int adversarial;
    int queued;   /* no stream has a thread */
    uint64_t lag; /* in operations of the device */
    mo_cpu_clock clock;
    mo_cpu_lag_stats waits; /* guarded by lock */
    mo_isa isa;
    char isa_limit[MO_ISA_WHY];
    char model[64];
    mo_cpu_memory memory;
    mo_cpu_pool pool;
    pthread_mutex_t lock;
    pthread_cond_t progress; /* an operation has completed */
    mo_cpu_stream default_stream;
    mo_ranges streams; /* live streams but the default one, by address */
    uint64_t next_ordinal;
    mo_cpu_adversary adversary;
    mo_cpu_race *race; /* race.c; NULL: no races are looked for */
} mo_cpu_device;

static inline mo_cpu_device *mo_cpu(memopt_device *device)
{
    return (mo_cpu_device *)device;
}

memopt_status mo_cpu_streams_init(mo_cpu_device *cpu);
void mo_cpu_streams_fini(mo_cpu_device *cpu);

/* Runs the operation now if the order allows it, else appends a copy of it (and of its kernel's
 * arguments) to the stream. A marker gets a reference of its own. */
memopt_status mo_cpu_submit(mo_cpu_device *cpu, memopt_stream stream, const mo_cpu_op *op);

/* OK if the handle is a live stream's. */
memopt_status mo_cpu_stream_check(mo_cpu_device *cpu, memopt_stream handle);
/* Waits for all work of all streams. No lock held. */
void mo_cpu_settle(mo_cpu_device *cpu);

/* The stream of a handle, or NULL after mo_fail. Pre: device.lock is held. */
mo_cpu_stream *mo_cpu_find_stream(mo_cpu_device *cpu, memopt_stream handle);

/* What an operation does to memory and the host; not for record, wait and notes. No lock held. */
void mo_cpu_run(mo_cpu_device *cpu, const mo_cpu_op *op);
/* Takes the head, which has run, out of its queue and completes its marker. Pre: device.lock. */
void mo_cpu_retire(mo_cpu_stream *stream);
/* Pre: device.lock is held. */
void mo_cpu_marker_complete(mo_cpu_device *cpu, mo_cpu_marker *marker);
/* Gives a reference back; NULL is allowed. Pre: device.lock is held. */
void mo_cpu_marker_drop(mo_cpu_marker *marker);

/* --- operations of the table --------------------------------------------------------------- */

#define MO_CPU_OP(name) MO_DEVICE_OP(mo_cpu_##name, name);
MO_DEVICE_OPS(MO_CPU_OP)
#undef MO_CPU_OP

/* launch.c */
void mo_cpu_launch_now(mo_cpu_device *cpu, const mo_kernel *kernel, const void *args,
                       uint64_t items);
/* Waits for the kernel that uses the threads, and ends them if their number changes. */
void mo_cpu_pool_resize(mo_cpu_device *cpu, uint32_t thread_count);

#endif
