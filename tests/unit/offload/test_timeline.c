/* Numbered copies: what is complete and what is not. */
#include "support.h"
#include "support/sweep.h"

typedef struct tape {
    world w;
    mo_timeline timeline;
    unsigned char *device;
    unsigned char host[64];
} tape;

static void tape_open(tape *t, uint64_t seed)
{
    memset(t, 0, sizeof *t);
    t->w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 16 * MIB, NULL);
    t->device = device_block(&t->w, 64, t->w.s);
    OK(memopt_fill(t->w.device, t->device, 9, 64, t->w.s));
    OK(memopt_device_sync(t->w.device));
    OK(mo_timeline_open(&t->timeline, t->w.device, 1));
}

static void tape_close(tape *t)
{
    OK(mo_timeline_close(&t->timeline));
    OK(mo_timeline_close(&t->timeline)); /* once more does nothing */
    OK(memopt_allocator_free(t->w.allocator, t->device));
    world_close(&t->w);
}

/* Copies byte i to the host and marks it. */
static uint64_t copy_and_mark(tape *t, int i)
{
    uint64_t mark = 0;
    OK(mo_timeline_reserve(&t->timeline));
    OK(memopt_copy(t->w.device, t->host + i, t->device + i, 1, t->timeline.stream));
    OK(mo_timeline_mark(&t->timeline, &mark));
    return mark;
}

/* Waiting for a mark completes those up to it, and claims nothing of later ones. */
TEST(test_sync_is_exact)
{
    FOR_SEEDS (seed, 50) {
        tape t;
        tape_open(&t, seed);
        for (int i = 0; i < 40; i++) {
            assert_int_equal(copy_and_mark(&t, i), i + 1);
            if (i % 3 == 0) { /* spread the ring, also over its growth */
                OK(mo_timeline_sync(&t.timeline, (uint64_t)i / 2 + 1));
                assert_true(t.timeline.done >= (uint64_t)i / 2 + 1);
                assert_true(all_bytes(t.host, 9, t.timeline.done));
            }
        }
        int done = 1;
        OK(mo_timeline_query(&t.timeline, 1, &done));
        assert_int_equal(done, 1);
        OK(mo_timeline_sync(&t.timeline, 40));
        OK(mo_timeline_query(&t.timeline, 40, &done));
        assert_int_equal(done, 1);
        tape_close(&t);
    }
}

/* Asking leads to the end, in order, and never claims what is not done. */
TEST(test_query_is_honest)
{
    FOR_SEEDS (seed, 50) {
        tape t;
        tape_open(&t, seed);
        for (int i = 0; i < 20; i++)
            copy_and_mark(&t, i);
        uint64_t before = 0;
        for (int ask = 0, done = 0; !done; ask++) {
            assert_true(ask < 10000);
            OK(mo_timeline_query(&t.timeline, 20, &done));
            assert_true(t.timeline.done >= before);
            before = t.timeline.done;
            for (uint64_t i = 0; i < t.timeline.done; i++)
                assert_int_equal(t.host[i], 9);
        }
        tape_close(&t);
    }
}
