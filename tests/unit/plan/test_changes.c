/* Each change on its own: what it makes of a case, its words, and where it does not apply. */
#include "solve_support.h"

#include <string.h>

typedef struct made {
    int count;
    mo_plan_case cases[3];
    mo_plan_change changes[3];
    mo_plan_tier tiers[3];
} made;

static mo_plan_target no_options(void)
{
    return (mo_plan_target){0};
}

/* All changes of a kind on a case, in their order. */
static made changes_of(mo_plan_change_kind kind, const mo_plan_case *c,
                       const mo_plan_target *options)
{
    made m = {.count = 0};
    for (int i = 0; i < MO_PLAN_CHANGES; i++) {
        mo_plan_case changed;
        mo_plan_change change;
        if (!mo_plan_change_make(i, c, options, &changed, &change) || change.kind != (uint32_t)kind)
            continue;
        assert_true(m.count < 3);
        m.cases[m.count] = changed;
        m.changes[m.count] = change;
        m.tiers[m.count++] = mo_plan_change_tier(i);
    }
    return m;
}

/* A case with the defaults of a plan, as the solver hands it to changes. */
static mo_plan_case filled_case(void)
{
    mo_plan_case c = small_case();
    c.run.batch = c.run.accumulation = c.run.world_size = 1;
    c.run.weight_dtype = c.run.gradient_dtype = c.run.state_dtype = MEMOPT_DTYPE_F32;
    c.run.sequence = c.run.sequence_mean = 512;
    return c;
}

/* The change `at` of them says so, costs so much, and is of a tier. */
static void says(const made *m, int at, const char *words, const char *option, double time,
                 mo_plan_tier tier)
{
    assert_true(at < m->count);
    assert_string_equal(m->changes[at].change, words);
    assert_string_equal(m->changes[at].option, option);
    assert_true(m->changes[at].time_factor > time - 1e-9 &&
                m->changes[at].time_factor < time + 1e-9);
    assert_int_equal(m->tiers[at], tier);
}

static void test_micro_batches(void **state)
{
    (void)state;
    mo_plan_target o = no_options();
    mo_plan_case c = filled_case();
    assert_int_equal(changes_of(MO_PLAN_CHANGE_MICRO_BATCH, &c, &o).count, 0);
    c.run.batch = 4;
    c.run.accumulation = 3;
    made m = changes_of(MO_PLAN_CHANGE_MICRO_BATCH, &c, &o);
    assert_int_equal(m.count, 1);
    says(&m, 0, "micro-batch 4 → 1, accumulation 3 → 12", "--batch 1 --accumulation 12", 1,
         MO_PLAN_TIER_FREE);
    assert_int_equal(m.cases[0].run.batch, 1);
    assert_int_equal(m.cases[0].run.accumulation, 12);
    o.keep_batch = 1;
    assert_int_equal(changes_of(MO_PLAN_CHANGE_MICRO_BATCH, &c, &o).count, 0);
}

