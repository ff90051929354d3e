/*
 * The step as a whole: what the engine keeps, then forward, loss, backward and optimizer.
 */
#include "model/play.h"

/* The embeddings, the first entry of the layers' list. */
static mo_plan_value embed(mo_plan_play *p)
{
    mo_plan_tape *t = &p->tape;
    p->engine->before_forward(p, 0);
    mo_plan_value x = mo_plan_play_embeddings(p);
    p->engine->output(p, 0, x);
    p->engine->after_forward(p, 0);
    p->info[0] = (mo_plan_layer_info){.saved = t->live[MO_PLAN_ACTIVATIONS],
                                      .output = mo_plan_bytes_of(t, x),
                                      .flops = t->flops,
                                      .kind = MO_PLAN_LAYER_EMBEDDING};
    return x;
}

/* The head and the loss, the last entry. */
static mo_plan_value head(mo_plan_play *p, mo_plan_value x)
{
    mo_plan_tape *t = &p->tape;
    uint32_t last = t->layer_count - 1;
    double flops = t->flops;
    uint64_t saved = t->live[MO_PLAN_ACTIVATIONS] + t->live[MO_PLAN_LOGITS];
    p->engine->before_forward(p, last);
    mo_plan_value loss = mo_plan_play_head(p, x);
    p->engine->loss(p, loss);
    p->engine->after_forward(p, last);
    p->engine->output(p, last, loss);
    uint64_t now = t->live[MO_PLAN_ACTIVATIONS] + t->live[MO_PLAN_LOGITS];
    p->info[last] = (mo_plan_layer_info){.saved = now > saved ? now - saved : 0,
                                         .output = mo_plan_bytes_of(t, loss),
                                         .flops = t->flops - flops,
                                         .kind = MO_PLAN_LAYER_HEAD};
    return loss;
}

static mo_plan_value forward(mo_plan_play *p)
{
    p->tape.phase = MO_PLAN_PHASE_FORWARD;
    mo_plan_value x = embed(p);
    x = mo_plan_play_stack(p, &p->text, x);
    p->saved = p->tape.live[MO_PLAN_ACTIVATIONS];
    return head(p, x);
}

static void forward_and_backward(mo_plan_play *p)
{
    mo_plan_tape *t = &p->tape;
    int again = p->settings->run.checkpointing != MO_PLAN_CHECKPOINT_NONE;
    mo_plan_value loss = forward(p);
    if (t->status != MEMOPT_OK)
        return;
    mo_plan_tape_forget(t);
    mo_plan_play_release(p, &p->outputs, 0);
    if (!again) /* else layers that run again hold them */
        mo_plan_play_drop_tables(p);
    mo_plan_tape_backward(t, loss);
    p->engine->finish(p);
    if (again)
        mo_plan_play_drop_tables(p);
    mo_plan_drop(t, loss);
}

memopt_status mo_plan_play_step(mo_plan_play *p)
{
    mo_plan_tape *t = &p->tape;
    p->engine->start(p);
    forward_and_backward(p);
    if (t->status != MEMOPT_OK)
        return t->status;
    t->phase = MO_PLAN_PHASE_STEP;
    t->layer = t->layer_count; /* of no layer, nor of its forward */
    t->label = "the optimizer's step";
    p->engine->step(p);
    return t->status;
}
