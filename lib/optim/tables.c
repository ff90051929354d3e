/*
 * Tables in device memory. A kernel writes them from its argument struct. The launch copies the
 * struct, so the host memory may change at once, nothing waits, and a captured graph replays the
 * same bytes.
 */
#include "optim/optim.h"

#include "base/checked.h"

#include <string.h>

memopt_status mo_table_reserve(memopt_optimizer *o, mo_table *table, uint64_t bytes,
                               memopt_stream stream)
{
    void *larger;
    if (bytes <= table->capacity)
        return MEMOPT_OK;
    uint64_t wanted = mo_max_u64(bytes, table->capacity + table->capacity / 2);
    memopt_status status =
        memopt_allocator_alloc(o->allocator, wanted, MEMOPT_TAG_OPTIMIZER, stream, &larger);
    if (status != MEMOPT_OK)
        return status;
    void *old = table->data;
    table->data = larger;
    table->capacity = wanted;
    table->current = 0;
    return mo_optimizer_release(o, old);
}

memopt_status mo_upload(memopt_optimizer *o, void *destination, const void *source, uint64_t bytes,
                        memopt_stream stream)
{
    mo_optim_upload_args args;
    memset(&args, 0, sizeof args);
    for (uint64_t done = 0; done < bytes; done += args.bytes) {
        args.destination = (unsigned char *)destination + done;
        args.bytes = mo_min_u64(bytes - done, MO_UPLOAD_BYTES);
        memcpy(args.payload, (const unsigned char *)source + done, (size_t)args.bytes);
        memopt_status status = mo_launch(o->device, stream, &mo_kernel_optim_upload, &args, 1);
        if (status != MEMOPT_OK)
            return status;
    }
    return MEMOPT_OK;
}

/* As many elements at a time as one upload holds. `fill` copies element i. */
static memopt_status upload_each(memopt_optimizer *o, mo_table *table, uint64_t count,
                                 uint64_t size,
                                 void (*fill)(const memopt_optimizer *o, uint64_t i, void *out),
                                 memopt_stream stream)
{
    unsigned char piece[MO_UPLOAD_BYTES];
    memopt_status status = mo_table_reserve(o, table, mo_max_u64(count, 8) * size, stream);
    if (status != MEMOPT_OK || table->current)
        return status;
    for (uint64_t i = 0; i < count;) {
        uint64_t n = mo_min_u64(count - i, MO_UPLOAD_BYTES / size);
        for (uint64_t k = 0; k < n; k++)
            fill(o, i + k, piece + k * size);
        status = mo_upload(o, (unsigned char *)table->data + i * size, piece, n * size, stream);
        if (status != MEMOPT_OK)
            return status;
        i += n;
    }
    table->current = 1;
    return MEMOPT_OK;
}

static void fill_tensor(const memopt_optimizer *o, uint64_t i, void *out)
{
    mo_optim_tensor tensor = mo_paged_tensor(o, &o->parameters[i]);
    memcpy(out, &tensor, sizeof tensor);
}

static void fill_group(const memopt_optimizer *o, uint64_t i, void *out)
{
    const memopt_optimizer_group *g = &o->groups[i];
    mo_rule_group group = {g->lr,          g->beta1,     g->beta2,    g->eps,       g->weight_decay,
                           g->momentum,    g->dampening, g->maximize, g->nesterov,  g->device_lr,
                           g->average,     g->beta3,     g->alpha,    g->t_alpha,   g->t_beta3,
                           g->beta2_decay, g->eps2,      g->d,        g->max_ratio, g->trust_clip,
                           g->uncorrected};
    memcpy(out, &group, sizeof group);
}

static void fill_segment(const memopt_optimizer *o, uint64_t i, void *out)
{
    memcpy(out, &o->segments[i], sizeof *o->segments);
}

memopt_status mo_upload_tensors(memopt_optimizer *o, memopt_stream stream)
{
    return upload_each(o, &o->tensor_table, o->parameter_count, sizeof(mo_optim_tensor),
                       fill_tensor, stream);
}

memopt_status mo_upload_groups(memopt_optimizer *o, memopt_stream stream)
{
    return upload_each(o, &o->group_table, o->group_count, sizeof(mo_rule_group), fill_group,
                       stream);
}

memopt_status mo_upload_segments(memopt_optimizer *o, uint64_t count, memopt_stream stream)
{
    int same = count == o->segment_count &&
               (count == 0 || memcmp(o->next, o->segments, (size_t)count * sizeof *o->next) == 0);
    if (!same) { /* the two arrays change places */
        mo_tensor_segment *segments = o->segments;
        uint64_t capacity = o->segments_capacity;
        o->segments = o->next;
        o->segments_capacity = o->next_capacity;
        o->next = segments;
        o->next_capacity = capacity;
        o->segment_count = count;
        o->segment_table.current = 0;
    }
    return upload_each(o, &o->segment_table, count, sizeof(mo_tensor_segment), fill_segment,
                       stream);
}
