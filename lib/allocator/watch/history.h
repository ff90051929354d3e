/* The ring of the last events; see history.c. */
#ifndef MO_ALLOCATOR_HISTORY_H
#define MO_ALLOCATOR_HISTORY_H

#include "allocator/blocks/state.h"

/* The system's number of the calling thread. */
uint32_t mo_this_thread(void);
/* What a history has of an event of its kinds, without thread and time. */
void mo_history_fields(const mo_event *event, memopt_history_event *out_fields);
/* The caller's number for the allocation that begins; 0 where nobody asked for it. No lock held. */
uint32_t mo_history_ask(memopt_allocator *allocator);
/* A history without events; OUT_OF_HOST_MEMORY. */
memopt_status mo_history_make(const memopt_history_options *options, mo_history **out_history);
void mo_history_discard(mo_history *history);
/* Takes it into use, with what is there already; 0 if there is one. Lock held. */
int mo_history_begin(memopt_allocator *allocator, mo_history *history);
/* Ends the one in use; returns memory to free without the lock. Lock held. */
void *mo_history_stop(memopt_allocator *allocator);
/* Copies *count events at most, from number *first on or the oldest; both are written. Lock held.
 */
void mo_history_copy(mo_history *history, uint64_t *first, uint64_t *count,
                     memopt_history_event *out_events);
/* A new pool has a history if its parent has one. No lock held. OUT_OF_HOST_MEMORY. */
memopt_status mo_history_inherit(memopt_allocator *pool, memopt_allocator *parent);
/* The allocator ends. No lock held. */
void mo_history_end(memopt_allocator *allocator);

#endif
