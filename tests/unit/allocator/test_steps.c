/*
 * Steps that repeat: what a plan holds, that it asks the driver for nothing, and that any change of
 * a step is served. The argument is the device; on a GPU the driver is a simulated one.
 */
#include "support.h"

#include "allocator/memory/idle.h"
#include "support/sweep.h"

#include <string.h>

static const char *device_name = "cpu";

static int on_cpu(void)
{
    return strcmp(device_name, "cpu") == 0;
}

static memopt_device *open_device(uint64_t capacity, uint32_t order, uint64_t seed)
{
    memopt_device *device = NULL;
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    if (on_cpu())
        return open_cpu(capacity, order, seed);
    OK(memopt_device_open(device_name, &options, &device));
    return device;
}

static uint64_t calls_of(memopt_allocator *allocator)
{
    return stat_of(allocator, "num_device_alloc") + stat_of(allocator, "num_device_free");
}

static memopt_step_plan plan_of(memopt_allocator *allocator)
{
    memopt_step_plan plan = MEMOPT_STEP_PLAN_INIT;
    OK(memopt_allocator_get_step_plan(allocator, &plan));
    return plan;
}

static void mark(memopt_allocator *allocator)
{
    OK(memopt_allocator_mark_step(allocator, MEMOPT_STEP_NEXT));
}

/* --- a trainer -------------------------------------------------------------------------------- */

enum { LAYERS = 24, PARTS = 6 };

/* Weights and optimizer states stay; the latter are made before the steps or by the first one,
 * where gaps are left. Gradients live over the mark; activations are nested, and temporaries short.
 */
typedef struct trainer {
    memopt_allocator *allocator;
    uint64_t scale; /* of all sizes */
    void *weights[LAYERS][PARTS], *states[LAYERS][PARTS], *gradients[LAYERS][PARTS];
} trainer;

static uint64_t weight_bytes(const trainer *t, int part)
{
    static const uint64_t sizes[PARTS] = {12288, 4096, 16384, 16384, 12, 4};
    return sizes[part] * t->scale;
}

static void make_all(trainer *t, void *(*blocks)[PARTS], uint64_t times)
{
    for (int i = 0; i < LAYERS; i++)
        for (int k = 0; k < PARTS; k++)
            blocks[i][k] = alloc(t->allocator, times * weight_bytes(t, k));
}

static void free_all(trainer *t, void *(*blocks)[PARTS])
{
    for (int i = 0; i < LAYERS; i++)
        for (int k = 0; k < PARTS; k++) {
            OK(memopt_allocator_free(t->allocator, blocks[i][k]));
            blocks[i][k] = NULL;
        }
}

static void train(trainer *t, uint64_t tokens)
{
    void *kept[LAYERS][3];
    const uint64_t unit = tokens * t->scale;
    free_all(t, t->gradients);
    for (int i = 0; i < LAYERS; i++) {
        void *wide = alloc(t->allocator, unit * 40);
        kept[i][0] = alloc(t->allocator, unit * 10);
        void *scores = alloc(t->allocator, unit * 30);
        OK(memopt_allocator_free(t->allocator, wide));
        kept[i][1] = alloc(t->allocator, unit * 41);
        kept[i][2] = alloc(t->allocator, unit / 8);
        OK(memopt_allocator_free(t->allocator, scores));
    }
    for (int i = LAYERS - 1; i >= 0; i--) {
        void *wide = alloc(t->allocator, unit * 40);
        for (int k = 0; k < PARTS; k++)
            t->gradients[i][k] = alloc(t->allocator, weight_bytes(t, k));
        OK(memopt_allocator_free(t->allocator, kept[i][1]));
        OK(memopt_allocator_free(t->allocator, wide));
        OK(memopt_allocator_free(t->allocator, kept[i][2]));
        OK(memopt_allocator_free(t->allocator, kept[i][0]));
    }
    if (t->states[0][0] == NULL)
        make_all(t, t->states, 2);
}

