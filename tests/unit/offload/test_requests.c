/* Requests: the arguments of packs and unpacks in a struct that is kept. */
#include "support.h"
#include "support/sweep.h"

enum { COUNT = 5, BYTES = 5000 };

static memopt_offloader_request request_for(world *w)
{
    memopt_offloader_request request = MEMOPT_OFFLOADER_REQUEST_INIT;
    request.offloader = w->offloader;
    request.stream = w->s;
    return request;
}

/* One request for many values, there and back, in both orders of streams. */
TEST(test_many_values)
{
    FOR_SEEDS (seed, 50) {
        memopt_ticket tickets[COUNT];
        void *blocks[COUNT];
        world w =
            open_world(seed == 0 ? MEMOPT_STREAM_ORDER_EAGER : MEMOPT_STREAM_ORDER_ADVERSARIAL,
                       seed, 16 * MIB, NULL);
        memopt_offloader_request request = request_for(&w);
        for (int i = 0; i < COUNT; i++) {
            request.bytes = BYTES + (uint64_t)i;
            request.data = blocks[i] = filled_block(&w, request.bytes, i + 1, w.s);
            request.kept = 7;
            OK(memopt_offloader_request_pack(&request));
            assert_int_equal(request.kept, 0);
            tickets[i] = request.ticket;
            OK(memopt_offloader_wait_packed(w.offloader, tickets[i], w.s));
            OK(memopt_fill(w.device, blocks[i], 99, request.bytes, w.s));
        }
        request.stream = w.t; /* the blocks are written on the other one */
        OK(memopt_stream_sync(w.device, w.s));
        for (int i = COUNT - 1; i >= 0; i--) {
            request.ticket = tickets[i];
            request.bytes = BYTES + (uint64_t)i;
            request.data = blocks[i];
            const memopt_offloader_request before = request;
            OK(memopt_offloader_request_unpack(&request));
            assert_memory_equal(&before, &request, sizeof request);
            assert_true(holds(&w, blocks[i], i + 1, request.bytes, w.t));
            OK(memopt_offloader_release(w.offloader, tickets[i], w.t));
            OK(memopt_allocator_free(w.allocator, blocks[i]));
        }
        assert_int_equal(stats_of(&w).copied_back_bytes, stats_of(&w).copied_out_bytes);
        assert_int_equal(stats_of(&w).packs, COUNT);
        world_close(&w);
    }
}

TEST(test_kept)
{
    memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
    options.min_bytes = BYTES + 1;
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0, 16 * MIB, &options);
    memopt_offloader_request request = request_for(&w);
    request.data = filled_block(&w, BYTES, 3, w.s);
    request.bytes = BYTES;
    OK(memopt_offloader_request_pack(&request));
    assert_int_equal(request.kept, 1);
    request.data = device_block(&w, BYTES, w.s);
    OK(memopt_offloader_request_unpack(&request));
    assert_true(holds(&w, request.data, 3, BYTES, w.s));
    OK(memopt_offloader_release(w.offloader, request.ticket, w.s));
    world_close(&w);
}

/* A request of a newer header, with a field that this library does not know. */
typedef struct longer {
    memopt_offloader_request request;
    uint64_t unknown;
} longer;

TEST(test_sizes)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0, 16 * MIB, NULL);
    longer r = {request_for(&w), 0};
    void *block = filled_block(&w, BYTES, 3, w.s);
    r.request.data = block;
    r.request.bytes = BYTES;
    r.request.struct_size = sizeof r;
    r.unknown = 1;
    FAILS(MEMOPT_UNSUPPORTED, memopt_offloader_request_pack(&r.request));
    assert_int_equal(r.request.ticket, 0);
    r.unknown = 0;
    OK(memopt_offloader_request_pack(&r.request));
    OK(memopt_offloader_wait_packed(w.offloader, r.request.ticket, w.s));
    OK(memopt_fill(w.device, block, 0, BYTES, w.s));
    r.unknown = 1;
    FAILS(MEMOPT_UNSUPPORTED, memopt_offloader_request_unpack(&r.request));
    r.request.struct_size = sizeof r.request - 1;
    REFUSED_SAYING("offloader_request_unpack: struct_size",
                   memopt_offloader_request_unpack(&r.request));
    REFUSED_SAYING("MEMOPT_OFFLOADER_REQUEST_INIT", memopt_offloader_request_pack(&r.request));
    assert_true(holds(&w, block, 0, BYTES, w.s)); /* those that failed wrote nothing */
    r.request.struct_size = sizeof r.request;
    OK(memopt_offloader_request_unpack(&r.request));
    assert_true(holds(&w, block, 3, BYTES, w.s));
    assert_int_equal(stats_of(&w).packs, 1);
    OK(memopt_offloader_release(w.offloader, r.request.ticket, w.s));
    world_close(&w);
}

TEST(test_bad_input)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0, 16 * MIB, NULL);
    void *block = filled_block(&w, BYTES, 3, w.s);
    memopt_offloader_request request = MEMOPT_OFFLOADER_REQUEST_INIT;
    REFUSED_SAYING("request is NULL", memopt_offloader_request_pack(NULL));
    REFUSED_SAYING("request is NULL", memopt_offloader_request_unpack(NULL));
    request.data = block;
    request.bytes = BYTES;
    request.stream = w.s;
    REFUSED_SAYING("offloader is NULL", memopt_offloader_request_pack(&request));
    REFUSED(memopt_offloader_request_unpack(&request));
    request.offloader = w.offloader;
    request.bytes = 0;
    REFUSED(memopt_offloader_request_pack(&request));
    request.bytes = BYTES;
    request.data = NULL;
    REFUSED(memopt_offloader_request_pack(&request));
    request.ticket = 999;
    request.data = block;
    FAILS(MEMOPT_NOT_FOUND, memopt_offloader_request_unpack(&request));
    assert_int_equal(request.ticket, 999); /* what failed wrote nothing */
    assert_int_equal(request.kept, 0);
    assert_int_equal(stats_of(&w).packs, 0);
    OK(memopt_offloader_request_pack(&request));
    request.bytes = BYTES - 1;
    REFUSED_SAYING("bytes is too small", memopt_offloader_request_unpack(&request));
    OK(memopt_offloader_release(w.offloader, request.ticket, w.s));
    world_close(&w);
}
