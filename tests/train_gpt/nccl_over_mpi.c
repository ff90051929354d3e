/*
 * What ranks_nccl.c calls of NCCL and of CUDA's runtime, over MPI and the simulated driver: a group waits
 * for its stream, moves the bytes, and is done. Declared by NCCL's own header.
 */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Of cuda.h. */
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuStreamSynchronize(void *stream);
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream);

enum { MOST = 256 };

static struct call {
    int sends, peer, bytes;
    uint64_t device;
    void *host;
    MPI_Request request;
} calls[MOST];
static int count, grouped;
static void *used; /* stream */

cudaError_t cudaSetDevice(int device)
{
    void *context;
    return cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, device) == 0 &&
                   cuCtxSetCurrent(context) == 0
               ? cudaSuccess
               : cudaErrorNoDevice;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclInvalidUsage ? "invalid usage" : "failed";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 7, sizeof *id);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    ncclUniqueId wanted;
    ncclGetUniqueId(&wanted);
    *comm = (ncclComm_t)&calls;
    return memcmp(&id, &wanted, sizeof id) == 0 && rank < ranks ? ncclSuccess : ncclInvalidUsage;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    (void)comm;
    return ncclSuccess;
}

static ncclResult_t add(int sends, const void *device, size_t bytes, ncclDataType_t type, int peer,
                        cudaStream_t stream)
{
    if (grouped != 1 || count == MOST || type != ncclUint8 || bytes == 0 || bytes > INT32_MAX)
        return ncclInvalidUsage;
    used = stream;
    calls[count++] = (struct call){sends, peer, (int)bytes, (uintptr_t)device, malloc(bytes), NULL};
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *from, size_t bytes, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    (void)comm;
    return add(1, from, bytes, type, peer, stream);
}

ncclResult_t ncclRecv(void *to, size_t bytes, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    (void)comm;
    return add(0, to, bytes, type, peer, stream);
}

ncclResult_t ncclGroupStart(void)
{
    return grouped++ == 0 ? ncclSuccess : ncclInvalidUsage;
}

/* Host memory and the device's have addresses of their own. */
static int copy(uint64_t to, uint64_t from, int bytes)
{
    return cuMemcpyAsync(to, from, (size_t)bytes, used) != 0 || cuStreamSynchronize(used) != 0;
}

static int begin(struct call *c)
{
    if (!c->sends)
        return MPI_Irecv(c->host, c->bytes, MPI_BYTE, c->peer, 0, MPI_COMM_WORLD, &c->request);
    return copy((uintptr_t)c->host, c->device, c->bytes) ||
           MPI_Isend(c->host, c->bytes, MPI_BYTE, c->peer, 0, MPI_COMM_WORLD, &c->request);
}

ncclResult_t ncclGroupEnd(void)
{
    int failed = count > 0 && cuStreamSynchronize(used) != 0;
    grouped--;
    for (int i = 0; i < count; i++)
        failed |= begin(&calls[i]);
    for (int i = 0; i < count; i++) {
        MPI_Wait(&calls[i].request, MPI_STATUS_IGNORE);
        if (!calls[i].sends)
            failed |= copy(calls[i].device, (uintptr_t)calls[i].host, calls[i].bytes);
        free(calls[i].host);
    }
    count = 0;
    return failed ? ncclUnhandledCudaError : ncclSuccess;
}
