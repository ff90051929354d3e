/* Sizes of values and of ranges of stages. Sums cannot overflow: schedule.c has checked the sum of
 * everything. */
#include "checkpoint/schedule.h"

#include "base/checked.h"

uint64_t mo_chain_value(const mo_chain *c, uint64_t i)
{
    return i == 0 ? c->input_bytes : c->stages[i - 1].output_bytes;
}

uint64_t mo_chain_save(const mo_chain *c, uint64_t i, uint64_t j)
{
    const memopt_chain_stage *s = &c->stages[i];
    uint64_t gradient = i > 0 || c->input_gradient ? mo_chain_value(c, i) : 0;
    uint64_t forward = mo_chain_value(c, j + 1) + s->forward_extra_bytes;
    uint64_t backward = mo_chain_value(c, i + 1) + gradient + s->backward_extra_bytes;
    return s->saved_bytes + mo_max_u64(forward, backward);
}

uint64_t mo_range_count(uint64_t count)
{
    return count * (count + 1) / 2;
}

uint64_t mo_range_index(uint64_t count, uint64_t i, uint64_t j)
{
    return i * count - i * (i - 1) / 2 + (j - i);
}
