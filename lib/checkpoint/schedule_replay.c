/* From a table of cuts to a list of steps, and from steps to what they take. */
#include "checkpoint/schedule.h"

#include "base/memory.h"

static memopt_status add(mo_schedule_steps *steps, uint32_t operation, uint64_t stage)
{
    if (!mo_grow((void **)&steps->items, &steps->capacity, steps->count + 1, sizeof *steps->items))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    steps->items[steps->count++] = (mo_step){(uint16_t)operation, (uint16_t)stage};
    return MEMOPT_OK;
}

memopt_status mo_schedule_save_all(const mo_chain *c, mo_schedule_steps *steps)
{
    for (uint64_t i = 0; i < c->count; i++)
        MO_TRY(add(steps, MEMOPT_SCHEDULE_FORWARD_SAVE, i));
    for (uint64_t i = c->count; i-- > 0;)
        MO_TRY(add(steps, MEMOPT_SCHEDULE_BACKWARD, i));
    return MEMOPT_OK;
}

/* What is still to be expanded; the last is the next. A range, or one backward (backward = 1). */
typedef struct task {
    uint64_t i, j, memory;
    int backward;
} task;

typedef struct tasks {
    task *items;
    uint64_t count, capacity;
} tasks;

static memopt_status push(tasks *t, task next)
{
    if (!mo_grow((void **)&t->items, &t->capacity, t->count + 1, sizeof *t->items))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    t->items[t->count++] = next;
    return MEMOPT_OK;
}

static memopt_status expand_saved(const mo_cuts *cuts, const task *range, tasks *t,
                                  mo_schedule_steps *steps)
{
    MO_TRY(add(steps, MEMOPT_SCHEDULE_FORWARD_SAVE, range->i));
    MO_TRY(push(t, (task){range->i, range->i, 0, 1}));
    if (range->i == range->j)
        return MEMOPT_OK;
    uint64_t saved = cuts->size(cuts, cuts->chain->stages[range->i].saved_bytes);
    return push(t, (task){range->i + 1, range->j, range->memory - saved, 0});
}

static memopt_status expand_kept(const mo_cuts *cuts, const task *range, uint64_t k, tasks *t,
                                 mo_schedule_steps *steps)
{
    MO_TRY(add(steps, MEMOPT_SCHEDULE_FORWARD_KEEP, range->i));
    for (uint64_t q = range->i + 1; q < k; q++)
        MO_TRY(add(steps, MEMOPT_SCHEDULE_FORWARD, q));
    MO_TRY(push(t, (task){range->i, k - 1, range->memory, 0}));
    uint64_t value = cuts->size(cuts, mo_chain_value(cuts->chain, k));
    return push(t, (task){k, range->j, range->memory - value, 0});
}

memopt_status mo_schedule_expand(const mo_cuts *cuts, uint64_t memory, mo_schedule_steps *steps)
{
    tasks t = {NULL, 0, 0};
    memopt_status status = push(&t, (task){0, cuts->chain->count - 1, memory, 0});
    while (status == MEMOPT_OK && t.count > 0) {
        task next = t.items[--t.count];
        uint64_t k = next.i;
        if (!next.backward && next.i < next.j)
            k = cuts->cut(cuts, next.i, next.j, next.memory);
        if (next.backward)
            status = add(steps, MEMOPT_SCHEDULE_BACKWARD, next.i);
        else if (k == next.i)
            status = expand_saved(cuts, &next, &t, steps);
        else
            status = expand_kept(cuts, &next, k, &t, steps);
    }
    mo_free(t.items);
    return status;
}

/* alive: bytes of values, saved sets and gradients before the step. A value that lies in a saved
 * set is not counted twice: `separate` marks the others. */
typedef struct replay {
    const mo_chain *chain;
    uint64_t alive, peak;
    unsigned char separate[MO_CHAIN_LIMIT + 1];
} replay;

static void note(replay *r, uint64_t extra)
{
    if (r->alive + extra > r->peak)
        r->peak = r->alive + extra;
}

static void drop_value(replay *r, uint64_t i)
{
    if (r->separate[i] && i > 0)
        r->alive -= mo_chain_value(r->chain, i);
    if (i > 0)
        r->separate[i] = 0;
}

static void forward(replay *r, const mo_step *step)
{
    const memopt_chain_stage *s = &r->chain->stages[step->stage];
    int saves = step->operation == MEMOPT_SCHEDULE_FORWARD_SAVE;
    r->alive += saves ? s->saved_bytes : s->output_bytes;
    note(r, s->forward_extra_bytes);
    r->separate[step->stage + 1] = !saves;
    if (step->operation == MEMOPT_SCHEDULE_FORWARD)
        drop_value(r, step->stage);
}

static void backward(replay *r, const mo_step *step)
{
    const memopt_chain_stage *s = &r->chain->stages[step->stage];
    int makes = step->stage > 0 || r->chain->input_gradient;
    r->alive += makes ? mo_chain_value(r->chain, step->stage) : 0;
    note(r, s->backward_extra_bytes);
    r->alive -= s->saved_bytes + s->output_bytes;
    drop_value(r, step->stage);
}

void mo_schedule_replay(const mo_chain *c, const mo_schedule_steps *steps,
                        memopt_schedule_info *info)
{
    /* The gradient of the output counts from the start. */
    uint64_t start = c->input_bytes + mo_chain_value(c, c->count);
    replay r = {.chain = c, .alive = start, .peak = start, .separate = {1}};
    uint64_t forwards = 0;
    double seconds = 0;
    for (uint64_t n = 0; n < steps->count; n++) {
        const mo_step *step = &steps->items[n];
        const memopt_chain_stage *s = &c->stages[step->stage];
        if (step->operation == MEMOPT_SCHEDULE_BACKWARD) {
            backward(&r, step);
            seconds += s->backward_seconds;
        } else {
            forward(&r, step);
            seconds += s->forward_seconds;
            forwards++;
        }
    }
    info->steps = steps->count;
    info->peak_bytes = r.peak;
    info->recomputed = forwards - c->count;
    info->seconds = seconds;
}
