/*
 * Descriptions that are refused, with the numbers in the message, and what is filled in.
 */
#include "support.h"

typedef struct refusal {
    memopt_plan_model model;
    memopt_plan_run run;
    memopt_plan_card card;
    memopt_status status; /* 0: MEMOPT_INVALID_ARGUMENT */
    const char *says[3];
} refusal;

#define SIZES                                                                                      \
    .model.struct_size = sizeof(memopt_plan_model), .run.struct_size = sizeof(memopt_plan_run),    \
    .card.struct_size = sizeof(memopt_plan_card)

static const refusal refusals[] = {
    {SIZES, .says = {"hidden", "parameters"}},
    {SIZES, .model.hidden = 768, .model.layers = UINT64_C(1) << 60, .says = {"layers", "4096"}},
    {SIZES, .model.hidden = UINT64_C(1) << 62, .says = {"hidden", "4611686018427387904"}},
    {SIZES, .model.hidden = 100, .model.heads = 12, .says = {"12 heads", "100"}},
    {SIZES, .model.hidden = 768, .model.heads = 12, .model.kv_heads = 24,
     .says = {"kv_heads", "24", "12"}},
    {SIZES, .model.hidden = 768, .model.heads = 12, .model.kv_heads = 5,
     .says = {"5 key", "12 heads"}},
    {SIZES, .model.hidden = 768, .model.heads = 12, .model.kv_heads = 6,
     .model.family = MEMOPT_PLAN_GPT2, .says = {"6 key", "12"}},
    {SIZES, .model.hidden = 6, .model.heads = 2, .says = {"3 wide", "even"}},
    {SIZES, .model.hidden = 768, .model.family = MEMOPT_PLAN_MIXTRAL, .model.experts = 4,
     .model.experts_per_token = 5, .says = {"5 of 4 experts"}},
    {SIZES, .model.hidden = 768, .model.family = 6, .says = {"family is 6"}},
    {SIZES, .model.hidden = 768, .model.kin = 6, .says = {"kin is 6"}},
    {SIZES, .model.hidden = 768, .model.family = MEMOPT_PLAN_GPT2,
     .model.kin = MEMOPT_PLAN_KIN_GEMMA, .says = {"kin 1"}},
    {SIZES, .model.hidden = 768, .model.kin = MEMOPT_PLAN_KIN_QWEN_MOE, .says = {"kin 3"}},
    {SIZES, .model.hidden = 768, .model.lora_rank = 4096, .says = {"lora_rank", "4096", "768"}},
    {SIZES, .model.hidden = 768, .model.hidden_dropout = 1.5, .says = {"hidden_dropout is 1.5"}},
    {SIZES, .model.hidden = 768, .model.attention_dropout = -1,
     .says = {"attention_dropout is -1"}},
    {SIZES, .model.hidden = 768, .model.family = MEMOPT_PLAN_VIT, .model.patch_size = 500,
     .says = {"patch_size", "500", "224"}},
    {SIZES, .model.hidden = 768, .model.family = MEMOPT_PLAN_VIT,
     .model.head = MEMOPT_PLAN_HEAD_CAUSAL_LM, .says = {"tokens"}},
    {SIZES, .model.hidden = 768, .model.head = MEMOPT_PLAN_HEAD_IMAGE, .says = {"image head"}},
    {SIZES, .model.hidden = 768, .model.embedding = 512, .says = {"512", "768"}},
    {SIZES, .model.hidden = 768, .model.vision_layers = 2, .model.vision_hidden = 100,
     .model.vision_heads = 3, .says = {"3 heads of the vision tower", "100"}},
    {SIZES, .model.parameters = 1000, .says = {"1000 parameters"}},
    {SIZES, .model.parameters = UINT64_C(1) << 60, .says = {"parameters", "1125899906842624"}},
    {SIZES, .model.parameters = 366000000, .model.hidden = 4096, .model.layers = 24,
     .says = {"366000000", "4096", "24"}},
    {SIZES, .model.hidden = 768, .model.family = MEMOPT_PLAN_GPT2, .run.sequence = 2000,
     .says = {"2000 tokens", "1024 learned positions"}},
    {SIZES, .model.hidden = 768, .run.batch = UINT64_C(1) << 40,
     .says = {"batch", "1099511627776"}},
    {SIZES, .model.hidden = 768, .run.sequence = 64, .run.sequence_mean = 65,
     .says = {"sequence_mean is 65", "64"}},
    {SIZES, .model.hidden = 768, .run.weight_dtype = MEMOPT_DTYPE_I64,
     .says = {"weight_dtype", "i64"}},
    {SIZES, .model.hidden = 768, .run.master_dtype = MEMOPT_DTYPE_U8,
     .says = {"master_dtype", "u8"}},
    {SIZES, .model.hidden = 768, .run.weight_dtype = MEMOPT_DTYPE_F16,
     .run.compute_dtype = MEMOPT_DTYPE_BF16, .says = {"compute_dtype is bf16", "of f16"}},
    {SIZES, .model.hidden = 768, .run.weight_dtype = MEMOPT_DTYPE_BF16,
     .run.adapter_dtype = MEMOPT_DTYPE_F16, .says = {"adapter_dtype is f16", "of bf16"}},
    {SIZES, .model.hidden = 768, .run.optimizer = 99, .says = {"optimizer is 99"}},
    {SIZES, .model.hidden = 768, .run.offload = 4, .says = {"offload is 4"}},
    {SIZES, .model.hidden = 768, .run.world_size = UINT64_C(1) << 30,
     .says = {"world_size", "1073741824"}},
    {SIZES, .model.hidden = 768, .run.checkpointing = MEMOPT_PLAN_CHECKPOINT_BUDGET,
     .says = {"checkpoint_budget is 0"}},
    {SIZES, .model.hidden = 768, .run.checkpointing = MEMOPT_PLAN_CHECKPOINT_BUDGET,
     .run.checkpoint_budget = 1000, .status = MEMOPT_LIMIT_REACHED, .says = {"budget of 1000"}},
    {SIZES, .model.hidden = 768, .card.margin = 1.5, .says = {"margin is 1.5"}},
    {SIZES, .model.hidden = 768, .card.margin = -0.1, .says = {"margin is -0.1"}},
    {SIZES, .model.hidden = 768, .card.device = 9, .says = {"device 9"}},
    {SIZES, .model.hidden = 768, .card.link_bytes_per_second = -1, .says = {"link (-1)"}},
};

