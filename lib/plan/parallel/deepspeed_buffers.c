/* The buffers that all stages of DeepSpeed's ZeRO have. */
#include "plan/parallel/deepspeed.h"

uint64_t mo_plan_deepspeed_add(mo_plan_play *p, uint64_t a, uint64_t b)
{
    uint64_t sum = 0;
    if (!mo_add_u64(a, b, &sum))
        (void)mo_plan_tape_mul(&p->tape, UINT64_MAX, 2);
    return sum;
}

const mo_plan_weight *mo_plan_deepspeed_weight(const mo_plan_play *p, uint32_t leaf)
{
    return &p->weights[mo_plan_deepspeed_of(p)->learning[leaf]];
}

int mo_plan_deepspeed_has_place(const mo_plan_weight *w)
{
    return w->learns || w->unused;
}

/* The optimizer sees one flat tensor. */
mo_plan_weight mo_plan_deepspeed_flat(uint64_t elements)
{
    return (mo_plan_weight){.count = elements, .rows = elements, .learns = 1};
}

void mo_plan_deepspeed_states(mo_plan_play *p, uint64_t elements)
{
    mo_plan_tape *t = &p->tape;
    mo_plan_weight w = mo_plan_deepspeed_flat(elements);
    t->label = "the optimizer's states";
    (void)mo_plan_storage_new(t, mo_plan_optimizer_state_bytes(t, &p->settings->run, &w),
                              MO_PLAN_OPTIMIZER);
}

void mo_plan_deepspeed_bucket(mo_plan_play *p)
{
    mo_plan_deepspeed *e = mo_plan_deepspeed_of(p);
    uint64_t bytes = mo_plan_tape_mul(&p->tape, e->capacity, e->width);
    if (e->bucket != MO_PLAN_NONE)
        return;
    if (e->overlap && e->stage < MO_PLAN_ZERO3)
        bytes = mo_plan_tape_mul(&p->tape, bytes, 2);
    e->bucket = mo_plan_buffer(p, "the reduce bucket", bytes, MO_PLAN_GRADIENTS);
}
