/*
 * A layer: attention and MLP with their norms and residuals, and the run over a stack of layers,
 * some of which are run again in backward.
 */
#include "plan/play.h"

static mo_value turn(mo_tape *t, mo_value old, mo_value new_one)
{
    mo_drop(t, old);
    return new_one;
}

static mo_value inner(mo_layer *l, mo_value x)
{
    return l->stack->experts > 0 ? mo_experts(l, x) : mo_mlp(l, x);
}

/* x + y; Granite scales y. */
static mo_value residual(mo_stack *s, mo_value x, mo_value y)
{
    mo_tape *t = &s->play->tape;
    if (s->kin != MEMOPT_PLAN_KIN_GRANITE)
        return mo_op_add(t, x, y);
    mo_value scaled = mo_op_scale(t, y);
    mo_value sum = mo_op_add(t, x, scaled);
    mo_drop(t, scaled);
    return sum;
}

/* Norm, attention, sum, norm, MLP, sum. */
static mo_value pre_norm(mo_layer *l, mo_value x)
{
    mo_stack *s = l->stack;
    mo_tape *t = &s->play->tape;
    uint32_t compute = s->play->compute;
    mo_value h = mo_op_norm(t, &l->norm1, x, compute);
    mo_value a = mo_attention(l, h);
    int named = s->family == MEMOPT_PLAN_GPT2; /* its code has a name for each of them */
    h = named ? h : turn(t, h, MO_NONE);
    a = turn(t, a, mo_op_dropout(t, a, s->hidden_dropout));
    mo_value middle = residual(s, x, a);
    mo_drop(t, h);
    if (named)
        mo_play_hold(s->play, &s->play->layer, a);
    else
        mo_drop(t, a);
    h = mo_op_norm(t, &l->norm2, middle, compute);
    mo_value m = inner(l, h);
    h = named ? h : turn(t, h, MO_NONE);
    m = turn(t, m, mo_op_dropout(t, m, s->hidden_dropout));
    mo_value out = residual(s, middle, m);
    mo_drop(t, h);
    mo_drop(t, m);
    mo_drop(t, middle);
    mo_play_let_go(s->play, &s->play->layer, 0);
    return out;
}

/* Attention, sum, norm, MLP, sum, norm. */
static mo_value post_norm(mo_layer *l, mo_value x)
{
    mo_stack *s = l->stack;
    mo_tape *t = &s->play->tape;
    uint32_t compute = s->play->compute;
    mo_value a = mo_attention(l, x);
    a = turn(t, a, mo_op_dropout(t, a, s->hidden_dropout));
    mo_value sum = mo_op_add(t, a, x);
    mo_value middle = mo_op_norm(t, &l->norm1, sum, compute);
    mo_drop(t, sum);
    mo_drop(t, a);
    mo_value m = inner(l, middle);
    m = turn(t, m, mo_op_dropout(t, m, s->hidden_dropout));
    sum = mo_op_add(t, m, middle);
    mo_value out = mo_op_norm(t, &l->norm2, sum, compute);
    mo_drop(t, sum);
    mo_drop(t, m);
    mo_drop(t, middle);
    mo_play_let_go(s->play, &s->play->layer, 0);
    return out;
}

mo_value mo_block_run(mo_tape *t, void *layer, const mo_value *inputs)
{
    mo_layer *l = layer;
    if (t->status != MEMOPT_OK)
        return MO_NONE;
    return l->stack->post_norm ? post_norm(l, inputs[0]) : pre_norm(l, inputs[0]);
}

int mo_block_again(const mo_play *p, uint64_t number)
{
    const memopt_plan_run *r = &p->settings->run;
    switch (r->checkpointing) {
    case MEMOPT_PLAN_CHECKPOINT_FULL:
        return 1;
    case MEMOPT_PLAN_CHECKPOINT_EVERY:
        return (number + 1) % r->checkpoint_every != 0;
    default:
        return 0;
    }
}

mo_value mo_play_stack(mo_play *p, mo_stack *s, mo_value x)
{
    mo_tape *t = &p->tape;
    for (uint64_t i = 0; i < s->layer_count - s->skipped; i++) {
        mo_layer *l = &s->layers[i];
        mo_layer_info *info = &p->info[l->number];
        uint64_t before = t->live[MO_ACTIVATIONS];
        double flops = t->flops;
        int again = mo_block_again(p, i);
        t->layer = l->number;
        mo_shard_forward(p, l->number);
        mo_engine_forward(p, l->number);
        mo_shard_hook_input(p, l->number, x);
        x = turn(t, x, mo_tape_region_forward(t, mo_block_run, l, &x, 1, again));
        mo_shard_hook_output(p, l->number, x);
        mo_engine_hook_output(p, l->number, x);
        mo_shard_forward_end(p, l->number);
        info->recomputed = (uint32_t)again;
        info->kind = s == &p->text ? MEMOPT_PLAN_LAYER_BLOCK : MEMOPT_PLAN_LAYER_VISION;
        info->flops = t->flops - flops;
        info->output = mo_bytes(t, x);
        info->after = t->total;
        info->saved = t->live[MO_ACTIVATIONS] > before ? t->live[MO_ACTIVATIONS] - before : 0;
        p->again_flops += again ? info->flops : 0;
    }
    return x;
}
