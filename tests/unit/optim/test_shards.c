/* Shards of a parameter: together they are the whole one, bit for bit, wherever it is cut. */
#include "fixture.h"

enum { COUNT = 20001, MOST = 4, STEPS = 3 };

/* Where shards begin; the last number is the end. */
static const uint64_t cuts[][MOST + 1] = {{0, 256, 9984, 19968, COUNT},
                                          {0, 0, 16640, COUNT, COUNT}};

typedef struct variant {
    memopt_dtype dtype, copy; /* copy 0: none */
    uint32_t stochastic, split;
} variant;

static const variant variants[] = {{MEMOPT_DTYPE_F32, MEMOPT_DTYPE_BF16, 0, 0},
                                   {MEMOPT_DTYPE_BF16, 0, 1, 0},
                                   {MEMOPT_DTYPE_BF16, 0, 0, 2}};

/* One process: all of a parameter, or a shard of it. Parameter 0 is another one. */
typedef struct process {
    memopt_optimizer *o;
    uint64_t first;
    memopt_tensor other, p, copy, gradients[2];
} process;

/* A tensor of elements [first, + count) of some noise; it may be empty. */
static memopt_tensor part(world *w, uint64_t seed, memopt_dtype dtype, uint64_t first,
                          uint64_t count)
{
    const float *values = noise(seed, 1.0f) + first;
    return count == 0 ? (memopt_tensor){NULL, 0, dtype} : new_tensor(w, count, dtype, values);
}

static process start(world *w, const memopt_optimizer_options *options, const variant *v,
                     const memopt_optimizer_group *group, uint64_t first, uint64_t end)
{
    process r = {.o = make_optimizer(w, *options, group), .first = first};
    memopt_parameter_options given = MEMOPT_PARAMETER_OPTIONS_INIT;
    uint64_t index;
    r.other = part(w, 3, v->dtype, 0, 7);
    (void)add_parameter(w, r.o, &r.other);
    r.p = part(w, 5, v->dtype, first, end - first);
    if (v->copy != 0)
        r.copy = given.model_copy = part(w, 5, v->copy, first, end - first);
    if (end - first != COUNT)
        given.shard = (memopt_shard){first, COUNT};
    OK(memopt_optimizer_add_parameter(r.o, 0, &r.p, &given, w->stream, &index));
    assert_int_equal(index, 1);
    return r;
}

