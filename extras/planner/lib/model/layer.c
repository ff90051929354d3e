/*
 * A layer: attention and MLP with their norms and residuals, and the run over a stack of layers,
 * some of which are run again in backward.
 */
#include "model/play.h"

static mo_plan_value inner(mo_plan_layer *l, mo_plan_value x)
{
    return l->stack->experts > 0 ? mo_plan_run_experts(l, x) : mo_plan_run_mlp(l, x);
}

/* Norm, attention, sum, norm, MLP, sum. */
static mo_plan_value pre_norm(mo_plan_layer *l, mo_plan_value x)
{
    mo_plan_stack *s = l->stack;
    mo_plan_tape *t = &s->play->tape;
    mo_plan_value h = mo_plan_op_norm(t, &l->norm1, x);
    mo_plan_value a = mo_plan_run_attention(l, h);
    int named = s->family->names_results; /* its code has a name for each of them */
    h = named ? h : mo_plan_next(t, h, MO_PLAN_NONE);
    a = mo_plan_next(t, a, mo_plan_op_dropout(t, a, s->hidden_dropout));
    mo_plan_value middle = mo_plan_op_add(t, x, a);
    mo_plan_drop(t, h);
    if (named)
        mo_plan_play_hold(s->play, &s->play->layer, a);
    else
        mo_plan_drop(t, a);
    h = mo_plan_op_norm(t, &l->norm2, middle);
    mo_plan_value m = inner(l, h);
    h = named ? h : mo_plan_next(t, h, MO_PLAN_NONE);
    m = mo_plan_next(t, m, mo_plan_op_dropout(t, m, s->hidden_dropout));
    mo_plan_value out = mo_plan_op_add(t, middle, m);
    MO_PLAN_DROP(t, h, m, middle);
    mo_plan_play_release(s->play, &s->play->layer, 0);
    return out;
}

/* Attention, sum, norm, MLP, sum, norm. */
static mo_plan_value post_norm(mo_plan_layer *l, mo_plan_value x)
{
    mo_plan_stack *s = l->stack;
    mo_plan_tape *t = &s->play->tape;
    mo_plan_value a = mo_plan_run_attention(l, x);
    a = mo_plan_next(t, a, mo_plan_op_dropout(t, a, s->hidden_dropout));
    mo_plan_value sum = mo_plan_op_add(t, a, x);
    mo_plan_value middle = mo_plan_op_norm(t, &l->norm1, sum);
    MO_PLAN_DROP(t, sum, a);
    mo_plan_value m = inner(l, middle);
    m = mo_plan_next(t, m, mo_plan_op_dropout(t, m, s->hidden_dropout));
    sum = mo_plan_op_add(t, m, middle);
    mo_plan_value out = mo_plan_op_norm(t, &l->norm2, sum);
    MO_PLAN_DROP(t, sum, m, middle);
    mo_plan_play_release(s->play, &s->play->layer, 0);
    return out;
}

mo_plan_value mo_plan_run_layer(mo_plan_tape *t, void *layer, const mo_plan_value *inputs)
{
    mo_plan_layer *l = layer;
    if (t->status != MEMOPT_OK)
        return MO_PLAN_NONE;
    return l->stack->post_norm ? post_norm(l, inputs[0]) : pre_norm(l, inputs[0]);
}

int mo_plan_layer_runs_again(const mo_plan_play *p, uint64_t number)
{
    const mo_plan_run *r = &p->settings->run;
    switch (r->checkpointing) {
    case MO_PLAN_CHECKPOINT_FULL:
        return 1;
    case MO_PLAN_CHECKPOINT_EVERY:
        return (number + 1) % r->checkpoint_every != 0;
    default:
        return 0;
    }
}

mo_plan_value mo_plan_play_stack(mo_plan_play *p, mo_plan_stack *s, mo_plan_value x)
{
    mo_plan_tape *t = &p->tape;
    for (uint64_t i = 0; i < s->layer_count - s->skipped; i++) {
        mo_plan_layer *l = &s->layers[i];
        mo_plan_layer_info *info = &p->info[l->number];
        uint64_t before = t->live[MO_PLAN_ACTIVATIONS];
        double flops = t->flops;
        int again = mo_plan_layer_runs_again(p, i);
        t->layer = l->number;
        p->engine->before_forward(p, l->number);
        p->engine->input(p, l->number, x);
        x = mo_plan_next(t, x, mo_plan_tape_region_forward(t, mo_plan_run_layer, l, &x, 1, again));
        p->engine->output(p, l->number, x);
        p->engine->after_forward(p, l->number);
        info->recomputed = (uint32_t)again;
        info->kind = s == &p->text ? MO_PLAN_LAYER_BLOCK : MO_PLAN_LAYER_VISION;
        info->flops = t->flops - flops;
        info->output = mo_plan_bytes_of(t, x);
        info->saved =
            t->live[MO_PLAN_ACTIVATIONS] > before ? t->live[MO_PLAN_ACTIVATIONS] - before : 0;
        p->again_flops += again ? info->flops : 0;
    }
    return x;
}
