/*
 * The five calls by NCCL or RCCL (ranks.h), on GPUs of one machine or several: what travels goes through
 * memory of the rank's GPU, in the order of one stream.
 *
 * A launcher (torchrun, mpirun, srun) starts the processes and tells each its number. Rank 0 writes
 * NCCL's id into the file that GPT_RANKS_FILE names, a new one for each run, where the others find it.
 */
#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

enum { MOST_WAIT_SECONDS = 60, POLLS_A_SECOND = 100 };

/* One run in a process. */
static struct {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream stream;
    ncclComm_t comm;
    const char *file; /* that this rank has made */
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

/* What a launcher says, or `otherwise`. */
static uint32_t told(const char *const *names, uint32_t otherwise)
{
    for (; *names; names++) {
        const char *text = getenv(*names);
        if (text && *text)
            return (uint32_t)strtoul(text, NULL, 10);
    }
    return otherwise;
}

static memopt_status open_gpu(void)
{
    static const char *const names[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "MPI_LOCALRANKID", "SLURM_LOCALID", NULL};
    memopt_backend_info info = MEMOPT_BACKEND_INFO_INIT;
    char name[32];
    TRY(memopt_backend_get_info(GPU, &info));
    uint32_t gpus = info.device_count > 0 ? (uint32_t)info.device_count : 1;
    uint32_t number = told(names, 0) % gpus;
    snprintf(name, sizeof name, GPU ":%u", number);
    TRY(memopt_device_open(name, NULL, &on.device));
    TRY(memopt_stream_create(on.device, &on.stream));
    TRY(memopt_allocator_create(on.device, NULL, NULL, &on.allocator));
    return set_device((int)number) == 0
               ? MEMOPT_OK
               : gpt_fail(MEMOPT_DRIVER_ERROR, "ranks: %s cannot be used", name);
}

static memopt_status write_id(const char *path, const ncclUniqueId *id)
{
    char other[4096];
    int file, length = snprintf(other, sizeof other, "%s.new", path);
    if (length >= (int)sizeof other || access(path, F_OK) == 0)
        return gpt_fail(MEMOPT_INVALID_ARGUMENT,
                        "ranks: GPT_RANKS_FILE is %s, which exists; name a new file for each run",
                        path);
    file = open(other, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int written = file >= 0 && write(file, id, sizeof *id) == (ssize_t)sizeof *id;
    if (file >= 0)
        written &= close(file) == 0;
    if (!written || rename(other, path) != 0)
        return gpt_fail(MEMOPT_IO_ERROR, "ranks: cannot write %s: %s", path, strerror(errno));
    on.file = path;
    return MEMOPT_OK;
}

static memopt_status read_id(const char *path, ncclUniqueId *id)
{
    const struct timespec pause = {0, 1000000000 / POLLS_A_SECOND};
    int file = -1;
    for (int i = 0; file < 0 && i < MOST_WAIT_SECONDS * POLLS_A_SECOND; i++) {
        file = open(path, O_RDONLY);
        if (file < 0)
            nanosleep(&pause, NULL);
    }
    int whole = file >= 0 && read(file, id, sizeof *id) == (ssize_t)sizeof *id;
    if (file >= 0)
        close(file);
    return whole ? MEMOPT_OK
                 : gpt_fail(MEMOPT_IO_ERROR, "ranks: rank 0 has not written %s within %d seconds",
                            path, MOST_WAIT_SECONDS);
}

static memopt_status share_id(const ranks *r, ncclUniqueId *id)
{
    const char *path = getenv("GPT_RANKS_FILE");
    if (r->count > 1 && !path)
        return gpt_fail(MEMOPT_INVALID_ARGUMENT,
                        "ranks: set GPT_RANKS_FILE to a new file that all ranks can read");
    if (r->rank > 0)
        return read_id(path, id);
    TRY(check(ncclGetUniqueId(id), "ncclGetUniqueId"));
    return r->count > 1 ? write_id(path, id) : MEMOPT_OK;
}

memopt_status ranks_join(ranks *r, uint32_t count)
{
    static const char *const numbers[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                          "SLURM_PROCID", NULL};
    static const char *const sizes[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                        "SLURM_NTASKS", NULL};
    ncclUniqueId id;
    r->rank = told(numbers, 0);
    r->count = told(sizes, 1);
    if (r->count != count || r->rank >= count)
        return gpt_fail(MEMOPT_INVALID_ARGUMENT,
                        "--ranks %u, but the launcher's environment says rank %u of %u", count,
                        r->rank, r->count);
    TRY(open_gpu());
    TRY(share_id(r, &id));
    return check(ncclCommInitRank(&on.comm, (int)r->count, id, (int)r->rank), "ncclCommInitRank");
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

/* A group is ended in any case. */
static memopt_status send_all(const ranks *r, const exchange *e, const uint64_t *at)
{
    const uint64_t own = at[r->rank + 1] - at[r->rank];
    ncclResult_t result = ncclGroupStart();
    for (uint32_t k = 0; k < r->count && result == ncclSuccess; k++) {
        if (at[k + 1] > at[k])
            result =
                ncclSend(e->sent + at[k], at[k + 1] - at[k], ncclUint8, (int)k, on.comm, stream());
        if (own > 0 && result == ncclSuccess)
            result = ncclRecv(e->received + own * k, own, ncclUint8, (int)k, on.comm, stream());
    }
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
    const uint64_t first = at[r->rank];
    TRY(memopt_copy(on.device, all + first, (unsigned char *)bytes + first, at[r->rank + 1] - first,
                    on.stream));
    ncclResult_t result = ncclGroupStart();
    for (uint32_t k = 0; k < r->count && result == ncclSuccess; k++)
        if (at[k + 1] > at[k])
            result = ncclBroadcast(all + at[k], all + at[k], at[k + 1] - at[k], ncclUint8, (int)k,
                                   on.comm, stream());
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
    if (on.comm && code) /* the launcher ends the others */
        (void)ncclCommAbort(on.comm);
    else if (on.comm)
        (void)ncclCommDestroy(on.comm);
    (void)memopt_allocator_destroy_force(on.allocator);
    if (on.stream)
        (void)memopt_stream_destroy(on.device, on.stream);
    (void)memopt_device_close(on.device);
    if (on.file)
        (void)unlink(on.file);
    memset(&on, 0, sizeof on);
    memset(r, 0, sizeof *r);
}
