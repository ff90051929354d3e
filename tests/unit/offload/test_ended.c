/* Streams that end while tickets made on them are held. */
#include "support.h"
#include "support/sweep.h"

enum { BYTES = 64 * 1024 };

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
    memopt_stream stream = NULL;
    memopt_ticket ticket = 0;
    OK(memopt_stream_create(w->device, &stream));
    OK(memopt_offload_pack(w->offloader, filled_block(w, BYTES, value, stream), BYTES, stream,
                           &ticket));
    if (how == 1)
        OK(memopt_stream_release(w->device, stream));
    OK(memopt_stream_destroy(w->device, stream));
    return ticket;
}

static void use_after_the_end(uint32_t order, uint64_t seed, uint64_t min_bytes)
{
    world w;
    memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
    options.min_bytes = min_bytes; /* above the size: values are kept on the device */
    world_open(&w, order, seed, 64 * MIB, &options);
    for (int how = 0; how < 2; how++) {
        void *back = NULL;
        memopt_ticket first = pack_and_end(&w, 3, how), second = pack_and_end(&w, 4, how);
        OK(memopt_offload_prefetch(w.offloader, first));
        OK(memopt_offload_unpack(w.offloader, first, w.s, &back));
        check_bytes(&w, back, 3, w.s);
        OK(memopt_offload_release(w.offloader, first, w.s));
        OK(memopt_offload_unpack(w.offloader, second, w.t, &back));
        check_bytes(&w, back, 4, w.t);
        OK(memopt_offload_release(w.offloader, second, w.t));
    }
    world_close(&w);
}

static void prefetch_does_not_use_a_dead_stream(void **state)
{
    (void)state;
    use_after_the_end(MEMOPT_STREAM_ORDER_EAGER, 0, 0);
    FOR_SEEDS (seed, 20)
        use_after_the_end(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 0);
}

static void kept_values_outlive_their_stream(void **state)
{
    (void)state;
    FOR_SEEDS (seed, 20)
        use_after_the_end(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, MIB);
}

/* The stream that memory was brought for ends before the ticket does. */
static void memory_brought_for_a_stream_that_ends(void **state)
{
    (void)state;
    FOR_SEEDS (seed, 20) {
        world w;
        memopt_stream stream = NULL;
        void *back = NULL;
        world_open(&w, MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 64 * MIB, NULL);
        memopt_ticket ticket = pack_and_end(&w, 5, 0), forced = pack_and_end(&w, 6, 0);
        OK(memopt_stream_create(w.device, &stream));
        OK(memopt_offload_unpack(w.offloader, ticket, stream, &back));
        OK(memopt_offload_unpack(w.offloader, forced, stream, &back));
        OK(memopt_stream_destroy(w.device, stream));
        OK(memopt_offload_unpack(w.offloader, ticket, w.s, &back));
        check_bytes(&w, back, 5, w.s);
        OK(memopt_offload_release(w.offloader, ticket, w.s));
        OK(memopt_offloader_destroy_force(w.offloader)); /* with `forced` on the device */
        w.offloader = NULL;
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefetch_does_not_use_a_dead_stream),
        cmocka_unit_test(kept_values_outlive_their_stream),
        cmocka_unit_test(memory_brought_for_a_stream_that_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