static void test_optimizers(void **state)
{
    (void)state;
    static const uint32_t bits[][2] = {
        {MO_PLAN_ADAMW, MO_PLAN_ADAMW_8BIT},       {MO_PLAN_ADAMW_FOREACH, MO_PLAN_ADAMW_8BIT},
        {MO_PLAN_ADAMW_FUSED, MO_PLAN_ADAMW_8BIT}, {MO_PLAN_ADAMW_OURS, MO_PLAN_ADAMW_8BIT},
        {MO_PLAN_LION, MO_PLAN_LION_8BIT},         {MO_PLAN_SGD_MOMENTUM, MO_PLAN_SGD_8BIT}};
    mo_plan_target o = no_options();
    mo_plan_case c = filled_case();
    int with = 0;
    for (uint32_t kind = 0; kind <= MO_PLAN_NO_OPTIMIZER; kind++) {
        c.run.optimizer = kind;
        made m = changes_of(MO_PLAN_CHANGE_OPTIMIZER, &c, &o);
        for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
            if (bits[i][0] == kind) {
                assert_int_equal(m.cases[0].run.optimizer, bits[i][1]);
                with += m.count;
            }
    }
    assert_int_equal(with, 6);
    c.run.optimizer = MO_PLAN_LION;
    made m = changes_of(MO_PLAN_CHANGE_OPTIMIZER, &c, &o);
    says(&m, 0, "optimizer lion → lion8bit", "--optimizer lion8bit", 1.02, MO_PLAN_TIER_STATES);
    /* torch's states are of the weights' type; the small tensors of ours have 32 bits. */
    c.run.weight_dtype = c.run.state_dtype = MEMOPT_DTYPE_BF16;
    m = changes_of(MO_PLAN_CHANGE_OPTIMIZER, &c, &o);
    assert_int_equal(m.cases[0].run.state_dtype, 0);
    c.run.state_dtype = MEMOPT_DTYPE_F32;
    m = changes_of(MO_PLAN_CHANGE_OPTIMIZER, &c, &o);
    assert_int_equal(m.cases[0].run.state_dtype, MEMOPT_DTYPE_F32);
    o.keep_optimizer = 1;
    assert_int_equal(changes_of(MO_PLAN_CHANGE_OPTIMIZER, &c, &o).count, 0);
}

static void test_dtypes(void **state)
{
    (void)state;
    mo_plan_target o = no_options();
    mo_plan_case c = filled_case();
    made m = changes_of(MO_PLAN_CHANGE_DTYPE, &c, &o);
    assert_int_equal(m.count, 2);
    says(&m, 0, "compute fp32 → bf16 (autocast)", "--autocast bf16", 1, MO_PLAN_TIER_STATES);
    says(&m, 1, "weights fp32 → bf16, with stochastic rounding", "--dtype bf16", 1,
         MO_PLAN_TIER_WEIGHTS);
    assert_int_equal(m.cases[0].run.weight_dtype, MEMOPT_DTYPE_F32);
    assert_int_equal(m.cases[0].run.compute_dtype, MEMOPT_DTYPE_BF16);
    c.run.compute_dtype = MEMOPT_DTYPE_F16; /* autocast already: the weights alone */
    m = changes_of(MO_PLAN_CHANGE_DTYPE, &c, &o);
    assert_int_equal(m.count, 1);
    const mo_plan_run *run = &m.cases[0].run;
    assert_int_equal(run->weight_dtype, MEMOPT_DTYPE_BF16);
    assert_int_equal(run->compute_dtype, 0);
    assert_int_equal(run->gradient_dtype, 0);
    assert_int_equal(run->state_dtype, 0);
    c.run.state_dtype = MEMOPT_DTYPE_BF16;
    m = changes_of(MO_PLAN_CHANGE_DTYPE, &c, &o);
    assert_int_equal(m.cases[0].run.state_dtype, MEMOPT_DTYPE_BF16);
    c.run.compute_dtype = 0;
    c.run.master_dtype = MEMOPT_DTYPE_F32; /* a copy in 32 bits is wanted */
    m = changes_of(MO_PLAN_CHANGE_DTYPE, &c, &o);
    assert_int_equal(m.count, 1);
    assert_int_equal(m.cases[0].run.weight_dtype, MEMOPT_DTYPE_F32);
    c.run.master_dtype = 0;
    c.run.weight_dtype = MEMOPT_DTYPE_BF16;
    assert_int_equal(changes_of(MO_PLAN_CHANGE_DTYPE, &c, &o).count, 0);
    c.run.weight_dtype = MEMOPT_DTYPE_F32;
    o.keep_dtype = 1;
    assert_int_equal(changes_of(MO_PLAN_CHANGE_DTYPE, &c, &o).count, 0);
}

