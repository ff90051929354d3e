/*
 * Observers of ranges: what they are told is what the driver has mapped, at each event and after
 * each call; they may refuse, and the driver may. The argument is the device; on a GPU the driver
 * is a simulated one.
 */

#include "support.h"

#include "allocator/allocator.h"

#include "device/cpu/cpu.h"
#include "device/front/ranges.h"
#include "support/simulated.h"

#include <stdlib.h>

enum { POOLS = 3, LIVE = 24, ANOTHER = MEMOPT_STATUS_USER + 7 };

static const char *device_name = "cpu";

/* --- the driver's picture --------------------------------------------------------------------- */

static void take(mo_ranges *all, uint64_t address, uint64_t bytes)
{
    assert_int_equal(mo_ranges_insert(all, address, bytes, NULL), 1);
}

static void take_all(mo_ranges *all, const mo_ranges *some)
{
    for (const mo_range *r = mo_ranges_after(some, 0); r != NULL;
         r = mo_ranges_after(some, r->start + r->size))
        take(all, r->start, r->size);
}

static void driver_picture(memopt_device *device, mo_ranges *out)
{
    uint64_t address = 0, bytes = 0;
    assert_int_equal(mo_ranges_init(out), 1);
    const driver_hooks *driver = driver_of(device_name);
    if (driver == NULL) {
        mo_cpu_device *cpu = (mo_cpu_device *)(void *)device;
        take_all(out, &cpu->memory.accessible);
        take_all(out, &cpu->memory.plain);
        return;
    }
    for (uint64_t i = 0; driver->mapping(0, i, &address, &bytes); i++)
        take(out, address, bytes);
}

/* --- the observer ----------------------------------------------------------------------------- */

typedef struct observer {
    memopt_device *device;
    mo_ranges seen;
    uint64_t generation, events, mapped;
    uint64_t refuse_at; /* the number of the event to refuse; 0: none */
    int refuse_unmapping;
} observer;

static void add_ranges(observer *o, const memopt_range_event *event)
{
    mo_ranges driver;
    uintptr_t start = (uintptr_t)event->address;
    driver_picture(o->device, &driver);
    assert_true(mo_ranges_cover(&driver, start, event->bytes)); /* before it goes, after it came */
    mo_ranges_fini(&driver);
    if (event->kind == MEMOPT_RANGE_MAPPED) {
        assert_null(mo_ranges_overlapping(&o->seen, start, event->bytes));
        assert_int_equal(mo_ranges_insert(&o->seen, start, event->bytes, NULL), 1);
        o->mapped++;
    } else {
        assert_true(mo_ranges_cover(&o->seen, start, event->bytes));
        mo_ranges_subtract(&o->seen, start, event->bytes);
    }
}

static memopt_status observe(void *user, const memopt_range_event *event)
{
    observer *o = user;
    assert_int_equal(event->struct_size, sizeof *event);
    assert_true(event->bytes > 0 && event->generation > o->generation);
    assert_true(event->kind == MEMOPT_RANGE_MAPPED || event->kind == MEMOPT_RANGE_UNMAPPING);
    o->generation = event->generation;
    if (++o->events == o->refuse_at)
        return o->generation % 2 == 0 ? ANOTHER : MEMOPT_DRIVER_ERROR;
    if (o->refuse_unmapping && event->kind == MEMOPT_RANGE_UNMAPPING)
        return ANOTHER;
    add_ranges(o, event);
    return MEMOPT_OK;
}

static void begin_observer(observer *o, memopt_allocator *allocator, uint64_t *out_number)
{
    memset(o, 0, sizeof *o);
    o->device = mo_allocator_device(allocator);
    assert_int_equal(mo_ranges_init(&o->seen), 1);
    OK(memopt_allocator_add_range_observer(allocator, observe, o, out_number));
}

static void same(const mo_ranges *a, const mo_ranges *b)
{
    for (const mo_range *r = mo_ranges_after(a, 0); r != NULL;
         r = mo_ranges_after(a, r->start + r->size))
        assert_true(mo_ranges_cover(b, r->start, r->size));
}

