/*
 * Which device steps which weight: ZeroRedundancyOptimizer of torch 2.15 gives whole weights away,
 * the largest first, each to the device that has the least so far
 * (zero_redundancy_optimizer.py, _partition_parameters).
 */
#include "parallel/parallel.h"

#include <stdlib.h>

/* A device in a heap: the root has the least, and of equal ones the lowest number. */
typedef struct mo_plan_device {
    uint64_t elements, number;
} mo_plan_device;

static int less(const mo_plan_device *a, const mo_plan_device *b)
{
    return a->elements < b->elements || (a->elements == b->elements && a->number < b->number);
}

static void sink(mo_plan_device *heap, uint64_t count)
{
    uint64_t at = 0;
    for (;;) {
        uint64_t least = at, child = 2 * at + 1;
        for (uint64_t i = child; i < child + 2 && i < count; i++)
            if (less(&heap[i], &heap[least]))
                least = i;
        if (least == at)
            return;
        mo_plan_device moved = heap[at];
        heap[at] = heap[least];
        heap[least] = moved;
        at = least;
    }
}

/* Larger ones first, equal ones in their order; `layer` holds the order while it sorts. */
static int by_size(const void *a, const void *b)
{
    const mo_plan_weight *x = a, *y = b;
    if (x->count != y->count)
        return x->count < y->count ? 1 : -1;
    return x->layer < y->layer ? -1 : 1;
}

static int by_device(const void *a, const void *b)
{
    const mo_plan_weight *x = a, *y = b;
    if (x->chunks != y->chunks)
        return x->chunks < y->chunks ? -1 : 1;
    return by_size(a, b);
}

static uint64_t copy_learning(const mo_plan_weight *weights, uint64_t count, mo_plan_weight *out)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < count; i++)
        if (weights[i].learns) {
            out[n] = weights[i];
            out[n++].layer = (uint32_t)i;
        }
    return n;
}

memopt_status mo_plan_partition(const mo_plan_weight *weights, uint64_t count, uint64_t world,
                                mo_plan_weight *out, uint64_t *out_count)
{
    uint64_t n = copy_learning(weights, count, out);
    uint64_t used = mo_min_u64(world, n > 0 ? n : 1);
    mo_plan_device *heap = mo_calloc(used, sizeof *heap);
    if (heap == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    for (uint64_t i = 0; i < used; i++)
        heap[i].number = i;
    qsort(out, n, sizeof *out, by_size);
    for (uint64_t i = 0; i < n; i++) {
        out[i].chunks = heap[0].number;
        heap[0].elements += out[i].count;
        sink(heap, used);
    }
    mo_free(heap);
    qsort(out, n, sizeof *out, by_device);
    *out_count = n;
    return MEMOPT_OK;
}

const mo_plan_weight *mo_plan_partition_largest(mo_plan_tape *t, const mo_plan_run *run,
                                                const mo_plan_weight *parts, uint64_t count,
                                                uint64_t *own, uint64_t *states, uint64_t *step)
{
    const mo_plan_weight *fullest = parts;
    *own = *states = *step = 0;
    for (uint64_t from = 0, to; from < count && t->status == MEMOPT_OK; from = to) {
        uint64_t all = 0;
        for (to = from; to < count && parts[to].chunks == parts[from].chunks; to++)
            if (!mo_add_u64(all, mo_plan_optimizer_state_bytes(t, run, &parts[to]), &all))
                (void)mo_plan_tape_mul(t, UINT64_MAX, 2);
        if (all > *states) {
            *states = all;
            *own = to - from;
            fullest = parts + from;
        }
        *step = mo_max_u64(*step, mo_plan_optimizer_step_bytes(t, run, parts + from, to - from));
    }
    return fullest;
}
