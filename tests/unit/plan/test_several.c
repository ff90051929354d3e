/*
 * Savers and cards: what each must change, counted from the model's numbers.
 */
#include "support.h"

#include "plan/plan.h"

/* One narrow layer: what is on top of it is what a peak is made of. */
static memopt_plan_model narrow_model(void)
{
    memopt_plan_model m = small_model();
    m.hidden = 64;
    m.heads = 1;
    m.layers = 1;
    m.ffn = 64;
    return m;
}

/* States are what the optimizers of the library allocate for the same weights. */
static void states_of_each_optimizer(void **state)
{
    /* Per weight of n elements, all of them of at least 4096 and multiples of 256. */
    static const struct {
        uint32_t kind;
        double per_element;
        uint64_t per_weight;
    } all[] = {{MEMOPT_PLAN_ADAMW, 8, 4},
               {MEMOPT_PLAN_ADAMW_8BIT, 2 + 8.0 / 256, 8},
               {MEMOPT_PLAN_ADAMW_4BIT, 1 + 8.0 / 128, 8},
               {MEMOPT_PLAN_ADAMW_FP8, 2 + 8.0 / 256, 8},
               {MEMOPT_PLAN_ADAMW_OURS, 8, 8},
               {MEMOPT_PLAN_LION, 4, 8},
               {MEMOPT_PLAN_LION_8BIT, 1 + 4.0 / 256, 8},
               {MEMOPT_PLAN_SGD, 0, 0},
               {MEMOPT_PLAN_SGD_MOMENTUM, 4, 0},
               {MEMOPT_PLAN_SGD_8BIT, 1 + 4.0 / 256, 8},
               {MEMOPT_PLAN_NO_OPTIMIZER, 0, 0}};
    mo_tape t = {0};
    mo_weight w = {.count = 1 << 16, .rows = 256, .columns = 256, .learns = 1};
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        memopt_plan_run r = {
            .optimizer = all[i].kind, .state_dtype = MEMOPT_DTYPE_F32, .min_8bit_size = 4096};
        uint64_t wanted = (uint64_t)(all[i].per_element * 65536) + all[i].per_weight;
        assert_int_equal(mo_optimizer_state_bytes(&t, &r, &w), wanted);
        r.master_dtype = MEMOPT_DTYPE_F32;
        uint64_t master = all[i].kind == MEMOPT_PLAN_NO_OPTIMIZER ? 0 : 4 * 65536;
        assert_int_equal(mo_optimizer_state_bytes(&t, &r, &w), wanted + master);
    }
    /* Small tensors keep 32 bits; odd ones have a last block that is not full. */
    memopt_plan_run r = {.optimizer = MEMOPT_PLAN_ADAMW_8BIT, .min_8bit_size = 4096};
    w.count = 4095;
    assert_int_equal(mo_optimizer_state_bytes(&t, &r, &w), 8 * 4095 + 8);
    w.count = 4097;
    assert_int_equal(mo_optimizer_state_bytes(&t, &r, &w), 2 * (4097 + 17 * 4) + 8);
    w.learns = 0;
    assert_int_equal(mo_optimizer_state_bytes(&t, &r, &w), 0);
}

/* The plain AdamW makes two tensors of a weight while one of the weight before is there. */
static void temporaries_of_the_step(void **state)
{
    const mo_weight w[] = {{.count = 100, .learns = 1},
                           {.count = 1000, .learns = 0},
                           {.count = 80, .learns = 1},
                           {.count = 90, .learns = 1}};
    memopt_plan_run r = {.optimizer = MEMOPT_PLAN_ADAMW, .state_dtype = MEMOPT_DTYPE_F32};
    mo_tape t = {0};
    (void)state;
    assert_int_equal(mo_optimizer_step_bytes(&t, &r, w, 4), 4 * (100 + 80 + 80));
    r.optimizer = MEMOPT_PLAN_ADAMW_FOREACH;
    assert_int_equal(mo_optimizer_step_bytes(&t, &r, w, 4), 4 * (100 + 80 + 90));
    r.optimizer = MEMOPT_PLAN_ADAMW_8BIT;
    assert_int_equal(mo_optimizer_step_bytes(&t, &r, w, 4), 0);
}

