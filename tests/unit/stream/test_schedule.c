/* What the streamer decides: places and order, without a device. */
#include "stream/schedule.h"
#include "support/unit.h"

enum { STEP = MO_STREAM_STEP };

/* The invariants of schedule.h; NULL or the first broken one. */
static const char *broken(const mo_schedule *s)
{
    uint64_t end = 0, bytes = 0, placed = 0;
    for (uint32_t i = 0; i < s->placed_count; i++) {
        const mo_placed *layer = &s->layers[s->placed[i]];
        if (!layer->placed || layer->offset < end)
            return "layers overlap, or are out of order";
        end = layer->offset + layer->bytes;
        bytes += layer->bytes;
    }
    for (uint32_t i = 0; i < s->count; i++) {
        placed += (uint64_t)s->layers[i].placed;
        if (s->layers[i].uses != 0 && !s->layers[i].placed)
            return "a layer in use is absent";
        if (s->layers[i].goes && !s->layers[i].placed)
            return "an absent layer is to go";
    }
    if (end > s->budget || bytes != s->bytes || placed != s->placed_count)
        return "sums are wrong";
    return NULL;
}

static mo_schedule scheduled(uint64_t budget, uint32_t layers, uint64_t bytes)
{
    mo_schedule s;
    uint32_t number;
    mo_schedule_open(&s, budget);
    for (uint32_t i = 0; i < layers; i++)
        assert_int_equal(mo_schedule_add(&s, bytes, &number), MEMOPT_OK);
    return s;
}

/* Forward and backward over n layers of which k fit: 2 (n - k) copies. */
TEST(test_copies_of_a_step)
{
    for (uint32_t n = 1; n <= 12; n++)
        for (uint32_t k = 1; k <= n; k++) {
            mo_schedule s = scheduled((k * 4 + 2) * STEP, n, 4 * STEP);
            mo_round round;
            assert_int_equal(mo_schedule_rehearse(&s, NULL, 0, NULL, &round), MEMOPT_OK);
            assert_int_equal(round.copies, 2 * (n - k));
            assert_int_equal(round.bytes, round.copies * 4 * STEP);
            assert_int_equal(round.resident, k);
            mo_schedule_close(&s);
        }
}

/* Always forward: what is needed last is the layer before, so n - k copies and one more of each. */
TEST(test_copies_of_generation)
{
    const uint32_t order[] = {0, 1, 2, 3, 4, 5, 6, 7};
    mo_schedule s = scheduled(5 * STEP, 8, 2 * STEP);
    mo_round round;
    assert_int_equal(mo_schedule_rehearse(&s, order, 8, NULL, &round), MEMOPT_OK);
    assert_in_range(round.copies, 6, 8); /* the least used longest ago would need 8 each time */
    mo_schedule_close(&s);
}

static void drop_going(mo_schedule *s)
{
    for (uint32_t i = s->placed_count; i-- > 0;)
        if (s->layers[s->placed[i]].goes)
            mo_schedule_remove(s, s->placed[i]);
}

/* An order that is told is fetched ahead from its first layer on. */
TEST(test_expected_order)
{
    const uint32_t order[] = {0, 3, 1, 5, 2, 4};
    mo_schedule s = scheduled(4 * STEP, 6, 2 * STEP);
    uint64_t offset;
    mo_schedule_expect(&s, order, 6);
    for (uint32_t i = 0; i < 12; i++) {
        if (!s.layers[order[i % 6]].placed) {
            assert_int_equal(mo_schedule_ahead(&s, &offset), order[i % 6]);
            drop_going(&s);
            mo_schedule_put(&s, order[i % 6], offset);
        }
        mo_schedule_use(&s, order[i % 6]);
        assert_null(broken(&s));
    }
    mo_schedule_close(&s);
}

/* A layer that is needed now takes the place of the one that is needed last. */
TEST(test_who_goes)
{
    const uint32_t order[] = {0, 1, 2, 3};
    mo_schedule s = scheduled(6 * STEP, 4, 2 * STEP);
    uint64_t offset;
    mo_schedule_expect(&s, order, 4);
    for (uint32_t i = 0; i < 3; i++)
        mo_schedule_put(&s, i, 2 * STEP * i);
    mo_schedule_use(&s, 0);
    assert_true(mo_schedule_place(&s, 3, &offset));
    assert_true(s.layers[0].goes && !s.layers[1].goes && !s.layers[2].goes);
    mo_schedule_close(&s);
}

/* First fit, exactly cut; only those in the way go, and none in use. */
TEST(test_places)
{
    mo_schedule s = scheduled(10 * STEP, 3, 3 * STEP);
    uint32_t wide, slim;
    uint64_t offset;
    assert_int_equal(mo_schedule_add(&s, 7 * STEP, &wide), MEMOPT_OK);
    assert_int_equal(mo_schedule_add(&s, STEP, &slim), MEMOPT_OK);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(mo_schedule_place(&s, i, &offset));
        assert_int_equal(offset, 3 * STEP * i);
        mo_schedule_put(&s, i, offset);
        mo_schedule_use(&s, i);
    }
    assert_true(mo_schedule_place(&s, slim, &offset));
    assert_int_equal(offset, 9 * STEP); /* the last step of the arena */
    mo_schedule_put(&s, slim, offset);
    s.layers[1].uses = 1;
    assert_false(mo_schedule_place(&s, wide, &offset)); /* 3 steps before it, 4 behind */
    for (uint32_t i = 0; i < 3; i++)
        assert_false(s.layers[i].goes);
    s.layers[1].uses = 0;
    assert_true(mo_schedule_place(&s, wide, &offset));
    assert_int_equal(offset, 0);
    assert_true(s.layers[0].goes && s.layers[1].goes && s.layers[2].goes && !s.layers[slim].goes);
    drop_going(&s);
    mo_schedule_put(&s, wide, offset);
    assert_null(broken(&s));
    assert_int_equal(s.bytes, 8 * STEP);
    mo_schedule_close(&s);
}
