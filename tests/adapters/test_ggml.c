/* ggml's own library with our memory and our optimizers: a network of two layers, its gradients by ggml. */
#include "adapters/memopt_ggml.h"

#include "memopt/memopt.h"
#include "support/checks.h"
#include "support/unit.h"

#include <ggml-alloc.h>
#include <ggml-cpu.h>
#include <math.h>

enum { IN = 96, HIDDEN = 128, OUT = 64, BATCH = 32, STEPS = 20, NODES = 128, PARAMETERS = 2 };

typedef struct world {
    memopt_device *device;
    memopt_allocator *allocator;
    ggml_backend_buffer_type_t memory;
    ggml_backend_t backend;
} world;

typedef struct network {
    struct ggml_context *weights, *work, *kept;
    ggml_backend_buffer_t weights_buffer, sums_buffer;
    ggml_gallocr_t room;
    struct ggml_cgraph *graph;
    struct ggml_tensor *parameters[PARAMETERS], *x, *y, *loss, *settings;
} network;

static int begin(void **state)
{
    static world w;
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    options.capacity = 16 * MIB;
    OK(memopt_device_open("cpu", &options, &w.device));
    OK(memopt_allocator_create(w.device, NULL, NULL, &w.allocator));
    w.memory = memopt_ggml_buffer_type(w.allocator, MEMOPT_TAG_WEIGHTS);
    assert_non_null(w.memory);
    w.backend = ggml_backend_cpu_init();
    *state = &w;
    return 0;
}

static int end(void **state)
{
    world *w = *state;
    ggml_backend_free(w->backend);
    memopt_ggml_buffer_type_free(w->memory);
    OK(memopt_allocator_destroy(w->allocator)); /* every buffer went back */
    OK(memopt_device_close(w->device));
    return 0;
}

static struct ggml_context *context(size_t tensors)
{
    const struct ggml_init_params params = {
        tensors * ggml_tensor_overhead() + 4 * ggml_graph_overhead_custom(NODES, true), NULL, true};
    return ggml_init(params);
}

static void set(struct ggml_tensor *tensor, uint32_t seed, float scale)
{
    float *values = tensor->data;
    for (int64_t i = 0; i < ggml_nelements(tensor); i++) {
        seed = seed * 1664525 + 1013904223;
        values[i] = scale * ((float)(seed >> 8) / 8388608.0f - 1.0f);
    }
}

/* by_ggml: the graph ends with ggml's own AdamW. */
static void make(network *n, const world *w, int by_ggml)
{
    struct ggml_tensor *sums[NODES] = {NULL};
    n->weights = context(16);
    n->work = context(4 * NODES);
    n->parameters[0] = ggml_new_tensor_2d(n->weights, GGML_TYPE_F32, IN, HIDDEN);
    n->parameters[1] = ggml_new_tensor_2d(n->weights, GGML_TYPE_F32, HIDDEN, OUT);
    n->x = ggml_new_tensor_2d(n->weights, GGML_TYPE_F32, IN, BATCH);
    n->y = ggml_new_tensor_2d(n->weights, GGML_TYPE_F32, OUT, BATCH);
    n->settings = ggml_new_tensor_1d(n->weights, GGML_TYPE_F32, 7);
    for (int i = 0; i < PARAMETERS; i++)
        ggml_set_param(n->parameters[i]);
    n->weights_buffer = ggml_backend_alloc_ctx_tensors_from_buft(n->weights, w->memory);
    assert_non_null(n->weights_buffer);
    set(n->parameters[0], 1, 0.1f);
    set(n->parameters[1], 2, 0.1f);
    set(n->x, 3, 1.0f);
    set(n->y, 4, 1.0f);

    struct ggml_tensor *hidden = ggml_relu(n->work, ggml_mul_mat(n->work, n->parameters[0], n->x));
    struct ggml_tensor *wrong =
        ggml_sub(n->work, ggml_mul_mat(n->work, n->parameters[1], hidden), n->y);
    n->loss = ggml_scale(n->work, ggml_sum(n->work, ggml_sqr(n->work, wrong)), 1.0f / BATCH);
    ggml_set_loss(n->loss);
    ggml_set_output(n->loss);
    n->graph = ggml_new_graph_custom(n->work, NODES, true);
    ggml_build_forward_expand(n->graph, n->loss);
    n->kept = context(NODES);
    for (int i = 0; i < ggml_graph_n_nodes(n->graph); i++) {
        const struct ggml_tensor *node = ggml_graph_node(n->graph, i);
        if (node->flags & (GGML_TENSOR_FLAG_PARAM | GGML_TENSOR_FLAG_LOSS))
            sums[i] = ggml_new_tensor(n->kept, GGML_TYPE_F32, GGML_MAX_DIMS, node->ne);
    }
    ggml_build_backward_expand(n->work, n->graph, sums);
    if (by_ggml)
        for (int i = 0; i < PARAMETERS; i++) {
            struct ggml_tensor *p = n->parameters[i];
            struct ggml_tensor *m = ggml_new_tensor(n->kept, GGML_TYPE_F32, GGML_MAX_DIMS, p->ne);
            struct ggml_tensor *v = ggml_new_tensor(n->kept, GGML_TYPE_F32, GGML_MAX_DIMS, p->ne);
            ggml_build_forward_expand(
                n->graph,
                ggml_opt_step_adamw(n->work, p, memopt_ggml_gradient_of_graph(n->graph, p), m, v,
                                    n->settings));
        }
    n->sums_buffer = ggml_backend_alloc_ctx_tensors_from_buft(n->kept, w->memory);
    ggml_backend_buffer_clear(n->sums_buffer, 0);
    n->room = ggml_gallocr_new(w->memory);
    assert_true(ggml_gallocr_alloc_graph(n->room, n->graph));
}

