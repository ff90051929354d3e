/* Paged states: the bits of states on the device, in areas of a stated size, on streams that run in
 * any order. */
#include "fixture.h"
#include "support/sweep.h"

#include <stdlib.h>
#include <string.h>

enum { TENSORS = 6, STEPS = 3 };

static const uint64_t sizes[TENSORS] = {5003, 61, 4096, 9001, 300, 2048};

typedef struct model {
    memopt_optimizer *optimizer;
    memopt_tensor parameters[TENSORS], gradients[TENSORS];
} model;

static memopt_optimizer *make(world *w, uint32_t kind, uint32_t format, uint64_t page_bytes)
{
    const memopt_optimizer_options options = {.kind = kind,
                                              .state_format = format,
                                              .min_8bit_size = 64,
                                              .page_bytes = page_bytes,
                                              .stochastic_rounding = 1};
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    group.momentum = 0.9;
    return make_optimizer(w, options, &group);
}

static model new_model(world *w, uint32_t kind, uint32_t format, uint64_t page_bytes)
{
    model m = {.optimizer = make(w, kind, format, page_bytes)};
    for (uint64_t i = 0; i < TENSORS; i++) {
        m.parameters[i] = new_tensor(w, sizes[i], MEMOPT_DTYPE_BF16, noise(7 + i, 1.0f));
        m.gradients[i] = new_tensor(w, sizes[i], MEMOPT_DTYPE_F32, NULL);
        (void)add_parameter(w, m.optimizer, &m.parameters[i]);
    }
    return m;
}

/* All parameters but one, another one each time. */
static void step(world *w, model *m, int number, double max_norm, float *out_norm)
{
    memopt_tensor gradients[TENSORS];
    memopt_step_options options = MEMOPT_STEP_OPTIONS_INIT;
    for (int i = 0; i < TENSORS; i++) {
        write_tensor(w, &m->gradients[i], noise(100 + (uint64_t)(number * TENSORS + i), 1.0f));
        gradients[i] = m->gradients[i];
        if (i == number % TENSORS)
            gradients[i].data = NULL;
    }
    options.max_norm = max_norm;
    options.out_norm = out_norm;
    OK(memopt_optimizer_step(m->optimizer, gradients, TENSORS, &options, w->stream));
}

static void same_models(world *w, model *a, model *b)
{
    uint64_t bytes, other;
    unsigned char *x = everything_of(w, a->optimizer, a->parameters, TENSORS, &bytes);
    unsigned char *y = everything_of(w, b->optimizer, b->parameters, TENSORS, &other);
    assert_int_equal(bytes, other);
    assert_memory_equal(x, y, bytes);
    free(x);
    free(y);
}

static void compare(uint32_t order, int own_stream, uint32_t kind, uint32_t format,
                    uint64_t page_bytes)
{
    world w = open_world(order, own_stream);
    memopt_tensor norms = new_tensor(&w, 2, MEMOPT_DTYPE_F32, NULL);
    model plain = new_model(&w, kind, format, 0), paged = new_model(&w, kind, format, page_bytes);
    for (int i = 0; i < STEPS; i++) {
        step(&w, &plain, i, i == 1 ? 0.5 : 0.0, norms.data);
        step(&w, &paged, i, i == 1 ? 0.5 : 0.0, (float *)norms.data + 1);
        float found[2];
        read_floats(&w, &norms, found);
        assert_true(same_float(found[0], found[1]) && found[0] > 1.0f);
        same_models(&w, &plain, &paged);
    }
    uint64_t bytes;
    unsigned char *saved = export_all(&w, plain.optimizer, &bytes);
    step(&w, &paged, 9, 0.0, NULL);
    step(&w, &plain, 9, 0.0, NULL);
    OK(memopt_optimizer_import_sync(paged.optimizer, saved, bytes, 0, w.stream));
    OK(memopt_optimizer_import_sync(plain.optimizer, saved, bytes, 0, w.stream));
    step(&w, &paged, 8, 0.0, NULL);
    step(&w, &plain, 8, 0.0, NULL);
    same_models(&w, &plain, &paged);
    free(saved);
    close_world(&w);
}

TEST(bits)
{
    static const struct {
        uint32_t kind, format;
    } rules[] = {{MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_F32},
                 {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT_DYNAMIC},
                 {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_4BIT},
                 {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_BF16},
                 {MEMOPT_OPTIMIZER_LION, MEMOPT_STATE_8BIT_DYNAMIC},
                 {MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_8BIT},
                 {MEMOPT_OPTIMIZER_ADEMAMIX, MEMOPT_STATE_F32},
                 {MEMOPT_OPTIMIZER_ADEMAMIX, MEMOPT_STATE_8BIT_DYNAMIC},
                 {MEMOPT_OPTIMIZER_ADEMAMIX, MEMOPT_STATE_8BIT}};
    static const uint64_t pages[] = {1, 20000, UINT64_MAX};
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r += UNDER_TSAN ? 4 : 1)
        for (size_t p = 0; p < sizeof pages / sizeof *pages; p++) {
            compare(MEMOPT_STREAM_ORDER_EAGER, (int)(p % 2), rules[r].kind, rules[r].format,
                    pages[p]);
            compare(MEMOPT_STREAM_ORDER_ADVERSARIAL, 1, rules[r].kind, rules[r].format, pages[p]);
        }
}

/* What the device holds of the states: two areas, and a step count for each parameter. */
TEST(memory)
{
    world w = open_world(0, 1);
    enum { COUNT = 16 };
    static const uint64_t elements = 1 << 18;
    memopt_tensor p[COUNT], g[COUNT];
    for (int i = 0; i < COUNT; i++) {
        p[i] = new_tensor(&w, elements, MEMOPT_DTYPE_BF16, NULL);
        g[i] = new_tensor(&w, elements, MEMOPT_DTYPE_BF16, NULL);
    }
    memopt_optimizer *o = make(&w, MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_F32, 2 * elements * 8);
    for (int i = 0; i < COUNT; i++)
        (void)add_parameter(&w, o, &p[i]);
    OK(memopt_optimizer_step(o, g, COUNT, NULL, w.stream));
    memopt_tag_stats stats = MEMOPT_TAG_STATS_INIT;
    OK(memopt_allocator_get_tag_stats(w.allocator, MEMOPT_TAG_OPTIMIZER, &stats));
    uint64_t taken = stats.peak_bytes;
    assert_true(taken >= 2 * 2 * elements * 8);
    assert_true(taken <= 2 * 2 * elements * 8 + 64 * 1024);
    close_world(&w);
}
