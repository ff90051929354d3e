/* The trust ratios' kernels: their names and arguments, and the scalar forms. They are a few
 * numbers a tensor: a wider form would not pay. */
#include "kernels/trust/trust.h"

static void each(const void *args, uint64_t begin, uint64_t end,
                 void (*one)(const mo_trust_args *a, uint32_t k))
{
    const mo_trust_args *a = args;
    for (uint64_t k = begin * MO_ONE_THREADS; k < end * MO_ONE_THREADS && k < a->count; k++)
        one(a, (uint32_t)k);
}

static void plan(const void *args, uint64_t begin, uint64_t end)
{
    each(args, begin, end, mo_trust_plan_one);
}

static void rates(const void *args, uint64_t begin, uint64_t end)
{
    each(args, begin, end, mo_trust_rate_one);
}

static void totals(const void *args, uint64_t begin, uint64_t end)
{
    const mo_trust_args *a = args;
    for (uint64_t k = begin; k < end; k++) {
        const mo_tensor_segment *s = a->segments + k;
        const double *sums = a->partials + s->first_chunk;
        double lanes[MO_STRIPE_LANES] = {0};
        for (uint64_t i = 0; i < mo_chunks_of(s->count); i++)
            lanes[i % MO_STRIPE_LANES] += sums[i];
        *mo_trust_total(a, (uint32_t)k) = mo_stripe_tree(lanes);
    }
}

_Static_assert(sizeof(mo_trust_args) == 120, "layout shared with the GPU");

#define KERNEL(word, threads_)                                                                     \
    const mo_kernel mo_kernel_trust_##word = {                                                     \
        .name = "mo_trust_" #word,                                                                 \
        .args_size = sizeof(mo_trust_args),                                                        \
        .threads = threads_,                                                                       \
        .cpu = {word},                                                                             \
    };
KERNEL(plan, MO_ONE_THREADS)
KERNEL(totals, MO_SUM_THREADS)
KERNEL(rates, MO_ONE_THREADS)
