/*
 * Training: every way of keeping weights and states learns, fp16 recovers from overflow, runs are
 * the same bits each time, and a device that is too small is reported and left clean.
 */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static corpus text;

static double train(trainer *t, int steps)
{
    step_result r = {0};
    for (int i = 0; i < steps; i++)
        assert_ok(trainer_step(t, &r));
    return r.loss;
}

/* The options of a small model that learns the test's text in a hundred steps. */
static options learning_options(void)
{
    options o = tiny_options();
    o.batch = 8;
    o.dropout = 0;
    o.threads = 1; /* many small steps */
    o.lr = 1e-2;
    return o;
}

static double held_out_after(const options *o, int steps)
{
    trainer t;
    double loss;
    assert_ok(trainer_create(&t, o, &text));
    train(&t, steps);
    assert_ok(trainer_evaluate(&t, 4, &loss));
    assert_ok(trainer_destroy(&t));
    return loss;
}

TEST(every_variant_learns)
{
    options o = learning_options();
    double plain = held_out_after(&o, 100);
    assert_true(plain < 1.5); /* from 5.5; the text is eight words in random order */
    for (uint32_t way = 0; way < 6; way++) {
        o = learning_options();
        o.dtype =
            way % 3 == 0 ? MEMOPT_DTYPE_F32 : (way % 3 == 1 ? MEMOPT_DTYPE_BF16 : MEMOPT_DTYPE_F16);
        o.master = way < 3;
        o.adamw8bit = way != 1;
        o.checkpoint = 1;
        o.offload = way & 1;
        double loss = held_out_after(&o, 100);
        if (fabs(loss - plain) > 0.3)
            fail_msg("way %u ends at %.3f, plain at %.3f", way, loss, plain);
    }
}

TEST(runs_are_the_same_bits)
{
    for (int way = 0; way < 2; way++) {
        bytes ends[2];
        for (int run = 0; run < 2; run++) {
            trainer t;
            options o = tiny_options();
            o.dtype = way ? MEMOPT_DTYPE_BF16 : MEMOPT_DTYPE_F32;
            o.master = 0;
            o.adamw8bit = 1;
            o.adversarial = (uint32_t)run;
            o.offload = (uint32_t)run;
            assert_ok(trainer_create(&t, &o, &text));
            train(&t, 5);
            ends[run] = weight_bytes(&t);
            assert_ok(trainer_destroy(&t));
        }
        assert_same_bytes(&ends[0], &ends[1]);
        free(ends[0].data);
        free(ends[1].data);
    }
}

/* Whatever else is on: the weights, which the device never holds more than a third of, and each loss
 * are those of a run that keeps them there. */
TEST(streamed_weights_are_the_same_bits)
{
    enum { STEPS = 4, LAYERS = 6 };
    for (uint32_t way = 0; way < 4; way++) {
        bytes ends[2];
        double losses[2][STEPS];
        uint64_t copies[STEPS] = {0};
        for (uint32_t run = 0; run < 2; run++) {
            trainer t;
            options o = tiny_options();
            o.layers = LAYERS;
            o.dtype = way % 2 ? MEMOPT_DTYPE_BF16 : MEMOPT_DTYPE_F32;
            o.master = way == 1;
            o.adamw8bit = way >= 2;
            o.checkpoint = way == 2;
            o.offload = way == 3;
            o.adversarial = run && way != 0;
            o.accumulation = 1 + way % 2;
            o.stream = run;
            assert_ok(trainer_create(&t, &o, &text));
            for (int i = 0; i < STEPS; i++) {
                step_result r;
                assert_ok(trainer_step(&t, &r));
                losses[run][i] = r.loss;
                copies[i] = r.copies;
            }
            memory_figures f;
            assert_ok(memory_measure(&t.memory, &f));
            if (run) { /* a step changes all weights: those of two layers come once more */
                assert_int_equal(f.plan.resident, LAYERS / 3);
                assert_int_equal(f.plan.copies, 2 * (LAYERS - LAYERS / 3));
                assert_true(f.streamed.resident_bytes_peak <= f.plan.budget);
                assert_true(f.plan.budget <= f.plan.layer_bytes / 3 + 511);
                for (int i = 0; i < STEPS; i++) /* the order is known before the first step */
                    assert_int_equal(copies[i], o.accumulation * f.plan.copies + LAYERS / 3);
                assert_true(f.weights < f.plan.layer_bytes);
            }
            ends[run] = weight_bytes(&t);
            assert_ok(trainer_destroy(&t));
        }
        assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
        assert_same_bytes(&ends[0], &ends[1]);
        free(ends[0].data);
        free(ends[1].data);
    }
}

TEST(fp16_recovers_from_overflow)
{
    trainer t;
    options o = learning_options();
    o.dtype = MEMOPT_DTYPE_F16;
    o.init_scale = 1099511627776.0; /* 2^40: gradients leave fp16's range at once */
    assert_ok(trainer_create(&t, &o, &text));
    bytes start = weight_bytes(&t);
    int skipped = 0, taken = 0;
    double scale = o.init_scale, loss = 0;
    for (int i = 0; i < 130; i++) {
        step_result r;
        assert_ok(trainer_step(&t, &r));
        assert_true(r.scale == scale);
        if (r.skipped) {
            skipped++;
            scale /= 2;
            bytes now = weight_bytes(&t);
            if (taken == 0)
                assert_same_bytes(&start, &now);
            free(now.data);
        } else
            taken++;
        loss = r.loss;
    }
    assert_true(skipped >= 10 && taken >= 90);
    assert_true(loss < 2);
    assert_ok(trainer_destroy(&t));
    free(start.data);
}

TEST(too_small_a_device_is_reported)
{
    options o = tiny_options();
    o.layers = 8;
    o.width = 128;
    /* Too small for the weights, for the optimizer, and for the activations. */
    const uint64_t capacities[] = {(uint64_t)4 << 20, (uint64_t)20 << 20, (uint64_t)34 << 20};
    for (size_t i = 0; i < sizeof capacities / sizeof capacities[0]; i++) {
        trainer t;
        step_result r;
        o.capacity = capacities[i];
        o.context = i == 2 ? 256 : 16;
        memopt_status status = trainer_create(&t, &o, &text);
        if (status == MEMOPT_OK) {
            status = trainer_step(&t, &r);
            assert_ok(trainer_destroy(&t));
        }
        assert_int_equal(status, MEMOPT_OUT_OF_DEVICE_MEMORY);
        assert_non_null(strstr(gpt_error(), "asked"));
    }
}

int main(void)
{
    tiny_text(&text);
    int failed = run_all_tests(NULL, NULL);
    text_free(&text);
    return failed;
}