/* After the steps that a plan and its settling take: no driver call, and what is held. */
typedef struct training {
    const char *config;
    uint64_t scale;
    int states_first;
    uint64_t part; /* at most so little of what is alive is held in vain: 200 is 0.5 % */
} training;

static void train_planned(const training *how)
{
    memopt_device *device = open_device((uint64_t)16 << 30, MEMOPT_STREAM_ORDER_EAGER, 0);
    trainer t = {.allocator = new_allocator(device, how->config), .scale = how->scale};
    uint64_t online = 0, calls = 0;
    make_all(&t, t.weights, 1);
    if (how->states_first)
        make_all(&t, t.states, 2);
    for (int i = 0; i < 16; i++) {
        mark(t.allocator);
        if (i == 3)
            online = stat_of(t.allocator, "reserved_bytes.all.peak");
        if (i == 12) {
            calls = calls_of(t.allocator);
            OK(memopt_allocator_reset_peaks(t.allocator));
        }
        train(&t, 512);
        OK(mo_allocator_check(t.allocator));
        if (i == 5) /* a plan's beginning holds hardly more than was held before */
            assert_true(stat_of(t.allocator, "reserved_bytes.all.peak") <= online + online / 64);
    }
    memopt_step_plan plan = plan_of(t.allocator);
    uint64_t live = stat_of(t.allocator, "requested_bytes.all.peak");
    uint64_t held = stat_of(t.allocator, "reserved_bytes.all.peak");
    print_message("%s \"%s\": live %.1f MiB, held online %.4f, planned %.4f of it\n", device_name,
                  how->config, (double)live / (double)MIB, (double)online / (double)live,
                  (double)held / (double)live);
    assert_int_equal(calls_of(t.allocator), calls);
    assert_int_equal(plan.active, 1);
    assert_int_equal(plan.unplanned, 0);
    assert_true(plan.planned_steps >= 4);
    assert_true(held <= live + live / how->part);
    free_all(&t, t.gradients);
    free_all(&t, t.states);
    free_all(&t, t.weights);
    finish(t.allocator, device);
}

TEST(test_training)
{
    static const training on_a_cpu[] = {
        {EXPANDABLE, 256, 1, 200},
        {EXPANDABLE, 256, 0, 80}, /* gaps that large blocks do not fill */
        {"", 256, 1, 17},         /* blocks that stay keep segments of 20 MiB */
    };
    static const training small = {EXPANDABLE, 3, 1, 6}; /* whole pages of 16 MiB */
    for (int i = 0; on_cpu() && i < 3; i++)
        train_planned(&on_a_cpu[i]);
    if (!on_cpu())
        train_planned(&small);
}

/* --- steps that change ------------------------------------------------------------------------ */

enum { OPERATIONS = 160, IDS = 96, STREAMS = 3 };

typedef enum action { ALLOC, FREE, USE } action;

typedef struct operation {
    action what;
    uint32_t id;
    uint32_t stream;
    uint64_t bytes;
} operation;

typedef struct block {
    unsigned char *at;
    uint64_t bytes;
    uint32_t stream;
    unsigned char pattern;
} block;

typedef struct program {
    operation list[OPERATIONS];
    uint32_t count;
} program;

typedef struct machine {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream streams[STREAMS];
    memopt_event *event;
    unsigned char *sink; /* device memory that uses of other streams copy to */
    block live[IDS];
    uint64_t requested;
    uint32_t live_count;
    unsigned char pattern;
    uint64_t random;
    int prompt; /* what other streams do with a block is over when it is freed */
} machine;

static uint64_t next_random(machine *m)
{
    m->random = m->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return m->random >> 33;
}

static uint64_t random_bytes(machine *m)
{
    return 1 + next_random(m) % (UINT64_C(1) << (6 + next_random(m) % 15));
}

