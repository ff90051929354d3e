/*
 * The five calls by NCCL or RCCL (ranks.h), on GPUs of one machine or several: what travels goes through
 * memory of the rank's GPU, in the order of one stream. MPI starts the processes and takes NCCL's id to
 * them; its errors end the run.
 */
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#ifdef GPT_RCCL
#include <rccl/rccl.h>
typedef hipStream_t gpu_stream;
#define GPU "hip"
#define set_device hipSetDevice
#else
#include <cuda_runtime_api.h>
#include <nccl.h>
typedef cudaStream_t gpu_stream;
#define GPU "cuda"
#define set_device cudaSetDevice
#endif

/* One run in a process. */
static struct {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream stream;
    ncclComm_t comm;
} on;

static gpu_stream stream(void)
{
    return (gpu_stream)on.stream;
}

static memopt_status check(ncclResult_t result, const char *call)
{
    return result == ncclSuccess ? MEMOPT_OK
                                 : gpt_fail(MEMOPT_DRIVER_ERROR, "ranks: %s failed: %s", call,
                                            ncclGetErrorString(result));
}

/* --- joining ---------------------------------------------------------------------------------- */

/* number: of this rank among those of its machine. */
static memopt_status open_gpu(int number)
{
    memopt_backend_info info = MEMOPT_BACKEND_INFO_INIT;
    char name[32];
    TRY(memopt_backend_get_info(GPU, &info));
    number %= info.device_count > 0 ? info.device_count : 1;
    snprintf(name, sizeof name, GPU ":%d", number);
    TRY(memopt_device_open(name, NULL, &on.device));
    TRY(memopt_stream_create(on.device, &on.stream));
    TRY(memopt_allocator_create(on.device, NULL, NULL, &on.allocator));
    return set_device(number) == 0
               ? MEMOPT_OK
               : gpt_fail(MEMOPT_DRIVER_ERROR, "ranks: %s cannot be used", name);
}

memopt_status ranks_join(ranks *r, uint32_t count)
{
    int rank = 0, size = 0, number = 0;
    MPI_Comm machine;
    ncclUniqueId id;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    r->rank = (uint32_t)rank;
    r->count = (uint32_t)size;
    if (r->count != count)
        return gpt_fail(MEMOPT_INVALID_ARGUMENT, "--ranks %u, but MPI started %d", count, size);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &number);
    MPI_Comm_free(&machine);
    TRY(open_gpu(number));
    if (rank == 0)
        TRY(check(ncclGetUniqueId(&id), "ncclGetUniqueId"));
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    return check(ncclCommInitRank(&on.comm, size, id, rank), "ncclCommInitRank");
}

/* --- exchanges -------------------------------------------------------------------------------- */

typedef struct exchange {
    unsigned char *sent, *received; /* on the GPU */
    memopt_event *done;
} exchange;

static memopt_status gpu_bytes(uint64_t bytes, unsigned char **out)
{
    void *block = NULL;
    TRY(memopt_allocator_alloc(on.allocator, bytes, MEMOPT_TAG_OTHER, on.stream, &block));
    *out = block;
    return MEMOPT_OK;
}

static memopt_status end_exchange(exchange *e)
{
    memopt_status status = memopt_event_destroy(e->done);
    (void)memopt_allocator_free(on.allocator, e->sent);
    (void)memopt_allocator_free(on.allocator, e->received);
    free(e);
    return status;
}

/* One part of a group, which is ended in any case. */
static ncclResult_t trade(uint32_t peer, const void *out, uint64_t sent, void *in,
                          uint64_t received)
{
    ncclResult_t result = ncclSuccess;
    if (sent > 0)
        result = ncclSend(out, sent, ncclUint8, (int)peer, on.comm, stream());
    if (received > 0 && result == ncclSuccess)
        result = ncclRecv(in, received, ncclUint8, (int)peer, on.comm, stream());
    return result;
}

static memopt_status send_all(const ranks *r, const exchange *e, const uint64_t *at)
{
    const uint64_t own = at[r->rank + 1] - at[r->rank];
    ncclResult_t result = ncclGroupStart();
    for (uint32_t k = 0; k < r->count && result == ncclSuccess; k++)
        result = trade(k, e->sent + at[k], at[k + 1] - at[k], e->received + own * k, own);
    ncclResult_t ended = ncclGroupEnd();
    return check(result == ncclSuccess ? ended : result, "an exchange");
}

static memopt_status exchange_all(const ranks *r, exchange *e, const void *send, const uint64_t *at,
                                  void *receive)
{
    const uint64_t incoming = (at[r->rank + 1] - at[r->rank]) * r->count;
    TRY(memopt_event_create(on.device, 0, &e->done));
    TRY(gpu_bytes(at[r->count], &e->sent));
    TRY(gpu_bytes(incoming, &e->received));
    TRY(memopt_copy(on.device, e->sent, send, at[r->count], on.stream));
    TRY(send_all(r, e, at));
    TRY(memopt_copy(on.device, receive, e->received, incoming, on.stream));
    return memopt_event_record(e->done, on.stream);
}

memopt_status ranks_exchange(ranks *r, const void *send, const uint64_t *at, void *receive,
                             ranks_work *out_work)
{
    exchange *e = calloc(1, sizeof *e);
    if (!e)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "ranks: no memory for an exchange");
    memopt_status status = exchange_all(r, e, send, at, receive);
    if (status != MEMOPT_OK)
        (void)end_exchange(e);
    else
        out_work->request = e;
    return status;
}

memopt_status ranks_wait(ranks_work *work)
{
    exchange *e = work->request;
    if (!e)
        return MEMOPT_OK;
    work->request = NULL;
    memopt_status status = memopt_event_sync(e->done), ended = end_exchange(e);
    return status == MEMOPT_OK ? ended : status;
}

static memopt_status gather_all(const ranks *r, unsigned char *all, void *bytes, const uint64_t *at)
{
    const uint64_t first = at[r->rank], own = at[r->rank + 1] - first;
    TRY(memopt_copy(on.device, all + first, (unsigned char *)bytes + first, own, on.stream));
    ncclResult_t result = ncclGroupStart();
    for (uint32_t k = 0; k < r->count && result == ncclSuccess; k++)
        if (k != r->rank)
            result = trade(k, all + first, own, all + at[k], at[k + 1] - at[k]);
    ncclResult_t ended = ncclGroupEnd();
    TRY(check(result == ncclSuccess ? ended : result, "a gather"));
    TRY(memopt_copy(on.device, bytes, all, at[r->count], on.stream));
    return memopt_stream_sync(on.device, on.stream);
}

memopt_status ranks_gather(ranks *r, void *bytes, const uint64_t *at)
{
    unsigned char *all = NULL;
    TRY(gpu_bytes(at[r->count], &all));
    memopt_status status = gather_all(r, all, bytes, at);
    memopt_status freed = memopt_allocator_free(on.allocator, all);
    return status == MEMOPT_OK ? freed : status;
}

void ranks_leave(ranks *r, int code)
{
    if (r->count && code)
        MPI_Abort(MPI_COMM_WORLD, code);
    if (on.comm)
        (void)ncclCommDestroy(on.comm);
    (void)memopt_allocator_destroy_force(on.allocator);
    if (on.stream)
        (void)memopt_stream_destroy(on.device, on.stream);
    (void)memopt_device_close(on.device);
    if (r->count)
        MPI_Finalize();
    memset(&on, 0, sizeof on);
    memset(r, 0, sizeof *r);
}
