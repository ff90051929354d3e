/*
 * DeepSpeed's ZeRO: what its buffers take, counted by hand. Batches are of a few tokens, so that
 * weights are what the peaks are made of. tests/plan measures the same of real steps.
 */
#include "support.h"

enum { HIDDEN = 256, FFN = 1024, LAYERS = 4, WORDS = 1000 };

/* Elements of small_model(). */
static const uint64_t all =
    LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN + 2 * HIDDEN) + 2 * WORDS * HIDDEN + HIDDEN;

static memopt_plan_run deepspeed(uint32_t stage)
{
    memopt_plan_run r = MEMOPT_PLAN_RUN_INIT;
    r.batch = 1;
    r.sequence = 4;
    r.world_size = 2;
    r.sharding = stage;
    r.zero_engine = MEMOPT_PLAN_ENGINE_DEEPSPEED;
    r.optimizer = MEMOPT_PLAN_SGD;
    r.bucket_bytes = 4 * UINT64_C(1000000);
    return r;
}

/* All weights, of half of them a copy; the step's gradient in one piece beside. */
static void flat_buffers_are_in_equal_parts(void **state)
{
    memopt_plan_model m = small_model();
    (void)state;
    for (uint32_t stage = MEMOPT_PLAN_ZERO1; stage <= MEMOPT_PLAN_ZERO2; stage++) {
        memopt_plan_run r = deepspeed(stage);
        memopt_plan_report report = report_of(&m, &r, NULL);
        const memopt_plan_bytes *load = phase(&report, MEMOPT_PLAN_PHASE_LOAD);
        assert_int_equal(load->parameters, 4 * all + report.buffer_bytes);
        assert_int_equal(load->optimizer, 4 * all / 2);
        assert_int_equal(load->gradients, 0);
        assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_STEP)->optimizer, 2 * 4 * all / 2);
        r.optimizer = MEMOPT_PLAN_ADAMW; /* two moments and a count; two temporaries */
        report = report_of(&m, &r, NULL);
        assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->optimizer, 3 * 4 * all / 2 + 4);
        assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_STEP)->optimizer, 6 * 4 * all / 2 + 4);
        r.world_size = 7; /* rounded up to fourteen */
        report = report_of(&m, &r, NULL);
        assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->parameters,
                         4 * ((all + 13) / 14 * 14) + report.buffer_bytes);
    }
}

/* A part in one weight is stepped where its gradient is, all of which stays. */
static void a_part_may_lie_in_one_weight(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = deepspeed(MEMOPT_PLAN_ZERO2);
    (void)state;
    r.optimizer = MEMOPT_PLAN_ADAMW;
    m.vocabulary = 100000;
    m.tied = MEMOPT_PLAN_YES;
    const uint64_t words = UINT64_C(100000) * HIDDEN, sum = all + words - 2 * WORDS * HIDDEN;
    assert_true(words > (sum + 1) / 2);
    memopt_plan_report report = report_of(&m, &r, NULL);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_STEP)->optimizer,
                     5 * 4 * sum / 2 + 4 * words + 4);
    r.weight_dtype = MEMOPT_DTYPE_BF16;
    report = report_of(&m, &r, NULL);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_STEP)->optimizer, 6 * 4 * sum / 2 + 4);
}

/* The bucket is whole, however few gradients there are, and twice where reduction overlaps. */
static void buckets_are_made_whole(void **state)
{
    memopt_plan_model m = small_model();
    (void)state;
    for (uint32_t stage = MEMOPT_PLAN_ZERO1; stage <= MEMOPT_PLAN_ZERO3; stage++) {
        memopt_plan_run r = deepspeed(stage);
        memopt_plan_report small = report_of(&m, &r, NULL);
        r.bucket_bytes = 0;
        memopt_plan_report big = report_of(&m, &r, NULL);
        uint64_t more = phase(&big, MEMOPT_PLAN_PHASE_BACKWARD)->gradients -
                        phase(&small, MEMOPT_PLAN_PHASE_BACKWARD)->gradients;
        assert_true(more > 4 * UINT64_C(490000000) && more < 4 * UINT64_C(505000000));
        r.weight_dtype = MEMOPT_DTYPE_BF16;
        more = phase(&big, MEMOPT_PLAN_PHASE_BACKWARD)->gradients;
        big = report_of(&m, &r, NULL);
        assert_true(phase(&big, MEMOPT_PLAN_PHASE_BACKWARD)->gradients < more / 2 + 1000000);
        r.overlap_comm = MEMOPT_PLAN_YES;
        more = report_of(&m, &r, NULL).peak.total - big.peak.total;
        if (stage < MEMOPT_PLAN_ZERO3)
            assert_in_range(more, 2 * UINT64_C(480000000), 2 * UINT64_C(510000000));
        else
            assert_int_equal(more, 0);
        r.overlap_comm = MEMOPT_PLAN_NO;
        r.contiguous_gradients = MEMOPT_PLAN_NO;
        assert_true(report_of(&m, &r, NULL).peak.total + 900000000 < big.peak.total);
    }
}

