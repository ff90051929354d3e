/*
 * What is behind the entry points of memopt/pluggable.h, process-wide:
 *
 *   slots.c            the configuration, and one slot for each device
 *   pools.c            the pools of recorded graphs
 *   tags.c             the tag of what a thread allocates
 *   pluggable.c        the entry points
 *   throw.c            torch's exceptions
 *   seeing.c           what a framework's tools ask for
 *
 * A slot's first allocator is made without a lock: the second thread destroys its own.
 * `mo_plug_lock` guards the configuration and the lists of pools; it is held over a free into a
 * pool (which never blocks), never over anything that waits. It comes before an allocator's own
 * locks.
 */
#ifndef MO_ALLOCATOR_PLUGGABLE_H
#define MO_ALLOCATOR_PLUGGABLE_H

#include "allocator/allocator.h"
#include "memopt/pluggable.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MO_PLUG_DEVICES = 64, MO_PLUG_CONFIG = 1000, MO_PLUG_TAGS = 64 };

/* The memory of one graph, or of several that share it. Once made it stays until the end. */
typedef struct mo_graph_pool {
    struct mo_graph_pool *next;
    memopt_pool *allocator;
    uint64_t id[2];
    uint64_t holds; /* begun and not released; 0: the id means nothing any more */
    uint64_t open;  /* begun and not ended */
    uint64_t live;  /* blocks */
} mo_graph_pool;

typedef struct mo_plug_slot {
    _Atomic(memopt_allocator *) first;
    atomic_uint pool_count;                 /* of `pools`; read without the lock to skip it */
    atomic_uint open_count;                 /* sum of their `open` */
    mo_graph_pool *pools;                   /* begun last first */
    _Atomic(memopt_tag) tags[MO_PLUG_TAGS]; /* by place; MEMOPT_TAG_OTHER: not known yet */
} mo_plug_slot;

extern mo_plug_slot mo_plug_slots[MO_PLUG_DEVICES];
extern pthread_mutex_t mo_plug_lock;
extern char mo_plug_backend[8]; /* under the lock, as the configuration */
extern char mo_plug_config[MO_PLUG_CONFIG];

/* --- slots.c           ------------------------------------------------------------------------ */

/* BUSY where allocators were made with another configuration. */
memopt_status mo_plug_set_config(const char *backend, const char *config);
/* The slot of a device with its first allocator. */
memopt_status mo_plug_enter(int32_t device, mo_plug_slot **out_slot);
/* The slot of a device, which may have none. */
memopt_status mo_plug_find(int32_t device, mo_plug_slot **out_slot);
/* A pool for recorded graphs. */
memopt_status mo_plug_make_pool(memopt_allocator *first, memopt_pool **out_pool);

/* --- pools.c           ------------------------------------------------------------------------ */

/* Whether this allocation belongs into a pool; then it is made, and *out_status says how it went.
 */
int mo_plug_pool_alloc(mo_plug_slot *slot, uint64_t bytes, memopt_tag tag, memopt_stream stream,
                       void **out_pointer, memopt_status *out_status);
/* Whether a block is of a pool; then it is freed, or its stream recorded. */
int mo_plug_pool_free(mo_plug_slot *slot, void *pointer, memopt_status *out_status);
int mo_plug_pool_record(mo_plug_slot *slot, void *pointer, memopt_stream stream,
                        memopt_status *out_status);
/* Bytes that the pools hold from the device. */
uint64_t mo_plug_pools_held(mo_plug_slot *slot);
/* Waits for the device and gives back the memory of released pools; *released counts bytes. */
memopt_status mo_plug_pools_trim(mo_plug_slot *slot, uint64_t *released);
/* BUSY while a block lives; else ends all pools. */
memopt_status mo_plug_pools_end(mo_plug_slot *slot);

/* --- tags.c            ------------------------------------------------------------------------ */

/* What this thread's allocations are for, in the slot's allocators. */
memopt_status mo_plug_tag(mo_plug_slot *slot, memopt_tag *out_tag);

/* --- seeing.c          ------------------------------------------------------------------------ */

/* Tells the observer that an allocation failed. No lock held. */
void mo_plug_observed(int32_t device, uint64_t asked);

#endif