/* What the observer knows is what the driver has; with `exactly` all of it. */
static void check_picture(const observer *o, int exactly)
{
    mo_ranges driver;
    driver_picture(o->device, &driver);
    same(&o->seen, &driver);
    if (exactly)
        same(&driver, &o->seen);
    mo_ranges_fini(&driver);
}

/* --- the scene -------------------------------------------------------------------------------- */

typedef struct live {
    memopt_allocator *owner;
    void *pointer;
    uint64_t bytes;
} live;

typedef struct scene {
    memopt_device *device;
    memopt_allocator *members[POOLS]; /* the parent first */
    memopt_stream streams[2];
    live blocks[LIVE];
    uint64_t random;
} scene;

static memopt_device *open_here(void)
{
    memopt_device *device = NULL;
    if (driver_of(device_name) == NULL)
        return eager(CAPACITY);
    OK(memopt_device_open(device_name, NULL, &device));
    return device;
}

static uint64_t draw(scene *s, uint64_t below)
{
    s->random = s->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (s->random >> 33) % below;
}

static scene begin(const char *config, uint64_t seed)
{
    scene s = {.device = open_here(), .random = seed};
    memopt_pool_options options = MEMOPT_POOL_OPTIONS_INIT;
    s.members[0] = new_allocator(s.device, config);
    for (int i = 1; i < POOLS; i++)
        OK(memopt_pool_create(s.members[0], &options, &s.members[i]));
    OK(memopt_stream_create(s.device, &s.streams[1]));
    return s;
}

static void end(scene *s)
{
    for (int i = 0; i < LIVE; i++)
        if (s->blocks[i].pointer != NULL)
            OK(memopt_allocator_free(s->blocks[i].owner, s->blocks[i].pointer));
    for (int i = POOLS - 1; i >= 0; i--) {
        OK(mo_allocator_check(s->members[i]));
        OK(memopt_allocator_destroy(s->members[i]));
    }
    OK(memopt_stream_destroy(s->device, s->streams[1]));
    OK(memopt_device_close(s->device));
}

/* Allocates or frees; what does not fit or is paused is left. */
static memopt_status step_block(scene *s)
{
    live *block = &s->blocks[draw(s, LIVE)];
    if (block->pointer != NULL) {
        OK(memopt_allocator_free(block->owner, block->pointer));
        block->pointer = NULL;
        return MEMOPT_OK;
    }
    block->owner = s->members[draw(s, POOLS)];
    memopt_stream stream = s->streams[draw(s, 2)];
    block->bytes = draw(s, 3) == 0 ? 512 + draw(s, 60000) : 70000 + draw(s, 9 * MIB);
    memopt_status status = memopt_allocator_alloc(block->owner, block->bytes, MEMOPT_TAG_OTHER,
                                                  stream, &block->pointer);
    return status == MEMOPT_OUT_OF_DEVICE_MEMORY || status == MEMOPT_BUSY ? MEMOPT_OK : status;
}

/* --- tests ------------------------------------------------------------------------------------ */

/* One that comes late is told of what there is, also while a pool is paused. */
TEST(late_observer)
{
    for (int classic = 0; classic < 2; classic++) {
        observer late;
        uint64_t number;
        scene s = begin(configs[!classic], 3);
        for (int i = 0; i < 60; i++)
            OK(step_block(&s));
        if (!classic)
            OK(pause_pool(s.members[2], MEMOPT_PAUSE_DISCARD, NULL));
        begin_observer(&late, s.members[0], &number);
        assert_true(late.mapped > 3);
        check_picture(&late, 1);
        if (!classic)
            OK(memopt_pool_resume_sync(s.members[2], 0));
        check_picture(&late, 1);
        observer never;
        memset(&never, 0, sizeof never);
        never.refuse_at = 2;
        never.device = s.device;
        assert_int_equal(mo_ranges_init(&never.seen), 1);
        never.generation = 0;
        memopt_status refused =
            memopt_allocator_add_range_observer(s.members[0], observe, &never, &number);
        assert_true(refused == ANOTHER || refused == MEMOPT_DRIVER_ERROR);
        OK(memopt_allocator_trim_sync(s.members[0], 0, NULL));
        assert_int_equal(never.events, 2);
        end(&s);
        mo_ranges_fini(&late.seen);
        mo_ranges_fini(&never.seen);
    }
}

