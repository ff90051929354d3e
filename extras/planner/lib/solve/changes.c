/* The changes that save memory: each makes another case of a case. */
#include "solve/solve.h"

#include "base/checked.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct change {
    mo_plan_change_kind kind;
    mo_plan_tier tier;
    double time;     /* of a step, beyond what the plan's own time factor says */
    uint32_t target; /* the value that it sets */
} change;

/* Autocast is a change of compute, then of the weights; both have kind DTYPE. */
enum { COMPUTE, WEIGHTS };

static const change changes[MO_PLAN_CHANGES] = {
    {MO_PLAN_CHANGE_MICRO_BATCH, MO_PLAN_TIER_FREE, 1.0, 0},
    {MO_PLAN_CHANGE_ATTENTION, MO_PLAN_TIER_FREE, 1.0, MO_PLAN_ATTENTION_SDPA},
    {MO_PLAN_CHANGE_LOSS, MO_PLAN_TIER_FREE, 1.0, MO_PLAN_LOSS_FUSED},
    {MO_PLAN_CHANGE_ALLOCATOR, MO_PLAN_TIER_FREE, 1.0, MO_PLAN_ALLOCATOR_EXPANDABLE},
    {MO_PLAN_CHANGE_SHARDING, MO_PLAN_TIER_FREE, 1.0, MO_PLAN_ZERO1},
    {MO_PLAN_CHANGE_SHARDING, MO_PLAN_TIER_FREE, 1.0, MO_PLAN_ZERO2},
    {MO_PLAN_CHANGE_OPTIMIZER, MO_PLAN_TIER_STATES, 1.02, 0},
    {MO_PLAN_CHANGE_DTYPE, MO_PLAN_TIER_STATES, 1.0, COMPUTE},
    {MO_PLAN_CHANGE_DTYPE, MO_PLAN_TIER_WEIGHTS, 1.0, WEIGHTS},
    {MO_PLAN_CHANGE_SHARDING, MO_PLAN_TIER_TIME, 1.1, MO_PLAN_ZERO3},
    {MO_PLAN_CHANGE_CHECKPOINTING, MO_PLAN_TIER_TIME, 1.0, MO_PLAN_CHECKPOINT_SELECTIVE},
    {MO_PLAN_CHANGE_CHECKPOINTING, MO_PLAN_TIER_TIME, 1.0, MO_PLAN_CHECKPOINT_FULL},
    {MO_PLAN_CHANGE_OFFLOAD, MO_PLAN_TIER_TIME, 1.0, MO_PLAN_OFFLOAD_ACTIVATIONS},
    {MO_PLAN_CHANGE_OFFLOAD, MO_PLAN_TIER_TIME, 1.0, MO_PLAN_OFFLOAD_OPTIMIZER},
    {MO_PLAN_CHANGE_LORA, MO_PLAN_TIER_MEANING, 1.0, 16},
    {MO_PLAN_CHANGE_QUANTIZE, MO_PLAN_TIER_STORED, 1.3, MO_PLAN_QUANTIZE_NF4},
    {MO_PLAN_CHANGE_QUANTIZE, MO_PLAN_TIER_STORED, 1.02, MO_PLAN_QUANTIZE_NF4_DOUBLE},
    {MO_PLAN_CHANGE_SEQUENCE, MO_PLAN_TIER_SHORTER, 1.0, 2},
    {MO_PLAN_CHANGE_SEQUENCE, MO_PLAN_TIER_SHORTER, 1.0, 4},
    {MO_PLAN_CHANGE_NEGATIVES, MO_PLAN_TIER_SHORTER, 1.0, 0},
    {MO_PLAN_CHANGE_IMAGES, MO_PLAN_TIER_SHORTER, 1.0, 0},
};

mo_plan_tier mo_plan_change_tier(int index)
{
    return changes[index].tier;
}

uint64_t mo_plan_change_loss(int index)
{
    const change *what = &changes[index];
    uint64_t times = what->kind == MO_PLAN_CHANGE_SEQUENCE ? what->target / 2 : 1; /* halved */
    int lossless = what->tier == MO_PLAN_TIER_FREE || what->tier == MO_PLAN_TIER_TIME;
    return 1 + (lossless ? 0 : times << 8 * what->tier);
}

