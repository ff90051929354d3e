/* The scalar forms of cross-entropy, and the loops over rows that all CPU forms share. */
#include "kernels/core/element_io.h"
#include "kernels/loss/loss_cpu.h"

static void stripe_scalar(const unsigned char *logits, uint32_t count, uint32_t dtype,
                          float *largest, float *sum)
{
    float lanes[MO_LOSS_LANES] = {0}, top = -mo_f32_from_bits(MO_F32_INF_BITS);
    for (uint32_t i = 0; i < count; i++) {
        float x = mo_load_element(logits, i, (int32_t)dtype);
        top = x > top ? x : top;
    }
    float base = mo_loss_base(top);
    for (uint32_t i = 0; i < count; i++)
        lanes[i % MO_LOSS_LANES] += mo_exp_down(mo_load_element(logits, i, (int32_t)dtype) - base);
    *largest = top;
    *sum = mo_loss_tree(lanes);
}

void mo_gradient_scalar(unsigned char *logits, uint32_t count, uint32_t dtype, float base,
                        float factor)
{
    for (uint32_t i = 0; i < count; i++) {
        float x = mo_load_element(logits, i, (int32_t)dtype);
        mo_store_element(logits, i, (int32_t)dtype, mo_loss_gradient(x, base, factor, 0.0f));
    }
}

void mo_logits_add_run(const void *args, uint64_t begin, uint64_t end, mo_stripe_function stripe)
{
    const mo_logits_args *a = args;
    const uint32_t size = mo_element_size(a->dtype);
    for (uint64_t r = begin; r < end; r++) {
        const unsigned char *logits = a->logits + r * a->stride * size;
        mo_loss_row *row = &a->rows[r];
        uint32_t target = (uint32_t)a->targets[r] - a->first;
        if (a->targets[r] >= 0 && target < a->columns)
            mo_loss_target(row, mo_load_element(logits, target, (int32_t)a->dtype));
        for (uint32_t i = 0; i < a->columns; i += MO_LOSS_STRIPE) {
            uint32_t rest = a->columns - i;
            float largest, sum;
            stripe(logits + (uint64_t)i * size, rest < MO_LOSS_STRIPE ? rest : MO_LOSS_STRIPE,
                   a->dtype, &largest, &sum);
            mo_loss_join(row, largest, sum);
        }
    }
}

void mo_logits_gradient_run(const void *args, uint64_t begin, uint64_t end,
                            mo_gradient_function gradient)
{
    const mo_logits_args *a = args;
    const uint32_t size = mo_element_size(a->dtype);
    for (uint64_t r = begin; r < end; r++) {
        unsigned char *logits = a->logits + r * a->stride * size;
        const mo_loss_row *row = &a->rows[r];
        if (a->targets[r] < 0) {
            __builtin_memset(logits, 0, (uint64_t)a->columns * size);
            continue;
        }
        uint32_t target = (uint32_t)a->targets[r] - a->first;
        float base = mo_loss_base(row->largest), factor = mo_loss_factor(row, a->scale), own = 0;
        if (target < a->columns)
            own = mo_load_element(logits, target, (int32_t)a->dtype);
        gradient(logits, a->columns, a->dtype, base, factor);
        if (target < a->columns)
            mo_store_element(logits, target, (int32_t)a->dtype,
                             mo_loss_gradient(own, base, factor, a->scale));
    }
}

void mo_logits_add_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_logits_add_run(args, begin, end, stripe_scalar);
}

void mo_logits_gradient_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_logits_gradient_run(args, begin, end, mo_gradient_scalar);
}

void mo_losses_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_losses_args *a = args;
    uint64_t last = end * MO_LOSS_THREADS < a->count ? end * MO_LOSS_THREADS : a->count;
    for (uint64_t r = begin * MO_LOSS_THREADS; r < last; r++)
        a->losses[r] = mo_loss_of(&a->rows[r], a->targets[r]);
}
