/* The trust ratios on a GPU: a group of 32 threads is a total's lanes. */
#include "kernels/reduce/reduce_gpu.h"
#include "kernels/trust/trust.h"

MO_GLOBAL(mo_trust_totals, mo_trust_totals_args, MO_SUM_THREADS)
{
    const uint64_t tensor = first_item + mo_block_index();
    double sum = 0;
    /* The second half of the block only fills whole warps. */
    if (mo_thread_index() < MO_STRIPE_LANES)
        for (uint64_t i = args.first[tensor] + mo_thread_index(); i < args.first[tensor + 1];
             i += MO_STRIPE_LANES)
            sum += MO_AT(const double, args.partials + i);
    sum = mo_lanes_tree(sum);
    if (mo_thread_index() == 0)
        MO_AT(double, args.totals + tensor) = sum;
}

MO_GLOBAL(mo_trust_rates, mo_trust_rates_args, MO_ONE_THREADS)
{
    const uint64_t tensor = (first_item + mo_block_index()) * MO_ONE_THREADS + mo_thread_index();
    if (tensor < args.count)
        MO_AT(float, args.rates + tensor) = mo_trust_rate(&args, tensor);
}
