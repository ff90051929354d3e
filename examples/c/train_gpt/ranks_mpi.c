/*
 * The five calls by MPI (ranks.h).
 */
#include "ranks.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

static memopt_status check(int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return MEMOPT_OK;
    MPI_Error_string(code, text, &length);
    return gpt_fail(MEMOPT_DRIVER_ERROR, "ranks: %s failed: %s", call, text);
}

memopt_status ranks_join(ranks *r, uint32_t count)
{
    int rank = 0, size = 0;
    TRY(check(MPI_Init(NULL, NULL), "MPI_Init"));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    TRY(check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank"));
    TRY(check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size"));
    r->rank = (uint32_t)rank;
    r->count = (uint32_t)size;
    return r->count == count
               ? MEMOPT_OK
               : gpt_fail(MEMOPT_INVALID_ARGUMENT,
                          "--ranks %u, but MPI started %d; run it as: mpirun -n %u train_gpt "
                          "--ranks %u ...",
                          count, size, count, count);
}

/* Lengths and places as MPI takes them: of sends, then of receives. */
typedef struct exchange {
    MPI_Request request;
    int numbers[];
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
    const uint32_t n = r->count;
    const uint64_t own = at[r->rank + 1] - at[r->rank];
    TRY(check_size(at[n] > own * n ? at[n] : own * n));
    exchange *e = malloc(sizeof *e + 4 * (size_t)n * sizeof *e->numbers);
    if (!e)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "ranks: no memory for an exchange");
    int *sent = e->numbers, *from = sent + n, *received = from + n, *to = received + n;
    for (uint32_t k = 0; k < n; k++) {
        sent[k] = (int)(at[k + 1] - at[k]);
        from[k] = (int)at[k];
        received[k] = (int)own;
        to[k] = (int)(own * k);
    }
    memopt_status status = check(MPI_Ialltoallv(send, sent, from, MPI_BYTE, receive, received, to,
                                                MPI_BYTE, MPI_COMM_WORLD, &e->request),
                                 "MPI_Ialltoallv");
    if (status != MEMOPT_OK)
        free(e);
    else
        out_work->request = e;
    return status;
}

memopt_status ranks_wait(ranks_work *work)
{
    exchange *e = work->request;
    if (!e)
        return MEMOPT_OK;
    memopt_status status = check(MPI_Wait(&e->request, MPI_STATUS_IGNORE), "MPI_Wait");
    free(e);
    work->request = NULL;
    return status;
}

memopt_status ranks_gather(ranks *r, void *bytes, const uint64_t *at)
{
    const uint32_t n = r->count;
    TRY(check_size(at[n]));
    int *lengths = malloc(2 * (size_t)n * sizeof *lengths);
    if (!lengths)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "ranks: no memory for a gather");
    for (uint32_t k = 0; k < n; k++) {
        lengths[k] = (int)(at[k + 1] - at[k]);
        lengths[n + k] = (int)at[k];
    }
    memopt_status status = check(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, bytes, lengths,
                                                lengths + n, MPI_BYTE, MPI_COMM_WORLD),
                                 "MPI_Allgatherv");
    free(lengths);
    return status;
}

void ranks_leave(ranks *r, int code)
{
    if (r->count && code)
        MPI_Abort(MPI_COMM_WORLD, code);
    if (r->count)
        MPI_Finalize();
    memset(r, 0, sizeof *r);
}