/* Stage 1: all gradients come to rest first; stage 2: never are more than a bucket, the next one
 * and the own half there. */
static void gradients_of_stage_2_go_as_they_come(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = deepspeed(MEMOPT_PLAN_ZERO1);
    (void)state;
    memopt_plan_report one = report_of(&m, &r, NULL);
    assert_in_range(phase(&one, MEMOPT_PLAN_PHASE_BACKWARD)->gradients, 4 * (all + 1000000),
                    4 * (all + 1000000 + all / 2));
    r.sharding = MEMOPT_PLAN_ZERO2;
    memopt_plan_report two = report_of(&m, &r, NULL);
    assert_in_range(phase(&two, MEMOPT_PLAN_PHASE_BACKWARD)->gradients, 4 * (1000000 + all / 2),
                    4 * (3 * UINT64_C(1000000) + all / 2));
    /* Those of the micro-batch before: all of them and the bucket; the own half. */
    r.accumulation = 2;
    memopt_plan_report second = report_of(&m, &r, NULL);
    uint64_t kept = phase(&second, MEMOPT_PLAN_PHASE_FORWARD)->gradients;
    assert_in_range(kept, 4 * all / 2, 4 * (all / 2 + HIDDEN * FFN));
    assert_int_equal(phase(&second, MEMOPT_PLAN_PHASE_BACKWARD)->gradients,
                     phase(&two, MEMOPT_PLAN_PHASE_BACKWARD)->gradients + kept);
    r.sharding = MEMOPT_PLAN_ZERO1;
    second = report_of(&m, &r, NULL);
    assert_int_equal(phase(&second, MEMOPT_PLAN_PHASE_FORWARD)->gradients, 4 * (all + 1000000));
}

/* Halves of everything, a bucket, and what is gathered for as long as it is used. */
static void stage_3_keeps_shares(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = deepspeed(MEMOPT_PLAN_ZERO3);
    (void)state;
    r.persistence_threshold = r.prefetch_bucket = r.reuse_distance = MEMOPT_PLAN_NOTHING;
    memopt_plan_report report = report_of(&m, &r, NULL);
    const uint64_t own = 4 * all / 2 + report.buffer_bytes;
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->parameters, own);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->gradients, 4 * (all / 2 + 1000000));
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->optimizer, 4 * all / 2); /* a copy */
    /* One module at a time: the largest is of the MLP, then the embeddings. */
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_FORWARD)->parameters, own + 4 * HIDDEN * FFN);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_BACKWARD)->parameters,
                     own + 4 * HIDDEN * FFN);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_STEP)->parameters, own);
    /* Nothing goes within the distance. */
    r.reuse_distance = 0;
    report = report_of(&m, &r, NULL);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOSS)->parameters, own + 4 * all);
    /* All is asked for at once, into a buffer that stays until the last has been used. */
    r.prefetch_bucket = 0;
    report = report_of(&m, &r, NULL);
    assert_in_range(phase(&report, MEMOPT_PLAN_PHASE_FORWARD)->parameters,
                    own + 2 * 4 * (all - 1000), own + 2 * 4 * all);
    /* What is small stays: vectors, and matrices of attention. */
    r = deepspeed(MEMOPT_PLAN_ZERO3);
    report = report_of(&m, &r, NULL);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->parameters,
                     own + 4 * ((2 * LAYERS + 1) * HIDDEN + LAYERS * 4 * HIDDEN * HIDDEN));
    /* bf16: the copy is f32, and so is the gradient that is stepped. */
    r.weight_dtype = MEMOPT_DTYPE_BF16;
    r.sub_group = 1;
    report = report_of(&m, &r, NULL);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_LOAD)->optimizer, 4 * all / 2);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_STEP)->optimizer,
                     4 * all / 2 + (4 + 2) * HIDDEN * FFN / 2);
    /* One device gathers nothing. */
    r.world_size = 1;
    report = report_of(&m, &r, NULL);
    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_FORWARD)->parameters,
                     2 * all + report.buffer_bytes);
}

