/* The recording of an allocator's blocks as CSV lines; see recorder.c. */
#ifndef MO_ALLOCATOR_RECORDER_H
#define MO_ALLOCATOR_RECORDER_H

#include "allocator/blocks/state.h"

/* Ends the recording, if there is one: writes the rest and closes the file. The first error of the
 * file, IO_ERROR. Pre: no lock is held. */
memopt_status mo_recorder_end(memopt_allocator *allocator, uint64_t *out_events);

#endif
