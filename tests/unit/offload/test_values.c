/* Values through the offloader: contents, states of tickets, statistics, bad input. */
#include "support.h"
#include "support/sweep.h"

TEST(test_round_trip)
{
    const uint64_t sizes[] = {1, 63, 64, 65, 4096, 5000, 128 * KIB - 1, 128 * KIB, 3 * MIB + 17};
    for (uint32_t order = 0; order < 2; order++) {
        for (int stream = 0; stream < 2; stream++) {
            memopt_ticket tickets[9];
            world w = open_world(order, 7, 64 * MIB, NULL);
            memopt_stream s = stream ? w.s : NULL;
            for (int i = 0; i < 9; i++)
                tickets[i] = packed(&w, sizes[i], i + 1, s);
            OK(memopt_device_sync(w.device));
            assert_int_equal(active_bytes(&w), 0); /* nothing is left on the device */
            for (int i = 8; i >= 0; i--) {
                void *data = NULL, *again = NULL;
                if (i % 2)
                    OK(memopt_offloader_prefetch(w.offloader, tickets[i]));
                OK(memopt_offloader_unpack(w.offloader, tickets[i], s, &data));
                assert_true(holds(&w, data, i + 1, sizes[i], s));
                OK(memopt_offloader_unpack(w.offloader, tickets[i], s, &again));
                assert_ptr_equal(data, again);
                OK(memopt_offloader_release(w.offloader, tickets[i], s));
                FAILS_SAYING(MEMOPT_NOT_FOUND, "released before",
                             memopt_offloader_release(w.offloader, tickets[i], s));
            }
            memopt_offloader_stats stats = stats_of(&w);
            assert_int_equal(stats.packs, 9);
            assert_int_equal(stats.prefetch_hits, 4);
            assert_int_equal(stats.copied_out_bytes, stats.copied_back_bytes);
            assert_int_equal(stats.tickets, 0);
            assert_int_equal(stats.host_bytes_used, 0);
            assert_int_equal(active_bytes(&w), 0);
            world_close(&w);
        }
    }
}

/* Copies on the NULL stream: in eager order done when the call returns, with the caller's values on
 * the NULL stream or another. */
TEST(test_null_stream)
{
    memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
    options.flags = MEMOPT_OFFLOADER_NULL_STREAM;
    for (uint32_t order = 0; order < 2; order++) {
        FOR_SEEDS (seed, 50) {
            memopt_ticket tickets[6];
            world w = open_world(order, seed, 64 * MIB, &options);
            void *mine = device_block(&w, 300000, NULL);
            for (int i = 0; i < 6; i++)
                tickets[i] = packed(&w, 300000, i + 1, i % 2 ? w.s : NULL);
            for (int i = 5; i >= 0; i--) {
                if (order == MEMOPT_STREAM_ORDER_EAGER)
                    OK(memopt_offloader_query_packed(w.offloader, tickets[i]));
                if (i % 3 == 0)
                    OK(mo_offloader_unpack_into(w.offloader, tickets[i], mine, 300000, NULL));
                else
                    OK(memopt_offloader_prefetch_into(w.offloader, tickets[i], mine, 300000, NULL));
                OK(memopt_offloader_wait_unpacked(w.offloader, tickets[i], NULL));
                if (order == MEMOPT_STREAM_ORDER_EAGER)
                    assert_true(all_bytes(mine, i + 1, 300000));
                assert_true(holds(&w, mine, i + 1, 300000, NULL));
                OK(memopt_offloader_release(w.offloader, tickets[i], NULL));
            }
            assert_int_equal(stats_of(&w).prefetch_hits, 4);
            world_close(&w);
        }
    }
}

