/* Each change on its own: its words, its option, its time, and what it makes of a run. */
#include "solve_support.h"

#include <string.h>

#define BASE "model.layers=4;model.hidden=256;model.heads=4;run.sequence=512;card.device=cpu;"

enum { MOST = 3 };

/* A change that is made. */
typedef struct made {
    const char *change, *option;
    const char *becomes; /* settings that, given from the start, mean the same run */
    mo_plan_tier tier;
    double time;
} made;

/* What is made of settings by the changes of a kind, in their order. */
typedef struct row {
    mo_plan_change_kind kind;
    const char *given;
    made all[MOST];
} row;

static const row rows[] = {
    {MO_PLAN_CHANGE_MICRO_BATCH, "", {{0}}},
    {MO_PLAN_CHANGE_MICRO_BATCH, "run.batch=4;target.keep_batch=yes", {{0}}},
    {MO_PLAN_CHANGE_MICRO_BATCH,
     "run.batch=4;run.accumulation=3",
     {{"micro-batch 4 → 1, accumulation 3 → 12", "--batch 1 --accumulation 12",
       "run.batch=1;run.accumulation=12", MO_PLAN_TIER_FREE, 1}}},
    {MO_PLAN_CHANGE_OPTIMIZER, "run.optimizer=lion;target.keep_optimizer=yes", {{0}}},
    {MO_PLAN_CHANGE_OPTIMIZER, "run.optimizer=sgd", {{0}}},
    {MO_PLAN_CHANGE_OPTIMIZER, "run.optimizer=adamw4bit", {{0}}},
    {MO_PLAN_CHANGE_OPTIMIZER,
     "run.optimizer=lion",
     {{"optimizer lion → lion8bit", "--optimizer lion8bit", "run.optimizer=lion8bit",
       MO_PLAN_TIER_STATES, 1.02}}},
    {MO_PLAN_CHANGE_OPTIMIZER, /* torch's states have the weights' type, ours have fp32 */
     "run.optimizer=adamw-fused;run.weight_dtype=bf16",
     {{"optimizer adamw-fused → adamw8bit", "--optimizer adamw8bit", "run.optimizer=adamw8bit",
       MO_PLAN_TIER_STATES, 1.02}}},
    {MO_PLAN_CHANGE_OPTIMIZER,
     "run.optimizer=sgd-momentum;run.weight_dtype=bf16;run.state_dtype=fp32",
     {{"optimizer sgd-momentum → sgd8bit", "--optimizer sgd8bit", "run.optimizer=sgd8bit",
       MO_PLAN_TIER_STATES, 1.02}}},
    {MO_PLAN_CHANGE_DTYPE, "run.weight_dtype=bf16", {{0}}},
    {MO_PLAN_CHANGE_DTYPE, "target.keep_dtype=yes", {{0}}},
    {MO_PLAN_CHANGE_DTYPE,
     "",
     {{"compute fp32 → bf16 (autocast)", "--autocast bf16", "run.compute_dtype=bf16",
       MO_PLAN_TIER_STATES, 1},
      {"weights fp32 → bf16, rounded to the nearest by torch", "--dtype bf16",
       "run.weight_dtype=bf16", MO_PLAN_TIER_WEIGHTS, 1}}},
    {MO_PLAN_CHANGE_DTYPE, /* there is no copy in fp32 to take away */
     "run.compute_dtype=bf16;run.master_dtype=fp32",
     {{0}}},
    {MO_PLAN_CHANGE_SHARDING, "", {{0}}},
    {MO_PLAN_CHANGE_SHARDING,
     "run.world_size=4",
     {{"ZeRO-1 over 4 devices", "--zero 1", "run.sharding=zero1", MO_PLAN_TIER_FREE, 1},
      {"ZeRO-2 over 4 devices", "--zero 2", "run.sharding=zero2", MO_PLAN_TIER_FREE, 1},
      {"ZeRO-3 (FSDP full shard) over 4 devices", "--zero 3", "run.sharding=zero3",
       MO_PLAN_TIER_TIME, 1.1}}},
    {MO_PLAN_CHANGE_CHECKPOINTING, "run.checkpointing=full", {{0}}},
    {MO_PLAN_CHANGE_CHECKPOINTING,
     "",
     {{"checkpointing none → selective", "--checkpointing selective", "run.checkpointing=selective",
       MO_PLAN_TIER_TIME, 1},
      {"checkpointing none → full", "--checkpointing full", "run.checkpointing=full",
       MO_PLAN_TIER_TIME, 1}}},
    {MO_PLAN_CHANGE_CHECKPOINTING,
     "run.checkpointing=every",
     {{"checkpointing every → full", "--checkpointing full", "run.checkpointing=full",
       MO_PLAN_TIER_TIME, 1}}},
    {MO_PLAN_CHANGE_OFFLOAD, "run.offload=activations,optimizer", {{0}}},
    {MO_PLAN_CHANGE_OFFLOAD, "card.unified=yes", {{0}}}, /* the host is the card */
    {MO_PLAN_CHANGE_OFFLOAD,
     "",
     {{"activations to the host", "--offload activations", "run.offload=activations",
       MO_PLAN_TIER_TIME, 1},
      {"optimizer states to the host", "--offload optimizer", "run.offload=optimizer",
       MO_PLAN_TIER_TIME, 1}}},
    {MO_PLAN_CHANGE_OFFLOAD,
     "run.offload=optimizer",
     {{"activations to the host", "--offload all", "run.offload=activations,optimizer",
       MO_PLAN_TIER_TIME, 1}}},
    {MO_PLAN_CHANGE_SEQUENCE, "run.sequence=1", {{0}}},
    {MO_PLAN_CHANGE_SEQUENCE, "model.family=vit", {{0}}},
    {MO_PLAN_CHANGE_SEQUENCE,
     "run.sequence_mean=200",
     {{"sequence 512 → 256", "--seq 256", "run.sequence=256", MO_PLAN_TIER_SHORTER, 1},
      {"sequence 512 → 128", "--seq 128", "run.sequence=128;run.sequence_mean=128",
       MO_PLAN_TIER_SHORTER, 1}}},
    {MO_PLAN_CHANGE_SEQUENCE,
     "target.min_sequence=129",
     {{"sequence 512 → 256", "--seq 256", "run.sequence=256", MO_PLAN_TIER_SHORTER, 1}}},
    {MO_PLAN_CHANGE_LORA, "model.lora_rank=4", {{0}}},
    {MO_PLAN_CHANGE_LORA, "target.keep_training=yes", {{0}}},
    {MO_PLAN_CHANGE_LORA,
     "",
     {{"LoRA of rank 16 in place of all weights", "--lora 16", "model.lora_rank=16",
       MO_PLAN_TIER_MEANING, 1}}},
    {MO_PLAN_CHANGE_QUANTIZE, "", {{0}}}, /* such weights do not learn */
    {MO_PLAN_CHANGE_QUANTIZE, "model.lora_rank=4;target.keep_training=yes", {{0}}},
    {MO_PLAN_CHANGE_QUANTIZE, "model.lora_rank=4;model.quantize=int8", {{0}}},
    {MO_PLAN_CHANGE_QUANTIZE,
     "model.lora_rank=4",
     {{"weights under LoRA in nf4, computed in bf16 (QLoRA)",
       "--quantize nf4 --set base_dtype=bf16", "model.quantize=nf4;run.base_dtype=bf16",
       MO_PLAN_TIER_STORED, 1.3}}},
    {MO_PLAN_CHANGE_QUANTIZE,
     "model.lora_rank=4;card.bf16=no",
     {{"weights under LoRA in nf4, computed in fp16 (QLoRA)",
       "--quantize nf4 --set base_dtype=fp16", "model.quantize=nf4;run.base_dtype=fp16",
       MO_PLAN_TIER_STORED, 1.3}}},
    {MO_PLAN_CHANGE_QUANTIZE,
     "model.lora_rank=4;model.quantize=nf4;run.base_dtype=bf16",
     {{"scales of nf4 in 8 bits (double quantisation)",
       "--quantize nf4-double --set base_dtype=bf16", "model.quantize=nf4-double",
       MO_PLAN_TIER_STORED, 1.02}}},
    {MO_PLAN_CHANGE_ATTENTION, "run.attention=flash", {{0}}},
    {MO_PLAN_CHANGE_ATTENTION,
     "run.attention=eager",
     {{"attention eager → sdpa", "--attention sdpa", "run.attention=sdpa", MO_PLAN_TIER_FREE, 1}}},
    {MO_PLAN_CHANGE_LOSS, "run.loss=chunked", {{0}}},
    {MO_PLAN_CHANGE_LOSS,
     "",
     {{"a fused loss: logits never exist as a whole", "--loss fused", "run.loss=fused",
       MO_PLAN_TIER_FREE, 1}}},
    {MO_PLAN_CHANGE_ALLOCATOR, "card.allocator=expandable", {{0}}},
    {MO_PLAN_CHANGE_ALLOCATOR, "card.device=hip", {{0}}},
    {MO_PLAN_CHANGE_SEQUENCE, "target.keep_training=yes", {{0}}},
    {MO_PLAN_CHANGE_NEGATIVES,
     "run.negatives=24",
     {{"negatives 24 → 16", "--negatives 16", "run.negatives=16", MO_PLAN_TIER_SHORTER, 1}}},
    {MO_PLAN_CHANGE_IMAGES,
     "run.images=100",
     {{"images 100 → 75", "--images 75", "run.images=75", MO_PLAN_TIER_SHORTER, 1}}},
    {MO_PLAN_CHANGE_IMAGES, "run.images=1", {{0}}},
    {MO_PLAN_CHANGE_ALLOCATOR,
     "",
     {{"expandable segments", "--allocator expandable", "card.allocator=expandable",
       MO_PLAN_TIER_FREE, 1}}},
};

