/* The changes that save memory: each makes another case of a case. */
#include "plan/solve.h"

#include "base/checked.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct change {
    memopt_plan_change_kind kind;
    mo_tier tier;
    double time;     /* of a step, beyond what the plan's own time factor says */
    uint32_t target; /* the value that it sets */
} change;

static const char *const optimizers[] = {"adamw",     "adamw-foreach", "adamw-fused",  "adamw8bit",
                                         "adamw4bit", "adamwfp8",      "adamw-memopt", "lion",
                                         "lion8bit",  "sgd",           "sgd-momentum", "sgd8bit",
                                         "adafactor", "none"};
static const char *const checkpointings[] = {"none", "full", "selective", "every", "budget"};

/* Autocast is a change of compute, then of the weights; both have kind DTYPE. */
enum { COMPUTE, WEIGHTS };

static const change changes[MO_CHANGES] = {
    {MEMOPT_PLAN_CHANGE_MICRO_BATCH, MO_TIER_FREE, 1.0, 0},
    {MEMOPT_PLAN_CHANGE_ATTENTION, MO_TIER_FREE, 1.0, MEMOPT_PLAN_ATTENTION_SDPA},
    {MEMOPT_PLAN_CHANGE_LOSS, MO_TIER_FREE, 1.0, MEMOPT_PLAN_LOSS_FUSED},
    {MEMOPT_PLAN_CHANGE_ALLOCATOR, MO_TIER_FREE, 1.0, MEMOPT_PLAN_ALLOCATOR_EXPANDABLE},
    {MEMOPT_PLAN_CHANGE_BUCKET, MO_TIER_FREE, 1.0, 50000000},
    {MEMOPT_PLAN_CHANGE_SHARDING, MO_TIER_FREE, 1.0, MEMOPT_PLAN_ZERO1},
    {MEMOPT_PLAN_CHANGE_SHARDING, MO_TIER_FREE, 1.0, MEMOPT_PLAN_ZERO2},
    {MEMOPT_PLAN_CHANGE_OPTIMIZER, MO_TIER_STATES, 1.02, 0},
    {MEMOPT_PLAN_CHANGE_DTYPE, MO_TIER_STATES, 1.0, COMPUTE},
    {MEMOPT_PLAN_CHANGE_DTYPE, MO_TIER_WEIGHTS, 1.0, WEIGHTS},
    {MEMOPT_PLAN_CHANGE_SHARDING, MO_TIER_TIME, 1.1, MEMOPT_PLAN_ZERO3},
    {MEMOPT_PLAN_CHANGE_CHECKPOINTING, MO_TIER_TIME, 1.0, MEMOPT_PLAN_CHECKPOINT_SELECTIVE},
    {MEMOPT_PLAN_CHANGE_CHECKPOINTING, MO_TIER_TIME, 1.0, MEMOPT_PLAN_CHECKPOINT_FULL},
    {MEMOPT_PLAN_CHANGE_OFFLOAD, MO_TIER_TIME, 1.0, MEMOPT_PLAN_OFFLOAD_ACTIVATIONS},
    {MEMOPT_PLAN_CHANGE_OFFLOAD, MO_TIER_TIME, 1.0, MEMOPT_PLAN_OFFLOAD_OPTIMIZER},
    {MEMOPT_PLAN_CHANGE_SEQUENCE, MO_TIER_MEANING, 1.0, 2},
    {MEMOPT_PLAN_CHANGE_SEQUENCE, MO_TIER_MEANING, 1.0, 4},
    {MEMOPT_PLAN_CHANGE_LORA, MO_TIER_MEANING, 1.0, 16},
};

mo_tier mo_change_tier(int index)
{
    return changes[index].tier;
}

#define SAY(out, field, ...) (void)snprintf((out)->field, sizeof(out)->field, __VA_ARGS__)

void mo_change_batch(mo_case *c, uint64_t batch, uint64_t accumulation, memopt_plan_change *out)
{
    SAY(out, change, "micro-batch %" PRIu64 " → %" PRIu64 ", accumulation %" PRIu64 " → %" PRIu64,
        c->run.batch, batch, c->run.accumulation, accumulation);
    SAY(out, option, "--batch %" PRIu64 " --accumulation %" PRIu64, batch, accumulation);
    c->run.batch = batch;
    c->run.accumulation = accumulation;
}

static int smaller_batch(mo_case *c, memopt_plan_change *out)
{
    if (c->run.batch < 2)
        return 0;
    mo_change_batch(c, 1, c->run.accumulation * c->run.batch, out);
    return 1;
}

/* The same rule with 8-bit states; -1: it has none. */
static int64_t eight_bit(uint32_t optimizer)
{
    switch (optimizer) {
    case MEMOPT_PLAN_ADAMW:
    case MEMOPT_PLAN_ADAMW_FOREACH:
    case MEMOPT_PLAN_ADAMW_FUSED:
    case MEMOPT_PLAN_ADAMW_OURS:
        return MEMOPT_PLAN_ADAMW_8BIT;
    case MEMOPT_PLAN_LION:
        return MEMOPT_PLAN_LION_8BIT;
    case MEMOPT_PLAN_SGD_MOMENTUM:
        return MEMOPT_PLAN_SGD_8BIT;
    default:
        return -1;
    }
}

