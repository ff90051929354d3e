/* ggml's own library with our memory and our optimizers: a network of two layers, its gradients by ggml. */
#include "adapters/memopt_ggml.h"

#include "unit/allocator/support.h"

#include <ggml-alloc.h>
#include <ggml-cpu.h>
#include <math.h>

enum { IN = 96, HIDDEN = 128, OUT = 64, BATCH = 32, STEPS = 20, NODES = 128, PARAMETERS = 2 };
#define LIVE "allocated_bytes.all.current"

static struct ggml_context *context(void)
{
    const size_t bytes =
        64 * ggml_tensor_overhead() + 3 * ggml_graph_overhead_custom(GGML_DEFAULT_GRAPH_SIZE, true);
    return ggml_init((struct ggml_init_params){bytes, NULL, true});
}

static void set(struct ggml_tensor *tensor, uint32_t seed, float scale)
{
    float *values = tensor->data;
    for (int64_t i = 0; i < ggml_nelements(tensor); i++) {
        seed = seed * 1664525 + 1013904223;
        values[i] = scale * ((float)(seed >> 8) / 8388608.0f - 1.0f);
    }
}

static const memopt_optimizer_group SETTINGS = {.struct_size = sizeof SETTINGS,
                                                .lr = 1e-2,
                                                .beta1 = 0.9,
                                                .beta2 = 0.999,
                                                .eps = 1e-8,
                                                .weight_decay = 0.01};

/* Trains relu(x W) V to y, by ggml's AdamW or ours (its own then changes no bit), and returns the last loss;
 * out_state: bytes of the optimizer's states. */
static float train(memopt_allocator *allocator, int by_ggml, uint32_t format, float *out_weights,
                   uint64_t *out_state)
{
    struct ggml_opt_optimizer_params settings = {
        .adamw = {by_ggml ? 1e-2f : 1e-38f, 0.9f, 0.999f, 1e-8f, 0.01f}};
    struct ggml_context *weights = context(), *work = context();
    struct ggml_tensor *parameters[] = {ggml_new_tensor_2d(weights, GGML_TYPE_F32, IN, HIDDEN),
                                        ggml_new_tensor_2d(weights, GGML_TYPE_F32, HIDDEN, OUT)};
    struct ggml_tensor *x = ggml_new_tensor_2d(weights, GGML_TYPE_F32, IN, BATCH);
    struct ggml_tensor *hidden = ggml_relu(work, ggml_mul_mat(work, parameters[0], x));
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_buffer_type_t memory = memopt_ggml_buffer_type(allocator, MEMOPT_TAG_WEIGHTS);
    ggml_backend_sched_t scheduler =
        ggml_backend_sched_new(&backend, &memory, 1, NODES, false, true);
    memopt_ggml_optimizer *optimizer = NULL;
    float loss = 0;
    ggml_backend_cpu_set_n_threads(backend, 1);
    for (int i = 0; i < PARAMETERS; i++)
        ggml_set_param(parameters[i]);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(weights, memory);
    assert_non_null(buffer);
    set(parameters[0], 1, 0.1f);
    set(parameters[1], 2, 0.1f);
    set(x, 3, 1.0f);
    if (!by_ggml) {
        const uint64_t before = stat_of(allocator, LIVE);
        memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
        options.state_format = format;
        OK(memopt_ggml_optimizer_create(allocator, &options, &SETTINGS, weights, &optimizer));
        *out_state = stat_of(allocator, LIVE) - before;
    }
    struct ggml_opt_params how =
        ggml_opt_default_params(scheduler, GGML_OPT_LOSS_TYPE_MEAN_SQUARED_ERROR);
    how.ctx_compute = work;
    how.inputs = x;
    how.outputs = ggml_mul_mat(work, parameters[1], hidden);
    how.opt_period = 2; /* it keeps sums of gradients then */
    how.get_opt_pars = ggml_opt_get_constant_optimizer_params;
    how.get_opt_pars_ud = &settings;
    ggml_opt_context_t training = ggml_opt_init(how);
    set(ggml_opt_labels(training), 4, 1.0f);
    for (int batch = 1; batch <= 2 * STEPS; batch++) {
        ggml_opt_alloc(training, true);
        ggml_opt_eval(training, NULL);
        loss = *(float *)ggml_opt_loss(training)->data;
        if (!by_ggml && batch % 2 == 0)
            OK(memopt_ggml_optimizer_step(optimizer, memopt_ggml_gradient_of_opt, training, NULL));
    }
    for (int i = 0; i < PARAMETERS; i++) {
        memcpy(out_weights, parameters[i]->data, ggml_nbytes(parameters[i]));
        out_weights += ggml_nelements(parameters[i]);
    }
    memopt_ggml_optimizer_destroy(optimizer);
    ggml_opt_free(training);
    ggml_backend_sched_free(scheduler);
    ggml_backend_buffer_free(buffer);
    ggml_backend_free(backend);
    memopt_ggml_buffer_type_free(memory);
    ggml_free(work);
    ggml_free(weights);
    assert_int_equal(stat_of(allocator, LIVE), 0); /* every buffer went back */
    return loss;
}

ALLOCATOR_TEST(adamw_is_ggml_s, allocator, eager(16 * MIB), CLASSIC)
{
    enum { COUNT = IN * HIDDEN + HIDDEN * OUT };
    static float wanted[COUNT], got[COUNT];
    uint64_t full, coded;
    float by_ggml = train(allocator, 1, 0, wanted, NULL);
    float by_us = train(allocator, 0, MEMOPT_STATE_F32, got, &full);
    for (int i = 0; i < COUNT; i++)
        if (!(fabsf(wanted[i] - got[i]) <= 2e-6f))
            fail_msg("weight %d: %g, by ggml %g", i, (double)got[i], (double)wanted[i]);
    float in_8_bits = train(allocator, 0, MEMOPT_STATE_8BIT, got, &coded);
    print_message("loss by ggml %g, by memopt %g, in 8 bits %g; states %d and %d bytes\n",
                  (double)by_ggml, (double)by_us, (double)in_8_bits, (int)full, (int)coded);
    assert_true(fabsf(by_us - by_ggml) <= 1e-4f * by_ggml &&
                fabsf(in_8_bits - by_ggml) <= 0.05f * by_ggml);
    assert_true(coded <= full * 27 / 100);
}

ALLOCATOR_TEST(what_does_not_fit_is_told, allocator, eager(16 * MIB), CLASSIC)
{
    ggml_backend_buffer_type_t memory = memopt_ggml_buffer_type(allocator, MEMOPT_TAG_WEIGHTS);
    assert_null(ggml_backend_buft_alloc_buffer(memory, 17 * MIB));
    assert_non_null(strstr(memopt_last_error(), "17.00 MiB asked for weights"));
    memopt_ggml_buffer_type_free(memory);
}
