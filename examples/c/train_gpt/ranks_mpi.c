/*
 * The five calls by MPI (ranks.h), whose errors end the run.
 */
#include "ranks.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

memopt_status ranks_join(ranks *r, uint32_t count)
{
    int rank = 0, size = 0;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    r->rank = (uint32_t)rank;
    r->count = (uint32_t)size;
    return r->count == count
               ? MEMOPT_OK
               : gpt_fail(MEMOPT_INVALID_ARGUMENT,
                          "--ranks %u, but MPI started %d; run it as: mpirun -n %u train_gpt "
                          "--ranks %u ...",
                          count, size, count, count);
}

typedef struct exchange {
    int count;
    MPI_Request requests[];
} exchange;

static memopt_status check_size(uint64_t bytes)
{
    return bytes <= INT_MAX ? MEMOPT_OK
                            : gpt_fail(MEMOPT_UNSUPPORTED,
                                       "ranks: %llu bytes in one call, at most %d; a bucket is a "
                                       "layer: make it narrower",
                                       (unsigned long long)bytes, INT_MAX);
}

memopt_status ranks_exchange(ranks *r, const void *send, const uint64_t *at, void *receive,
                             ranks_work *out_work)
{
    const uint64_t own = at[r->rank + 1] - at[r->rank];
    TRY(check_size(at[r->count]));
    exchange *e = malloc(sizeof *e + 2 * (size_t)r->count * sizeof *e->requests);
    if (!e)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "ranks: no memory for an exchange");
    e->count = 0;
    for (uint32_t k = 0; k < r->count; k++) {
        MPI_Irecv((char *)receive + own * k, (int)own, MPI_BYTE, (int)k, 0, MPI_COMM_WORLD,
                  &e->requests[e->count++]);
        MPI_Isend((const char *)send + at[k], (int)(at[k + 1] - at[k]), MPI_BYTE, (int)k, 0,
                  MPI_COMM_WORLD, &e->requests[e->count++]);
    }
    out_work->request = e;
    return MEMOPT_OK;
}

memopt_status ranks_wait(ranks_work *work)
{
    exchange *e = work->request;
    if (!e)
        return MEMOPT_OK;
    MPI_Waitall(e->count, e->requests, MPI_STATUSES_IGNORE);
    free(e);
    work->request = NULL;
    return MEMOPT_OK;
}

memopt_status ranks_gather(ranks *r, void *bytes, const uint64_t *at)
{
    TRY(check_size(at[r->count]));
    for (uint32_t k = 0; k < r->count; k++)
        MPI_Bcast((char *)bytes + at[k], (int)(at[k + 1] - at[k]), MPI_BYTE, (int)k,
                  MPI_COMM_WORLD);
    return MEMOPT_OK;
}

void ranks_leave(ranks *r, int code)
{
    if (r->count && code)
        MPI_Abort(MPI_COMM_WORLD, code);
    if (r->count)
        MPI_Finalize();
    memset(r, 0, sizeof *r);
}