static int other_optimizer(mo_case *c, memopt_plan_change *out)
{
    int64_t to = eight_bit(c->run.optimizer);
    if (to < 0)
        return 0;
    SAY(out, change, "optimizer %s → %s", optimizers[c->run.optimizer], optimizers[to]);
    SAY(out, option, "--optimizer %s", optimizers[to]);
    c->run.optimizer = (uint32_t)to;
    if (c->run.state_dtype == c->run.weight_dtype)
        c->run.state_dtype = 0; /* torch's states are of the weights' type, ours are not */
    return 1;
}

static int is_f32(memopt_dtype dtype)
{
    return dtype == 0 || dtype == MEMOPT_DTYPE_F32;
}

static int is_deepspeed(const mo_case *c)
{
    return c->run.zero_engine == MEMOPT_PLAN_ENGINE_DEEPSPEED;
}

/* DeepSpeed steps a copy in fp32 of such weights. Its buckets are counted in elements. */
static int deepspeed_dtype(mo_case *c, memopt_plan_change *out)
{
    c->run.weight_dtype = MEMOPT_DTYPE_BF16;
    c->run.compute_dtype = c->run.gradient_dtype = c->run.gather_dtype = 0;
    c->run.adapter_dtype = c->run.master_dtype = c->run.state_dtype = 0;
    c->run.bucket_bytes /= 2;
    SAY(out, change, "weights fp32 → bf16, with DeepSpeed's copy in fp32");
    SAY(out, option, "--dtype bf16");
    return 1;
}

static int other_bucket(mo_case *c, memopt_plan_change *out, uint64_t elements)
{
    uint64_t width = is_f32(c->run.weight_dtype) ? 4 : 2;
    uint64_t from = c->run.bucket_bytes > 0 ? c->run.bucket_bytes / width : UINT64_C(500000000);
    if (!is_deepspeed(c) || from <= elements)
        return 0;
    c->run.bucket_bytes = elements * width;
    SAY(out, change, "reduce bucket %" PRIu64 " → %" PRIu64 " elements", from, elements);
    SAY(out, option, "--reduce-bucket-size %" PRIu64, elements);
    return 1;
}

static int other_dtype(mo_case *c, memopt_plan_change *out, uint32_t what)
{
    if (!is_f32(c->run.weight_dtype))
        return 0;
    if (is_deepspeed(c))
        return what == WEIGHTS && deepspeed_dtype(c, out);
    if (what == COMPUTE) {
        if (!is_f32(c->run.compute_dtype))
            return 0;
        c->run.compute_dtype = MEMOPT_DTYPE_BF16;
        SAY(out, change, "compute fp32 → bf16 (autocast)");
        SAY(out, option, "--autocast bf16");
        return 1;
    }
    if (c->run.master_dtype != 0)
        return 0;
    c->run.weight_dtype = MEMOPT_DTYPE_BF16;
    c->run.compute_dtype = 0;
    c->run.gradient_dtype = 0;
    if (is_f32(c->run.state_dtype))
        c->run.state_dtype = 0;
    if (is_f32(c->run.gather_dtype))
        c->run.gather_dtype = 0;
    SAY(out, change, "weights fp32 → bf16, with stochastic rounding");
    SAY(out, option, "--dtype bf16");
    return 1;
}

static int other_sharding(mo_case *c, memopt_plan_change *out, uint32_t to)
{
    if (c->run.world_size < 2 || c->run.sharding >= to)
        return 0;
    c->run.sharding = to;
    SAY(out, change, "%s over %" PRIu64 " devices",
        to == MEMOPT_PLAN_ZERO3 && is_deepspeed(c) ? "DeepSpeed's ZeRO-3"
        : to == MEMOPT_PLAN_ZERO3                  ? "ZeRO-3 (FSDP full shard)"
        : to == MEMOPT_PLAN_ZERO2                  ? "ZeRO-2"
                                                   : "ZeRO-1",
        c->run.world_size);
    SAY(out, option, "--zero %" PRIu32, to);
    return 1;
}

static int other_checkpointing(mo_case *c, memopt_plan_change *out, uint32_t to)
{
    uint32_t from = c->run.checkpointing;
    int stronger = from == MEMOPT_PLAN_CHECKPOINT_NONE ||
                   (to == MEMOPT_PLAN_CHECKPOINT_FULL && from != MEMOPT_PLAN_CHECKPOINT_FULL);
    if (!stronger || from == to)
        return 0;
    c->run.checkpointing = to;
    SAY(out, change, "checkpointing %s → %s", checkpointings[from], checkpointings[to]);
    SAY(out, option, "--checkpointing %s", checkpointings[to]);
    return 1;
}