/* A step that can be repeated: what is alive at its end is freed at the next one's beginning. */
static void make_program(machine *m, program *p)
{
    uint8_t live[IDS] = {0};
    p->count = 0;
    while (p->count < OPERATIONS) {
        uint32_t id = (uint32_t)(next_random(m) % IDS), stream = (uint32_t)next_random(m) % STREAMS;
        action what = live[id] ? FREE : ALLOC;
        if (live[id] && next_random(m) % 4 == 0)
            what = USE;
        else
            live[id] = !live[id];
        p->list[p->count++] = (operation){what, id, stream, random_bytes(m)};
    }
}

/* One operation more, less, or of another size or stream. */
static void change(machine *m, program *p)
{
    uint32_t at = (uint32_t)(next_random(m) % p->count);
    operation *o = &p->list[at];
    switch (next_random(m) % 4) {
    case 0:
        o->bytes = random_bytes(m);
        break;
    case 1:
        o->stream = (uint32_t)next_random(m) % STREAMS;
        break;
    case 2:
        p->count--;
        memmove(o, o + 1, (p->count - at) * sizeof *o);
        break;
    default:
        *o = (operation){ALLOC, (uint32_t)(next_random(m) % IDS), o->stream, random_bytes(m)};
    }
}

/* The last block's owner on the stream is in order before the fill: streams are FIFO. */
static void do_alloc(machine *m, const operation *o)
{
    block *b = &m->live[o->id];
    *b = (block){alloc_on(m->allocator, o->bytes, m->streams[o->stream]), o->bytes, o->stream,
                 ++m->pattern};
    for (uint32_t i = 0; i < IDS; i++)
        if (m->live[i].at != NULL && &m->live[i] != b)
            assert_false(mo_ranges_overlap(b->at, b->bytes, m->live[i].at, m->live[i].bytes));
    uint64_t whole; /* a pause copies it all */
    OK(memopt_allocator_get_block(m->allocator, b->at, NULL, &whole));
    OK(memopt_fill(m->device, b->at, b->pattern, whole, m->streams[b->stream]));
    m->requested += b->bytes;
    m->live_count++;
}

/* The first and last byte as they were filled. */
static void do_free(machine *m, block *b)
{
    unsigned char ends[2];
    OK(memopt_copy_sync(m->device, &ends[0], b->at, 1, m->streams[b->stream]));
    OK(memopt_copy_sync(m->device, &ends[1], b->at + b->bytes - 1, 1, m->streams[b->stream]));
    assert_int_equal(ends[0], b->pattern);
    assert_int_equal(ends[1], b->pattern);
    OK(memopt_allocator_free(m->allocator, b->at));
    if (m->prompt)
        OK(memopt_device_sync(m->device));
    b->at = NULL;
    m->requested -= b->bytes;
    m->live_count--;
}

static void do_use(machine *m, block *b, uint32_t stream)
{
    uint64_t bytes = b->bytes < 512 ? b->bytes : 512;
    OK(memopt_event_record(m->event, m->streams[b->stream]));
    OK(memopt_stream_wait_event(m->device, m->streams[stream], m->event));
    OK(memopt_copy(m->device, m->sink + stream * 512, b->at, bytes, m->streams[stream]));
    OK(memopt_allocator_record_stream(m->allocator, b->at, m->streams[stream]));
}

static void run(machine *m, const program *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        const operation *o = &p->list[i];
        block *b = &m->live[o->id];
        if (o->what == ALLOC && b->at == NULL)
            do_alloc(m, o);
        else if (o->what == FREE && b->at != NULL)
            do_free(m, b);
        else if (o->what == USE && b->at != NULL)
            do_use(m, b, o->stream);
    }
    OK(mo_allocator_check(m->allocator));
    assert_int_equal(stat_of(m->allocator, "requested_bytes.all.current"), m->requested);
    assert_int_equal(stat_of(m->allocator, "allocation.all.current"), m->live_count);
}