static void refused(memopt_plan_run r, memopt_status status)
{
    memopt_plan_model m = small_model();
    memopt_plan *plan = NULL;
    assert_int_equal(memopt_plan_create(&m, &r, NULL, &plan), status);
    assert_null(plan);
    assert_true(strlen(memopt_last_error()) > 20);
}

#define REFUSED(status, stage, field, value)                                                       \
    do {                                                                                           \
        memopt_plan_run r_ = deepspeed(stage);                                                     \
        r_.field = (value);                                                                        \
        refused(r_, status);                                                                       \
    } while (0)

static void what_it_has_not_is_refused(void **state)
{
    (void)state;
    REFUSED(MEMOPT_INVALID_ARGUMENT, MEMOPT_PLAN_DDP, batch, 1);
    REFUSED(MEMOPT_INVALID_ARGUMENT, MEMOPT_PLAN_ZERO1, zero_engine, 2);
    REFUSED(MEMOPT_INVALID_ARGUMENT, MEMOPT_PLAN_ZERO1, contiguous_gradients, 3);
    REFUSED(MEMOPT_INVALID_ARGUMENT, MEMOPT_PLAN_ZERO1, overlap_comm, 3);
    REFUSED(MEMOPT_INVALID_ARGUMENT, MEMOPT_PLAN_ZERO1, reserved_zero, 1);
    REFUSED(MEMOPT_INVALID_ARGUMENT, MEMOPT_PLAN_ZERO1, bucket_bytes, (UINT64_C(1) << 50) + 1);
    REFUSED(MEMOPT_INVALID_ARGUMENT, MEMOPT_PLAN_ZERO1, bucket_bytes, UINT64_MAX);
    REFUSED(MEMOPT_INVALID_ARGUMENT, MEMOPT_PLAN_ZERO3, prefetch_bucket, UINT64_MAX - 1);
    REFUSED(MEMOPT_INVALID_ARGUMENT, MEMOPT_PLAN_ZERO3, persistence_threshold, UINT64_C(1) << 60);
    REFUSED(MEMOPT_INVALID_ARGUMENT, MEMOPT_PLAN_ZERO3, live_parameters, UINT64_C(1) << 60);
    REFUSED(MEMOPT_INVALID_ARGUMENT, MEMOPT_PLAN_ZERO3, reuse_distance, UINT64_C(1) << 60);
    REFUSED(MEMOPT_INVALID_ARGUMENT, MEMOPT_PLAN_ZERO3, sub_group, MEMOPT_PLAN_NOTHING);
    REFUSED(MEMOPT_INVALID_ARGUMENT, MEMOPT_PLAN_ZERO1, bucket_view, MEMOPT_PLAN_YES);
    REFUSED(MEMOPT_INVALID_ARGUMENT, MEMOPT_PLAN_ZERO2, optimizer, MEMOPT_PLAN_NO_OPTIMIZER);
    REFUSED(MEMOPT_UNSUPPORTED, MEMOPT_PLAN_ZERO2, offload, MEMOPT_PLAN_OFFLOAD_OPTIMIZER);
    REFUSED(MEMOPT_UNSUPPORTED, MEMOPT_PLAN_ZERO2, compute_dtype, MEMOPT_DTYPE_BF16);
    REFUSED(MEMOPT_UNSUPPORTED, MEMOPT_PLAN_ZERO2, gradient_dtype, MEMOPT_DTYPE_BF16);
    REFUSED(MEMOPT_UNSUPPORTED, MEMOPT_PLAN_ZERO3, gather_dtype, MEMOPT_DTYPE_BF16);
    REFUSED(MEMOPT_UNSUPPORTED, MEMOPT_PLAN_ZERO3, master_dtype, MEMOPT_DTYPE_BF16);
    REFUSED(MEMOPT_UNSUPPORTED, MEMOPT_PLAN_ZERO3, state_dtype, MEMOPT_DTYPE_BF16);
    REFUSED(MEMOPT_UNSUPPORTED, MEMOPT_PLAN_ZERO3, checkpointing, MEMOPT_PLAN_CHECKPOINT_BUDGET);
    memopt_plan_run r = deepspeed(MEMOPT_PLAN_ZERO2);
    r.zero_engine = MEMOPT_PLAN_ENGINE_TORCH; /* there nobody reads them */
    r.prefetch_bucket = MEMOPT_PLAN_NOTHING;
    memopt_plan_model m = small_model();
    memopt_plan_run plain = r;
    plain.prefetch_bucket = plain.bucket_bytes = 0;
    assert_int_equal(report_of(&m, &r, NULL).peak.total, report_of(&m, &plain, NULL).peak.total);
}

