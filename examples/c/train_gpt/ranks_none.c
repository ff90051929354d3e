/*
 * A build without MPI (ranks.h): no run has ranks.
 */
#include "ranks.h"

memopt_status ranks_join(ranks *r, uint32_t count)
{
    (void)r;
    return gpt_fail(MEMOPT_UNSUPPORTED,
                    "--ranks %u: this train_gpt was built without MPI; install libopenmpi-dev and "
                    "openmpi-bin (./setup --mpi) and build it again",
                    count);
}

memopt_status ranks_exchange(ranks *r, const void *send, const uint64_t *at, void *receive,
                             ranks_work *out_work)
{
    (void)send, (void)at, (void)receive, (void)out_work;
    return ranks_join(r, r->count);
}

memopt_status ranks_wait(ranks_work *work)
{
    (void)work;
    return MEMOPT_OK;
}

memopt_status ranks_gather(ranks *r, void *bytes, const uint64_t *at)
{
    (void)bytes, (void)at;
    return ranks_join(r, r->count);
}

void ranks_leave(ranks *r, int code)
{
    (void)r, (void)code;
}
