/* The trust ratios' kernels: their names and arguments, and the scalar forms. They are a few
 * numbers a tensor: a wider form would not pay. */
#include "kernels/trust/trust.h"

static void totals(const void *args, uint64_t begin, uint64_t end)
{
    const mo_trust_totals_args *a = args;
    for (uint64_t tensor = begin; tensor < end; tensor++) {
        const uint64_t first = a->first[tensor];
        double lanes[MO_STRIPE_LANES] = {0};
        for (uint64_t i = first; i < a->first[tensor + 1]; i++)
            lanes[(i - first) % MO_STRIPE_LANES] += a->partials[i];
        a->totals[tensor] = mo_stripe_tree(lanes);
    }
}

static void rates(const void *args, uint64_t begin, uint64_t end)
{
    const mo_trust_rates_args *a = args;
    for (uint64_t i = begin * MO_ONE_THREADS; i < end * MO_ONE_THREADS && i < a->count; i++)
        a->rates[i] = mo_trust_rate(a, i);
}

_Static_assert(sizeof(mo_trust_totals_args) <= MO_KERNEL_ARGS_MAX, "arguments too large");

const mo_kernel mo_kernel_trust_totals = {
    .name = "mo_trust_totals",
    .args_size = sizeof(mo_trust_totals_args),
    .threads = MO_SUM_THREADS,
    .cpu = {totals},
};

const mo_kernel mo_kernel_trust_rates = {
    .name = "mo_trust_rates",
    .args_size = sizeof(mo_trust_rates_args),
    .threads = MO_ONE_THREADS,
    .cpu = {rates},
};