/* --- calls from an observer ------------------------------------------------------------------- */

typedef struct caller {
    memopt_allocator *allocator;
    void *cached; /* freed in the first event */
    memopt_status trim, add, remove, grow, pool, destroy, pause, tag;
    void *small;
} caller;

static memopt_status call_back(void *user, const memopt_range_event *event)
{
    caller *c = user;
    memopt_pool *pool = NULL;
    memopt_tag tag;
    void *pointer = NULL;
    uint64_t number;
    if (c->allocator == NULL)
        return MEMOPT_OK;
    memopt_allocator *a = event->allocator;
    c->allocator = NULL;
    OK(memopt_allocator_free(a, c->cached));
    OK(memopt_allocator_alloc(a, 4096, MEMOPT_TAG_OTHER, NULL, &c->small));
    c->trim = memopt_allocator_trim_sync(a, 0, NULL);
    c->add = memopt_allocator_add_range_observer(a, call_back, c, &number);
    c->remove = memopt_allocator_remove_range_observer(a, 1);
    c->grow = memopt_allocator_alloc(a, 20 * MIB, MEMOPT_TAG_OTHER, NULL, &pointer);
    c->pool = memopt_pool_create(a, NULL, &pool);
    c->pause = pause_pool(a, MEMOPT_PAUSE_KEEP, NULL);
    c->tag = memopt_allocator_register_tag(a, "observed", &tag);
    c->destroy = memopt_allocator_destroy_force(a);
    return MEMOPT_OK;
}

ALLOCATOR_TEST(calls_inside, allocator, open_here(), EXPANDABLE)
{
    caller inside = {.cached = alloc(allocator, 8192)};
    uint64_t number;
    OK(memopt_allocator_add_range_observer(allocator, call_back, &inside, &number));
    inside.allocator = allocator;
    void *block = alloc(allocator, 10 * MIB);
    const memopt_status busy[] = {inside.trim, inside.add,   inside.remove, inside.grow,
                                  inside.pool, inside.pause, inside.tag,    inside.destroy};
    for (size_t i = 0; i < sizeof busy / sizeof busy[0]; i++)
        assert_int_equal(busy[i], MEMOPT_BUSY);
    SAYS("range observer");
    OK(memopt_allocator_free(allocator, inside.small));
    OK(memopt_allocator_free(allocator, block));
    OK(memopt_allocator_remove_range_observer(allocator, number));
    REFUSED(memopt_allocator_add_range_observer(allocator, NULL, NULL, &number));
    REFUSED(memopt_allocator_remove_range_observer(NULL, 1));
}

/* --- what is undone --------------------------------------------------------------------------- */

/* A growth in two parts, with a free page between them, of which the second fails: the observer is
 * told that the first goes again. */
TEST(growth_undone)
{
    for (int64_t n = 1, struck = 1; struck; n++) {
        observer o;
        uint64_t number;
        memopt_device *device = open_here();
        memopt_allocator *allocator = new_allocator(device, EXPANDABLE);
        void *pages[3], *whole = NULL;
        for (int i = 0; i < 3; i++)
            pages[i] = alloc(allocator, 4 * MIB);
        OK(memopt_allocator_free(allocator, pages[0]));
        OK(memopt_allocator_free(allocator, pages[2]));
        OK(memopt_allocator_trim_sync(allocator, 0, NULL));
        OK(memopt_allocator_free(allocator, pages[1]));
        begin_observer(&o, allocator, &number);
        assert_int_equal(o.events, 1);
        fault_begin(device, NULL, n);
        memopt_status status =
            memopt_allocator_alloc(allocator, 12 * MIB, MEMOPT_TAG_OTHER, NULL, &whole);
        struck = fault_end(device, NULL);
        assert_true(struck || o.mapped == 3);
        check_picture(&o, 1);
        if (status == MEMOPT_OK)
            OK(memopt_allocator_free(allocator, whole));
        finish(allocator, device);
        assert_int_equal(o.seen.count, 0);
        mo_ranges_fini(&o.seen);
    }
}