#define SAY(out, field, ...) (void)snprintf((out)->field, sizeof(out)->field, __VA_ARGS__)

void mo_plan_change_batch(mo_plan_case *c, uint64_t batch, uint64_t accumulation,
                          mo_plan_change *out)
{
    SAY(out, change, "micro-batch %" PRIu64 " → %" PRIu64 ", accumulation %" PRIu64 " → %" PRIu64,
        c->run.batch, batch, c->run.accumulation, accumulation);
    SAY(out, option, "--batch %" PRIu64 " --accumulation %" PRIu64, batch, accumulation);
    c->run.batch = batch;
    c->run.accumulation = accumulation;
}

static int smaller_batch(mo_plan_case *c, mo_plan_change *out)
{
    if (c->run.batch < 2)
        return 0;
    mo_plan_change_batch(c, 1, c->run.accumulation * c->run.batch, out);
    return 1;
}

/* The same rule with 8-bit states; -1: it has none. */
static int64_t eight_bit(uint32_t optimizer)
{
    switch (optimizer) {
    case MO_PLAN_ADAMW:
    case MO_PLAN_ADAMW_FOREACH:
    case MO_PLAN_ADAMW_FUSED:
    case MO_PLAN_ADAMW_OURS:
        return MO_PLAN_ADAMW_8BIT;
    case MO_PLAN_LION:
        return MO_PLAN_LION_8BIT;
    case MO_PLAN_SGD_MOMENTUM:
        return MO_PLAN_SGD_8BIT;
    default:
        return -1;
    }
}

static int other_optimizer(mo_plan_case *c, mo_plan_change *out)
{
    int64_t to = eight_bit(c->run.optimizer);
    if (to < 0)
        return 0;
    SAY(out, change, "optimizer %s → %s", MO_PLAN_WORD(run.optimizer, c->run.optimizer),
        MO_PLAN_WORD(run.optimizer, (uint32_t)to));
    SAY(out, option, "--optimizer %s", MO_PLAN_WORD(run.optimizer, (uint32_t)to));
    c->run.optimizer = (uint32_t)to;
    if (c->run.state_dtype == c->run.weight_dtype)
        c->run.state_dtype = 0; /* torch's states are of the weights' type, ours are not */
    return 1;
}

static int is_f32(memopt_dtype dtype)
{
    return dtype == 0 || dtype == MEMOPT_DTYPE_F32;
}

/* The 16-bit type that the card computes in. */
static memopt_dtype narrow_of(const mo_plan_case *c)
{
    return c->card.bf16 == MO_PLAN_NO ? MEMOPT_DTYPE_F16 : MEMOPT_DTYPE_BF16;
}

static int other_dtype(mo_plan_case *c, mo_plan_change *out, uint32_t what)
{
    if (!is_f32(c->run.weight_dtype))
        return 0;
    if (what == COMPUTE) {
        if (!is_f32(c->run.compute_dtype))
            return 0;
        c->run.compute_dtype = narrow_of(c);
        SAY(out, change, "compute fp32 → %s",
            narrow_of(c) == MEMOPT_DTYPE_F16 ? "fp16 (autocast, with a gradient scaler)"
                                             : "bf16 (autocast)");
        SAY(out, option, "--autocast %s", mo_plan_dtype_word(narrow_of(c)));
        return 1;
    }
    if (c->run.master_dtype != 0 || c->run.compute_dtype == MEMOPT_DTYPE_F16 ||
        narrow_of(c) == MEMOPT_DTYPE_F16) /* a scaler refuses gradients of fp16 */
        return 0;
    c->run.weight_dtype = MEMOPT_DTYPE_BF16;
    c->run.compute_dtype = 0;
    c->run.gradient_dtype = 0;
    if (is_f32(c->run.state_dtype))
        c->run.state_dtype = 0;
    if (is_f32(c->run.gather_dtype))
        c->run.gather_dtype = 0;
    SAY(out, change, "weights fp32 → bf16, %s",
        mo_plan_is_ours(c->run.optimizer) ? "with memopt's stochastic rounding"
                                          : "rounded to the nearest by torch");
    SAY(out, option, "--dtype bf16");
    return 1;
}

