/* Texts for people. Called with the lock held. */
#ifndef MO_ALLOCATOR_REPORT_H
#define MO_ALLOCATOR_REPORT_H

#include "allocator/blocks/state.h"

enum { MO_REPORT_BYTES = 1024 };
/* Writes the out-of-memory message, from what mo_cause_find has found. Slow held, too. */
void mo_report_oom(const memopt_allocator *allocator, char text[MO_REPORT_BYTES]);
/* Writes "weights 3 blocks, 1.20 GiB; ..." of the `most` largest tags. */
void mo_report_tags(const memopt_allocator *allocator, unsigned most, char *text, size_t size);

#endif
