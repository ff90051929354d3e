/*
 * Several devices: what each keeps, gathers and reduces, counted by hand. Batches are of a few
 * tokens, so that weights are what the peaks are made of.
 */
#include "several_support.h"

#include "plan/play.h"

enum { VECTOR = HIDDEN * 4 };

/* Equal but for a few vectors of the hidden size. */
static void about(uint64_t value, uint64_t wanted)
{
    if (value + 8 * VECTOR < wanted || value > wanted + 8 * VECTOR)
        fail_msg("%llu, not %llu", (unsigned long long)value, (unsigned long long)wanted);
}

static void replicas_keep_gradients_twice(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_DDP);
    (void)state;
    const uint64_t all = 4 * (LAYERS * layer + root);
    memopt_plan_report report = report_of(&m, &r, NULL);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->gradients, all);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_STEP)->gradients, 2 * all);
    assert_int_equal(report.samples, 2);
    /* In views of the buckets once; on its way there is one weight's gradient at a time. */
    r.bucket_view = MEMOPT_PLAN_YES;
    report = report_of(&m, &r, NULL);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->gradients, all);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_STEP)->gradients, all);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_BACKWARD)->gradients, all + 4 * HIDDEN * FFN);
    r.accumulation = 2;
    report = report_of(&m, &r, NULL);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_FORWARD)->gradients, all);
    /* One device has no buckets. */
    r.world_size = 1;
    r.accumulation = 1;
    report = report_of(&m, &r, NULL);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_STEP)->gradients, all);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->gradients, 0);
}

/* The largest first, each to the device that has the least; of equal ones to the first. */
static void whole_weights_are_given_away(void **state)
{
    const mo_weight w[] = {
        {.count = 30, .learns = 1}, {.count = 50, .learns = 1}, {.count = 99},
        {.count = 30, .learns = 1}, {.count = 10, .learns = 1}, {.count = 40, .learns = 1}};
    const uint64_t counts[] = {50, 30, 40, 30, 10}, device[] = {0, 0, 1, 1, 1};
    const uint32_t index[] = {1, 3, 5, 0, 4};
    mo_weight out[6];
    uint64_t count = 0, states = 0, step = 0;
    mo_tape t = {0};
    (void)state;
    OK(mo_partition(w, 6, 2, out, &count));
    assert_int_equal(count, 5);
    for (uint64_t i = 0; i < count; i++) {
        assert_int_equal(out[i].count, counts[i]);
        assert_int_equal(out[i].chunks, device[i]);
        assert_int_equal(out[i].layer, index[i]);
    }
    memopt_plan_run r = {.optimizer = MEMOPT_PLAN_ADAMW, .state_dtype = MEMOPT_DTYPE_F32};
    mo_partition_largest(&t, &r, out, count, &states, &step);
    assert_int_equal(states, 8 * 80 + 3 * 4);
    assert_int_equal(step, 4 * (50 + 30 + 30)); /* of 50 one is left while 30 make two */
    r.optimizer = MEMOPT_PLAN_ADAMW_FOREACH;
    mo_partition_largest(&t, &r, out, count, &states, &step);
    assert_int_equal(step, 4 * 80);
}

/* Beside a search for the device with the least, over random weights. */
static void the_least_is_found(void **state)
{
    enum { WEIGHTS = 500, DEVICES = 37 };
    mo_weight w[WEIGHTS], out[WEIGHTS];
    uint64_t count = 0, random = 9, has[DEVICES];
    (void)state;
    for (uint64_t world = 1; world <= DEVICES; world += 4) {
        memset(has, 0, sizeof has);
        for (uint64_t i = 0; i < WEIGHTS; i++) {
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
            w[i] = (mo_weight){.count = 1 + (random >> 33) % 9, .learns = 1};
        }
        OK(mo_partition(w, WEIGHTS, world, out, &count));
        assert_int_equal(count, WEIGHTS);
        for (uint64_t size = 9; size > 0; size--)
            for (uint64_t i = 0; i < WEIGHTS; i++) {
                uint64_t least = 0, at = 0;
                if (w[i].count != size)
                    continue;
                for (uint64_t d = 1; d < world; d++)
                    least = has[d] < has[least] ? d : least;
                has[least] += size;
                while (out[at].layer != i)
                    at++;
                assert_int_equal(out[at].chunks, least);
            }
    }
}

static void states_are_those_of_the_fullest_device(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_ZERO1);
    (void)state;
    m.vocabulary = 20000; /* embeddings and head are more than the rest */
    r.optimizer = MEMOPT_PLAN_ADAMW_OURS;
    r.world_size = 3;
    memopt_plan_report report = report_of(&m, &r, NULL);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->optimizer,
                     8 * 20000 * HIDDEN + 8); /* of one of the two and nothing else */
    /* More devices than weights. */
    r.world_size = 1000;
    report = report_of(&m, &r, NULL);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->optimizer, 8 * 20000 * HIDDEN + 8);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->parameters,
                     4 * report.parameter_count + report.buffer_bytes);
}