static void test_sharding(void **state)
{
    (void)state;
    mo_plan_target o = no_options();
    mo_plan_case c = filled_case();
    assert_int_equal(changes_of(MO_PLAN_CHANGE_SHARDING, &c, &o).count, 0);
    c.run.world_size = 4;
    made m = changes_of(MO_PLAN_CHANGE_SHARDING, &c, &o);
    assert_int_equal(m.count, 3);
    says(&m, 0, "ZeRO-1 over 4 devices", "--zero 1", 1, MO_PLAN_TIER_FREE);
    says(&m, 1, "ZeRO-2 over 4 devices", "--zero 2", 1, MO_PLAN_TIER_FREE);
    says(&m, 2, "ZeRO-3 (FSDP full shard) over 4 devices", "--zero 3", 1.1, MO_PLAN_TIER_TIME);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(m.cases[i].run.sharding, i + 1);
    c.run.sharding = MO_PLAN_ZERO2;
    m = changes_of(MO_PLAN_CHANGE_SHARDING, &c, &o);
    assert_int_equal(m.count, 1);
    assert_int_equal(m.cases[0].run.sharding, MO_PLAN_ZERO3);
}

static void test_checkpointing(void **state)
{
    (void)state;
    mo_plan_target o = no_options();
    mo_plan_case c = filled_case();
    made m = changes_of(MO_PLAN_CHANGE_CHECKPOINTING, &c, &o);
    assert_int_equal(m.count, 2);
    says(&m, 0, "checkpointing none → selective", "--checkpointing selective", 1,
         MO_PLAN_TIER_TIME);
    says(&m, 1, "checkpointing none → full", "--checkpointing full", 1, MO_PLAN_TIER_TIME);
    assert_int_equal(m.cases[0].run.checkpointing, MO_PLAN_CHECKPOINT_SELECTIVE);
    assert_int_equal(m.cases[1].run.checkpointing, MO_PLAN_CHECKPOINT_FULL);
    for (uint32_t from = 1; from <= MO_PLAN_CHECKPOINT_EVERY; from++) {
        c.run.checkpointing = from;
        m = changes_of(MO_PLAN_CHANGE_CHECKPOINTING, &c, &o);
        assert_int_equal(m.count, from != MO_PLAN_CHECKPOINT_FULL);
        assert_true(m.count == 0 || m.cases[0].run.checkpointing == MO_PLAN_CHECKPOINT_FULL);
    }
}

static void test_offload(void **state)
{
    (void)state;
    mo_plan_target o = no_options();
    mo_plan_case c = filled_case();
    made m = changes_of(MO_PLAN_CHANGE_OFFLOAD, &c, &o);
    assert_int_equal(m.count, 2);
    says(&m, 0, "activations to the host", "--offload activations", 1, MO_PLAN_TIER_TIME);
    says(&m, 1, "optimizer states to the host", "--offload optimizer", 1, MO_PLAN_TIER_TIME);
    assert_int_equal(m.cases[0].run.offload, MO_PLAN_OFFLOAD_ACTIVATIONS);
    assert_int_equal(m.cases[1].run.offload, MO_PLAN_OFFLOAD_OPTIMIZER);
    c.run.offload = MO_PLAN_OFFLOAD_OPTIMIZER;
    m = changes_of(MO_PLAN_CHANGE_OFFLOAD, &c, &o);
    assert_int_equal(m.count, 1);
    says(&m, 0, "activations to the host", "--offload all", 1, MO_PLAN_TIER_TIME);
    assert_int_equal(m.cases[0].run.offload, 3);
    c.run.offload = 3;
    assert_int_equal(changes_of(MO_PLAN_CHANGE_OFFLOAD, &c, &o).count, 0);
}