/* From the second micro-batch on, gradients are there when forward begins. */
static void gradients_between_micro_batches(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = small_run();
    (void)state;
    memopt_plan_report one = report_of(&m, &r, NULL);
    assert_int_equal(one.phases[MEMOPT_PLAN_PHASE_FORWARD].gradients, 0);
    r.accumulation = 2;
    memopt_plan_report two = report_of(&m, &r, NULL);
    assert_int_equal(two.phases[MEMOPT_PLAN_PHASE_FORWARD].gradients, 4 * two.parameter_count);
    assert_true(two.peak.total > one.peak.total + 3 * one.parameter_count);
    assert_int_equal(two.phases[MEMOPT_PLAN_PHASE_STEP].total,
                     one.phases[MEMOPT_PLAN_PHASE_STEP].total);
}

static void layers_that_run_again(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = small_run();
    (void)state;
    m.layers = 8;
    r.checkpointing = MEMOPT_PLAN_CHECKPOINT_EVERY;
    r.checkpoint_every = 4;
    memopt_plan_report report = report_of(&m, &r, NULL);
    assert_int_equal(report.recomputed_layers, 6);
    assert_true(report.time_factor > 1.15 && report.time_factor < 1.26);
    r.checkpointing = MEMOPT_PLAN_CHECKPOINT_FULL;
    memopt_plan_report full = report_of(&m, &r, NULL);
    assert_int_equal(full.recomputed_layers, 8);
    assert_true(full.activation_bytes < report.activation_bytes);
    r.checkpointing = MEMOPT_PLAN_CHECKPOINT_SELECTIVE;
    r.attention = MEMOPT_PLAN_ATTENTION_EAGER;
    r.use_cache = MEMOPT_PLAN_NO;
    memopt_plan_report some = report_of(&m, &r, NULL);
    r.checkpointing = MEMOPT_PLAN_CHECKPOINT_NONE;
    memopt_plan_report none = report_of(&m, &r, NULL);
    /* The scores of all layers but one have gone: 4 sequences, 8 heads, 128² numbers, kept by
     * softmax alone. */
    assert_true(none.peak.total - some.peak.total > 7 * 4 * 8 * 128 * 128 * 4);
}

/* The chain of layers stays within the budget, whichever it is, and less is slower. */
static void budgets_are_kept(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = small_run();
    double before = 1;
    (void)state;
    m.layers = 12;
    r.use_cache = MEMOPT_PLAN_NO;
    memopt_plan_report plain = report_of(&m, &r, NULL);
    r.checkpointing = MEMOPT_PLAN_CHECKPOINT_BUDGET;
    r.checkpoint_budget = UINT64_C(1) << 40;
    uint64_t ample = report_of(&m, &r, NULL).peak.total;
    assert_true(ample >= plain.peak.total && ample <= plain.peak.total + 8 * 4 * 128);
    for (uint64_t share = 9; share >= 3; share -= 2) {
        r.checkpoint_budget = plain.activation_bytes / 10 * share;
        memopt_plan_report report = report_of(&m, &r, NULL);
        /* Beside the chain: the last norm and the head's transforms, 5 of 4 × 128 × 256. */
        assert_true(report.peak.activations <= r.checkpoint_budget + 5 * 4 * 128 * 256 * 4);
        assert_true(report.phases[MEMOPT_PLAN_PHASE_STEP].activations <= 8192);
        assert_true(report.time_factor >= before);
        assert_true(report.recomputed_layers > 0);
        before = report.time_factor;
    }
}