/* What is alive stays so, and is freed by the next program as if it were its own. */
static void disturb(machine *m)
{
    switch (next_random(m) % 8) {
    case 0:
        OK(memopt_allocator_trim_sync(m->allocator, 0, NULL));
        break;
    case 1:
        OK(memopt_allocator_trim_sync(m->allocator, held_by(m->allocator) / 2, NULL));
        break;
    case 2: {
        void *large = alloc(m->allocator, 20 * MIB);
        OK(memopt_allocator_free(m->allocator, large));
        break;
    }
    case 3:
        OK(memopt_stream_sync(m->device, m->streams[1]));
        OK(memopt_stream_release_sync(m->device, m->streams[1]));
        break;
    case 4:
        if (pause_pool(m->allocator, MEMOPT_PAUSE_KEEP, NULL) == MEMOPT_UNSUPPORTED)
            break; /* classic segments */
        OK(memopt_pool_resume_sync(m->allocator, 0));
        break;
    default:
        break;
    }
    OK(mo_allocator_check(m->allocator));
}

static void open_machine(machine *m, const char *config, uint32_t order, uint64_t seed)
{
    memset(m, 0, sizeof *m);
    m->random = seed * 977 + 1;
    m->device = open_device(64 * MIB, order, seed);
    m->allocator = new_allocator(m->device, config);
    for (int i = 1; i < STREAMS; i++)
        OK(memopt_stream_create(m->device, &m->streams[i]));
    OK(memopt_event_create(m->device, 0, &m->event));
    m->sink = alloc(m->allocator, STREAMS * 512);
    OK(memopt_fill(m->device, m->sink, 0, STREAMS * 512, NULL)); /* a pause copies all of it */
    OK(memopt_stream_sync(m->device, NULL));
    m->requested = STREAMS * 512;
    m->live_count = 1;
}

static void close_machine(machine *m)
{
    for (uint32_t i = 0; i < IDS; i++)
        if (m->live[i].at != NULL)
            do_free(m, &m->live[i]);
    OK(memopt_device_sync(m->device));
    OK(memopt_allocator_free(m->allocator, m->sink));
    OK(memopt_event_destroy(m->event));
    finish(m->allocator, m->device);
}

/* Random steps, each repeated, with changes and disturbances between; returns the planned ones. */
static uint64_t run_random(const char *config, uint32_t order, uint64_t seed)
{
    machine m;
    program p, other;
    open_machine(&m, config, order, seed);
    make_program(&m, &p);
    for (int step = 0; step < 60; step++) {
        memopt_step how = next_random(&m) % 8 == 0 ? MEMOPT_STEP_LEARN : MEMOPT_STEP_NEXT;
        OK(memopt_allocator_mark_step(m.allocator, how));
        other = p;
        if (next_random(&m) % 6 == 0)
            change(&m, &other);
        if (next_random(&m) % 12 == 0)
            change(&m, &p);
        run(&m, &other);
        if (next_random(&m) % 10 == 0)
            disturb(&m);
    }
    uint64_t planned = plan_of(m.allocator).planned_steps;
    if (seed % 2 == 0)
        OK(memopt_allocator_mark_step(m.allocator, MEMOPT_STEP_END));
    close_machine(&m);
    return planned;
}

/* Lengths that take turns: one plan has them all, and finds its beginning again after another step.
 * Then they take turns in another way. */