TEST(test_unpack_into)
{
    FOR_SEEDS (seed, 50) {
        world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 16 * MIB, NULL);
        void *mine = filled_block(&w, 20000, 9, w.t);
        memopt_ticket ticket = packed(&w, 12345, 3, w.s);
        REFUSED(mo_offloader_unpack_into(w.offloader, ticket, mine, 12344, w.t));
        SAYS("12345");
        OK(mo_offloader_unpack_into(w.offloader, ticket, mine, 20000, w.t));
        assert_true(holds(&w, mine, 3, 12345, w.t));
        assert_true(holds(&w, (char *)mine + 12345, 9, 20000 - 12345, w.t));
        OK(memopt_fill(w.device, mine, 8, 20000, w.t)); /* from the device the second time */
        OK(memopt_offloader_prefetch(w.offloader, ticket));
        OK(mo_offloader_unpack_into(w.offloader, ticket, mine, 20000, w.t));
        OK(memopt_offloader_release(w.offloader, ticket, w.t));
        assert_true(holds(&w, mine, 3, 12345, w.t));
        world_close(&w);
    }
}

/* The caller's own memory: overwritten behind the copy, as the header says. */
TEST(test_borrowed)
{
    FOR_SEEDS (seed, 50) {
        memopt_ticket ticket = 0;
        int32_t kept = -1;
        void *data = NULL;
        world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 16 * MIB, NULL);
        void *mine = filled_block(&w, 9000, 4, w.s);
        OK(mo_offloader_pack_borrowed(w.offloader, (char *)mine + 100, 8000, w.s, &ticket, &kept));
        assert_int_equal(kept, 0);
        OK(memopt_offloader_wait_packed(w.offloader, ticket, w.s));
        OK(memopt_fill(w.device, mine, 5, 9000, w.s));
        OK(memopt_stream_sync(w.device, w.s));
        OK(memopt_offloader_query_packed(w.offloader, ticket));
        OK(memopt_offloader_unpack(w.offloader, ticket, w.t, &data));
        assert_ptr_not_equal(data, (char *)mine + 100);
        assert_true(holds(&w, data, 4, 8000, w.t));
        assert_true(holds(&w, mine, 5, 9000, w.s));
        OK(memopt_offloader_release(w.offloader, ticket, w.t));
        world_close(&w);
    }
}

TEST(test_query_packed)
{
    world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, 3, 16 * MIB, NULL);
    memopt_ticket ticket = packed(&w, 5000, 4, w.s);
    memopt_status status = memopt_offloader_query_packed(w.offloader, ticket);
    assert_int_equal(status, MEMOPT_NOT_READY);
    int polls = 0; /* asking must lead there in the end */
    while ((status = memopt_offloader_query_packed(w.offloader, ticket)) == MEMOPT_NOT_READY)
        assert_true(++polls < 1000);
    OK(status);
    OK(memopt_offloader_release(w.offloader, ticket, w.s));
    world_close(&w);
}

/* Small values stay where they are; owned and borrowed, used on another stream than written. */
TEST(test_kept_small)
{
    FOR_SEEDS (seed, 100) {
        memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
        memopt_ticket own = 0, borrowed = 0, large;
        int32_t kept = -1;
        void *data = NULL;
        options.min_bytes = 10000;
        world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 16 * MIB, &options);
        void *mine = filled_block(&w, 9999, 4, w.s), *other = filled_block(&w, 9999, 5, w.s);
        OK(memopt_offloader_pack(w.offloader, mine, 9999, w.s, &own));
        OK(mo_offloader_pack_borrowed(w.offloader, other, 9999, w.s, &borrowed, &kept));
        assert_int_equal(kept, 1);
        large = packed(&w, 10000, 6, w.s);
        OK(memopt_offloader_query_packed(w.offloader, own));
        OK(memopt_offloader_prefetch(w.offloader, own));
        memopt_offloader_stats stats = stats_of(&w);
        assert_int_equal(stats.kept_small, 2);
        assert_int_equal(stats.kept_overflow, 0);
        assert_int_equal(stats.kept_bytes, 2 * 9999);
        assert_int_equal(stats.host_bytes_used, 10000);
        OK(memopt_offloader_unpack(w.offloader, borrowed, w.t, &data));
        assert_ptr_equal(data, other);
        assert_true(holds(&w, data, 5, 9999, w.t));
        OK(memopt_offloader_unpack(w.offloader, own, w.t, &data));
        assert_ptr_equal(data, mine);
        void *copy = device_block(&w, 9999, w.t);
        OK(memopt_copy(w.device, copy, data, 9999, w.t));
        OK(memopt_offloader_release(w.offloader, own, w.t)); /* frees mine behind t */
        (void)filled_block(&w, 9999, 7, w.s);
        OK(memopt_stream_sync(w.device, w.s));
        assert_true(holds(&w, copy, 4, 9999, w.t));
        OK(memopt_offloader_release(w.offloader, borrowed, w.t));
        OK(memopt_offloader_release(w.offloader, large, w.t));
        assert_int_equal(stats_of(&w).kept_bytes, 0);
        world_close(&w);
    }
}

