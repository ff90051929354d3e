/* AdamW steps over one large tensor, the tensors of a GPT-2, and many small ones. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TENSORS = 4096 };

typedef struct model {
    memopt_optimizer *optimizer;
    memopt_tensor *parameters, *gradients;
    uint32_t tensors;
    memopt_step_options options;
} model;

typedef struct kind {
    const char *name;
    memopt_dtype dtype;
    memopt_state_format states;
    double max_norm;
    double bytes;    /* a step moves per parameter: parameter, gradient and states */
    double resident; /* bytes held per parameter */
} kind;

static const kind kinds[] = {
    {"AdamW f32", MEMOPT_DTYPE_F32, MEMOPT_STATE_F32, 0, 28, 16},
    {"AdamW bf16", MEMOPT_DTYPE_BF16, MEMOPT_STATE_F32, 0, 22, 12},
    {"AdamW 8-bit f32", MEMOPT_DTYPE_F32, MEMOPT_STATE_8BIT_DYNAMIC, 0, 16.0625, 10.1},
    {"AdamW 8-bit bf16", MEMOPT_DTYPE_BF16, MEMOPT_STATE_8BIT_DYNAMIC, 0, 10.0625, 6.1},
    {"AdamW 8-bit bf16, clipped", MEMOPT_DTYPE_BF16, MEMOPT_STATE_8BIT_DYNAMIC, 1e30, 12.0625, 6.1},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static void run_step(bench *b, void *context)
{
    model *m = context;
    OK(memopt_optimizer_step(m->optimizer, m->gradients, m->tensors, &m->options, b->stream));
}

static void run_copy(bench *b, void *context)
{
    memopt_tensor *two = context;
    OK(memopt_copy(b->device, two[0].data, two[1].data, 4 * two[0].count, b->stream));
}

static void make_model(bench *b, model *m, const kind *k, const uint64_t *sizes, uint32_t tensors)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    options.state_format = k->states;
    m->options = (memopt_step_options)MEMOPT_STEP_OPTIONS_INIT;
    m->options.max_norm = k->max_norm;
    m->tensors = tensors;
    m->parameters = calloc(tensors, sizeof *m->parameters);
    m->gradients = calloc(tensors, sizeof *m->gradients);
    if (m->parameters == NULL || m->gradients == NULL)
        exit(1);
    OK(memopt_optimizer_create(b->allocator, &options, &m->optimizer));
    OK(memopt_optimizer_add_group(m->optimizer, &group, &(uint32_t){0}));
    for (uint32_t i = 0; i < tensors; i++) {
        m->parameters[i] = new_tensor(b, sizes[i], k->dtype, 0.02f);
        m->gradients[i] = new_tensor(b, sizes[i], k->dtype, 0.01f);
        OK(memopt_optimizer_add_parameter(m->optimizer, 0, &m->parameters[i], NULL, b->stream,
                                          &(uint64_t){0}));
    }
}

static void end_model(bench *b, model *m)
{
    OK(memopt_stream_sync(b->device, b->stream));
    OK(memopt_optimizer_destroy(m->optimizer));
    for (uint32_t i = 0; i < m->tensors; i++) {
        free_tensor(b, &m->parameters[i]);
        free_tensor(b, &m->gradients[i]);
    }
    free(m->parameters);
    free(m->gradients);
}

/* All kinds over the same shapes, interleaved: as many at once as there is memory for. */
static void bench_shapes(bench *b, const char *table, const uint64_t *sizes, uint32_t tensors)
{
    model models[KINDS];
    bench_case cases[1 + KINDS];
    double elements = 0, copied;
    for (uint32_t i = 0; i < tensors; i++)
        elements += (double)sizes[i];
    copied = elements < (double)(256 * MIB) ? elements : (double)(256 * MIB);
    if (!b->small && copied < (double)(64 * MIB))
        copied = (double)(64 * MIB); /* a copy of little would run in the cache */
    memopt_tensor two[2] = {new_tensor(b, (uint64_t)copied, MEMOPT_DTYPE_F32, 1),
                            new_tensor(b, (uint64_t)copied, MEMOPT_DTYPE_F32, 1)};
    cases[0] = (bench_case){"copy f32", run_copy, two, 8 * copied, 0};
    for (uint32_t k = 0; k < KINDS;) {
        double left = (double)room(b);
        uint32_t first = k, made = 0;
        for (; k < KINDS && elements * (kinds[k].resident + 4) < left; k++, made++) {
            left -= elements * kinds[k].resident;
            make_model(b, &models[made], &kinds[k], sizes, tensors);
            cases[1 + made] =
                (bench_case){kinds[k].name, run_step, &models[made], elements * kinds[k].bytes, 0};
        }
        if (made == 0) {
            skip_row(b, table, kinds[k++].name, "the device has too little memory");
            continue;
        }
        measure(b, table, cases, 1 + made);
        for (uint32_t i = first; i < k; i++)
            end_model(b, &models[i - first]);
    }
    free_tensor(b, &two[0]);
    free_tensor(b, &two[1]);
}

/* The 148 tensors of a 12-layer GPT-2 of this width. */
static uint32_t gpt2(uint64_t *sizes, uint64_t width, uint64_t vocabulary, uint64_t context)
{
    uint32_t n = 0;
    sizes[n++] = vocabulary * width;
    sizes[n++] = context * width;
    for (uint32_t layer = 0; layer < 12; layer++) {
        const uint64_t of_layer[] = {
            width, width, 3 * width * width, 3 * width, width * width,     width,
            width, width, 4 * width * width, 4 * width, 4 * width * width, width};
        memcpy(&sizes[n], of_layer, sizeof of_layer);
        n += sizeof of_layer / sizeof of_layer[0];
    }
    sizes[n++] = width;
    sizes[n++] = width;
    return n;
}

void bench_optimizers(bench *b)
{
    static uint64_t sizes[MOST_TENSORS];
    uint32_t tensors = b->small ? gpt2(sizes, 8, 50, 10) : gpt2(sizes, 768, 50257, 1024);
    bench_shapes(b, "148 tensors, GPT-2", sizes, tensors);
    tensors = b->small ? 20 : 4000;
    for (uint32_t i = 0; i < tensors; i++)
        sizes[i] = 1 + (uint64_t)i * 7919 % (b->small ? 600 : 16384);
    bench_shapes(b, "many small tensors", sizes, tensors);
    static const uint64_t mega[] = {64, 256, 1024};
    for (uint32_t i = 0; i < 3; i++) {
        char table[64];
        sizes[0] = b->small ? 5000 * (i + 1) : mega[i] * MIB;
        snprintf(table, sizeof table, "1 tensor, %.4g Mi", (double)sizes[0] / (double)MIB);
        bench_shapes(b, table, sizes, 1);
    }
}