/* Whatever the sizes are, all that came goes, and larger buckets or distances take no less. */
static void every_size_adds_up(void **state)
{
    const uint64_t sizes[] = {1, 1000, 300000, 1000000, 50000000};
    (void)state;
    for (uint32_t stage = MEMOPT_PLAN_ZERO1; stage <= MEMOPT_PLAN_ZERO3; stage++)
        for (uint32_t mode = 0; mode < MEMOPT_PLAN_CHECKPOINT_BUDGET; mode++)
            for (uint64_t world = 1; world <= 129; world *= 2, world += world > 30) {
                uint64_t before = 0;
                for (int i = 0; i < 5; i++) {
                    memopt_plan_model m = small_model();
                    memopt_plan_run r = deepspeed(stage);
                    r.checkpointing = mode;
                    r.world_size = world;
                    r.bucket_bytes = 4 * UINT64_C(1000000);
                    r.prefetch_bucket = r.live_parameters = r.reuse_distance = sizes[i];
                    memopt_plan_report report = report_of(&m, &r, NULL);
                    const memopt_plan_bytes *load = phase(&report, MEMOPT_PLAN_PHASE_LOAD);
                    assert_int_equal(phase(&report, MEMOPT_PLAN_PHASE_STEP)->parameters,
                                     load->parameters);
                    assert_true(report.peak.parameters >= load->parameters);
                    uint64_t now = phase(&report, MEMOPT_PLAN_PHASE_FORWARD)->parameters;
                    assert_true(now >= before);
                    before = now;
                }
            }
}

static void a_smaller_bucket_is_proposed(void **state)
{
    memopt_plan_model m = small_model();
    memopt_plan_run r = deepspeed(MEMOPT_PLAN_ZERO1);
    memopt_plan_card card = MEMOPT_PLAN_CARD_INIT;
    memopt_plan_solution *solution = NULL;
    memopt_plan_fit fit = {.struct_size = sizeof fit};
    memopt_plan_change change = {.struct_size = sizeof change};
    (void)state;
    r.bucket_bytes = 0;
    card.device = MEMOPT_PLAN_DEVICE_CPU;
    card.capacity = UINT64_C(600) << 20;
    OK(memopt_plan_solve(&m, &r, &card, NULL, &solution));
    OK(memopt_plan_solution_get_fit(solution, &fit));
    assert_int_equal(fit.fits, 0);
    assert_int_equal(fit.fits_after, 1);
    OK(memopt_plan_solution_get_change(solution, 0, &change));
    assert_int_equal(change.kind, MEMOPT_PLAN_CHANGE_BUCKET);
    assert_int_equal(change.applied, 1);
    assert_string_equal(change.option, "--reduce-bucket-size 50000000");
    assert_true(change.saves_bytes > UINT64_C(1700000000));
    OK(memopt_plan_solution_get_settings(solution, NULL, &r));
    assert_int_equal(r.bucket_bytes, 4 * UINT64_C(50000000));
    OK(memopt_plan_solution_destroy(solution));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(flat_buffers_are_in_equal_parts),
                                       cmocka_unit_test(a_part_may_lie_in_one_weight),
                                       cmocka_unit_test(buckets_are_made_whole),
                                       cmocka_unit_test(gradients_of_stage_2_go_as_they_come),
                                       cmocka_unit_test(stage_3_keeps_shares),
                                       cmocka_unit_test(what_it_has_not_is_refused),
                                       cmocka_unit_test(every_size_adds_up),
                                       cmocka_unit_test(a_smaller_bucket_is_proposed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
