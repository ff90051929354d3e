/* An allocator and its pools. Called with slow held. */
#ifndef MO_ALLOCATOR_FAMILY_H
#define MO_ALLOCATOR_FAMILY_H

#include "allocator/blocks/state.h"

/* True while a stream that a member knows records a graph. No lock of a member is held. */
int mo_family_capturing(mo_family *family);
/* The same for a member whose lock is held; it is released meanwhile if there are pools. */
int mo_family_records(memopt_allocator *allocator);
/* Gives free memory of the other members back to the device until `wanted` bytes have gone, but not
 * of those that retain it, and nothing while a graph is recorded; *released counts bytes. The
 * member's lock is held and released meanwhile. */
memopt_status mo_family_release(memopt_allocator *allocator, uint64_t wanted, uint64_t *released);
/* Bytes that the other members have free and could give back. The member's lock is held and
 * released meanwhile. */
uint64_t mo_family_spare(memopt_allocator *allocator);

#endif