static void take_turns(uint64_t first, uint64_t kinds)
{
    static const uint64_t lengths[] = {512, 384, 448};
    memopt_device *device = open_device((uint64_t)16 << 30, MEMOPT_STREAM_ORDER_EAGER, 0);
    trainer t = {.allocator = new_allocator(device, "expandable_segments:True"),
                 .scale = on_cpu() ? 512 : 3};
    uint64_t calls = 0;
    make_all(&t, t.weights, 1);
    make_all(&t, t.states, 2);
    for (uint64_t i = 0; i < 12 * kinds; i++) {
        mark(t.allocator);
        if (i == 7 * kinds)
            calls = calls_of(t.allocator);
        train(&t, lengths[(first + i) % kinds]);
        OK(mo_allocator_check(t.allocator));
    }
    mark(t.allocator);
    memopt_step_plan before = plan_of(t.allocator);
    assert_int_equal(calls_of(t.allocator), calls);
    assert_int_equal(before.plans, 1);
    assert_true(before.planned_steps >= 5 * kinds);
    train(&t, 600);
    for (uint64_t i = 0; i < 6 * kinds; i++) {
        mark(t.allocator);
        train(&t, lengths[(first + i) % kinds]);
    }
    mark(t.allocator);
    memopt_step_plan after = plan_of(t.allocator);
    assert_int_equal(after.plans, 1);
    assert_true(after.planned_steps >= before.planned_steps + 4 * kinds);
    for (int i = 0; i < 64; i++) {
        train(&t, 512);
        mark(t.allocator);
    }
    assert_true(plan_of(t.allocator).planned_steps >= after.planned_steps + 16);
    assert_true(plan_of(t.allocator).active);
    free_all(&t, t.weights);
    free_all(&t, t.states);
    free_all(&t, t.gradients);
    finish(t.allocator, device);
}

TEST(lengths_take_turns)
{
    take_turns(0, 2);
    take_turns(0, 3);
    take_turns(2, 3);
}

TEST(changes)
{
    static const char *const mixes[] = {"expandable_segments:True", "",
                                        "expandable_segments:True,roundup_power2_divisions:4",
                                        "garbage_collection_threshold:0.2"};
    uint64_t planned = 0, all = on_cpu() ? 96 : 16;
    FOR_SEEDS (seed, all)
        planned += run_random(mixes[seed % 4], MEMOPT_STREAM_ORDER_EAGER, seed);
    print_message("%d steps as planned\n", (int)planned);
    assert_true(planned > seeds_of(all) * (on_cpu() ? 9 : 5));
}

/* Each asynchronous operation runs at its latest legal moment: what is given out too early is a
 * fault. */
TEST(late_streams)
{
    if (!on_cpu())
        return;
    FOR_SEEDS (seed, 64)
        (void)run_random(EXPANDABLE, MEMOPT_STREAM_ORDER_ADVERSARIAL, seed + 500);
}

static void run_equal_steps(uint64_t seed)
{
    machine m;
    program p;
    uint64_t calls = 0, missed = 0;
    open_machine(&m, seed % 2 == 0 ? EXPANDABLE : "", MEMOPT_STREAM_ORDER_EAGER, seed);
    m.prompt = 1;
    make_program(&m, &p);
    for (int step = 0; step < 40; step++) {
        mark(m.allocator);
        if (step == 24) {
            calls = calls_of(m.allocator);
            missed = plan_of(m.allocator).missed;
        }
        run(&m, &p);
        OK(memopt_device_sync(m.device));
    }
    assert_int_equal(calls_of(m.allocator), calls);
    assert_int_equal(plan_of(m.allocator).missed, missed);
    assert_true(seed % 2 == 1 || plan_of(m.allocator).active); /* classic: if it fits */
    close_machine(&m);
}

/* The same step every time, on three streams: no driver call once the plan has settled, and every
 * place is free when it is wanted. That needs streams that are as far at each free as in the step
 * before: memory that a late stream still uses cannot be given out. */
TEST(equal_steps)
{
    run_equal_steps(1606477); /* the end of a place is in use at every mark */
    FOR_SEEDS (seed, 64)
        run_equal_steps(seed);
}

/* --- what else there is ----------------------------------------------------------------------- */

/* A planned step of 24 MiB, of which a block of 8 MiB lives on. */
static void *do_step(memopt_allocator *allocator, void *before)
{
    void *a = alloc(allocator, 16 * MIB);
    OK(memopt_allocator_free(allocator, before));
    OK(memopt_allocator_free(allocator, a));
    return alloc(allocator, 8 * MIB);
}

