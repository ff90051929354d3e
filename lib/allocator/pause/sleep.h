/* Which pages a pause takes. Called with slow and lock held. */
#ifndef MO_ALLOCATOR_SLEEP_H
#define MO_ALLOCATOR_SLEEP_H

#include "allocator/blocks/state.h"

/* Lists the pages that go: those with blocks of the pause's tags, and with nothing else but free
 * memory, which sleeps from here on. Once all tags are paused, pages without a block go, too.
 * *out_stay: bytes of pages with blocks of the tags that stay because of others. On failure what
 * was done is undone by mo_sleep_end. */
memopt_status mo_sleep_begin(memopt_allocator *allocator, mo_pause *pause, uint64_t *out_stay);
/* What sleeps is free again, and the list is empty. */
void mo_sleep_end(memopt_allocator *allocator, mo_pause *pause);

#endif
