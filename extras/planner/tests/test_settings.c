/*
 * The text of settings: what is read, what is refused and in which words, and what is filled in.
 */
#include "support.h"

#include "memopt/plan.h"

#include <locale.h>

static memopt_plan *made(const char *settings)
{
    memopt_plan *plan = NULL;
    OK(memopt_plan_create(settings, NULL, NULL, &plan));
    return plan;
}

TEST(refused_with_the_numbers)
{
    static const char *const refusals[][3] = {
        {"", "model.hidden", "model.parameters"},
        {"model.hiden=768", "model.hiden", "\"model.hidden\""},
        {"hidden=768", "\"hidden\"", "model.hidden"},
        {"model.hidden", "\"model.hidden\"", "key=value"},
        {"model.hidden=", "model.hidden is \"\"", "1048576"},
        {"model.hidden=-1", "\"-1\"", "1048576"},
        {"model.hidden=4611686018427387904", "4611686018427387904", "1048576"},
        {"model.hidden=768;model.layers=5000", "5000", "4096"},
        {"model.family=lama", "\"lama\"", "llama|mixtral"},
        {"run.offload=activations,disk", "activations,disk", "activations|optimizer"},
        {"model.hidden=768;run.offload=activations,optimizer;card.unified=yes",
         "run.offload is activations,optimizer", "card.unified"},
        {"run.use_cache=true", "\"true\"", "no|yes"},
        {"run.weight_dtype=i64", "i64", "fp32|fp16|bf16"},
        {"model.hidden_dropout=1", "\"1\"", "below 1"},
        {"card.margin=1.5", "1.5", "to 1"},
        {"card.capacity=24 parsecs", "24 parsecs", "24GiB"},
        {"model.hidden=100;model.heads=12", "12 heads", "100"},
        {"model.hidden=768;model.heads=12;model.kv_heads=24", "model.kv_heads is 24", "12"},
        {"model.hidden=768;model.heads=12;model.kv_heads=5", "5 key", "12 heads"},
        {"model.family=gpt2;model.hidden=768;model.kv_heads=6", "kv_heads is 6", "12"},
        {"model.hidden=6;model.heads=2", "3 wide", "even"},
        {"model.family=mixtral;model.hidden=768;model.experts=4;model.experts_per_token=5",
         "experts_per_token is 5", "4"},
        {"model.family=gpt2;model.hidden=768;model.variant=roberta", "roberta", "bert"},
        {"model.hidden=768;model.lora_rank=4096", "model.lora_rank is 4096", "768"},
        {"model.hidden=768;model.quantize=nf4", "weights of nf4", "model.lora_rank"},
        {"model.hidden=768;model.lora_rank=8;model.quantize=int8;run.world_size=2;run.sharding="
         "zero3",
         "weights of int8", "zero1"},
        {"model.family=vit;model.hidden=768;model.patch_size=500", "patch_size is 500", "224"},
        {"model.family=vit;model.hidden=768;model.head=causal-lm", "causal-lm", "tokens"},
        {"model.hidden=768;model.head=image", "image head", "vit"},
        {"model.hidden=768;model.embedding=512", "512", "768"},
        {"model.hidden=768;model.vision_layers=2;model.vision_hidden=100;model.vision_heads=3",
         "3 heads of the vision tower", "100"},
        {"model.parameters=1000", "1000 parameters", ""},
        {"model.parameters=366M;model.hidden=4096;model.layers=24", "366000000", "4096"},
        {"model.family=gpt2;model.hidden=768;run.sequence=2000", "2000 tokens", "1024"},
        {"model.hidden=768;run.sequence=64;run.sequence_mean=65", "sequence_mean is 65", "64"},
        {"model.hidden=768;run.weight_dtype=fp16;run.compute_dtype=bf16", "compute_dtype is bf16",
         "of fp16"},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        memopt_plan *plan = NULL;
        int64_t blocks = mo_memory_live_blocks();
        GIVES(MEMOPT_INVALID_ARGUMENT, memopt_plan_create(refusals[i][0], NULL, NULL, &plan));
        assert_null(plan);
        for (size_t k = 1; k < 3; k++)
            if (strstr(memopt_last_error(), refusals[i][k]) == NULL)
                fail_msg("%s: '%s' is not in: %s", refusals[i][0], refusals[i][k],
                         memopt_last_error());
        assert_int_equal(mo_memory_live_blocks(), blocks);
    }
}

/* The largest of everything that is allowed does not fit 64 bits: an error, not a small number. */
TEST(sizes_beyond_64_bits_are_refused)
{
    memopt_plan *plan = NULL;
    GIVES(MEMOPT_INVALID_ARGUMENT,
          memopt_plan_create("model.hidden=1048576;model.heads=16384;model.layers=4096;"
                             "model.vocabulary=268435456;run.batch=16777216;run.sequence=16777216",
                             NULL, NULL, &plan));
    assert_non_null(strstr(memopt_last_error(), "64 bits"));
}