static int other_sharding(mo_plan_case *c, mo_plan_change *out, uint32_t to)
{
    if (c->run.world_size < 2 || c->run.sharding >= to)
        return 0;
    c->run.sharding = to;
    SAY(out, change, "%s over %" PRIu64 " devices",
        to == MO_PLAN_ZERO3   ? "ZeRO-3 (FSDP full shard)"
        : to == MO_PLAN_ZERO2 ? "ZeRO-2"
                              : "ZeRO-1",
        c->run.world_size);
    SAY(out, option, "--zero %" PRIu32, to);
    return 1;
}

static int other_checkpointing(mo_plan_case *c, mo_plan_change *out, uint32_t to)
{
    uint32_t from = c->run.checkpointing;
    int stronger = from == MO_PLAN_CHECKPOINT_NONE ||
                   (to == MO_PLAN_CHECKPOINT_FULL && from != MO_PLAN_CHECKPOINT_FULL);
    if (!stronger || from == to)
        return 0;
    c->run.checkpointing = to;
    SAY(out, change, "checkpointing %s → %s", MO_PLAN_WORD(run.checkpointing, from),
        MO_PLAN_WORD(run.checkpointing, to));
    SAY(out, option, "--checkpointing %s", MO_PLAN_WORD(run.checkpointing, to));
    return 1;
}

static int other_offload(mo_plan_case *c, mo_plan_change *out, uint32_t what)
{
    if (c->run.offload & what || c->card.unified == MO_PLAN_YES)
        return 0;
    c->run.offload |= what;
    SAY(out, change, "%s to the host",
        what == MO_PLAN_OFFLOAD_ACTIVATIONS ? "activations" : "optimizer states");
    SAY(out, option, "--offload %s",
        c->run.offload == (MO_PLAN_OFFLOAD_ACTIVATIONS | MO_PLAN_OFFLOAD_OPTIMIZER) ? "all"
        : what == MO_PLAN_OFFLOAD_ACTIVATIONS                                       ? "activations"
                                                                                    : "optimizer");
    return 1;
}

static int shorter(mo_plan_case *c, const mo_plan_target *options, mo_plan_change *out, uint32_t by)
{
    uint64_t from = c->run.sequence, to = from / by;
    uint64_t least = options->min_sequence != 0 ? options->min_sequence : from / 8;
    if (mo_plan_family_of(&c->model)->images || to < 1 || to < least)
        return 0;
    c->run.sequence = to;
    c->run.sequence_mean = mo_min_u64(c->run.sequence_mean, to);
    SAY(out, change, "sequence %" PRIu64 " → %" PRIu64, from, to);
    SAY(out, option, "--seq %" PRIu64, to);
    return 1;
}

/* A third of the negatives less, or a quarter of the images or frames. */
static int fewer(mo_plan_case *c, mo_plan_change *out, mo_plan_change_kind kind)
{
    int negatives = kind == MO_PLAN_CHANGE_NEGATIVES;
    uint64_t *count = negatives ? &c->run.negatives : &c->run.images;
    const char *name = negatives ? "negatives" : "images";
    uint64_t from = *count, to = negatives ? from * 2 / 3 : from * 3 / 4;
    if (to < 1)
        return 0;
    *count = to;
    SAY(out, change, "%s %" PRIu64 " → %" PRIu64, name, from, to);
    SAY(out, option, "--%s %" PRIu64, name, to);
    return 1;
}

static int adapters(mo_plan_case *c, mo_plan_change *out, uint32_t rank)
{
    if (c->model.lora_rank != 0)
        return 0;
    c->model.lora_rank = rank;
    SAY(out, change, "LoRA of rank %" PRIu32 " in place of all weights", rank);
    SAY(out, option, "--lora %" PRIu32, rank);
    return 1;
}

/* Under adapters only. What bitsandbytes multiplies in is a type that the card has. */
static int stored(mo_plan_case *c, mo_plan_change *out, uint32_t to)
{
    uint32_t from = c->model.quantize;
    uint32_t needs = to == MO_PLAN_QUANTIZE_NF4 ? MO_PLAN_QUANTIZE_NONE : MO_PLAN_QUANTIZE_NF4;
    if (c->model.lora_rank == 0 || from != needs)
        return 0;
    c->model.quantize = to;
    if (c->run.base_dtype == 0)
        c->run.base_dtype = is_f32(c->run.weight_dtype) ? narrow_of(c) : c->run.weight_dtype;
    const char *word = MO_PLAN_WORD(model.quantize, to);
    const char *computed = mo_plan_dtype_word(c->run.base_dtype);
    if (from == MO_PLAN_QUANTIZE_NONE)
        SAY(out, change, "weights under LoRA in %s, computed in %s (QLoRA)", word, computed);
    else
        SAY(out, change, "scales of %s in 8 bits (double quantisation)",
            MO_PLAN_WORD(model.quantize, from));
    SAY(out, option, "--quantize %s --set base_dtype=%s", word, computed);
    return 1;
}

