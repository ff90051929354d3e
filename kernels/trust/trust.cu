/* The trust ratios on a GPU: a group of 32 threads is a total's lanes. */
#include "kernels/reduce/reduce_gpu.h"
#include "kernels/trust/trust.h"

MO_GLOBAL(mo_trust_plan, mo_trust_args, MO_ONE_THREADS)
{
    const uint64_t k = (first_item + mo_block_index()) * MO_ONE_THREADS + mo_thread_index();
    if (k < args.count)
        mo_trust_plan_one(&args, (uint32_t)k);
}

MO_GLOBAL(mo_trust_totals, mo_trust_args, MO_SUM_THREADS)
{
    const uint64_t k = first_item + mo_block_index();
    const mo_tensor_segment *s = args.segments + k;
    const uint64_t end = s->first_chunk + mo_chunks_of(s->count);
    double sum = 0;
    /* The second half of the block only fills whole warps. */
    if (mo_thread_index() < MO_STRIPE_LANES)
        for (uint64_t i = s->first_chunk + mo_thread_index(); i < end; i += MO_STRIPE_LANES)
            sum += MO_AT(const double, args.partials + i);
    sum = mo_lanes_tree(sum);
    if (mo_thread_index() == 0)
        MO_AT(double, mo_trust_total(&args, (uint32_t)k)) = sum;
}

MO_GLOBAL(mo_trust_rates, mo_trust_args, MO_ONE_THREADS)
{
    const uint64_t k = (first_item + mo_block_index()) * MO_ONE_THREADS + mo_thread_index();
    if (k < args.count)
        mo_trust_rate_one(&args, (uint32_t)k);
}
