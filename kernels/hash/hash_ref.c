/* The content hash: the scalar form, and the comparison. */
#include "kernels/hash/hash_cpu.h"

static uint64_t full(const unsigned char *bytes)
{
    return mo_hash_sum(bytes, MO_HASH_GRANULE);
}

void mo_hash_granules_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_hash_run(args, begin, end, full);
}

void mo_hash_compare_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_hash_compare_args *a = args;
    (void)begin;
    (void)end;
    if (a->result[0] != UINT64_MAX)
        return;
    for (uint64_t i = 0; i < a->count; i++) {
        if (a->first[i] != a->second[i]) {
            a->result[0] = a->label;
            a->result[1] = i;
            return;
        }
    }
}