static void refused_with_the_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *r = &refusals[i];
        memopt_plan *plan = NULL;
        int64_t blocks = mo_memory_live_blocks();
        memopt_status status = memopt_plan_create(&r->model, &r->run, &r->card, &plan);
        if (status != (r->status ? r->status : MEMOPT_INVALID_ARGUMENT))
            fail_msg("refusal %zu: %s (%s)", i, memopt_status_name(status), memopt_last_error());
        assert_null(plan);
        for (size_t k = 0; k < 3 && r->says[k] != NULL; k++)
            if (strstr(memopt_last_error(), r->says[k]) == NULL)
                fail_msg("refusal %zu: '%s' is not in: %s", i, r->says[k], memopt_last_error());
        assert_int_equal(mo_memory_live_blocks(), blocks);
    }
}

/* The largest of everything that is allowed does not fit 64 bits: an error, not a small number. */
static void sizes_beyond_64_bits_are_refused(void **state)
{
    memopt_plan_model m = MEMOPT_PLAN_MODEL_INIT;
    memopt_plan_run r = MEMOPT_PLAN_RUN_INIT;
    memopt_plan *plan = NULL;
    (void)state;
    m.hidden = UINT64_C(1) << 20;
    m.heads = UINT64_C(1) << 14;
    m.layers = 4096;
    m.vocabulary = UINT64_C(1) << 28;
    r.batch = UINT64_C(1) << 24;
    r.sequence = UINT64_C(1) << 24;
    assert_int_equal(memopt_plan_create(&m, &r, NULL, &plan), MEMOPT_INVALID_ARGUMENT);
    assert_non_null(strstr(memopt_last_error(), "64 bits"));
}

