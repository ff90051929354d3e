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

static memopt_optimizer *make(world *w, uint32_t kind, uint32_t format, uint64_t page_bytes,
                              uint32_t split)
{
    memopt_optimizer *o;
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    uint32_t number;
    options.kind = kind;
    options.state_format = format;
    options.min_8bit_size = 64;
    options.page_bytes = page_bytes;
    options.split_weights = split;
    options.stochastic_rounding = !split;
    group.momentum = 0.9;
    OK(memopt_optimizer_create(w->allocator, &options, &o));
    OK(memopt_optimizer_add_group(o, &group, &number));
    return o;
}

static model new_model(world *w, uint32_t kind, uint32_t format, uint64_t page_bytes)
{
    model m;
    uint64_t index, state = 7;
    m.optimizer = make(w, kind, format, page_bytes, 0);
    for (int i = 0; i < TENSORS; i++) {
        float *values = malloc(sizes[i] * sizeof *values);
        for (uint64_t k = 0; k < sizes[i]; k++)
            values[k] = normal(&state);
        m.parameters[i] = new_tensor(w, sizes[i], MEMOPT_DTYPE_BF16, values);
        m.gradients[i] = new_tensor(w, sizes[i], MEMOPT_DTYPE_F32, values);
        free(values);
        OK(memopt_optimizer_add_parameter(m.optimizer, 0, &m.parameters[i], NULL, w->stream,
                                          &index));
    }
    return m;
}

/* All parameters but one, another one each time. */
static void step(world *w, model *m, int number, double max_norm, float *out_norm)
{
    memopt_tensor gradients[TENSORS];
    memopt_step_options options = MEMOPT_STEP_OPTIONS_INIT;
    uint64_t state = 100 + (uint64_t)number;
    for (int i = 0; i < TENSORS; i++) {
        float *values = malloc(sizes[i] * sizeof *values);
        for (uint64_t k = 0; k < sizes[i]; k++)
            values[k] = normal(&state);
        write_tensor(w, &m->gradients[i], values);
        free(values);
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
    uint64_t bytes[2];
    unsigned char *saved[2] = {export_all(w, a->optimizer, &bytes[0]),
                               export_all(w, b->optimizer, &bytes[1])};
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(saved[0], saved[1], bytes[0]);
    for (int i = 0; i < TENSORS; i++) {
        void *one = read_bytes(w, &a->parameters[i]), *other = read_bytes(w, &b->parameters[i]);
        assert_memory_equal(one, other, sizes[i] * 2);
        free(one);
        free(other);
    }
    free(saved[0]);
    free(saved[1]);
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
    OK(memopt_optimizer_import_sync(paged.optimizer, saved, bytes, w.stream));
    OK(memopt_optimizer_import_sync(plain.optimizer, saved, bytes, w.stream));
    step(&w, &paged, 8, 0.0, NULL);
    step(&w, &plain, 8, 0.0, NULL);
    same_models(&w, &plain, &paged);
    free(saved);
    OK(memopt_optimizer_destroy(plain.optimizer));
    OK(memopt_optimizer_destroy(paged.optimizer));
    close_world(&w);
}

TEST(bits)
{
    static const struct {
        uint32_t kind, format;
    } rules[] = {{MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_F32},
                 {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT},
                 {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_COMPANDED4},
                 {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_BF16},
                 {MEMOPT_OPTIMIZER_LION, MEMOPT_STATE_8BIT},
                 {MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_8BIT},
                 {MEMOPT_OPTIMIZER_ADEMAMIX, MEMOPT_STATE_F32},
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
    memopt_optimizer *o = make(&w, MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_F32, 2 * elements * 8, 0);
    uint64_t index;
    for (int i = 0; i < COUNT; i++)
        OK(memopt_optimizer_add_parameter(o, 0, &p[i], NULL, w.stream, &index));
    OK(memopt_optimizer_step(o, g, COUNT, NULL, w.stream));
    memopt_tag_stats stats = MEMOPT_TAG_STATS_INIT;
    OK(memopt_allocator_get_tag_stats(w.allocator, MEMOPT_TAG_OPTIMIZER, &stats));
    uint64_t taken = stats.peak_bytes;
    assert_true(taken >= 2 * 2 * elements * 8);
    assert_true(taken <= 2 * 2 * elements * 8 + 64 * 1024);
    OK(memopt_optimizer_destroy(o));
    close_world(&w);
}
