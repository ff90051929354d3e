/*
 * What holds for every model: categories sum up, phases are not above the peak, layers have all
 * weights; more of anything that costs memory does not make it less, and no saver makes it more.
 * Models are drawn by a seeded generator.
 */
#include "support.h"

static uint64_t state_of_random = 0x9E3779B97F4A7C15u;

static uint64_t below(uint64_t n)
{
    state_of_random ^= state_of_random << 13;
    state_of_random ^= state_of_random >> 7;
    state_of_random ^= state_of_random << 17;
    return state_of_random % n;
}

static double maybe(void)
{
    return below(2) ? 0.1 : 0;
}

static mo_plan_model random_model(void)
{
    mo_plan_model m = {0};
    m.family = (uint32_t)below(6);
    m.kv_heads = 1u << below(3);
    m.heads = m.kv_heads << below(3);
    if (m.family >= MO_PLAN_GPT2)
        m.kv_heads = m.heads;
    m.hidden = m.heads * 8 * (1 + below(12));
    m.layers = 1 + below(6);
    m.ffn = below(2) ? 0 : 16 + below(3000);
    m.vocabulary = m.family == MO_PLAN_VIT ? 0 : 1 + below(20000);
    m.positions = m.family == MO_PLAN_VIT ? 0 : 300;
    m.activation = (uint32_t)below(8);
    m.tied = (uint32_t)below(3);
    m.attention_bias = (uint32_t)below(3);
    m.mlp_bias = (uint32_t)below(3);
    m.qk_norm = m.family == MO_PLAN_LLAMA ? (uint32_t)below(3) : 0;
    m.embedding_dropout = maybe();
    m.attention_dropout = maybe();
    m.hidden_dropout = maybe();
    m.activation_dropout = maybe();
    m.sliding_window = below(3) == 0 ? 1 + below(200) : 0;
    m.image_size = 64;
    if (m.family == MO_PLAN_MIXTRAL) {
        m.experts = 1 + below(8);
        m.experts_per_token = 1 + below(m.experts);
    }
    if (m.family == MO_PLAN_BERT && below(2))
        m.head = MO_PLAN_HEAD_SEQUENCE;
    if (m.family != MO_PLAN_VIT && below(4) == 0)
        m.head = MO_PLAN_HEAD_CONTRASTIVE;
    if (m.family <= MO_PLAN_MIXTRAL && below(4) == 0) {
        m.vision_layers = 1 + below(3);
        m.vision_hidden = 64;
        m.vision_mode = (uint32_t)below(2);
    }
    if (below(3) == 0) {
        m.lora_rank = 1 + below(4);
        m.lora_targets = 1 + (uint32_t)below(255);
        m.lora_dropout = m.family == MO_PLAN_MIXTRAL ? 0 : maybe();
        if (m.lora_targets & (MO_PLAN_TARGET_GATE | MO_PLAN_TARGET_UP)) /* one weight of experts */
            m.lora_targets |= MO_PLAN_TARGET_GATE | MO_PLAN_TARGET_UP;
    }
    return m;
}

static mo_plan_run random_run(void)
{
    static const memopt_dtype types[] = {MEMOPT_DTYPE_F32, MEMOPT_DTYPE_F16, MEMOPT_DTYPE_BF16};
    mo_plan_run r = {0};
    r.batch = 1 + below(5);
    r.sequence = 1 + below(120);
    r.accumulation = 1 + below(3);
    r.world_size = 1 + below(5);
    r.weight_dtype = types[below(3)];
    r.compute_dtype =
        below(3) == 0 ? (r.weight_dtype == MEMOPT_DTYPE_F16 ? r.weight_dtype : MEMOPT_DTYPE_BF16)
                      : 0;
    r.gradient_dtype = below(3) == 0 ? MEMOPT_DTYPE_F32 : 0;
    r.master_dtype = below(3) == 0 ? MEMOPT_DTYPE_F32 : 0;
    r.optimizer = (uint32_t)below(14);
    r.attention = (uint32_t)below(3);
    r.checkpointing = (uint32_t)below(4);
    r.checkpoint_every = 1 + below(3);
    r.offload = (uint32_t)below(4);
    r.sharding = (uint32_t)below(4);
    if (r.sharding != MO_PLAN_DDP) /* torch refuses adapters beside a head of another type */
        r.adapter_dtype = r.weight_dtype;
    r.gather_dtype = below(3) == 0 ? MEMOPT_DTYPE_BF16 : 0;
    r.bucket_view = (uint32_t)below(3);
    r.loss = (uint32_t)below(3);
    r.use_cache = (uint32_t)below(3);
    r.attention_mask = (uint32_t)below(3);
    r.positives = below(3);
    r.negatives = below(3);
    return r;
}

static void check_sum(const mo_plan_bytes *b)
{
    assert_int_equal(b->total, b->parameters + b->gradients + b->optimizer + b->activations +
                                   b->logits + b->batch + b->overhead);
}