/* More copies under way than the first ring of events holds, in both directions. */
TEST(test_many_in_flight)
{
    enum { MANY = 300 };
    FOR_SEEDS (seed, 10) {
        memopt_ticket tickets[MANY];
        int32_t kept;
        world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 16 * MIB, NULL);
        unsigned char *mine = device_block(&w, MANY * 100, w.s);
        unsigned char *back = device_block(&w, MANY * 100, w.t);
        for (int i = 0; i < MANY; i++)
            OK(memopt_fill(w.device, mine + i * 100, i % 250 + 1, 100, w.s));
        for (int i = 0; i < MANY; i++)
            OK(mo_offloader_pack_borrowed(w.offloader, mine + i * 100, 100, w.s, &tickets[i],
                                          &kept));
        for (int i = 0; i < MANY; i++)
            OK(mo_offloader_unpack_into(w.offloader, tickets[i], back + i * 100, 100, w.t));
        for (int i = 0; i < MANY; i++)
            OK(memopt_offloader_release(w.offloader, tickets[i], w.t));
        assert_true(w.offloader->out.capacity > 16);
        OK(memopt_stream_sync(w.device, w.t));
        for (int i = 0; i < MANY; i++)
            assert_true(all_bytes(back + i * 100, i % 250 + 1, 100));
        OK(memopt_device_sync(w.device));
        world_close(&w);
    }
}

/* No room on the device: the value stays on the host, and the next try brings it. */
TEST(test_out_of_device_memory)
{
    void *data = NULL;
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0, 40 * MIB, NULL);
    memopt_ticket ticket = packed(&w, 12 * MIB, 3, w.s);
    OK(memopt_device_sync(w.device));
    OK(memopt_allocator_trim_sync(w.allocator, 0, NULL));
    void *full = device_block(&w, 30 * MIB, w.s);
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, memopt_offloader_prefetch(w.offloader, ticket));
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, memopt_offloader_unpack(w.offloader, ticket, w.s, &data));
    assert_null(data);
    assert_int_equal(stats_of(&w).copied_back_bytes, 0);
    OK(memopt_allocator_free(w.allocator, full));
    OK(memopt_offloader_unpack(w.offloader, ticket, w.s, &data));
    assert_true(holds(&w, data, 3, 12 * MIB, w.s));
    OK(memopt_offloader_release(w.offloader, ticket, w.s));
    world_close(&w);
}

TEST(test_tickets_are_never_reused)
{
    memopt_ticket seen[200];
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0, 16 * MIB, NULL);
    for (int i = 0; i < 200; i++) {
        seen[i] = packed(&w, 100, 1, w.s);
        for (int k = 0; k < i; k++)
            assert_int_not_equal(seen[k], seen[i]);
        OK(memopt_offloader_release(w.offloader, seen[i], w.s));
    }
    void *data = NULL;
    for (int i = 0; i < 200; i++)
        FAILS(MEMOPT_NOT_FOUND, memopt_offloader_unpack(w.offloader, seen[i], w.s, &data));
    w.offloader->serial = (1ull << 40) - 1; /* after 10^12 values */
    void *block = device_block(&w, 100, w.s);
    FAILS(MEMOPT_LIMIT_REACHED, memopt_offloader_pack(w.offloader, block, 100, w.s, &seen[0]));
    world_close(&w);
}