/* A paused pool of three ranges, of which one is refused at the resume. */
TEST(resume_refused)
{
    for (uint64_t n = 0; n < 4; n++) {
        observer first, second;
        uint64_t number;
        void *blocks[6];
        scene s = begin(EXPANDABLE, 1);
        memopt_pool *pool = s.members[1];
        for (int i = 0; i < 6; i++)
            blocks[i] = alloc(pool, 2 * MIB);
        for (int i = 1; i < 6; i += 2)
            OK(memopt_allocator_free(pool, blocks[i]));
        OK(pause_pool(pool, MEMOPT_PAUSE_DISCARD, NULL));
        begin_observer(&first, s.members[0], &number);
        begin_observer(&second, s.members[0], &number);
        assert_int_equal(first.events, 0);
        second.refuse_at = n;
        memopt_status status = memopt_pool_resume_sync(pool, 0);
        assert_int_equal(status != MEMOPT_OK, n != 0);
        assert_int_equal(pool_is_paused(pool), n != 0);
        assert_int_equal(first.seen.count, n == 0 ? 3 : 0);
        check_picture(&first, 1);
        if (n != 0)
            OK(memopt_pool_resume_sync(pool, 0));
        check_picture(&first, 1);
        check_picture(&second, 1);
        for (int i = 0; i < 6; i += 2)
            OK(memopt_allocator_free(pool, blocks[i]));
        end(&s);
        assert_int_equal(first.seen.count + second.seen.count, 0);
        mo_ranges_fini(&first.seen);
        mo_ranges_fini(&second.seen);
    }
}

/* Trims cannot take what an observer keeps, but a destruction does. */
TEST(destruction)
{
    for (int i = 0; i < 4; i++) {
        observer first, second;
        uint64_t number, before;
        memopt_device *device = open_here();
        memopt_allocator *allocator = new_allocator(device, configs[i % 2 == 0]);
        OK(memopt_allocator_free(allocator, alloc(allocator, 12 * MIB)));
        void *used = alloc(allocator, 3 * MIB);
        begin_observer(&first, allocator, &number);
        begin_observer(&second, allocator, &number);
        second.refuse_unmapping = 1;
        before = held_by(allocator);
        if (i >= 2)
            OK(memopt_allocator_free(allocator, used));
        if (i != 1) /* one classic segment, which is in use */
            FAILS_SAYING(ANOTHER, "a range observer returned status 65543",
                         memopt_allocator_trim_sync(allocator, 0, NULL));
        assert_int_equal(held_by(allocator), before);
        if (i == 0)
            GIVES(ANOTHER, pause_pool(allocator, MEMOPT_PAUSE_DISCARD, NULL));
        check_picture(&first, 1);
        OK(mo_allocator_check(allocator));
        /* Without refusals here, the simulated driver refuses, and is asked once more. */
        const driver_hooks *driver = driver_of(device_name);
        const char *unmap = device_name[0] == 'c' ? "cuMemUnmap" : "hipMemUnmap";
        second.refuse_unmapping = driver == NULL;
        if (driver != NULL)
            driver->fail_at(unmap, 1, 1);
        int refused = driver != NULL && i % 2 == 0;
        memopt_status status = memopt_allocator_destroy_force(allocator);
        assert_int_equal(status != MEMOPT_OK, refused);
        if (driver != NULL)
            driver->fail_at(unmap, 0, 0);
        assert_int_equal(first.seen.count, 0);
        OK(memopt_device_close(device));
        mo_ranges_fini(&first.seen);
        mo_ranges_fini(&second.seen);
    }
}

int main(int count, char **values)
{
    if (count > 1)
        device_name = values[1];
    return run_all_tests(NULL, NULL);
}
