/* Streams that end while tickets made on them are held. */
#include "support.h"
#include "support/sweep.h"

#include <pthread.h>
#include <stdatomic.h>

enum { BYTES = 64 * 1024, ENDING = 24 };

static void check_bytes(world *w, const void *block, int value, memopt_stream stream)
{
    static unsigned char host[BYTES];
    OK(memopt_copy(w->device, host, block, BYTES, stream));
    OK(memopt_stream_sync(w->device, stream));
    for (int i = 0; i < BYTES; i++)
        assert_int_equal(host[i], value);
}

/* `how`: 0 destroys the stream, 1 is a stream of the program's that it says goodbye to. */
static memopt_ticket pack_and_end(world *w, int value, int how)
{
    memopt_ticket ticket = 0;
    memopt_stream stream = stream_on(w->device);
    OK(memopt_offloader_pack(w->offloader, filled_block(w, BYTES, value, stream), BYTES, stream,
                             &ticket));
    if (how == 1)
        OK(memopt_stream_release_sync(w->device, stream));
    OK(memopt_stream_destroy(w->device, stream));
    return ticket;
}

static void use_after_the_end(uint32_t order, uint64_t seed, uint64_t min_bytes)
{
    memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
    options.min_bytes = min_bytes; /* above the size: values are kept on the device */
    world w = open_world(order, seed, 64 * MIB, &options);
    for (int how = 0; how < 2; how++) {
        void *back = NULL;
        memopt_ticket first = pack_and_end(&w, 3, how), second = pack_and_end(&w, 4, how);
        OK(memopt_offloader_prefetch(w.offloader, first));
        OK(memopt_offloader_unpack(w.offloader, first, w.s, &back));
        check_bytes(&w, back, 3, w.s);
        OK(memopt_offloader_release(w.offloader, first, w.s));
        OK(memopt_offloader_unpack(w.offloader, second, w.t, &back));
        check_bytes(&w, back, 4, w.t);
        OK(memopt_offloader_release(w.offloader, second, w.t));
    }
    world_close(&w);
}

TEST(prefetch_does_not_use_a_dead_stream)
{
    use_after_the_end(MEMOPT_STREAM_ORDER_EAGER, 0, 0);
    FOR_SEEDS (seed, 20)
        use_after_the_end(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 0);
}

TEST(kept_values_outlive_their_stream)
{
    FOR_SEEDS (seed, 20)
        use_after_the_end(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, MIB);
}

/* The stream that memory was brought for ends before the ticket does. */
TEST(memory_brought_for_a_stream_that_ends)
{
    FOR_SEEDS (seed, 20) {
        void *back = NULL;
        world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 64 * MIB, NULL);
        memopt_ticket ticket = pack_and_end(&w, 5, 0), forced = pack_and_end(&w, 6, 0);
        memopt_stream stream = stream_on(w.device);
        OK(memopt_offloader_unpack(w.offloader, ticket, stream, &back));
        OK(memopt_offloader_unpack(w.offloader, forced, stream, &back));
        OK(memopt_stream_destroy(w.device, stream));
        OK(memopt_offloader_unpack(w.offloader, ticket, w.s, &back));
        check_bytes(&w, back, 5, w.s);
        OK(memopt_offloader_release(w.offloader, ticket, w.s));
        OK(memopt_offloader_destroy_force(w.offloader)); /* with `forced` on the device */
        w.offloader = NULL;
        world_close(&w);
    }
}

typedef struct ending {
    memopt_device *device;
    memopt_stream streams[ENDING];
    atomic_int ended;
    int failed;
} ending;

static void *end_all(void *user)
{
    ending *e = user;
    for (int i = 0; i < ENDING; i++) {
        e->failed += memopt_stream_destroy(e->device, e->streams[i]) != MEMOPT_OK;
        atomic_fetch_add_explicit(&e->ended, 1, memory_order_relaxed);
    }
    return NULL;
}

static void end_on_another_thread(world *w)
{
    pthread_t thread;
    memopt_ticket tickets[ENDING];
    ending e = {.device = w->device};
    void *back = NULL;
    for (int i = 0; i < ENDING; i++) {
        OK(memopt_stream_create(w->device, &e.streams[i]));
        tickets[i] = packed(w, BYTES, i, e.streams[i]);
    }
    assert_int_equal(pthread_create(&thread, NULL, end_all, &e), 0);
    for (int now = 0; now < ENDING; now = atomic_load_explicit(&e.ended, memory_order_relaxed))
        for (int i = now; i < ENDING; i++)
            OK(memopt_offloader_unpack(w->offloader, tickets[i], w->s, &back));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(e.failed, 0);
    for (int i = 0; i < ENDING; i++) {
        OK(memopt_offloader_unpack(w->offloader, tickets[i], w->s, &back));
        check_bytes(w, back, i, w->s);
        OK(memopt_offloader_release(w->offloader, tickets[i], w->s));
    }
}

/* A stream may end on any thread, while the offloader's works with values of that stream. */
TEST(streams_end_on_another_thread)
{
    memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
    options.min_bytes = MIB; /* kept: unpack asks whether the stream is the value's own */
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0, 64 * MIB, &options);
    for (int round = 0; round < 10; round++)
        end_on_another_thread(&w);
    world_close(&w);
}