static void drop(network *n)
{
    ggml_gallocr_free(n->room);
    ggml_backend_buffer_free(n->sums_buffer);
    ggml_backend_buffer_free(n->weights_buffer);
    ggml_free(n->work);
    ggml_free(n->kept);
    ggml_free(n->weights);
}

static const memopt_optimizer_group SETTINGS = {.struct_size = sizeof SETTINGS,
                                                .lr = 1e-2f,
                                                .beta1 = 0.9f,
                                                .beta2 = 0.999f,
                                                .eps = 1e-8f,
                                                .weight_decay = 0.01f};

/* Trains and returns the last loss; out_state: bytes of the optimizer's states. */
static float train(const world *w, int by_ggml, uint32_t format, float *out_weights,
                   uint64_t *out_state)
{
    network n;
    memopt_ggml_optimizer *optimizer = NULL;
    float loss = 0;
    make(&n, w, by_ggml);
    if (!by_ggml) {
        uint64_t before;
        memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
        options.state_format = format;
        OK(memopt_allocator_get_stat(w->allocator, "allocated_bytes.all.current", &before));
        OK(memopt_ggml_optimizer_create(w->allocator, &options, &SETTINGS, n.weights, &optimizer));
        OK(memopt_allocator_get_stat(w->allocator, "allocated_bytes.all.current", out_state));
        *out_state -= before;
    }
    for (int step = 1; step <= STEPS; step++) {
        const float settings[7] = {1e-2f,
                                   0.9f,
                                   0.999f,
                                   1e-8f,
                                   0.01f,
                                   1.0f / (1.0f - powf(0.9f, (float)step)),
                                   1.0f / (1.0f - powf(0.999f, (float)step))};
        memcpy(n.settings->data, settings, sizeof settings);
        if (!by_ggml || step == 1)
            ggml_graph_reset(n.graph);
        else /* a reset would clear the moments, too */
            for (int i = 0; i < PARAMETERS; i++)
                ggml_set_zero(ggml_graph_get_grad_acc(n.graph, n.parameters[i]));
        assert_int_equal(ggml_backend_graph_compute(w->backend, n.graph), GGML_STATUS_SUCCESS);
        loss = *(float *)n.loss->data;
        if (!by_ggml)
            OK(memopt_ggml_optimizer_step(optimizer, memopt_ggml_gradient_of_graph, n.graph, NULL));
    }
    for (int i = 0; i < PARAMETERS; i++) {
        memcpy(out_weights, n.parameters[i]->data, ggml_nbytes(n.parameters[i]));
        out_weights += ggml_nelements(n.parameters[i]);
    }
    memopt_ggml_optimizer_destroy(optimizer);
    drop(&n);
    return loss;
}

TEST_WITH(adamw_is_ggml_s, begin, end)
{
    enum { COUNT = IN * HIDDEN + HIDDEN * OUT };
    static float wanted[COUNT], got[COUNT];
    uint64_t full, coded;
    float by_ggml = train(*state, 1, 0, wanted, NULL);
    float by_us = train(*state, 0, MEMOPT_STATE_F32, got, &full);
    for (int i = 0; i < COUNT; i++)
        if (!(fabsf(wanted[i] - got[i]) <= 2e-6f))
            fail_msg("weight %d: %g, by ggml %g", i, (double)got[i], (double)wanted[i]);
    float in_8_bits = train(*state, 0, MEMOPT_STATE_8BIT, got, &coded);
    print_message("loss by ggml %g, by memopt %g, in 8 bits %g; states %d and %d bytes\n",
                  (double)by_ggml, (double)by_us, (double)in_8_bits, (int)full, (int)coded);
    assert_true(fabsf(by_us - by_ggml) <= 1e-4f * by_ggml &&
                fabsf(in_8_bits - by_ggml) <= 0.05f * by_ggml);
    assert_true(coded <= full * 27 / 100);
}

TEST_WITH(what_does_not_fit_is_told, begin, end)
{
    world *w = *state;
    assert_null(ggml_backend_buft_alloc_buffer(w->memory, 17 * MIB));
    assert_non_null(strstr(memopt_last_error(), "17.00 MiB asked for weights"));
}