/* At rest half of everything; in forward the root, a layer, and the buffer it came from. */
static void layers_are_gathered_when_used(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_ZERO3);
    (void)state;
    memopt_plan_report report = report_of(&m, &r, NULL);
    const uint64_t own = 4 * (LAYERS * layer + root) / 2 + report.buffer_bytes;
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->parameters, own);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->gradients, 0);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_FORWARD)->parameters,
                     own + 4 * (root + 2 * layer));
    /* The last layer's buffer stays until the loss is there. */
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOSS)->parameters, own + 4 * (root + layer));
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_STEP)->parameters, own);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_STEP)->gradients,
                     4 * (LAYERS * layer + root) / 2);
}

/* Backward is fullest in the first layer but one: it is whole, the first is in its buffer, the
 * gradients of the one before are in theirs; shards of the gradients of two others are there. */
static void gradients_are_reduced_by_layer(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_ZERO3);
    (void)state;
    memopt_plan_report report = report_of(&m, &r, NULL);
    const uint64_t own = 4 * (LAYERS * layer + root) / 2 + report.buffer_bytes;
    const memopt_plan_bytes *b = phase(&report, MEMOPT_PLAN_PHASE_BACKWARD);
    assert_int_equal(b->parameters, own + 4 * (root + 2 * layer));
    about(b->gradients, 4 * (layer + layer + 2 * layer / 2 + WORDS * HIDDEN));
    /* Reduced into those of the micro-batch before. */
    r.accumulation = 2;
    memopt_plan_report second = report_of(&m, &r, NULL);
    assert_int_equal(phase(&second, MEMOPT_PLAN_PHASE_FORWARD)->gradients,
                     4 * (LAYERS * layer + root) / 2);
    assert_int_equal(phase(&second, MEMOPT_PLAN_PHASE_STEP)->gradients,
                     4 * (LAYERS * layer + root) / 2);
    about(phase(&second, MEMOPT_PLAN_PHASE_BACKWARD)->gradients,
          4 * (layer + layer + (LAYERS * layer + root) / 2 + WORDS * HIDDEN));
}

/* The root is whole to the end of backward, and reduced then. */
static void the_root_is_reduced_last(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_ZERO3);
    (void)state;
    m.vocabulary = 50000;
    const uint64_t big = 2 * 50000 * HIDDEN + HIDDEN;
    memopt_plan_report report = report_of(&m, &r, NULL);
    const uint64_t own = 4 * (LAYERS * layer + big) / 2 + report.buffer_bytes;
    const memopt_plan_bytes *b = phase(&report, MEMOPT_PLAN_PHASE_BACKWARD);
    /* The embeddings' gradient has just come, the last layer's buffer is still there: more than
     * later, when the weights have gone and the buffer of all gradients is there. */
    assert_int_equal(b->parameters, own + 4 * big);
    assert_int_equal(b->gradients, 4 * (big + layer + LAYERS * layer / 2));
}

/* What was gathered stays to its backward, and nothing is gathered twice. */
static void gathered_layers_may_stay(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_ZERO2);
    (void)state;
    memopt_plan_report report = report_of(&m, &r, NULL);
    const uint64_t own = 4 * (LAYERS * layer + root) / 2 + report.buffer_bytes;
    const uint64_t whole = 4 * (LAYERS * layer + root);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->parameters, own);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_FORWARD)->parameters,
                     own + whole + 4 * layer);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_BACKWARD)->parameters,
                     own + whole - 4 * layer);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_STEP)->parameters, own);
}

/* Shards of fp32, gathered in bf16: cast, computed in bf16, reduced in fp32. */
static void weights_are_gathered_in_another_type(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_ZERO3), narrow = r;
    (void)state;
    r.gather_dtype = MEMOPT_DTYPE_BF16;
    memopt_plan_report report = report_of(&m, &r, NULL);
    const uint64_t own = 4 * (LAYERS * layer + root) / 2 + report.buffer_bytes;
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->parameters, own);
    /* While a layer's buffer is made: that of the layer before, and the cast of the own half. */
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_FORWARD)->parameters,
                     own + 2 * (root + 2 * layer + layer / 2));
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_STEP)->gradients,
                     4 * (LAYERS * layer + root) / 2);
    about(phase(&report, MEMOPT_PLAN_PHASE_BACKWARD)->gradients,
          4 * layer + 2 * layer + 4 * 2 * layer / 2 + 2 * WORDS * HIDDEN);
    narrow.weight_dtype = MEMOPT_DTYPE_BF16;
    narrow.sharding = MEMOPT_PLAN_DDP;
    assert_int_equal(report.activation_bytes, report_of(&m, &narrow, NULL).activation_bytes);
    /* Without shards there is nothing to gather. */
    r.sharding = MEMOPT_PLAN_DDP;
    narrow = r;
    narrow.gather_dtype = 0;
    assert_int_equal(report_of(&m, &r, NULL).peak.total, report_of(&m, &narrow, NULL).peak.total);
}

