/* Sizes of values and of ranges of stages. Equal ranges share a cell. Sums cannot overflow:
 * schedule.c has checked the total. */
#include "checkpoint/schedule.h"

#include "base/checked.h"
#include "base/memory.h"

uint64_t mo_chain_value(const mo_chain *c, uint64_t i)
{
    return i == 0 ? c->input_bytes : c->stages[i - 1].output_bytes;
}

/* Of value i, which backward of stage i makes. */
static uint64_t gradient_of(const mo_chain *c, uint64_t i)
{
    return i > 0 || c->input_gradient ? mo_chain_value(c, i) : 0;
}

uint64_t mo_chain_save(const mo_chain *c, uint64_t i, uint64_t j)
{
    const memopt_chain_stage *s = &c->stages[i];
    uint64_t gradient = gradient_of(c, i);
    uint64_t forward = mo_chain_value(c, j + 1) + s->forward_extra_bytes;
    uint64_t backward = mo_chain_value(c, i + 1) + gradient + s->backward_extra_bytes;
    return s->saved_bytes + mo_max_u64(forward, backward);
}

/* The index of a range: ranges with the same i are adjacent. */
static uint64_t index_of(uint64_t count, uint64_t i, uint64_t j)
{
    return i * count - i * (i - 1) / 2 + (j - i);
}

uint64_t mo_chain_cell(const mo_chain *c, uint64_t i, uint64_t j)
{
    return c->cells[index_of(c->count, i, j)];
}

static int same_stage(const memopt_chain_stage *a, const memopt_chain_stage *b)
{
    return a->output_bytes == b->output_bytes && a->saved_bytes == b->saved_bytes &&
           a->forward_extra_bytes == b->forward_extra_bytes &&
           a->backward_extra_bytes == b->backward_extra_bytes &&
           !(a->forward_seconds < b->forward_seconds) &&
           !(a->forward_seconds > b->forward_seconds) &&
           !(a->backward_seconds < b->backward_seconds) &&
           !(a->backward_seconds > b->backward_seconds);
}

/* How far ahead the stages are that are like those from i on for longest; *out_length: how long.
 * alike[p]: how many stages from i + 1 on are like those p further on; becomes the same from i. */
static uint64_t best_shift(const mo_chain *c, uint64_t i, uint64_t *alike, uint64_t *out_length)
{
    uint64_t shift = 0;
    *out_length = 0;
    for (uint64_t p = 1; i + p < c->count; p++) {
        alike[p] = same_stage(&c->stages[i], &c->stages[i + p]) ? alike[p] + 1 : 0;
        if (alike[p] > *out_length && gradient_of(c, i) == gradient_of(c, i + p)) {
            *out_length = alike[p];
            shift = p;
        }
    }
    return shift;
}

memopt_status mo_chain_find_cells(mo_chain *c)
{
    uint64_t length, *alike = mo_calloc(c->count, sizeof *alike);
    c->cells = mo_malloc(c->count * (c->count + 1) / 2 * sizeof *c->cells);
    if (alike == NULL || c->cells == NULL) {
        mo_free(alike);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    c->cell_count = 0;
    for (uint64_t i = c->count; i-- > 0;) {
        uint64_t shift = best_shift(c, i, alike, &length);
        uint32_t *cells = &c->cells[index_of(c->count, i, i)];
        for (uint64_t j = i; j < c->count; j++)
            cells[j - i] = (uint32_t)(j - i < length ? mo_chain_cell(c, i + shift, j + shift)
                                                     : c->cell_count++);
    }
    mo_free(alike);
    return MEMOPT_OK;
}