static void test_sequences(void **state)
{
    (void)state;
    mo_plan_target o = no_options();
    mo_plan_case c = filled_case();
    c.run.sequence_mean = 200;
    made m = changes_of(MO_PLAN_CHANGE_SEQUENCE, &c, &o);
    assert_int_equal(m.count, 2);
    says(&m, 0, "sequence 512 → 256", "--seq 256", 1, MO_PLAN_TIER_MEANING);
    says(&m, 1, "sequence 512 → 128", "--seq 128", 1, MO_PLAN_TIER_MEANING);
    assert_int_equal(m.cases[0].run.sequence, 256);
    assert_int_equal(m.cases[0].run.sequence_mean, 200);
    assert_int_equal(m.cases[1].run.sequence_mean, 128);
    o.min_sequence = 129;
    assert_int_equal(changes_of(MO_PLAN_CHANGE_SEQUENCE, &c, &o).count, 1);
    o.min_sequence = 128;
    assert_int_equal(changes_of(MO_PLAN_CHANGE_SEQUENCE, &c, &o).count, 2);
    o.min_sequence = 0;
    c.run.sequence = 3;
    assert_int_equal(changes_of(MO_PLAN_CHANGE_SEQUENCE, &c, &o).count, 1);
    c.run.sequence = 1;
    assert_int_equal(changes_of(MO_PLAN_CHANGE_SEQUENCE, &c, &o).count, 0);
    c.run.sequence = 512;
    c.model.family = MO_PLAN_VIT;
    assert_int_equal(changes_of(MO_PLAN_CHANGE_SEQUENCE, &c, &o).count, 0);
}

static memopt_status nothing(void *user, const mo_plan_run *run, mo_plan_bytes *phases)
{
    (void)user, (void)run, (void)phases;
    return MEMOPT_OK;
}

static void test_adapters(void **state)
{
    (void)state;
    mo_plan_target o = no_options();
    mo_plan_source source = {.measure = NULL};
    mo_plan_case c = filled_case();
    made m = changes_of(MO_PLAN_CHANGE_LORA, &c, &o);
    assert_int_equal(m.count, 1);
    says(&m, 0, "LoRA of rank 16 in place of all weights", "--lora 16", 1, MO_PLAN_TIER_MEANING);
    assert_int_equal(m.cases[0].model.lora_rank, 16);
    c.source = &source;
    assert_int_equal(changes_of(MO_PLAN_CHANGE_LORA, &c, &o).count, 1);
    source.measure = nothing; /* then there is no model to change */
    assert_int_equal(changes_of(MO_PLAN_CHANGE_LORA, &c, &o).count, 0);
    c.source = NULL;
    c.model.lora_rank = 4;
    assert_int_equal(changes_of(MO_PLAN_CHANGE_LORA, &c, &o).count, 0);
    c.model.lora_rank = 0;
    o.keep_weights = 1;
    assert_int_equal(changes_of(MO_PLAN_CHANGE_LORA, &c, &o).count, 0);
}

static void test_free_ones(void **state)
{
    (void)state;
    mo_plan_target o = no_options();
    mo_plan_case c = filled_case();
    assert_int_equal(changes_of(MO_PLAN_CHANGE_ATTENTION, &c, &o).count, 0);
    c.run.attention = MO_PLAN_ATTENTION_FLASH;
    assert_int_equal(changes_of(MO_PLAN_CHANGE_ATTENTION, &c, &o).count, 0);
    c.run.attention = MO_PLAN_ATTENTION_EAGER;
    made m = changes_of(MO_PLAN_CHANGE_ATTENTION, &c, &o);
    says(&m, 0, "attention eager → sdpa", "--attention sdpa", 1, MO_PLAN_TIER_FREE);
    assert_int_equal(m.cases[0].run.attention, MO_PLAN_ATTENTION_SDPA);
    m = changes_of(MO_PLAN_CHANGE_LOSS, &c, &o);
    says(&m, 0, "a fused loss: logits never exist as a whole", "--loss fused", 1,
         MO_PLAN_TIER_FREE);
    assert_int_equal(m.cases[0].run.loss, MO_PLAN_LOSS_FUSED);
    assert_int_equal(changes_of(MO_PLAN_CHANGE_LOSS, &m.cases[0], &o).count, 0);
    m.cases[0].run.loss = MO_PLAN_LOSS_CHUNKED;
    assert_int_equal(changes_of(MO_PLAN_CHANGE_LOSS, &m.cases[0], &o).count, 0);
    m = changes_of(MO_PLAN_CHANGE_ALLOCATOR, &c, &o);
    says(&m, 0, "expandable segments", "--allocator expandable", 1, MO_PLAN_TIER_FREE);
    assert_int_equal(m.cases[0].card.allocator, MO_PLAN_ALLOCATOR_EXPANDABLE);
    assert_int_equal(changes_of(MO_PLAN_CHANGE_ALLOCATOR, &m.cases[0], &o).count, 0);
}