/* Several at a time; what cannot end stops it there, and those behind are as they were. */
TEST(test_release_many)
{
    memopt_ticket tickets[6];
    uint64_t released = 99;
    void *data = NULL;
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0, 16 * MIB, NULL);
    for (int i = 0; i < 6; i++)
        tickets[i] = packed(&w, 4096, i + 1, w.s);
    OK(memopt_offloader_release_many(w.offloader, NULL, 0, w.s, &released));
    assert_int_equal(released, 0);
    OK(memopt_offloader_release_many(w.offloader, tickets, 2, w.s, &released));
    assert_int_equal(released, 2);
    assert_int_equal(stats_of(&w).tickets, 4);
    memopt_ticket mixed[4] = {tickets[2], tickets[3], tickets[0], tickets[4]};
    FAILS_SAYING(MEMOPT_NOT_FOUND, "released before",
                 memopt_offloader_release_many(w.offloader, mixed, 4, w.s, &released));
    assert_int_equal(released, 2);
    OK(memopt_offloader_unpack(w.offloader, tickets[4], w.s, &data));
    assert_true(holds(&w, data, 5, 4096, w.s));
    REFUSED_SAYING("tickets is NULL",
                   memopt_offloader_release_many(w.offloader, NULL, 1, w.s, &released));
    REFUSED(memopt_offloader_release_many(NULL, tickets, 1, w.s, &released));
    REFUSED(memopt_offloader_release_many(w.offloader, tickets, 1, w.s, NULL));
    assert_int_equal(released, 2);
    OK(memopt_offloader_release_many(w.offloader, tickets + 4, 2, w.s, &released));
    world_close(&w);
}

TEST(test_destroy)
{
    FOR_SEEDS (seed, 50) {
        memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
        options.min_bytes = 200;
        void *data = NULL;
        world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 16 * MIB, &options);
        memopt_ticket on_device = packed(&w, 30000, 1, w.s), on_way = packed(&w, 30000, 2, w.s);
        (void)packed(&w, 30000, 3, w.s); /* on the host */
        (void)packed(&w, 100, 4, w.s);   /* kept */
        OK(memopt_offloader_unpack(w.offloader, on_device, w.t, &data));
        OK(memopt_offloader_prefetch(w.offloader, on_way));
        FAILS_SAYING(MEMOPT_BUSY, "4 tickets", memopt_offloader_destroy(w.offloader));
        OK(memopt_offloader_destroy_force(w.offloader));
        OK(memopt_offloader_destroy(NULL));
        OK(memopt_offloader_destroy_force(NULL));
        OK(memopt_device_sync(w.device));
        assert_int_equal(active_bytes(&w), 0);
        w.offloader = NULL;
        world_close(&w);
    }
}

