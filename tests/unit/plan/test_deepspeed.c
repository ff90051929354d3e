/*
 * DeepSpeed's ZeRO: what its buffers take, counted by hand. Batches are of a few tokens, so that
 * weights are what the peaks are made of. tests/plan measures the same of real steps.
 */
#include "support.h"

enum { HIDDEN = 256, FFN = 1024, LAYERS = 4, WORDS = 1000 };

/* Elements of small_model(), and of a layer of it. */
static const uint64_t in_layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN + 2 * HIDDEN;
static const uint64_t all = LAYERS * in_layer + 2 * WORDS * HIDDEN + HIDDEN;

static mo_plan_run deepspeed(uint32_t stage)
{
    mo_plan_run r = {0};
    r.batch = 1;
    r.sequence = 4;
    r.world_size = 2;
    r.sharding = stage;
    r.zero_engine = MO_PLAN_ENGINE_DEEPSPEED;
    r.optimizer = MO_PLAN_SGD;
    r.bucket_bytes = 4 * UINT64_C(1000000);
    return r;
}

/* All weights, of half of them a copy; the step's gradient in one piece beside. */
static void flat_buffers_are_in_equal_parts(void **state)
{
    mo_plan_model m = small_model();
    (void)state;
    for (uint32_t stage = MO_PLAN_ZERO1; stage <= MO_PLAN_ZERO2; stage++) {
        mo_plan_run r = deepspeed(stage);
        mo_plan_report report = report_of(&m, &r, NULL);
        const mo_plan_bytes *load = phase(&report, MO_PLAN_PHASE_LOAD);
        assert_int_equal(load->parameters, 4 * all + report.buffer_bytes);
        assert_int_equal(load->optimizer, 4 * all / 2);
        assert_int_equal(load->gradients, 0);
        assert_int_equal(phase(&report, MO_PLAN_PHASE_STEP)->optimizer, 2 * 4 * all / 2);
        r.optimizer = MO_PLAN_ADAMW; /* two moments and a count; two temporaries */
        report = report_of(&m, &r, NULL);
        assert_int_equal(phase(&report, MO_PLAN_PHASE_LOAD)->optimizer, 3 * 4 * all / 2 + 4);
        assert_int_equal(phase(&report, MO_PLAN_PHASE_STEP)->optimizer, 6 * 4 * all / 2 + 4);
        r.world_size = 7; /* rounded up to fourteen */
        report = report_of(&m, &r, NULL);
        assert_int_equal(phase(&report, MO_PLAN_PHASE_LOAD)->parameters,
                         4 * ((all + 13) / 14 * 14) + report.buffer_bytes);
    }
}

/* The bucket is whole, however few gradients there are, and twice where reduction overlaps. */
static void buckets_are_made_whole(void **state)
{
    mo_plan_model m = small_model();
    (void)state;
    for (uint32_t stage = MO_PLAN_ZERO1; stage <= MO_PLAN_ZERO3; stage++) {
        mo_plan_run r = deepspeed(stage);
        mo_plan_report small = report_of(&m, &r, NULL);
        r.bucket_bytes = 0;
        mo_plan_report big = report_of(&m, &r, NULL);
        uint64_t more = phase(&big, MO_PLAN_PHASE_BACKWARD)->gradients -
                        phase(&small, MO_PLAN_PHASE_BACKWARD)->gradients;
        assert_true(more > 4 * UINT64_C(490000000) && more < 4 * UINT64_C(505000000));
        r.weight_dtype = MEMOPT_DTYPE_BF16;
        more = phase(&big, MO_PLAN_PHASE_BACKWARD)->gradients;
        big = report_of(&m, &r, NULL);
        assert_true(phase(&big, MO_PLAN_PHASE_BACKWARD)->gradients < more / 2 + 1000000);
        r.overlap_comm = MO_PLAN_YES;
        more = report_of(&m, &r, NULL).peak.total - big.peak.total;
        if (stage < MO_PLAN_ZERO3)
            assert_in_range(more, 2 * UINT64_C(480000000), 2 * UINT64_C(510000000));
        else
            assert_int_equal(more, 0);
    }
}

