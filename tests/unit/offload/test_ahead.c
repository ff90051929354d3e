/* Values that came ahead of need, where device memory is at its limit. */
#include "support.h"
#include "support/sweep.h"

enum { VALUES = 4 };
static const uint64_t VALUE = 16 * MIB;

static uint64_t give_way(void *user, uint64_t bytes_needed)
{
    world *w = user;
    uint64_t bytes = 0;
    OK(memopt_offloader_give_way(w->offloader, bytes_needed, &bytes));
    return bytes;
}

/* Room for three values and a little. With `asks` the allocator asks the offloader for memory. */
static void open_small(world *w, uint64_t seed, int asks, memopt_ticket *tickets)
{
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    *w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 3 * VALUE + 4 * MIB, NULL);
    OK(memopt_offloader_destroy(w->offloader));
    OK(memopt_allocator_destroy(w->allocator));
    options.pressure = asks ? give_way : NULL;
    options.pressure_user = w;
    OK(memopt_allocator_create(w->device, NULL, &options, &w->allocator));
    OK(memopt_offloader_create(w->device, w->allocator, NULL, &w->offloader));
    for (int i = 0; i < VALUES; i++)
        tickets[i] = packed(w, VALUE, i + 1, w->s);
}

/* Every value comes back with its bytes; they are released, the last one first. */
static void check_values(world *w, const memopt_ticket *tickets)
{
    for (int i = VALUES - 1; i >= 0; i--) {
        void *data = NULL;
        OK(memopt_offloader_unpack(w->offloader, tickets[i], w->s, &data));
        assert_true(holds(w, data, i + 1, VALUE, w->s));
        OK(memopt_offloader_release(w->offloader, tickets[i], w->s));
    }
}

/* An unpack takes the memory of what is needed last, as much as it needs; a prefetch takes none. */
TEST(an_unpack_takes_what_came_ahead)
{
    for (int asks = 0; asks < 2; asks++) {
        world w;
        memopt_ticket tickets[VALUES];
        void *data = NULL;
        open_small(&w, 7, asks, tickets);
        for (int i = 2; i >= 0; i--)
            OK(memopt_offloader_prefetch(w.offloader, tickets[i]));
        assert_int_equal(active_bytes(&w), 3 * VALUE);
        FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, memopt_offloader_prefetch(w.offloader, tickets[3]));
        assert_int_equal(active_bytes(&w), 3 * VALUE);
        OK(memopt_offloader_unpack(w.offloader, tickets[3], w.s, &data));
        OK(memopt_offloader_unpack(w.offloader, tickets[2], w.s, &data));
        assert_int_equal(stats_of(&w).prefetch_hits, 1);
        check_values(&w, tickets);
        assert_int_equal(stats_of(&w).prefetch_hits, 2); /* the oldest came twice */
        assert_int_equal(stats_of(&w).copied_back_bytes, 5 * VALUE);
        world_close(&w);
    }
}

/* So does an allocation of the caller's, through its allocator's callback. */
TEST(an_allocation_takes_what_came_ahead)
{
    FOR_SEEDS (seed, 6) {
        world w;
        memopt_ticket tickets[VALUES];
        void *mine = NULL;
        open_small(&w, seed, 1, tickets);
        for (int i = 2; i >= 0; i--)
            OK(memopt_offloader_prefetch(w.offloader, tickets[i]));
        OK(memopt_allocator_alloc(w.allocator, VALUE, MEMOPT_TAG_OTHER, w.t, &mine));
        assert_int_equal(active_bytes(&w), 3 * VALUE);
        OK(memopt_fill(w.device, mine, 99, VALUE, w.t)); /* behind the copy that was under way */
        assert_true(holds(&w, mine, 99, VALUE, w.t));
        OK(memopt_allocator_free(w.allocator, mine));
        check_values(&w, tickets);
        world_close(&w);
    }
}

/* What a caller has, or copies from, does not give way. */
TEST(what_is_in_use_stays)
{
    world w;
    memopt_ticket tickets[VALUES];
    void *data = NULL, *mine = NULL;
    uint64_t bytes = 1;
    open_small(&w, 1, 1, tickets);
    OK(memopt_offloader_give_way(w.offloader, UINT64_MAX, &bytes));
    assert_int_equal(bytes, 0); /* nothing is on the device */
    OK(memopt_offloader_prefetch(w.offloader, tickets[1]));
    OK(memopt_offloader_unpack(w.offloader, tickets[1], w.s, &data));
    mine = device_block(&w, VALUE, w.s);
    OK(memopt_offloader_prefetch_into(w.offloader, tickets[1], mine, VALUE, w.s));
    OK(memopt_offloader_give_way(w.offloader, UINT64_MAX, &bytes));
    assert_int_equal(bytes, 0);
    assert_true(holds(&w, data, 2, VALUE, w.s));
    OK(memopt_offloader_prefetch(w.offloader, tickets[0]));
    OK(memopt_offloader_give_way(w.offloader, 1, &bytes));
    assert_int_equal(bytes, VALUE);
    OK(memopt_offloader_wait_unpacked(w.offloader, tickets[1], w.s));
    assert_true(holds(&w, mine, 2, VALUE, w.s));
    OK(memopt_allocator_free(w.allocator, mine));
    check_values(&w, tickets);
    world_close(&w);
}
