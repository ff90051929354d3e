/*
 * The processes of a run with --ranks, which have one program and count from rank 0: five calls, of
 * MPI (ranks_mpi.c), of NCCL or RCCL (ranks_nccl.c), or of none (ranks_none.c). Every rank makes the
 * same calls in the same order. Memory is the host's, or the device's where the carrier can reach it,
 * as MPI can the "cpu" device's.
 */
#ifndef GPT_RANKS_H
#define GPT_RANKS_H

#include "status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ranks {
    uint32_t rank, count; /* this one, and all; count 0: a run without --ranks */
} ranks;

/* An exchange on its way. */
typedef struct ranks_work {
    void *request; /* NULL: none */
} ranks_work;

/* Joins a run that `count` processes were started for. MEMOPT_UNSUPPORTED: this build has no MPI, and
 * the message says what to install. */
memopt_status ranks_join(ranks *r, uint32_t count);

/* Begins to send each rank k the bytes at[k] to at[k + 1] of `send`, and to receive as many bytes as
 * this rank's own part from each, one behind the other. Both stay as they are until the wait. */
memopt_status ranks_exchange(ranks *r, const void *send, const uint64_t *at, void *receive,
                             ranks_work *out_work);

memopt_status ranks_wait(ranks_work *work);

/* Each rank has the bytes at[rank] to at[rank + 1]; afterwards each has all of them. */
memopt_status ranks_gather(ranks *r, void *bytes, const uint64_t *at);

/* Ends the run; with a code that is not 0 all ranks, at once, so that none waits for this one. */
void ranks_leave(ranks *r, int code);

#endif