static int other_offload(mo_case *c, memopt_plan_change *out, uint32_t what)
{
    if ((c->run.offload & what) || (what == MEMOPT_PLAN_OFFLOAD_OPTIMIZER && is_deepspeed(c)))
        return 0;
    c->run.offload |= what;
    SAY(out, change, "%s to the host",
        what == MEMOPT_PLAN_OFFLOAD_ACTIVATIONS ? "activations" : "optimizer states");
    SAY(out, option, "--offload %s",
        c->run.offload == (MEMOPT_PLAN_OFFLOAD_ACTIVATIONS | MEMOPT_PLAN_OFFLOAD_OPTIMIZER) ? "all"
        : what == MEMOPT_PLAN_OFFLOAD_ACTIVATIONS ? "activations"
                                                  : "optimizer");
    return 1;
}

static int shorter(mo_case *c, const memopt_plan_target_options *options, memopt_plan_change *out,
                   uint32_t by)
{
    uint64_t from = c->run.sequence, to = from / by;
    uint64_t least = options->min_sequence != 0 ? options->min_sequence : from / 8;
    if (c->model.family == MEMOPT_PLAN_VIT || to < 1 || to < least)
        return 0;
    c->run.sequence = to;
    c->run.sequence_mean = mo_min_u64(c->run.sequence_mean, to);
    SAY(out, change, "sequence %" PRIu64 " → %" PRIu64, from, to);
    SAY(out, option, "--seq %" PRIu64, to);
    return 1;
}

static int adapters(mo_case *c, memopt_plan_change *out, uint32_t rank)
{
    if (c->model.lora_rank != 0 || mo_case_is_measured(c))
        return 0;
    c->model.lora_rank = rank;
    SAY(out, change, "LoRA of rank %" PRIu32 " in place of all weights", rank);
    SAY(out, option, "--lora %" PRIu32, rank);
    return 1;
}

static int others(mo_case *c, memopt_plan_change *out, memopt_plan_change_kind kind)
{
    if (kind == MEMOPT_PLAN_CHANGE_ATTENTION) {
        if (c->run.attention != MEMOPT_PLAN_ATTENTION_EAGER)
            return 0;
        c->run.attention = MEMOPT_PLAN_ATTENTION_SDPA;
        SAY(out, change, "attention eager → sdpa");
        SAY(out, option, "--attention sdpa");
    } else if (kind == MEMOPT_PLAN_CHANGE_LOSS) {
        if (c->run.loss != MEMOPT_PLAN_LOSS_PLAIN)
            return 0;
        c->run.loss = MEMOPT_PLAN_LOSS_FUSED;
        SAY(out, change, "a fused loss: logits never exist as a whole");
        SAY(out, option, "--loss fused");
    } else {
        if (c->card.allocator == MEMOPT_PLAN_ALLOCATOR_EXPANDABLE)
            return 0;
        c->card.allocator = MEMOPT_PLAN_ALLOCATOR_EXPANDABLE;
        SAY(out, change, "expandable segments");
        SAY(out, option, "--allocator expandable");
    }
    return 1;
}

static int forbidden(memopt_plan_change_kind kind, const memopt_plan_target_options *o)
{
    return (kind == MEMOPT_PLAN_CHANGE_MICRO_BATCH && o->keep_batch) ||
           (kind == MEMOPT_PLAN_CHANGE_DTYPE && o->keep_dtype) ||
           (kind == MEMOPT_PLAN_CHANGE_OPTIMIZER && o->keep_optimizer) ||
           (kind == MEMOPT_PLAN_CHANGE_LORA && o->keep_weights);
}

static int apply(const change *what, mo_case *c, const memopt_plan_target_options *options,
                 memopt_plan_change *out)
{
    switch (what->kind) {
    case MEMOPT_PLAN_CHANGE_MICRO_BATCH:
        return smaller_batch(c, out);
    case MEMOPT_PLAN_CHANGE_OPTIMIZER:
        return other_optimizer(c, out);
    case MEMOPT_PLAN_CHANGE_DTYPE:
        return other_dtype(c, out, what->target);
    case MEMOPT_PLAN_CHANGE_BUCKET:
        return other_bucket(c, out, what->target);
    case MEMOPT_PLAN_CHANGE_SHARDING:
        return other_sharding(c, out, what->target);
    case MEMOPT_PLAN_CHANGE_CHECKPOINTING:
        return other_checkpointing(c, out, what->target);
    case MEMOPT_PLAN_CHANGE_OFFLOAD:
        return other_offload(c, out, what->target);
    case MEMOPT_PLAN_CHANGE_SEQUENCE:
        return shorter(c, options, out, what->target);
    case MEMOPT_PLAN_CHANGE_LORA:
        return adapters(c, out, what->target);
    default:
        return others(c, out, what->kind);
    }
}

int mo_change_make(int index, const mo_case *c, const memopt_plan_target_options *options,
                   mo_case *changed, memopt_plan_change *out)
{
    const change *what = &changes[index];
    if (forbidden(what->kind, options))
        return 0;
    *changed = *c;
    *out = (memopt_plan_change){.struct_size = sizeof *out, .kind = (uint32_t)what->kind};
    out->time_factor = what->time;
    return apply(what, changed, options, out);
}
