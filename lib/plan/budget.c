/*
 * Checkpointing by budget: the layers of the text are a chain whose schedule memopt_schedule finds,
 * and the step is played in the schedule's order.
 *
 * Each layer that saves is recorded apart, from a value that collects the gradient of its input.
 * Since layers run backward in the opposite order, what is recorded is a stack: a layer's nodes are
 * on top when its backward runs.
 */
#include "plan/play.h"

typedef struct mo_stage {
    mo_value input;      /* value i */
    mo_value entry;      /* the same with a node that collects, while the stage is recorded */
    mo_mark mark;        /* before it was recorded */
    uint32_t node, slot; /* of its output */
} mo_stage;

typedef struct mo_chain {
    mo_play *play;
    mo_stage *stages; /* one more than layers: the last is for the chain's output */
    uint64_t count;
    uint32_t gradient; /* of the value in front of which backward stands; a storage */
    int backward;      /* the loss has been computed */
} mo_chain;

static uint64_t above(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

memopt_status mo_play_schedule(const mo_play *played, uint64_t budget, memopt_schedule **out)
{
    const mo_stack *s = &played->text;
    memopt_schedule_options options = MEMOPT_SCHEDULE_OPTIONS_INIT;
    memopt_chain_stage *stages = mo_calloc(s->layer_count, sizeof *stages);
    if (stages == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    for (uint64_t i = 0; i < s->layer_count; i++) {
        const mo_layer_info *info = &played->info[s->layers[i].number];
        const mo_layer_peak *peak = &played->tape.layers[s->layers[i].number];
        stages[i] = (memopt_chain_stage){
            .forward_seconds = info->flops,
            .backward_seconds = 2 * info->flops,
            .output_bytes = info->output,
            .saved_bytes = mo_max_u64(info->saved, info->output),
            .forward_extra_bytes = above(peak->forward, info->after),
            .backward_extra_bytes = above(above(peak->backward, peak->start), info->output)};
    }
    options.budget = budget;
    options.input_bytes = stages[0].output_bytes;
    options.input_gradient = 1;
    memopt_status status = memopt_schedule_create(stages, s->layer_count, &options, out);
    mo_free(stages);
    return status;
}

/* The loss from the chain's output, and back to the gradient of it. */
static void turn_around(mo_chain *c)
{
    mo_play *p = c->play;
    mo_tape *t = &p->tape;
    mo_stage *last = &c->stages[c->count];
    p->saved = t->live[MO_ACTIVATIONS];
    last->mark = mo_tape_mark(t);
    last->entry = mo_value_view(t, last->input, mo_elements(t, last->input));
    mo_value_collects(t, last->entry);
    uint64_t base = t->node_count;
    mo_value x = mo_value_view(t, last->entry, mo_elements(t, last->entry));
    double flops = t->flops;
    mo_value loss = mo_play_head(p, x);
    mo_play_wrapped(p, loss);
    p->info[t->layer_count - 1].flops = t->flops - flops;
    p->info[t->layer_count - 1].kind = MEMOPT_PLAN_LAYER_HEAD;
    if (t->status != MEMOPT_OK)
        return;
    mo_tape_forget(t);
    if (p->settings->run.keep_outputs != MEMOPT_PLAN_YES)
        mo_play_let_go(p, &p->outputs, 0);
    t->phase = MEMOPT_PLAN_PHASE_BACKWARD;
    t->in_backward = 1;
    c->backward = 1;
    const mo_value_entry *e = &t->values[loss];
    uint32_t at = t->nodes[e->node].grads + e->slot;
    uint32_t one = mo_storage_new(t, e->elements * e->width, MO_ACTIVATIONS);
    t->grads[at] = one;
    mo_tape_run(t, base);
    mo_drop(t, loss);
    c->gradient = mo_value_collected(t, last->entry);
    mo_drop(t, last->entry);
    mo_tape_rewind(t, &last->mark);
    mo_drop(t, last->input);
    last->input = MO_NONE;
}

static void run_forward(mo_chain *c, uint64_t i, uint32_t operation)
{
    mo_play *p = c->play;
    mo_tape *t = &p->tape;
    mo_stage *s = &c->stages[i], *next = &c->stages[i + 1];
    mo_layer *l = &p->text.layers[i];
    mo_layer_info *info = &p->info[l->number];
    double flops = t->flops;
    mo_value in = s->input, out;
    t->layer = l->number;
    if (operation == MEMOPT_SCHEDULE_FORWARD_SAVE) {
        s->mark = mo_tape_mark(t);
        s->entry = mo_value_view(t, s->input, mo_elements(t, s->input));
        mo_value_collects(t, s->entry);
        in = s->entry;
    }
    t->recording = operation == MEMOPT_SCHEDULE_FORWARD_SAVE;
    mo_shard_forward(p, l->number);
    out = mo_block_run(t, l, &in);
    mo_shard_forward_end(p, l->number);
    t->recording = 1;
    if (t->status != MEMOPT_OK)
        return;
    s->node = t->values[out].node;
    s->slot = t->values[out].slot;
    t->values[out].node = MO_NONE;
    mo_drop(t, next->input);
    next->input = out;
    info->kind = MEMOPT_PLAN_LAYER_BLOCK;
    info->output = mo_bytes(t, out);
    if (operation != MEMOPT_SCHEDULE_FORWARD_SAVE && !c->backward)
        info->recomputed = 1;
    if (c->backward)
        p->again_flops += info->flops;
    else
        info->flops = t->flops - flops;
    if (operation == MEMOPT_SCHEDULE_FORWARD) {
        mo_drop(t, s->input);
        s->input = MO_NONE;
    }
    if (!c->backward && i + 1 == c->count)
        turn_around(c);
}

static void run_backward(mo_chain *c, uint64_t i)
{
    mo_tape *t = &c->play->tape;
    mo_stage *s = &c->stages[i];
    uint32_t layer = c->play->text.layers[i].number;
    mo_shard_backward(c->play, layer);
    /* The node that collects is the first that was recorded. */
    t->grads[t->nodes[s->node].grads + s->slot] = c->gradient;
    c->gradient = MO_NONE;
    mo_tape_run(t, s->mark.nodes + 1);
    mo_shard_backward_end(c->play, layer);
    c->gradient = mo_value_collected(t, s->entry);
    mo_drop(t, s->entry);
    mo_tape_rewind(t, &s->mark);
    mo_drop(t, s->input);
    mo_drop(t, c->stages[i + 1].input); /* there again if the stage was */
    s->input = s->entry = c->stages[i + 1].input = MO_NONE;
}

static void run_schedule(mo_chain *c)
{
    mo_tape *t = &c->play->tape;
    memopt_schedule_step step = {.struct_size = sizeof step};
    mo_tape_fail(t, memopt_schedule_rewind(c->play->schedule));
    while (t->status == MEMOPT_OK) {
        memopt_status status = memopt_schedule_next(c->play->schedule, &step);
        if (status == MEMOPT_NOT_READY)
            return;
        if (mo_tape_fail(t, status) != MEMOPT_OK)
            return;
        if (step.operation == MEMOPT_SCHEDULE_BACKWARD)
            run_backward(c, step.stage);
        else
            run_forward(c, step.stage, step.operation);
    }
}

void mo_play_scheduled(mo_play *p)
{
    mo_tape *t = &p->tape;
    mo_chain c = {.play = p, .count = p->text.layer_count};
    c.stages = mo_calloc(c.count + 1, sizeof *c.stages);
    if (c.stages == NULL) {
        mo_tape_fail(t, MEMOPT_OUT_OF_HOST_MEMORY);
        return;
    }
    t->phase = MEMOPT_PLAN_PHASE_FORWARD;
    mo_shard_forward(p, 0);
    mo_value x = mo_play_stem(p);
    p->info[0].kind = MEMOPT_PLAN_LAYER_EMBEDDING;
    p->info[0].flops = t->flops;
    p->info[0].saved = t->live[MO_ACTIVATIONS];
    p->info[0].output = mo_bytes(t, x);
    c.stages[0].input = mo_value_view(t, x, mo_elements(t, x));
    uint64_t base = t->node_count;
    run_schedule(&c);
    mo_free(c.stages);
    if (t->status == MEMOPT_OK && mo_needs(t, x)) {
        const mo_value_entry *e = &t->values[x];
        t->grads[t->nodes[e->node].grads + e->slot] = c.gradient;
        c.gradient = MO_NONE;
        mo_drop(t, x);
        t->node_count = base;
        mo_tape_run(t, 1);
    }
    mo_storage_drop(t, c.gradient);
    mo_play_drop_tables(p);
    mo_shard_finish(p);
    mo_engine_finish(p);
    t->in_backward = 0;
}