TEST(texts_are_read)
{
    mo_plan_given given;
    setlocale(LC_ALL, ""); /* some write 0,5 */
    OK(mo_plan_parse("  model.hidden = 768 \n\n; run.batch=1;run.batch=2;model.parameters=1.5B;"
                     "card.capacity=1.5 GiB; card.margin=0.75; card.flops_per_second=60e12;"
                     "run.offload=optimizer,activations; run.use_cache=no; model.tied=yes;"
                     "run.weight_dtype=bf16; run.optimizer=adamw8bit; model.layers=0",
                     &given));
    assert_int_equal(given.model.hidden, 768);
    assert_int_equal(given.model.parameters, 1500000000);
    assert_int_equal(given.model.tied, MO_PLAN_YES);
    assert_int_equal(given.run.batch, 2);
    assert_int_equal(given.run.offload, 3);
    assert_int_equal(given.run.use_cache, MO_PLAN_NO);
    assert_int_equal(given.run.weight_dtype, MEMOPT_DTYPE_BF16);
    assert_int_equal(given.run.optimizer, MO_PLAN_ADAMW_8BIT);
    assert_int_equal(given.card.capacity, 3 * 512 * MIB);
    assert_true(given.card.margin == 0.75 && given.card.flops_per_second == 60e12);
    OK(mo_plan_parse(NULL, &given));
    assert_int_equal(given.model.hidden, 0);
}

/* What each key writes, the parser reads as the same; the words are those that the code counts. */
TEST(keys_are_read_as_they_are_written)
{
    const mo_plan_key *key;
    char text[128], entry[160];
    for (uint64_t i = 0; (key = mo_plan_key_at(i)) != NULL; i++) {
        mo_plan_given given, again;
        const char *word = strrchr(key->accepts, '|');
        (void)snprintf(entry, sizeof entry, "%s=%s", key->name,
                       word != NULL                                  ? word + 1
                       : strcmp(mo_plan_key_kind(key), "share") == 0 ? "0.1"
                                                                     : "1");
        OK(mo_plan_parse(entry, &given));
        assert_int_equal(mo_plan_key_text(key, &given, text, sizeof text), 1);
        (void)snprintf(entry, sizeof entry, "%s=%s", key->name, text);
        OK(mo_plan_parse(entry, &again));
        assert_memory_equal(&given, &again, sizeof given);
    }
    assert_string_equal(MO_PLAN_WORD(model.family, MO_PLAN_VIT), "vit");
    assert_string_equal(MO_PLAN_WORD(model.variant, MO_PLAN_VARIANT_ROBERTA), "roberta");
    assert_string_equal(MO_PLAN_WORD(model.head, MO_PLAN_HEAD_NONE), "none");
    assert_string_equal(MO_PLAN_WORD(model.activation, MO_PLAN_ACTIVATION_GELU_FAST), "gelu-fast");
    assert_string_equal(MO_PLAN_WORD(run.optimizer, MO_PLAN_NO_OPTIMIZER), "none");
    assert_string_equal(MO_PLAN_WORD(run.checkpointing, MO_PLAN_CHECKPOINT_EVERY), "every");
    assert_string_equal(MO_PLAN_WORD(run.loss, MO_PLAN_LOSS_CHUNKED), "chunked");
    assert_string_equal(MO_PLAN_WORD(card.device, MO_PLAN_DEVICE_HIP), "hip");
}

/* The defaults; given again they mean the same. */
TEST(defaults_are_filled_in)
{
    static const char *const families[] = {"llama", "mixtral", "gpt2", "opt", "bert", "vit"};
    static const char *const gpt2[] = {
        "\"model.heads\": 12",       "\"model.head_dim\": 64",         "\"model.ffn\": 3072",
        "\"model.positions\": 1024", "\"model.head\": \"causal-lm\"",  "\"model.tied\": \"yes\"",
        "\"run.sequence\": 512",     "\"run.weight_dtype\": \"fp32\"", "\"card.margin\": 0.85"};
    memopt_plan *plan = made("model.family=gpt2;model.hidden=768");
    for (size_t i = 0; i < sizeof gpt2 / sizeof *gpt2; i++)
        if (strstr(memopt_plan_get_json(plan), gpt2[i]) == NULL)
            fail_msg("%s is not in %s", gpt2[i], memopt_plan_get_json(plan));
    OK(memopt_plan_destroy(plan));
    for (int capacity = 0; capacity < 2; capacity++) {
        mo_plan_card card = {.capacity = (uint64_t)capacity << 34};
        mo_plan_card_fill(&card);
        assert_int_equal(mo_plan_card_is_gpu(&card), capacity);
    }
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        mo_plan_given given;
        mo_plan_settings once, twice;
        char text[64];
        (void)snprintf(text, sizeof text, "model.hidden=512;model.family=%s", families[i]);
        OK(mo_plan_parse(text, &given));
        OK(mo_plan_settings_fill(&once, &given.model, &given.run, &given.card));
        OK(mo_plan_settings_fill(&twice, &once.model, &once.run, &once.card));
        assert_memory_equal(&once, &twice, sizeof once);
    }
}

/* From a total alone, and with what else is given: the total is met within half a percent. */
TEST(totals_are_met)
{
    static const char *const others[] = {"", "model.layers=12",
                                         "model.hidden=512;model.vocabulary=8000"};
    static const double totals[] = {34e6, 366e6, 7e9, 70e9};
    for (size_t i = 0; i < sizeof totals / sizeof *totals; i++)
        for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
            char text[128];
            double count;
            (void)snprintf(text, sizeof text, "model.parameters=%.0f;%s", totals[i], others[k]);
            memopt_plan *plan = made(text);
            OK(memopt_plan_get_value(plan, "parameter_count", &count));
            OK(memopt_plan_destroy(plan));
            assert_true(count >= totals[i] && count - totals[i] <= totals[i] / 200);
        }
}