TEST(test_bad_input)
{
    memopt_offloader *o = NULL;
    memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
    memopt_ticket ticket = 0;
    int32_t kept = 0;
    void *data = NULL;
    char host[64];
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0, 16 * MIB, NULL);
    REFUSED(memopt_offloader_create(NULL, w.allocator, NULL, &o));
    REFUSED(memopt_offloader_create(w.device, NULL, NULL, &o));
    REFUSED(memopt_offloader_create(w.device, w.allocator, NULL, NULL));
    options.overflow = 3;
    REFUSED(memopt_offloader_create(w.device, w.allocator, &options, &o));
    options.overflow = 0;
    options.flags = 2;
    REFUSED(memopt_offloader_create(w.device, w.allocator, &options, &o));
    options.struct_size = 2;
    REFUSED(memopt_offloader_create(w.device, w.allocator, &options, &o));
    assert_null(o);

    char *block = filled_block(&w, 1000, 1, w.s);
    REFUSED(memopt_offloader_pack(NULL, block, 10, w.s, &ticket));
    REFUSED(memopt_offloader_pack(w.offloader, NULL, 10, w.s, &ticket));
    REFUSED(memopt_offloader_pack(w.offloader, block, 10, w.s, NULL));
    REFUSED(memopt_offloader_pack(w.offloader, block, 0, w.s, &ticket));
    REFUSED(memopt_offloader_pack(w.offloader, block, 1025, w.s, &ticket));
    REFUSED_SAYING("512 bytes inside",
                   memopt_offloader_pack(w.offloader, block + 512, 8, w.s, &ticket));
    REFUSED(memopt_offloader_pack(w.offloader, host, 10, w.s, &ticket));
    REFUSED(mo_offloader_pack_borrowed(w.offloader, block, 0, w.s, &ticket, &kept));
    REFUSED(mo_offloader_pack_borrowed(w.offloader, NULL, 8, w.s, &ticket, &kept));
    REFUSED(mo_offloader_pack_borrowed(w.offloader, block, 8, w.s, &ticket, NULL));
    REFUSED(mo_offloader_pack_borrowed(w.offloader, block, 8, w.s, NULL, &kept));
    assert_int_equal(ticket, 0);
    assert_int_equal(stats_of(&w).packs, 0);
    assert_int_equal(stats_of(&w).host_bytes, 0);
    OK(memopt_allocator_free(w.allocator, block)); /* still the caller's */
    REFUSED(memopt_offloader_pack(w.offloader, block, 10, w.s, &ticket));

    const memopt_ticket wrong[] = {0, 1, 5, UINT64_MAX, 1ull << 24, 1ull << 63};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        FAILS(MEMOPT_NOT_FOUND, memopt_offloader_prefetch(w.offloader, wrong[i]));
        FAILS(MEMOPT_NOT_FOUND, memopt_offloader_unpack(w.offloader, wrong[i], w.s, &data));
        FAILS(MEMOPT_NOT_FOUND,
              mo_offloader_unpack_into(w.offloader, wrong[i], host, sizeof host, w.s));
        FAILS(MEMOPT_NOT_FOUND, memopt_offloader_wait_packed(w.offloader, wrong[i], w.s));
        FAILS(MEMOPT_NOT_FOUND, memopt_offloader_query_packed(w.offloader, wrong[i]));
        FAILS(MEMOPT_NOT_FOUND, memopt_offloader_release(w.offloader, wrong[i], w.s));
    }
    ticket = packed(&w, 1000, 2, w.s);
    REFUSED(memopt_offloader_prefetch(NULL, ticket));
    REFUSED(memopt_offloader_unpack(NULL, ticket, w.s, &data));
    REFUSED(memopt_offloader_unpack(w.offloader, ticket, w.s, NULL));
    REFUSED(mo_offloader_unpack_into(NULL, ticket, host, 64, w.s));
    REFUSED(mo_offloader_unpack_into(w.offloader, ticket, NULL, 1000, w.s));
    REFUSED(memopt_offloader_prefetch_into(w.offloader, ticket, NULL, 1000, w.s));
    REFUSED_SAYING("offloader_prefetch_into: bytes is too small",
                   memopt_offloader_prefetch_into(w.offloader, ticket, host, 1, w.s));
    FAILS(MEMOPT_NOT_FOUND, memopt_offloader_prefetch_into(w.offloader, 999, host, 1000, w.s));
    FAILS(MEMOPT_NOT_FOUND, memopt_offloader_wait_unpacked(w.offloader, 999, w.s));
    REFUSED(memopt_offloader_wait_unpacked(NULL, ticket, w.s));
    REFUSED(memopt_offloader_wait_packed(NULL, ticket, w.s));
    REFUSED(memopt_offloader_query_packed(NULL, ticket));
    REFUSED(memopt_offloader_release(NULL, ticket, w.s));
    REFUSED(memopt_offloader_trim_sync(NULL, NULL));
    REFUSED(memopt_offloader_give_way(NULL, 1, &(uint64_t){0}));
    REFUSED(memopt_offloader_give_way(w.offloader, 1, NULL));
    memopt_offloader_stats stats = {.struct_size = 4};
    REFUSED(memopt_offloader_get_stats(w.offloader, &stats));
    REFUSED(memopt_offloader_get_stats(w.offloader, NULL));
    REFUSED(memopt_offloader_get_stats(NULL, &stats));
    OK(memopt_offloader_release(w.offloader, ticket, w.s));
    world_close(&w);
}