static void *do_steps(memopt_allocator *allocator, void *kept, int count)
{
    for (int i = 0; i < count; i++) {
        mark(allocator);
        kept = do_step(allocator, kept);
        OK(mo_allocator_check(allocator));
    }
    mark(allocator);
    return kept;
}

static void *kept;

/* With a plan of such steps, and the block that lives on. */
static memopt_allocator *with_plan(memopt_device *device, const char *config)
{
    memopt_allocator *allocator = new_allocator(device, config);
    kept = do_steps(allocator, NULL, 6);
    assert_int_equal(plan_of(allocator).active, 1);
    assert_int_equal(held_by(allocator), 24 * MIB);
    return allocator;
}

static memopt_device *open_small(void)
{
    return open_device(64 * MIB, MEMOPT_STREAM_ORDER_EAGER, 0);
}

/* What is held for places serves a request of another stream that finds no other memory; later
 * steps go on. */
ALLOCATOR_TEST_OF(pressure, allocator, open_small(), with_plan(device, config), EXPANDABLE)
{
    memopt_stream other = stream_on(device);
    OK(memopt_allocator_set_limit(allocator, 40 * MIB));
    void *large = alloc_on(allocator, 30 * MIB, other);
    assert_true(held_by(allocator) <= 40 * MIB);
    OK(memopt_allocator_free(allocator, large));
    OK(memopt_allocator_set_limit(allocator, 0));
    uint64_t before = plan_of(allocator).planned_steps;
    kept = do_steps(allocator, kept, 4);
    assert_true(plan_of(allocator).planned_steps > before);
}

/* A pool that retains its memory gives it all to a pause, also what is held for places. */
ALLOCATOR_TEST(pause_of_a_pool, parent, open_small(), EXPANDABLE)
{
    memopt_pool_options options = MEMOPT_POOL_OPTIONS_INIT;
    options.retain = 1;
    memopt_pool *pool = pool_of(parent, &options);
    kept = do_steps(pool, NULL, 6);
    assert_int_equal(plan_of(pool).active, 1);
    OK(memopt_fill(device, kept, 1, 8 * MIB, NULL)); /* the pause reads it */
    OK(pause_pool(pool, MEMOPT_PAUSE_KEEP, NULL));
    assert_int_equal(held_by(pool), 0);
    OK(memopt_allocator_free(pool, kept)); /* asleep */
    OK(memopt_pool_resume_sync(pool, 0));
    (void)do_steps(pool, NULL, 4);
    OK(memopt_allocator_destroy_force(pool));
}

/* A mark while tags are paused holds nothing for places: what is freed then sleeps. */
ALLOCATOR_TEST(mark_while_paused, allocator, open_small(), EXPANDABLE)
{
    void *stays, *other;
    OK(memopt_allocator_mark_step(allocator, MEMOPT_STEP_NEXT));
    OK(memopt_allocator_alloc(allocator, 1, 0, NULL, &stays));
    OK(memopt_allocator_alloc(allocator, 1, 0, NULL, &other));
    OK(memopt_allocator_free(allocator, other));
    OK(memopt_allocator_mark_step(allocator, MEMOPT_STEP_LEARN));
    assert_int_equal(plan_of(allocator).active, 1);
    OK(memopt_allocator_alloc(allocator, 20000, 0, NULL, &other)); /* larger than planned */
    OK(pause_pool(allocator, MEMOPT_PAUSE_DISCARD, NULL));
    OK(memopt_allocator_mark_step(allocator, MEMOPT_STEP_NEXT));
    OK(memopt_allocator_free(allocator, other));
    OK(memopt_pool_resume_sync(allocator, 0));
    OK(memopt_allocator_free(allocator, stays));
    OK(mo_allocator_check(allocator));
}

