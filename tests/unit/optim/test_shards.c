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
    memopt_tensor other, p, copy;
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
    const memopt_tensor gradients[] = {
        {NULL, 0, 0}, part(w, 100 + number, MEMOPT_DTYPE_F32, r->first, r->p.count)};
    OK(memopt_optimizer_step(r->o, gradients, 2, NULL, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    OK(memopt_allocator_free(w->allocator, gradients[1].data));
}

/* Elements `first` to `end` of a process that has taken `steps` steps. group NULL: AdamW's. */
static process stepped(world *w, const memopt_optimizer_options *options, const variant *v,
                       const memopt_optimizer_group *group, uint64_t first, uint64_t end,
                       uint64_t steps)
{
    process r = start(w, options, v, group, first, end);
    for (uint64_t n = 0; n < steps; n++)
        step(w, &r, n);
    return r;
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
    process whole = stepped(w, options, v, &group, 0, COUNT, STEPS);
    for (int i = 0; i < MOST; i++) {
        process shard = stepped(w, options, v, &group, cut[i], cut[i + 1], STEPS);
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
    exports_as(&w, o, before, bytes);
    how.square_sum = sum;
    OK(memopt_optimizer_step(o, &g, 1, &how, NULL));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "two halves",
                 memopt_optimizer_step(trusting, &g, 1, NULL, NULL));
    how = (memopt_step_options){.struct_size = sizeof how, .squares = sum, .half = 1};
    OK(memopt_optimizer_step(trusting, &g, 1, &how, NULL));
    how.half = 2;
    OK(memopt_optimizer_step(trusting, &g, 1, &how, NULL));
    close_world(&w);
}

/* --- exports of one cut into another --------------------------------------------------------- */

typedef struct exports {
    memopt_export_source sources[MOST];
    struct export
    {
        unsigned char *bytes;
        uint64_t count, read, fails_at;
    }
    all[MOST];
} exports;

static memopt_status read_export(void *user, uint64_t offset, uint64_t bytes, void *out)
{
    struct export *e = user;
    assert_true(bytes >= 1 && bytes <= MIB && offset + bytes <= e->count);
    if (e->fails_at != 0 && offset + bytes > e->fails_at)
        return MEMOPT_STATUS_USER + 4;
    e->read += bytes;
    memcpy(out, e->bytes + offset, bytes);
    return MEMOPT_OK;
}

static void export_process(world *w, process *r, exports *e, int i)
{
    uint64_t count;
    unsigned char *bytes = export_all(w, r->o, &count);
    e->all[i] = (struct export){.bytes = bytes, .count = count};
    e->sources[i] = (memopt_export_source){read_export, &e->all[i], count};
}

/* The exports of all processes of a cut. */
static void export_cut(world *w, const memopt_optimizer_options *options, const variant *v,
                       const uint64_t *cut, exports *out)
{
    for (int i = 0; i < MOST; i++) {
        process r = stepped(w, options, v, NULL, cut[i], cut[i + 1], STEPS);
        export_process(w, &r, out, i);
        end_optimizer(w, r.o);
    }
}

static void free_exports(exports *e)
{
    for (int i = 0; i < MOST; i++)
        free(e->all[i].bytes);
}

/* What a process has after an import of these: states of `whole`, and its step counts. */
static void check_imported(world *w, const memopt_optimizer_options *options, const variant *v,
                           const exports *e, const process *whole, uint64_t first, uint64_t end,
                           uint32_t converts)
{
    uint64_t steps;
    process r = stepped(w, options, v, NULL, first, end, 1); /* nothing of this step stays */
    OK(memopt_optimizer_import_pieces_sync(r.o, e->sources, MOST, converts, w->stream));
    r.p = (memopt_tensor){NULL, 0, v->dtype}; /* not of the import */
    r.copy = r.p;
    same_process(w, whole, &r);
    OK(memopt_optimizer_get_steps_sync(r.o, 1, w->stream, &steps));
    assert_int_equal(steps, STEPS);
    if (first == 0 && end == COUNT && !converts) {
        uint64_t bytes;
        unsigned char *all = export_all(w, whole->o, &bytes);
        exports_as(w, r.o, all, bytes);
    }
    end_optimizer(w, r.o);
}

/* Exports of cut `c` into the other cut and into one process, whose export is then that of one. From another format:
 * as the import of one process converts. */
static void import_any_cut(world *w, const memopt_optimizer_options *from,
                           const memopt_optimizer_options *to, const variant *v, int c)
{
    const uint32_t converts = from->state_format != to->state_format;
    const uint64_t *other = cuts[1 - c];
    uint64_t bytes;
    process whole = stepped(w, from, v, NULL, 0, COUNT, STEPS), wanted = whole;
    exports e;
    export_cut(w, from, v, cuts[c], &e);
    if (converts) {
        unsigned char *all = export_all(w, whole.o, &bytes);
        wanted = stepped(w, to, v, NULL, 0, COUNT, 0);
        OK(memopt_optimizer_import_sync(wanted.o, all, bytes, 1, w->stream));
        FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "export 0: parameter 1 was exported with",
                     memopt_optimizer_import_pieces_sync(wanted.o, e.sources, MOST, 0, w->stream));
        free(all);
    }
    for (int i = 0; i < MOST; i++)
        check_imported(w, to, v, &e, &wanted, other[i], other[i + 1], converts);
    check_imported(w, to, v, &e, &wanted, 0, COUNT, converts);
    free_exports(&e);
}