static void activations_on_the_host(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = small_run();
    (void)state;
    memopt_plan_report plain = report_of(&m, &r, NULL);
    r.offload = MEMOPT_PLAN_OFFLOAD_ACTIVATIONS;
    memopt_plan_report off = report_of(&m, &r, NULL);
    assert_true(off.host_bytes > plain.activation_bytes / 2);
    assert_true(off.activation_bytes < plain.activation_bytes / 4);
    assert_true(off.link_bytes >= 2 * off.host_bytes);
    assert_int_equal(off.disk_bytes, 0);
    assert_true(off.time_factor > 1);
    r.host_limit = off.host_bytes / 3;
    memopt_plan_report limited = report_of(&m, &r, NULL);
    assert_int_equal(limited.host_bytes, r.host_limit);
    assert_int_equal(limited.disk_bytes, off.host_bytes - r.host_limit);
    r.host_limit = 0;
    /* A layer that is run again keeps its values here: hooks are those of the forward pass. */
    r.checkpointing = MEMOPT_PLAN_CHECKPOINT_FULL;
    memopt_plan_report again = report_of(&m, &r, NULL);
    assert_true(again.host_bytes < off.host_bytes);
    assert_true(again.phases[MEMOPT_PLAN_PHASE_BACKWARD].activations >
                plain.activation_bytes / m.layers * 9 / 10);
    r.checkpointing = MEMOPT_PLAN_CHECKPOINT_NONE;
    r.offload = MEMOPT_PLAN_OFFLOAD_OPTIMIZER;
    memopt_plan_report states = report_of(&m, &r, NULL);
    assert_int_equal(states.peak.optimizer, 0);
    assert_true(states.host_bytes > plain.parameter_count * 8);
}

/* Adapters: the base has no gradients, yet what its inputs' gradients need is kept. */
static void adapters_freeze_the_rest(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = small_run();
    (void)state;
    memopt_plan_report all = report_of(&m, &r, NULL);
    m.lora_rank = 8;
    memopt_plan_report lora = report_of(&m, &r, NULL);
    /* Query and value of 4 layers: 256 × 8 down and 8 × 256 up. */
    assert_int_equal(lora.trainable_count, 4 * 2 * 2 * 256 * 8);
    assert_int_equal(lora.parameter_count, all.parameter_count + lora.trainable_count);
    assert_true(lora.phases[MEMOPT_PLAN_PHASE_STEP].gradients <= lora.trainable_count * 4);
    assert_true(lora.activation_bytes < all.activation_bytes);
    assert_true(lora.activation_bytes > all.activation_bytes / 3);
}

static void cards_and_margins(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = small_run();
    memopt_plan_card c = MEMOPT_PLAN_CARD_INIT;
    (void)state;
    memopt_plan_report none = report_of(&m, &r, &c);
    assert_int_equal(none.peak.overhead, 0);
    assert_int_equal(none.limit_bytes, 0);
    assert_int_equal(none.fits, 1);
    c.capacity = UINT64_C(24) << 30;
    memopt_plan_report card = report_of(&m, &r, &c);
    assert_true(card.peak.overhead > UINT64_C(500) << 20);
    assert_int_equal(card.peak.total - card.peak.overhead, none.peak.total);
    assert_int_equal(card.limit_bytes, (uint64_t)(0.85 * 24 * (1 << 30)));
    c.allocator = MEMOPT_PLAN_ALLOCATOR_EXPANDABLE;
    assert_true(report_of(&m, &r, &c).peak.overhead < card.peak.overhead);
    c.device = MEMOPT_PLAN_DEVICE_CPU;
    assert_int_equal(report_of(&m, &r, &c).peak.overhead, 0);
    c.other_bytes = 1000;
    assert_int_equal(report_of(&m, &r, &c).peak.overhead, 1000);
    c.capacity = none.peak.total;
    assert_int_equal(report_of(&m, &r, &c).fits, 0);
    c.other_bytes = 0;
    c.margin = 1;
    assert_int_equal(report_of(&m, &r, &c).fits, 1);
}