static void check_layers(const mo_plan_estimate *e)
{
    uint64_t weights = 0;
    for (uint64_t i = 0; i < e->layer_count; i++) {
        const mo_plan_layer_bytes *l = &e->layers[i];
        weights += l->parameter_count;
        assert_true(l->name[0] != 0);
        assert_true(l->forward_bytes <= e->report.peak.total);
        assert_true(l->backward_bytes <= e->report.peak.total);
    }
    assert_int_equal(weights, e->report.parameter_count);
}

TEST(any_model_adds_up)
{
    for (int i = 0; i < 1500; i++) {
        mo_plan_model m = random_model();
        mo_plan_run run = random_run();
        mo_plan_card card = {0};
        mo_plan_estimate e;
        int64_t blocks = mo_memory_live_blocks();
        card.device = (uint32_t)below(4);
        card.capacity = below(2) ? UINT64_C(1) << 34 : 0;
        OK(mo_plan_estimate_make(&e, &m, &run, &card));
        const mo_plan_report r = e.report;
        check_sum(&r.peak);
        for (uint32_t k = 0; k < MO_PLAN_PHASES; k++) {
            check_sum(&r.phases[k]);
            assert_true(r.phases[k].total <= r.peak.total);
            assert_true(r.phases[k].total >= r.phases[0].total);
        }
        assert_int_equal(r.phases[r.peak_phase].total, r.peak.total);
        /* Activations and logits have gone when the optimizer steps. */
        if (m.lora_rank == 0)
            assert_true(r.phases[MO_PLAN_PHASE_STEP].activations <= 8192 &&
                        r.phases[MO_PLAN_PHASE_STEP].logits == 0);
        assert_true(r.time_factor >= 1);
        check_layers(&e);
        mo_plan_estimate_end(&e);
        assert_int_equal(mo_memory_live_blocks(), blocks);
    }
}

static uint64_t peak_of(const mo_plan_model *m, const mo_plan_run *r)
{
    return report_of(m, r, NULL).peak.total;
}

/* One more of something: not less memory. */
TEST(more_takes_more)
{
    for (int i = 0; i < 400; i++) {
        mo_plan_model m = random_model(), larger = m;
        mo_plan_run r = random_run(), longer = r;
        m.sliding_window = 0; /* from its length on, a mask is made */
        m.ffn = 256;
        larger = m;
        switch (below(6)) {
        case 0:
            longer.batch++;
            break;
        case 1:
            longer.sequence += 8;
            break;
        case 2:
            larger.layers++;
            break;
        case 3:
            larger.ffn += 64;
            break;
        case 4:
            larger.vocabulary += m.vocabulary > 0 ? 100 : 0;
            break;
        default:
            larger.experts += m.experts > 0;
        }
        /* Without a copy where there is one sequence alone: let there be two. */
        if (r.batch == 1) {
            r.batch = 2;
            longer.batch += longer.batch == 1;
            longer.batch += longer.batch == 2 && longer.sequence == r.sequence;
        }
        uint64_t before = peak_of(&m, &r), after = peak_of(&larger, &longer);
        if (after < before)
            fail_msg("round %d: %llu, then %llu", i, (unsigned long long)before,
                     (unsigned long long)after);
    }
}

/* Savers, on models with some layers: not more memory. */
TEST(savers_save)
{
    for (int i = 0; i < 400; i++) {
        mo_plan_model m = random_model();
        mo_plan_run plain = random_run(), saving;
        m.layers += 6;
        m.lora_rank = 0;
        plain.sequence += 64;
        plain.checkpointing = MO_PLAN_CHECKPOINT_NONE;
        plain.offload = 0;
        plain.loss = 0;
        plain.sharding = 0;
        plain.world_size = 4;
        plain.optimizer = MO_PLAN_ADAMW_OURS;
        plain.state_dtype = 0;
        saving = plain;
        uint64_t saver = below(6);
        switch (saver) {
        case 0:
            saving.checkpointing = MO_PLAN_CHECKPOINT_FULL;
            break;
        case 1:
            saving.offload = MO_PLAN_OFFLOAD_ACTIVATIONS;
            break;
        case 2:
            saving.optimizer = MO_PLAN_ADAMW_8BIT + (uint32_t)below(3);
            break;
        case 3:
            saving.sharding = 1;
            break;
        case 4:
            saving.offload = MO_PLAN_OFFLOAD_OPTIMIZER;
            break;
        default:
            saving.world_size = 1;
        }
        uint64_t with = peak_of(&m, &saving), without = peak_of(&m, &plain);
        /* Running a layer again takes a little more than its first run leaves. */
        if (with > without + (saver == 0 ? without / 1000 : 0))
            fail_msg("round %d, saver %llu, family %u: %llu, not %llu", i,
                     (unsigned long long)saver, m.family, (unsigned long long)with,
                     (unsigned long long)without);
    }
}
