/* The observers of a family's ranges, and the family's turn. */
#ifndef MO_ALLOCATOR_OBSERVERS_H
#define MO_ALLOCATOR_OBSERVERS_H

#include "allocator/blocks/state.h"

/* Takes the family's turn; BUSY where the thread has it, which only an observer's callback can. */
memopt_status mo_family_enter(mo_family *family, const char *function);
void mo_family_leave(mo_family *family);

/* All with the turn, and without lock. */

/* [address, +bytes) has memory. If an observer refuses, those before it are told that the range
 * goes; the caller then unmaps it without telling. */
memopt_status mo_observe_mapped(memopt_allocator *allocator, const void *address, uint64_t bytes);
/* It is about to lose it. If an observer refuses, those before it are told that it stays; the
 * caller then leaves it. */
memopt_status mo_observe_unmapping(memopt_allocator *allocator, const void *address,
                                   uint64_t bytes);
/* The same, whatever they say: the range goes, or stays. */
void mo_observe_gone(memopt_allocator *allocator, const void *address, uint64_t bytes);
void mo_observe_stays(memopt_allocator *allocator, const void *address, uint64_t bytes);

/* Forgets the observers of a member that ends. */
void mo_observers_end(const memopt_allocator *allocator);

#endif