/* A GPU keeps dropout's mask in bytes and has a flash kernel with dropout. */
static void devices_have_their_kernels(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = small_run();
    memopt_plan_card c = MEMOPT_PLAN_CARD_INIT;
    (void)state;
    m.family = MEMOPT_PLAN_GPT2;
    m.attention_dropout = m.hidden_dropout = 0.1;
    memopt_plan_report any = report_of(&m, &r, &c);
    c.device = MEMOPT_PLAN_DEVICE_CPU;
    assert_int_equal(report_of(&m, &r, &c).peak.total, any.peak.total);
    c.device = MEMOPT_PLAN_DEVICE_CUDA;
    memopt_plan_report cuda = report_of(&m, &r, &c);
    /* Scores of 4 layers, three times. */
    assert_true(any.activation_bytes - cuda.activation_bytes > 4 * 3 * 4 * 8 * 128 * 128 * 4);
}

static void sequences_of_mean_length(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = small_run(), shorter = r;
    (void)state;
    r.sequence_mean = 64;
    shorter.sequence = 64;
    assert_int_equal(report_of(&m, &r, NULL).mean_bytes, report_of(&m, &shorter, NULL).peak.total);
    shorter.sequence = 128;
    assert_int_equal(report_of(&m, &r, NULL).peak.total, report_of(&m, &shorter, NULL).peak.total);
}

/* Outputs that are held are logits of another copy at the peak. */
static void outputs_that_are_held(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = small_run();
    (void)state;
    m.vocabulary = 20000;
    memopt_plan_report dropped = report_of(&m, &r, NULL);
    r.keep_outputs = MEMOPT_PLAN_YES;
    memopt_plan_report held = report_of(&m, &r, NULL);
    assert_int_equal(dropped.held_bytes, held.peak.total);
    assert_int_equal(held.held_bytes, held.peak.total);
    assert_int_equal(held.peak.total - dropped.peak.total, 4 * 128 * 20000 * 4);
}

/* A frozen tower leaves its output alone. */
static void towers_of_images(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = small_run();
    (void)state;
    memopt_plan_report text = report_of(&m, &r, NULL);
    m.vision_layers = 2;
    m.vision_hidden = 128;
    m.image_size = 64;
    memopt_plan_report trained = report_of(&m, &r, NULL);
    assert_int_equal(trained.layer_count, text.layer_count + 2);
    assert_true(trained.peak.total > text.peak.total);
    m.vision_mode = MEMOPT_PLAN_TOWER_FROZEN;
    memopt_plan_report frozen = report_of(&m, &r, NULL);
    assert_int_equal(frozen.parameter_count, trained.parameter_count);
    assert_true(frozen.trainable_count < trained.trainable_count);
    assert_true(frozen.activation_bytes < trained.activation_bytes);
    r.images = 4;
    assert_true(report_of(&m, &r, NULL).peak.total > frozen.peak.total);
}

/* Scores of every anchor against the positives and negatives of all: three copies in backward, in
 * fp32, and one more in the hands of a program that holds the outputs. */
static void scores_of_contrastive_samples(void **state)
{
    memopt_plan_model m = narrow_model();
    memopt_plan_run r = small_run();
    (void)state;
    m.head = MEMOPT_PLAN_HEAD_CONTRASTIVE;
    r.batch = 2048;
    r.sequence = 2;
    r.positives = 1;
    const uint64_t scores = UINT64_C(2048) * 2048 * 4;
    memopt_plan_report report = report_of(&m, &r, NULL);
    assert_int_equal(report.peak_phase, MEMOPT_PLAN_PHASE_BACKWARD);
    assert_int_equal(report.peak.logits / 1024, 3 * scores / 1024);
    r.negatives = 2;
    assert_int_equal(report_of(&m, &r, NULL).peak.logits / 1024, 9 * scores / 1024);
    r.keep_outputs = MEMOPT_PLAN_YES;
    assert_int_equal(report_of(&m, &r, NULL).peak.logits / 1024, 12 * scores / 1024);
}