static void step(world *w, process *r, uint64_t number)
{
    r->gradients[0] = (memopt_tensor){NULL, 0, 0};
    r->gradients[1] = part(w, 100 + number, MEMOPT_DTYPE_F32, r->first, r->p.count);
    OK(memopt_optimizer_step(r->o, r->gradients, 2, NULL, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    OK(memopt_allocator_free(w->allocator, r->gradients[1].data));
}

/* The shard's bytes are the whole's from the element `first` of `count` on. */
static void same_part(world *w, const memopt_tensor *whole, const memopt_tensor *shard,
                      uint64_t first)
{
    if (shard->count == 0)
        return;
    unsigned char *all = read_bytes(w, whole), *some = read_bytes(w, shard);
    const uint64_t size = memopt_dtype_size(shard->dtype);
    uint64_t unit = 1; /* elements of the parameter that share one here */
    while (unit * whole->count < COUNT)
        unit *= 2;
    assert_memory_equal(all + first / unit * size, some, shard->count * size);
    free(all);
    free(some);
}

static void same_process(world *w, const process *whole, const process *shard)
{
    memopt_state_view a = MEMOPT_STATE_VIEW_INIT, b = MEMOPT_STATE_VIEW_INIT;
    same_part(w, &whole->p, &shard->p, shard->first);
    if (whole->copy.data != NULL)
        same_part(w, &whole->copy, &shard->copy, shard->first);
    for (uint64_t k = 0; memopt_optimizer_get_state(whole->o, 1, k, &a) == MEMOPT_OK; k++) {
        OK(memopt_optimizer_get_state(shard->o, 1, k, &b));
        assert_string_equal(a.name, b.name);
        assert_int_equal(a.tensor.dtype, b.tensor.dtype);
        same_part(w, &a.tensor, &b.tensor, shard->first);
    }
}

static void compare(world *w, const memopt_optimizer_options *options, const variant *v,
                    const uint64_t *cut)
{
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_ADEMAMIX_INIT;
    group.momentum = options->kind == MEMOPT_OPTIMIZER_SGD ? 0.9 : 0.5;
    process whole = start(w, options, v, &group, 0, COUNT);
    for (uint64_t n = 0; n < STEPS; n++)
        step(w, &whole, n);
    for (int i = 0; i < MOST; i++) {
        process shard = start(w, options, v, &group, cut[i], cut[i + 1]);
        for (uint64_t n = 0; n < STEPS; n++)
            step(w, &shard, n);
        same_process(w, &whole, &shard);
        end_optimizer(w, shard.o);
    }
    end_optimizer(w, whole.o);
}

/* Every rule, format and kind of weight; the default min_8bit_size lies above some shards. */
TEST(shards_are_the_whole)
{
    static const uint32_t formats[] = {MEMOPT_STATE_F32, MEMOPT_STATE_8BIT,
                                       MEMOPT_STATE_8BIT_DYNAMIC, MEMOPT_STATE_4BIT,
                                       MEMOPT_STATE_BF16};
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    int made = 0;
    for (uint32_t kind = 1; kind < MEMOPT_OPTIMIZER_ADAFACTOR; kind++)
        for (int f = 0; f < 5; f++)
            for (int v = 0; v < 3; v++) {
                const memopt_optimizer_options options = {
                    .struct_size = sizeof options,
                    .kind = kind,
                    .state_format = formats[f],
                    .seed = 9,
                    .stochastic_rounding = variants[v].stochastic,
                    .split_weights = variants[v].split,
                    .page_bytes = kind == MEMOPT_OPTIMIZER_LION && f == 1 ? 4096 : 0};
                memopt_optimizer *o;
                if (memopt_optimizer_create(w.allocator, &options, &o) == MEMOPT_UNSUPPORTED)
                    continue;
                OK(memopt_optimizer_destroy(o));
                compare(&w, &options, &variants[v], cuts[made++ % 2]);
            }
    assert_true(made >= 60);
    close_world(&w);
}

static memopt_status add_cut(world *w, memopt_optimizer *o, uint64_t first, uint64_t count,
                             uint64_t whole)
{
    memopt_tensor p = part(w, 5, MEMOPT_DTYPE_F32, 0, count);
    memopt_parameter_options given = MEMOPT_PARAMETER_OPTIONS_INIT;
    uint64_t index;
    given.shard = (memopt_shard){first, whole};
    return memopt_optimizer_add_parameter(o, 0, &p, &given, w->stream, &index);
}

TEST(bad_cuts)
{
    static const uint64_t bad[][3] = {{128, 256, 1024}, {256, 100, 1024},
                                      {0, 1025, 1024},  {1280, 0, 1024},
                                      {256, 256, 0},    {0, 256, UINT64_C(1) << 56}};
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_optimizer *o = new_optimizer(&w, MEMOPT_STATE_F32, NULL);
    for (int i = 0; i < 6; i++)
        FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "multiples of 256",
                     add_cut(&w, o, bad[i][0], bad[i][1], bad[i][2]));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "100 elements from 256 on, of 1024 in all",
                 add_cut(&w, o, 256, 100, 1024));
    REFUSED(add_cut(&w, o, 0, 0, 0)); /* no shard */
    OK(add_cut(&w, o, 768, 255, 1023));
    OK(add_cut(&w, o, 1023, 0, 1023));
    memopt_optimizer_options options = {.kind = MEMOPT_OPTIMIZER_ADAFACTOR};
    const memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_ADAFACTOR_INIT;
    memopt_optimizer *whole_only = make_optimizer(&w, options, &group);
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "512 of 1024", add_cut(&w, whole_only, 512, 512, 1024));
    OK(add_cut(&w, whole_only, 0, 1024, 1024));
    OK(add_cut(&w, whole_only, 0, 0, 1024));
    close_world(&w);
}

/* What is of all processes comes from the caller, or the step is refused and nothing changes. */
TEST(sums_of_all)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    const memopt_optimizer_options lamb = {.trust = 1};
    memopt_optimizer *o = new_optimizer(&w, MEMOPT_STATE_F32, NULL);
    memopt_optimizer *trusting = make_optimizer(&w, lamb, NULL);
    memopt_tensor g = part(&w, 6, MEMOPT_DTYPE_F32, 0, 512);
    memopt_step_options how = MEMOPT_STEP_OPTIONS_INIT;
    double sum[2] = {4.0, 4.0};
    uint64_t bytes;
    OK(add_cut(&w, o, 512, 512, 1024));
    OK(add_cut(&w, trusting, 512, 512, 1024));
    unsigned char *before = export_all(&w, o, &bytes);
    how.max_norm = 1.0;
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "square_sum",
                 memopt_optimizer_step(o, &g, 1, &how, NULL));
    unsigned char *after = export_all(&w, o, &bytes);
    assert_memory_equal(before, after, bytes);
    how.square_sum = sum;
    OK(memopt_optimizer_step(o, &g, 1, &how, NULL));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "two halves",
                 memopt_optimizer_step(trusting, &g, 1, NULL, NULL));
    how = (memopt_step_options){.struct_size = sizeof how, .squares = sum, .half = 1};
    OK(memopt_optimizer_step(trusting, &g, 1, &how, NULL));
    how.half = 2;
    OK(memopt_optimizer_step(trusting, &g, 1, &how, NULL));
    free(before);
    free(after);
    close_world(&w);
}