/* Trims, pauses and the end of steps give memory back; a pause keeps what is in a place. */
ALLOCATOR_TEST_OF(giving_back, allocator, open_small(), with_plan(device, config), EXPANDABLE)
{
    uint64_t released = 0;
    unsigned char byte = 0;
    OK(memopt_fill(device, kept, 77, 8 * MIB, NULL));
    OK(memopt_allocator_trim_sync(allocator, 24 * MIB, &released)); /* nothing above it */
    assert_int_equal(released, 0);
    OK(memopt_allocator_trim_sync(allocator, 0, &released));
    assert_int_equal(released, 16 * MIB);
    mark(allocator);
    OK(pause_pool(allocator, MEMOPT_PAUSE_KEEP, NULL));
    assert_int_equal(held_by(allocator), 0);
    mark(allocator);
    OK(memopt_pool_resume_sync(allocator, 0));
    OK(memopt_copy_sync(device, &byte, (char *)kept + 5 * MIB, 1, NULL));
    assert_int_equal(byte, 77);
    kept = do_steps(allocator, kept, 4);
    assert_int_equal(held_by(allocator), 24 * MIB);
    OK(memopt_allocator_mark_step(allocator, MEMOPT_STEP_END));
    assert_int_equal(plan_of(allocator).steps, 0);
    OK(memopt_allocator_trim_sync(allocator, 0, &released));
    assert_int_equal(released, 16 * MIB);
}

static uint64_t now;

static uint64_t read_now(void)
{
    return now;
}

/* When no step goes on, what is held for places goes back after a time. */
ALLOCATOR_TEST(idle, allocator, open_small(), "expandable_segments:True,idle_release_seconds:4")
{
    now = 0;
    mo_idle_set_clock(read_now);
    memopt_stream other = stream_on(device);
    kept = NULL;
    for (int i = 0; i < 20; i++, now += 1000000000u) {
        mark(allocator);
        kept = do_step(allocator, kept);
    }
    assert_int_equal(plan_of(allocator).active, 1);
    assert_int_equal(held_by(allocator), 24 * MIB);
    for (int i = 0; i < 12; i++, now += 1000000000u)
        OK(memopt_allocator_free(allocator, alloc_on(allocator, MIB, other)));
    assert_int_equal(held_by(allocator), 10 * MIB);
    mo_idle_set_clock(NULL);
}

ALLOCATOR_TEST(arguments, allocator, open_small(), CLASSIC)
{
    memopt_allocator *pinned = NULL;
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_step_plan plan = {.struct_size = 4};
    options.memory = MEMOPT_MEMORY_PINNED;
    OK(memopt_allocator_create(device, "", &options, &pinned));
    REFUSED(memopt_allocator_mark_step(NULL, MEMOPT_STEP_NEXT));
    REFUSED_SAYING("is 3", memopt_allocator_mark_step(allocator, 3));
    FAILS(MEMOPT_UNSUPPORTED, memopt_allocator_mark_step(pinned, MEMOPT_STEP_NEXT));
    REFUSED(memopt_allocator_get_step_plan(allocator, NULL));
    REFUSED(memopt_allocator_get_step_plan(NULL, &plan));
    REFUSED(memopt_allocator_get_step_plan(allocator, &plan));
    OK(memopt_allocator_mark_step(allocator, MEMOPT_STEP_END)); /* of nothing */
    for (int i = 0; i < 3; i++)                                 /* steps of nothing */
        OK(memopt_allocator_mark_step(allocator, MEMOPT_STEP_LEARN));
    assert_int_equal(plan_of(allocator).steps, 2);
    assert_int_equal(plan_of(allocator).plans, 0);
    OK(memopt_allocator_destroy(pinned));
}

/* Live blocks in places, and what is held, when the allocator is destroyed by force. */
TEST(force)
{
    memopt_device *device = open_small();
    memopt_allocator *allocator = with_plan(device, EXPANDABLE);
    (void)alloc(allocator, 16 * MIB);
    OK(memopt_allocator_destroy_force(allocator));
    OK(memopt_device_close(device));
}

int main(int argc, char **argv)
{
    if (argc > 1)
        device_name = argv[1];
    return run_all_tests(NULL, NULL);
}
