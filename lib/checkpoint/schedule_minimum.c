/*
 * Least memory: need(i, j) is the fewest bytes, beside value i, in which [i, j] can be run.
 *
 *   need(i, i) = save(i, i)
 *   need(i, j) = min over the cuts: max(save(i, j), saved(i) + need(i+1, j)) or, for k in i+1 … j,
 *                max(run(i, k, j), value(k) + need(k, j), need(i, k−1))
 *
 * where save(i, j) is what stage i takes in its forward and backward, and run(i, k, j) what running
 * i … k−1 takes while the gradient of value j + 1 is alive.
 *
 * Of two equal cuts the first wins: saving before recomputing, then the longest second part.
 */
#include "checkpoint/schedule.h"

#include "base/checked.h"
#include "base/memory.h"

typedef struct cell {
    uint64_t need;
    uint64_t stages; /* up to the cut */
} cell;

static cell *at(const mo_chain *c, cell *table, uint64_t i, uint64_t j)
{
    return &table[mo_chain_cell(c, i, j)];
}

/* run(i, k, j) grows with k by one stage at a time: `most` is what it was for k − 1. */
static void solve(const mo_chain *c, cell *table, uint64_t i, uint64_t j)
{
    uint64_t rest = i == j ? 0 : c->stages[i].saved_bytes + at(c, table, i + 1, j)->need;
    cell best = {mo_max_u64(mo_chain_save(c, i, j), rest), 0};
    uint64_t gradient = mo_chain_value(c, j + 1);
    uint64_t most = mo_chain_value(c, i + 1) + c->stages[i].forward_extra_bytes;
    for (uint64_t k = i + 1; k <= j; k++) {
        uint64_t need = mo_max_u64(gradient + most, at(c, table, i, k - 1)->need);
        need = mo_max_u64(need, mo_chain_value(c, k) + at(c, table, k, j)->need);
        if (need < best.need)
            best = (cell){need, k - i};
        most = mo_max_u64(most, mo_chain_value(c, k) + mo_chain_value(c, k + 1) +
                                    c->stages[k].forward_extra_bytes);
    }
    *at(c, table, i, j) = best;
}

static uint64_t cut(const mo_cuts *cuts, uint64_t i, uint64_t j, uint64_t memory)
{
    (void)memory;
    return i + at(cuts->chain, cuts->table, i, j)->stages;
}

static uint64_t size(const mo_cuts *cuts, uint64_t bytes)
{
    (void)cuts;
    return bytes;
}

memopt_status mo_schedule_minimum(const mo_chain *c, mo_cuts *out_cuts, uint64_t *out_budget)
{
    cell *table = mo_malloc(c->cell_count * sizeof *table);
    uint64_t solved = 0;
    if (table == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    for (uint64_t i = c->count; i-- > 0;)
        for (uint64_t j = i; j < c->count; j++) {
            if (mo_chain_cell(c, i, j) != solved)
                continue; /* an equal range was solved */
            solve(c, table, i, j);
            solved++;
        }
    *out_cuts = (mo_cuts){.cut = cut, .size = size, .chain = c, .unit = 1, .table = table};
    *out_budget = c->input_bytes + at(c, table, 0, c->count - 1)->need;
    return MEMOPT_OK;
}
