/* Dynamic storage allocation, offline: places never overlap and need hardly more than the bound. */
#include "support/checks.h"
#include "support/sweep.h"

#include "allocator/steps/placement.h"

#include "base/memory.h"

enum { MOST = 6000 };

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static int lives_with(const mo_rect *a, const mo_rect *b)
{
    for (int i = 0; i < 2; i++) {
        const mo_rect *x = i == 0 ? a : b, *y = i == 0 ? b : a;
        int wraps = y->end <= y->begin;
        if (wraps ? x->begin >= y->begin || x->begin < y->end
                  : x->begin >= y->begin && x->begin < y->end)
            return 1;
    }
    return 0;
}

/* Every two that live at one time are apart, and none crosses from a hole to another. */
static void check_places(const mo_placement *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        const mo_rect *a = &p->rects[i];
        uint64_t at = 0, end = (uint64_t)a->offset + a->size;
        for (uint32_t h = 0; h < p->hole_count; at += p->holes[h] + 1, h++)
            assert_true(a->offset > at + p->holes[h] || end <= at + p->holes[h]);
        assert_true(a->offset < p->base || end <= (uint64_t)p->base + p->top);
        for (uint32_t k = i + 1; k < p->count; k++) {
            const mo_rect *b = &p->rects[k];
            int apart = end <= b->offset || (uint64_t)b->offset + b->size <= a->offset;
            assert_true(apart || !lives_with(a, b));
        }
    }
}

/* A step like a trainer's: nested lives with temporaries, some that go on over its end. */
static uint32_t make_step(mo_rect *rects, uint32_t depth, uint64_t *random, uint32_t *out_span)
{
    uint32_t count = 0, time = 0, open[MOST], open_count = 0;
    for (uint32_t i = 0; i < 2 * depth; i++) {
        int forward = i < depth;
        for (uint64_t n = 1 + next_random(random) % 3; n > 0; n--) {
            unsigned octave = next_random(random) % 12;
            uint32_t size = 1 + (uint32_t)(next_random(random) % (1u << octave));
            rects[count++] = (mo_rect){size, time, time + 1 + (uint32_t)n, 0};
            time++;
        }
        time += 4;
        if (forward) {
            open[open_count++] = count;
            rects[count++] = (mo_rect){100 + (uint32_t)(next_random(random) % 900), time++, 0, 0};
        } else {
            rects[open[--open_count]].end = time++;
            if (next_random(random) % 4 == 0)
                rects[count++] =
                    (mo_rect){64 + (uint32_t)(next_random(random) % 64), time++, depth / 4, 0};
        }
    }
    *out_span = time + 1;
    return count;
}

static void place_step(uint64_t seed)
{
    static mo_rect rects[MOST];
    static const uint32_t holes[] = {700, 3, 90};
    uint64_t random = seed * 77 + 5;
    uint32_t span, depth = seed % 8 == 0 ? 1000 : 4 + (uint32_t)(next_random(&random) % 60);
    uint32_t count = make_step(rects, depth, &random, &span);
    mo_placement p = {.rects = rects, .count = count, .span = span, .grain = 8};
    if (seed % 2 == 1) {
        p.holes = holes;
        p.hole_count = 3;
    }
    OK(mo_placement_find(&p));
    check_places(&p);
    assert_true(p.top + (p.hole_count > 0 ? 793 : 0) >= p.bound);
    assert_true(p.top <= p.bound + p.bound / 50 + 8);
    uint32_t top = p.top, first = rects[0].offset;
    OK(mo_placement_find(&p)); /* the same again */
    assert_int_equal(p.top, top);
    assert_int_equal(rects[0].offset, first);
}

TEST(places)
{
    FOR_SEEDS (seed, 64)
        place_step(seed);
}

/* Small steps whose first places are 2.6 to 7.8 % above the bound. */
TEST(small_steps)
{
    static const uint64_t seeds[] = {9860990, 2510, 20142, 44452, 53998};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        place_step(seeds[i]);
}

TEST(host_faults)
{
    static mo_rect rects[MOST];
    uint64_t random = 3;
    uint32_t span, count = make_step(rects, 1000, &random, &span);
    mo_placement p = {.rects = rects, .count = count, .span = span, .grain = 8};
    int64_t blocks = mo_memory_live_blocks();
    for (int64_t n = 1;; n++) {
        mo_memory_fail_at(n);
        memopt_status status = mo_placement_find(&p);
        assert_int_equal(mo_memory_live_blocks(), blocks);
        if (!mo_memory_fault_struck()) {
            OK(status);
            assert_true(n > 5);
            break;
        }
        assert_int_equal(status, MEMOPT_OUT_OF_HOST_MEMORY);
    }
    mo_memory_fail_at(0);
}

TEST(too_much)
{
    mo_rect rects[3] = {{UINT32_MAX / 2, 0, 4, 0}, {UINT32_MAX / 2, 1, 4, 0}, {9, 2, 4, 0}};
    mo_placement p = {.rects = rects, .count = 3, .span = 4, .grain = 8};
    assert_int_equal(mo_placement_find(&p), MEMOPT_LIMIT_REACHED);
}