/* In chunks of 256 tokens, or of as many as give logits the size of the hidden states. */
static void losses_in_chunks(void **state)
{
    memopt_plan_model m = narrow_model();
    memopt_plan_run r = small_run();
    (void)state;
    m.vocabulary = 64000;
    r.batch = 8;
    r.optimizer = MEMOPT_PLAN_SGD;
    const uint64_t logits = UINT64_C(256) * 64000 * 4, head = UINT64_C(64) * 64000 * 4;
    r.loss = MEMOPT_PLAN_LOSS_FUSED;
    memopt_plan_report report = report_of(&m, &r, NULL);
    assert_int_equal(report.peak_phase, MEMOPT_PLAN_PHASE_LOSS);
    assert_int_equal(report.peak.logits / 1024, 2 * logits / 1024);
    assert_int_equal(report.peak.gradients, head);
    r.loss = MEMOPT_PLAN_LOSS_CHUNKED;
    report = report_of(&m, &r, NULL);
    assert_int_equal(report.peak_phase, MEMOPT_PLAN_PHASE_BACKWARD);
    assert_int_equal(report.peak.logits / 1024, 3 * logits / 1024);
    assert_true(report.recompute_factor > 1);
    /* A wide head: two of its gradients and their sum are more than a chunk's logits. */
    m.hidden = 1024;
    m.vocabulary = 8000;
    r.batch = 16;
    report = report_of(&m, &r, NULL);
    assert_true(report.peak.gradients + report.peak.logits >= UINT64_C(3) * 1024 * 8000 * 4);
    /* 4096 tokens of 1024 over 3000 words: 1398 a chunk, and a power of two. */
    m.vocabulary = 3000;
    r.batch = 32;
    r.loss = MEMOPT_PLAN_LOSS_FUSED;
    report = report_of(&m, &r, NULL);
    assert_int_equal(report.phases[MEMOPT_PLAN_PHASE_LOSS].logits / 1024,
                     UINT64_C(2048) * 3000 * 8 / 1024);
}

/* Images of 16 bits take half of the batch. */
static void images_have_a_type(void **state)
{
    memopt_plan_model m = MEMOPT_PLAN_MODEL_INIT;
    memopt_plan_run r = MEMOPT_PLAN_RUN_INIT;
    (void)state;
    m.family = MEMOPT_PLAN_VIT;
    m.hidden = 64;
    m.layers = 1;
    r.batch = 8;
    r.weight_dtype = MEMOPT_DTYPE_BF16;
    const uint64_t labels = 8 * 8, pixels = UINT64_C(8) * 3 * 224 * 224;
    memopt_plan_report wide = report_of(&m, &r, NULL);
    assert_int_equal(wide.peak.batch, labels + 4 * pixels);
    r.image_dtype = MEMOPT_DTYPE_BF16;
    memopt_plan_report narrow = report_of(&m, &r, NULL);
    assert_int_equal(narrow.peak.batch, labels + 2 * pixels);
    /* Beside wide ones there is what they are cast to. */
    assert_true(wide.peak.total - narrow.peak.total >= 4 * pixels);
    r.image_dtype = MEMOPT_DTYPE_U8;
    memopt_plan *plan = NULL;
    assert_int_equal(memopt_plan_create(&m, &r, NULL, &plan), MEMOPT_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_of_each_optimizer),
        cmocka_unit_test(temporaries_of_the_step),
        cmocka_unit_test(layers_that_run_again),
        cmocka_unit_test(budgets_are_kept),
        cmocka_unit_test(activations_on_the_host),
        cmocka_unit_test(adapters_freeze_the_rest),
        cmocka_unit_test(cards_and_margins),
        cmocka_unit_test(devices_have_their_kernels),
        cmocka_unit_test(sequences_of_mean_length),
        cmocka_unit_test(gradients_between_micro_batches),
        cmocka_unit_test(towers_of_images),
        cmocka_unit_test(outputs_that_are_held),
        cmocka_unit_test(scores_of_contrastive_samples),
        cmocka_unit_test(losses_in_chunks),
        cmocka_unit_test(images_have_a_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
