/*
 * What other primitives call of an allocator beyond memopt/allocator.h. Any thread may call it, and
 * nothing waits.
 */
#ifndef MO_ALLOCATOR_ALLOCATOR_H
#define MO_ALLOCATOR_ALLOCATOR_H

#include "memopt/allocator.h"

/* Its device. */
memopt_device *mo_allocator_device(const memopt_allocator *allocator);

/* 1 if the address is that of a live block of the allocator. It is not read; NULL owns nothing. */
int mo_allocator_owns(memopt_allocator *allocator, const void *pointer);

/* A live block that its user is about to give away. Valid while it lives; nothing has to be given
 * back. */
typedef struct mo_taken mo_taken;

/* INVALID_ARGUMENT where the address is not the start of a live block of so many bytes or more. */
memopt_status mo_allocator_take(memopt_allocator *allocator, const void *pointer, uint64_t bytes,
                                mo_taken **out_taken);
/* Its last use is the work so far of the streams, and of those recorded before. It is still live: free it at
 * once, or go on using it. On failure some of the streams may be recorded. */
memopt_status mo_allocator_record_taken(memopt_allocator *allocator, mo_taken *taken,
                                        const memopt_stream *streams, uint64_t count);
/* Frees it behind its last use. */
void mo_allocator_free_taken(memopt_allocator *allocator, mo_taken *taken);

#endif