static int others(mo_plan_case *c, mo_plan_change *out, mo_plan_change_kind kind)
{
    if (kind == MO_PLAN_CHANGE_ATTENTION) {
        if (c->run.attention != MO_PLAN_ATTENTION_EAGER)
            return 0;
        c->run.attention = MO_PLAN_ATTENTION_SDPA;
        SAY(out, change, "attention eager → sdpa");
        SAY(out, option, "--attention sdpa");
    } else if (kind == MO_PLAN_CHANGE_LOSS) {
        if (c->run.loss != MO_PLAN_LOSS_PLAIN)
            return 0;
        c->run.loss = MO_PLAN_LOSS_FUSED;
        SAY(out, change, "a fused loss: logits never exist as a whole");
        SAY(out, option, "--loss fused");
    } else {
        if (c->card.allocator == MO_PLAN_ALLOCATOR_EXPANDABLE ||
            c->card.device == MO_PLAN_DEVICE_HIP) /* of PyTorch for ROCm 7 only, where some hang */
            return 0;
        c->card.allocator = MO_PLAN_ALLOCATOR_EXPANDABLE;
        SAY(out, change, "expandable segments");
        SAY(out, option, "--allocator expandable");
    }
    return 1;
}

static int forbidden(const change *what, const mo_plan_target *o)
{
    mo_plan_change_kind kind = what->kind;
    return (kind == MO_PLAN_CHANGE_MICRO_BATCH && o->keep_batch) ||
           (kind == MO_PLAN_CHANGE_DTYPE && o->keep_dtype) ||
           (kind == MO_PLAN_CHANGE_OPTIMIZER && o->keep_optimizer) ||
           (what->tier >= MO_PLAN_TIER_WEIGHTS && o->keep_training);
}

static int apply(const change *what, mo_plan_case *c, const mo_plan_target *options,
                 mo_plan_change *out)
{
    switch (what->kind) {
    case MO_PLAN_CHANGE_MICRO_BATCH:
        return smaller_batch(c, out);
    case MO_PLAN_CHANGE_OPTIMIZER:
        return other_optimizer(c, out);
    case MO_PLAN_CHANGE_DTYPE:
        return other_dtype(c, out, what->target);
    case MO_PLAN_CHANGE_SHARDING:
        return other_sharding(c, out, what->target);
    case MO_PLAN_CHANGE_CHECKPOINTING:
        return other_checkpointing(c, out, what->target);
    case MO_PLAN_CHANGE_OFFLOAD:
        return other_offload(c, out, what->target);
    case MO_PLAN_CHANGE_SEQUENCE:
        return shorter(c, options, out, what->target);
    case MO_PLAN_CHANGE_NEGATIVES:
    case MO_PLAN_CHANGE_IMAGES:
        return fewer(c, out, what->kind);
    case MO_PLAN_CHANGE_LORA:
        return adapters(c, out, what->target);
    case MO_PLAN_CHANGE_QUANTIZE:
        return stored(c, out, what->target);
    default:
        return others(c, out, what->kind);
    }
}

int mo_plan_change_make(int index, const mo_plan_case *c, const mo_plan_target *options,
                        mo_plan_case *changed, mo_plan_change *out)
{
    const change *what = &changes[index];
    if (forbidden(what, options))
        return 0;
    *changed = *c;
    *out = (mo_plan_change){.kind = (uint32_t)what->kind};
    out->time_factor = what->time;
    int rounds = what->tier == MO_PLAN_TIER_STATES || what->kind == MO_PLAN_CHANGE_ATTENTION ||
                 what->kind == MO_PLAN_CHANGE_LOSS;
    out->training = what->tier >= MO_PLAN_TIER_WEIGHTS ? 2 : (uint32_t)rounds;
    return apply(what, changed, options, out);
}