/* Shards are of whole rows, the same everywhere: 1000 of 3 are 334, 256 are 86. */
static void shards_are_rounded_up(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = few_tokens(MEMOPT_PLAN_ZERO3);
    (void)state;
    r.world_size = 3;
    r.optimizer = MEMOPT_PLAN_ADAMW_OURS;
    memopt_plan_report report = report_of(&m, &r, NULL);
    const uint64_t rows = 86 * HIDDEN * 4 + (2 * 342 * HIDDEN + 86 * FFN) + 2 * 86;
    const uint64_t own = LAYERS * rows + 2 * 334 * HIDDEN + 86;
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->parameters,
                     4 * own + report.buffer_bytes);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_STEP)->gradients, 4 * own);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->optimizer,
                     8 * own + 8 * (9 * LAYERS + 3));
}

/* However the layers run, all that was gathered and filled is gone at the step. */
static void nothing_stays_gathered(void **state)
{
    (void)state;
    for (uint32_t sharding = MEMOPT_PLAN_ZERO2; sharding <= MEMOPT_PLAN_ZERO3; sharding++)
        for (uint32_t mode = 0; mode <= MEMOPT_PLAN_CHECKPOINT_BUDGET; mode++)
            for (uint32_t lora = 0; lora <= 8; lora += 8) {
                memopt_plan_model m = small_model();
                memopt_plan_run r = few_tokens(sharding);
                m.lora_rank = lora;
                r.checkpointing = mode;
                r.checkpoint_budget = UINT64_C(1) << 30;
                memopt_plan_report report = report_of(&m, &r, NULL);
                const memopt_plan_bytes *load = phase(&report, MEMOPT_PLAN_PHASE_LOAD);
                const memopt_plan_bytes *step = phase(&report, MEMOPT_PLAN_PHASE_STEP);
                assert_int_equal(step->parameters, load->parameters);
                assert_int_equal(step->gradients, 4 * report.trainable_count / 2);
                assert_true(phase(&report, MEMOPT_PLAN_PHASE_BACKWARD)->parameters >
                            load->parameters + 4 * (root + layer) - 1);
            }
}

typedef struct seen {
    mo_tape *t;
    uint64_t total[4];
    uint32_t number[4], count;
} seen;

static void look(void *context, uint32_t number)
{
    seen *s = context;
    s->total[s->count] = s->t->total;
    s->number[s->count++] = number;
}

/* A hook sees the whole gradient of its value, before what made the value has run. */
static void hooks_run_in_backward(void **state)
{
    mo_tape t;
    seen s = {.t = &t};
    (void)state;
    OK(mo_tape_init(&t, 1));
    mo_value x = mo_value_new(&t, 1000, 1, MO_ACTIVATIONS);
    mo_value_hook(&t, x, look, &s, 9); /* needs no gradient: never */
    mo_value_learns(&t, x, 1000);
    mo_value y = mo_op_of_input(&t, x, "f");
    mo_value_hook(&t, y, look, &s, 1);
    mo_value loss = mo_op_mean(&t, y, 1);
    mo_value_hook(&t, loss, look, &s, 2);
    mo_drop(&t, y);
    assert_int_equal(s.count, 0);
    mo_tape_backward(&t, loss);
    assert_int_equal(s.count, 2);
    assert_int_equal(s.number[0], 2);
    assert_int_equal(s.total[0], 1002); /* x, the loss and its gradient */
    assert_int_equal(s.number[1], 1);
    assert_int_equal(s.total[1], 2001); /* x, the loss, the gradient of y */
    assert_int_equal(t.total, 2001);    /* x, the loss, the gradient of x */
    OK(t.status);
    mo_tape_end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_keep_gradients_twice),
        cmocka_unit_test(whole_weights_are_given_away),
        cmocka_unit_test(the_least_is_found),
        cmocka_unit_test(states_are_those_of_the_fullest_device),
        cmocka_unit_test(layers_are_gathered_when_used),
        cmocka_unit_test(gradients_are_reduced_by_layer),
        cmocka_unit_test(the_root_is_reduced_last),
        cmocka_unit_test(gathered_layers_may_stay),
        cmocka_unit_test(weights_are_gathered_in_another_type),
        cmocka_unit_test(shards_are_rounded_up),
        cmocka_unit_test(nothing_stays_gathered),
        cmocka_unit_test(hooks_run_in_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
