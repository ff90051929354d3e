/* The recording of an allocator's blocks as CSV lines; see recorder.c. */
#ifndef MO_ALLOCATOR_RECORDER_H
#define MO_ALLOCATOR_RECORDER_H

#include "allocator/blocks/state.h"

/* One event, for the file and the history. Pre: it records, and the allocator's lock is held; of
 * blocks taken and freed also in a stripe, if there is no file and the history has room. */
void mo_recorder_alloc(memopt_allocator *allocator, const mo_block *block, memopt_stream stream);
void mo_recorder_use(memopt_allocator *allocator, const mo_block *block, memopt_stream stream);
void mo_recorder_free(memopt_allocator *allocator, const mo_block *block);
/* The free of a block that other streams used is complete; the file does not have it. */
void mo_recorder_completed(memopt_allocator *allocator, const mo_block *block);
/* Bytes came from the device or went back; the file does not have it. */
void mo_recorder_mapped(memopt_allocator *allocator, const mo_segment *segment, uint64_t bytes,
                        uint32_t action);
void mo_recorder_failed(memopt_allocator *allocator, const mo_request *request);

/* Lists the live blocks as allocations, for the history or else for the file. */
void mo_recorder_list_live(memopt_allocator *allocator, int history);

/* Ends the recording, if there is one: writes the rest and closes the file. The first error of the
 * file, IO_ERROR. Pre: no lock is held. */
memopt_status mo_recorder_end(memopt_allocator *allocator, uint64_t *out_events);

#endif