static void pointers_and_sizes_of_structs(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_report report = {.struct_size = sizeof report};
    memopt_plan_layer layer = {.struct_size = sizeof layer};
    memopt_plan *plan = NULL;
    (void)state;
    assert_int_equal(memopt_plan_create(NULL, NULL, NULL, &plan), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_plan_create(&m, NULL, NULL, NULL), MEMOPT_INVALID_ARGUMENT);
    m.struct_size = 3;
    assert_int_equal(memopt_plan_create(&m, NULL, NULL, &plan), MEMOPT_INVALID_ARGUMENT);
    m.struct_size = sizeof m;
    OK(memopt_plan_create(&m, NULL, NULL, &plan));
    assert_int_equal(memopt_plan_get_report(NULL, &report), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_plan_get_report(plan, NULL), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_plan_get_layer(plan, 6, &layer), MEMOPT_NOT_FOUND);
    assert_int_equal(memopt_plan_get_layer(plan, 0, NULL), MEMOPT_INVALID_ARGUMENT);
    layer.struct_size = offsetof(memopt_plan_layer, recomputed);
    layer.recomputed = 77;
    OK(memopt_plan_get_layer(plan, 1, &layer));
    assert_string_equal(layer.name, "layers.0");
    assert_int_equal(layer.recomputed, 77);
    OK(memopt_plan_destroy(plan));
    OK(memopt_plan_destroy(NULL));
    assert_string_equal(memopt_plan_phase_name(MEMOPT_PLAN_PHASE_LOSS), "loss");
    assert_string_equal(memopt_plan_phase_name(5), "invalid");
}

static memopt_plan_model filled(memopt_plan_model m, memopt_plan_run *r)
{
    memopt_plan *plan = NULL;
    memopt_plan_model out = {.struct_size = sizeof out};
    r->struct_size = sizeof *r;
    OK(memopt_plan_create(&m, NULL, NULL, &plan));
    OK(memopt_plan_get_settings(plan, &out, r, NULL));
    OK(memopt_plan_destroy(plan));
    return out;
}

static void defaults_are_told(void **state)
{
    memopt_plan_model m = MEMOPT_PLAN_MODEL_INIT, out;
    memopt_plan_run r = MEMOPT_PLAN_RUN_INIT;
    (void)state;
    m.hidden = 768;
    m.family = MEMOPT_PLAN_GPT2;
    out = filled(m, &r);
    assert_int_equal(out.heads, 12);
    assert_int_equal(out.kv_heads, 12);
    assert_int_equal(out.head_dim, 64);
    assert_int_equal(out.ffn, 3072);
    assert_int_equal(out.vocabulary, 50257);
    assert_int_equal(out.positions, 1024);
    assert_int_equal(out.layers, 12);
    assert_int_equal(out.tied, MEMOPT_PLAN_YES);
    assert_int_equal(out.head, MEMOPT_PLAN_HEAD_CAUSAL_LM);
    assert_int_equal(out.activation, MEMOPT_PLAN_ACTIVATION_GELU_NEW);
    assert_int_equal(r.batch, 1);
    assert_int_equal(r.sequence, 512);
    assert_int_equal(r.weight_dtype, MEMOPT_DTYPE_F32);
    assert_int_equal(r.use_cache, MEMOPT_PLAN_YES);
    m.family = MEMOPT_PLAN_LLAMA;
    out = filled(m, &r);
    assert_int_equal(out.ffn, 2048);
    assert_int_equal(out.positions, 0);
    assert_int_equal(out.tied, MEMOPT_PLAN_NO);
}

/* From a total alone, and with what else is given: the total is met within half a percent. */
static void totals_are_met(void **state)
{
    static const uint64_t totals[] = {34000000, 366000000, 512000000, 7000000000, 70000000000};
    (void)state;
    for (size_t i = 0; i < sizeof totals / sizeof *totals; i++)
        for (int given = 0; given < 3; given++) {
            memopt_plan_model m = MEMOPT_PLAN_MODEL_INIT;
            m.parameters = totals[i];
            m.layers = given == 1 ? 12 : 0;
            m.hidden = given == 2 ? 512 : 0;
            m.vocabulary = given == 2 ? 8000 : 0;
            uint64_t count = report_of(&m, NULL, NULL).parameter_count;
            assert_true(count >= totals[i]);
            assert_true(count - totals[i] <= totals[i] / 200);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_with_the_numbers),
        cmocka_unit_test(sizes_beyond_64_bits_are_refused),
        cmocka_unit_test(pointers_and_sizes_of_structs),
        cmocka_unit_test(defaults_are_told),
        cmocka_unit_test(totals_are_met),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