TEST(any_cut_into_any_other)
{
    static const uint32_t formats[] = {MEMOPT_STATE_F32, MEMOPT_STATE_8BIT, MEMOPT_STATE_4BIT,
                                       MEMOPT_STATE_BF16};
    for (int f = 0; f < 4; f++)
        for (int v = 0; v < 3; v += 2) {
            world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 1);
            const memopt_optimizer_options from = {.state_format = formats[f],
                                                   .split_weights = variants[v].split,
                                                   .page_bytes = f == 2 ? 8192 : 0};
            memopt_optimizer_options to = from;
            import_any_cut(&w, &from, &to, &variants[v], f % 2);
            to.state_format = formats[(f + 1) % 3];
            if (v == 0)
                import_any_cut(&w, &from, &to, &variants[v], 0);
            close_world(&w);
        }
}

/* What is missing, of another moment or damaged is refused, and nothing changes. */
TEST(exports_that_do_not_fit)
{
    const memopt_optimizer_options options = {.state_format = MEMOPT_STATE_8BIT};
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    exports e;
    export_cut(&w, &options, &variants[0], cuts[0], &e);
    process r = stepped(&w, &options, &variants[0], NULL, 512, 10240, 1);
    process later = stepped(&w, &options, &variants[0], NULL, 9984, 19968, STEPS + 1);
    uint64_t bytes;
    unsigned char *before = export_all(&w, r.o, &bytes);
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "element 9984 of parameter 1 is in none of the 2 exports",
                 memopt_optimizer_import_pieces_sync(r.o, e.sources, 2, 0, w.stream));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "element 512 of parameter 1",
                 memopt_optimizer_import_sync(r.o, e.all[2].bytes, e.all[2].count, 0, w.stream));
    free(e.all[2].bytes);
    export_process(&w, &later, &e, 2);
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "export 2: parameter 1 has taken 4 steps, in an export",
                 memopt_optimizer_import_pieces_sync(r.o, e.sources, MOST, 0, w.stream));
    e.all[1].bytes[e.all[1].count / 2] ^= 1;
    FAILS_SAYING(MEMOPT_CORRUPT, "export 1: the checksum",
                 memopt_optimizer_import_pieces_sync(r.o, e.sources, MOST, 0, w.stream));
    e.all[1].bytes[e.all[1].count / 2] ^= 1;
    e.all[0].fails_at = 1;
    FAILS_SAYING(MEMOPT_STATUS_USER + 4, "export 0: the reader returned status 65540",
                 memopt_optimizer_import_pieces_sync(r.o, e.sources, MOST, 0, w.stream));
    REFUSED(memopt_optimizer_import_pieces_sync(r.o, e.sources, 0, 0, w.stream));
    REFUSED(memopt_optimizer_import_pieces_sync(r.o, NULL, 1, 0, w.stream));
    REFUSED(memopt_optimizer_import_pieces_sync(r.o, e.sources, MOST, 2, w.stream));
    exports_as(&w, r.o, before, bytes);
    free_exports(&e);
    close_world(&w);
}

/* Of a large parameter only the wanted elements are read a second time, in pieces. */
TEST(import_in_pieces)
{
    enum { LARGE = 1 << 20, PART = 1 << 18 };
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_parameter_options given = MEMOPT_PARAMETER_OPTIONS_INIT;
    memopt_memory_info info = MEMOPT_MEMORY_INFO_INIT;
    memopt_optimizer *o = new_optimizer(&w, MEMOPT_STATE_F32, NULL);
    memopt_optimizer *half = new_optimizer(&w, MEMOPT_STATE_F32, NULL);
    memopt_tensor p = new_tensor(&w, LARGE, MEMOPT_DTYPE_F32, NULL);
    memopt_tensor some = new_tensor(&w, PART, MEMOPT_DTYPE_F32, NULL);
    exports e;
    uint64_t index;
    process r = {.o = o};
    (void)add_parameter(&w, o, &p);
    given.shard = (memopt_shard){PART, LARGE};
    OK(memopt_optimizer_add_parameter(half, 0, &some, &given, w.stream, &index));
    export_process(&w, &r, &e, 0);
    OK(memopt_optimizer_import_pieces_sync(half, e.sources, 1, 0, w.stream));
    assert_true(e.all[0].read < e.all[0].count + 2 * PART * 4 + 1024);
    OK(memopt_device_get_memory_info(w.device, &info));
    assert_int_equal(info.pinned, 0);
    assert_int_equal(info.pinned_peak, MIB);
    free(e.all[0].bytes);
    close_world(&w);
}