/* Of a small model all weights are there from forward on, and go in backward. */
static void stage_3_lets_weights_go(void **state)
{
    mo_plan_model m = small_model();
    mo_plan_run r = deepspeed(MO_PLAN_ZERO3);
    (void)state;
    mo_plan_report report = report_of(&m, &r, NULL);
    const uint64_t own = phase(&report, MO_PLAN_PHASE_LOAD)->parameters;
    assert_int_equal(phase(&report, MO_PLAN_PHASE_FORWARD)->parameters, own + 2 * 4 * all);
    assert_in_range(phase(&report, MO_PLAN_PHASE_BACKWARD)->parameters, own, own + 4 * all);
    mo_plan_estimate e;
    OK(mo_plan_estimate_make(&e, &m, &r, NULL));
    for (uint64_t i = 2; i <= LAYERS; i++) { /* after a layer's backward its weights have gone */
        uint64_t less = e.layers[i].backward_bytes - e.layers[i - 1].backward_bytes;
        assert_in_range(less, 4 * in_layer, 5 * in_layer);
    }
    mo_plan_estimate_end(&e);
}

/* Of a model that is larger than what may be gathered: 1e9 elements and what one gather adds. */
static void stage_3_gathers_so_many(void **state)
{
    mo_plan_model m = {.hidden = 4096, .layers = 32, .heads = 32, .ffn = 11008};
    mo_plan_run r = deepspeed(MO_PLAN_ZERO3);
    (void)state;
    mo_plan_report report = report_of(&m, &r, NULL);
    uint64_t load = phase(&report, MO_PLAN_PHASE_LOAD)->parameters;
    for (uint32_t k = MO_PLAN_PHASE_FORWARD; k <= MO_PLAN_PHASE_BACKWARD; k++)
        assert_in_range(phase(&report, k)->parameters - load, 4 * UINT64_C(1000000000),
                        4 * UINT64_C(1140000000));
}

static void refused(mo_plan_run r, memopt_status status)
{
    mo_plan_model m = small_model();
    mo_plan_report report;
    GIVES(status, mo_plan_outline(&m, &r, NULL, &report));
    assert_true(strlen(memopt_last_error()) > 20);
}

#define REFUSED(status, stage, field, value)                                                       \
    do {                                                                                           \
        mo_plan_run r_ = deepspeed(stage);                                                         \
        r_.field = (value);                                                                        \
        refused(r_, status);                                                                       \
    } while (0)

static void what_it_does_not_have_is_refused(void **state)
{
    (void)state;
    REFUSED(MEMOPT_INVALID_ARGUMENT, MO_PLAN_DDP, batch, 1);
    REFUSED(MEMOPT_INVALID_ARGUMENT, MO_PLAN_ZERO1, bucket_view, MO_PLAN_YES);
    REFUSED(MEMOPT_INVALID_ARGUMENT, MO_PLAN_ZERO2, optimizer, MO_PLAN_NO_OPTIMIZER);
    REFUSED(MEMOPT_UNSUPPORTED, MO_PLAN_ZERO2, offload, MO_PLAN_OFFLOAD_OPTIMIZER);
    REFUSED(MEMOPT_UNSUPPORTED, MO_PLAN_ZERO2, compute_dtype, MEMOPT_DTYPE_BF16);
    REFUSED(MEMOPT_UNSUPPORTED, MO_PLAN_ZERO3, master_dtype, MEMOPT_DTYPE_BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flat_buffers_are_in_equal_parts),
        cmocka_unit_test(buckets_are_made_whole),
        cmocka_unit_test(stage_3_lets_weights_go),
        cmocka_unit_test(stage_3_gathers_so_many),
        cmocka_unit_test(what_it_does_not_have_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