/* A case with every default filled in. */
static mo_plan_settings filled(const mo_plan_model *model, const mo_plan_run *run,
                               const mo_plan_card *card)
{
    mo_plan_settings s;
    OK(mo_plan_settings_fill(&s, model, run, card));
    return s;
}

static mo_plan_settings read(const char *given, const char *more, mo_plan_target *target)
{
    char text[512];
    mo_plan_given all;
    (void)snprintf(text, sizeof text, BASE "%s;%s", given, more);
    OK(mo_plan_parse(text, &all));
    *target = all.target;
    return filled(&all.model, &all.run, &all.card);
}

static void check(const row *r, const made *wanted, int index, const mo_plan_case *changed,
                  const mo_plan_change *change)
{
    mo_plan_target unused;
    assert_string_equal(change->change, wanted->change);
    assert_string_equal(change->option, wanted->option);
    assert_int_equal(mo_plan_change_tier(index), wanted->tier);
    assert_true(change->time_factor > wanted->time - 1e-9);
    assert_true(change->time_factor < wanted->time + 1e-9);
    mo_plan_settings is = filled(&changed->model, &changed->run, &changed->card);
    mo_plan_settings meant = read(r->given, wanted->becomes, &unused);
    if (memcmp(&is, &meant, sizeof is) != 0)
        fail_msg("%s: not what \"%s\" means", wanted->change, wanted->becomes);
}

TEST(changes_are_what_their_options_mean)
{
    for (const row *r = rows; r < rows + sizeof rows / sizeof *rows; r++) {
        mo_plan_target target;
        mo_plan_settings s = read(r->given, "", &target);
        mo_plan_case c = {.model = s.model, .run = s.run, .card = s.card}, changed;
        mo_plan_change change;
        int count = 0, wanted = 0;
        while (wanted < MOST && r->all[wanted].change != NULL)
            wanted++;
        for (int i = 0; i < MO_PLAN_CHANGES; i++)
            if (mo_plan_change_make(i, &c, &target, &changed, &change) &&
                change.kind == (uint32_t)r->kind && count++ < wanted)
                check(r, &r->all[count - 1], i, &changed, &change);
        if (count != wanted)
            fail_msg("kind %d of \"%s\": %d changes", (int)r->kind, r->given, count);
    }
}
