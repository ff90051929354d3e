/* The contents of paused pages. Called with slow held. */
#ifndef MO_ALLOCATOR_KEPT_H
#define MO_ALLOCATOR_KEPT_H

#include "allocator/blocks/state.h"

/* Makes a file in or at `path` for the contents. Without lock. */
memopt_status mo_kept_open(mo_kept *kept, const char *path);
/* Copies what live blocks have in the pages out, to the file if there is one, else to page-locked
 * memory; *out_bytes of them. Lock held, released meanwhile. */
memopt_status mo_kept_save(memopt_allocator *allocator, mo_pause *pause, uint64_t *out_bytes);
/* Copies it back; may be repeated after a failure. Lock held, released meanwhile. */
memopt_status mo_kept_load(memopt_allocator *allocator, mo_pause *pause);
/* Ends it; memory that copies may still use stays, and the next call tries again. With `anyway` it
 * goes, too. Without lock. */
memopt_status mo_kept_drop(memopt_allocator *allocator, mo_kept *kept, int anyway);

#endif