static void test_of_deepspeed(void **state)
{
    (void)state;
    mo_plan_target o = no_options();
    mo_plan_case c = filled_case();
    c.run.bucket_bytes = UINT64_C(2000000000);
    assert_int_equal(changes_of(MO_PLAN_CHANGE_BUCKET, &c, &o).count, 0);
    c.run.zero_engine = MO_PLAN_ENGINE_DEEPSPEED;
    c.run.sharding = MO_PLAN_ZERO1;
    c.run.world_size = 4;
    c.run.master_dtype = MEMOPT_DTYPE_F32;
    made m = changes_of(MO_PLAN_CHANGE_BUCKET, &c, &o);
    says(&m, 0, "reduce bucket 500000000 → 50000000 elements", "--reduce-bucket-size 50000000", 1,
         MO_PLAN_TIER_FREE);
    assert_int_equal(m.cases[0].run.bucket_bytes, 200000000);
    assert_int_equal(changes_of(MO_PLAN_CHANGE_BUCKET, &m.cases[0], &o).count, 0);
    m = changes_of(MO_PLAN_CHANGE_DTYPE, &c, &o); /* there is no autocast */
    assert_int_equal(m.count, 1);
    says(&m, 0, "weights fp32 → bf16, with DeepSpeed's copy in fp32", "--dtype bf16", 1,
         MO_PLAN_TIER_WEIGHTS);
    assert_int_equal(m.cases[0].run.bucket_bytes, 1000000000); /* as many elements */
    assert_int_equal(changes_of(MO_PLAN_CHANGE_OFFLOAD, &c, &o).count, 1);
    m = changes_of(MO_PLAN_CHANGE_SHARDING, &c, &o);
    assert_int_equal(m.count, 2);
    says(&m, 1, "DeepSpeed's ZeRO-3 over 4 devices", "--zero 3", 1.1, MO_PLAN_TIER_TIME);
}

/* What a change does not set, it leaves: of a case that has them all, it differs in little. */
static void test_the_rest_stays(void **state)
{
    (void)state;
    mo_plan_target o = no_options();
    mo_plan_case c = filled_case();
    c.run.batch = 2;
    c.run.world_size = 2;
    c.run.attention = MO_PLAN_ATTENTION_EAGER;
    int made_of_all = 0;
    for (int i = 0; i < MO_PLAN_CHANGES; i++) {
        mo_plan_case changed;
        mo_plan_change change;
        int differs = 0;
        if (!mo_plan_change_make(i, &c, &o, &changed, &change)) {
            assert_int_equal(change.kind, MO_PLAN_CHANGE_BUCKET); /* of DeepSpeed alone */
            continue;
        }
        made_of_all++;
        const uint32_t *a = (const uint32_t *)&c, *b = (const uint32_t *)&changed;
        for (size_t k = 0; k < sizeof c / sizeof *a; k++)
            differs += a[k] != b[k];
        assert_true(differs >= 1 && differs <= 4);
    }
    assert_int_equal(made_of_all, MO_PLAN_CHANGES - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_micro_batches),  cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_dtypes),         cmocka_unit_test(test_sharding),
        cmocka_unit_test(test_checkpointing),  cmocka_unit_test(test_offload),
        cmocka_unit_test(test_sequences),      cmocka_unit_test(test_adapters),
        cmocka_unit_test(test_free_ones),      cmocka_unit_test(test_of_deepspeed),
        cmocka_unit_test(test_the_rest_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
