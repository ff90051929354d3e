/* Streams: reuse in order, record_stream, deferred frees, and what the adversarial order finds. */
#include "support.h"

#include "support/sweep.h"

/* A producer's block is read on another stream while its own stream frees and reuses it. With
 * `record` the read is told to the allocator; `wait` makes the reader wait for the producer. */
static memopt_status share_block(const char *config, uint64_t seed, int record, int wait)
{
    memopt_device *device = open_cpu(CAPACITY, MEMOPT_STREAM_ORDER_ADVERSARIAL, seed);
    memopt_allocator *allocator = new_allocator(device, config);
    memopt_stream producer = stream_on(device), reader = stream_on(device);
    memopt_event *filled = event_on(device);
    unsigned char *target = alloc_on(allocator, 1000, reader);
    OK(memopt_stream_sync(device, reader)); /* nothing older keeps the reader from running ahead */
    unsigned char *block = alloc_on(allocator, 1000, producer);
    OK(memopt_fill(device, block, 7, 1000, producer));
    OK(memopt_event_record(filled, producer));
    if (wait)
        OK(memopt_stream_wait_event(device, reader, filled));
    OK(memopt_copy(device, target, block, 1000, reader));
    if (record)
        OK(memopt_allocator_record_stream(allocator, block, reader));
    OK(memopt_allocator_free(allocator, block));
    unsigned char *again = alloc_on(allocator, 1000, producer);
    OK(memopt_fill(device, again, 9, 1000, producer));
    memopt_status fault = memopt_stream_sync(device, producer);
    if (fault == MEMOPT_OK)
        fault = memopt_device_sync(device);
    if (fault == MEMOPT_OK && (target[0] != 7 || target[999] != 7))
        fault = MEMOPT_MISMATCH;
    OK(memopt_event_destroy(filled));
    OK(memopt_allocator_free(allocator, again));
    OK(memopt_allocator_free(allocator, target));
    (void)memopt_allocator_destroy(allocator);
    (void)memopt_stream_destroy(device, producer);
    (void)memopt_stream_destroy(device, reader);
    (void)memopt_device_close(device);
    return fault;
}

TEST(correct_program_is_clean)
{
    FOR_SEEDS (seed, 200)
        for (int c = 0; c < 2; c++)
            OK(share_block(configs[c], seed, 1, 1));
}

TEST(missing_record_stream_is_caught)
{
    FOR_SEEDS (seed, 200)
        for (int c = 0; c < 2; c++)
            assert_int_equal(share_block(configs[c], seed, 0, 1), MEMOPT_DEVICE_FAULT);
}

TEST(missing_wait_is_caught)
{
    FOR_SEEDS (seed, 200)
        for (int c = 0; c < 2; c++)
            assert_int_not_equal(share_block(configs[c], seed, 1, 0), MEMOPT_OK);
}

/* A block freed on its stream is given out again at once on that stream, and not on others. */
ALLOCATOR_TEST(reuse_is_by_stream, allocator, eager(CAPACITY), BOTH)
{
    memopt_stream stream = stream_on(device);
    void *first = alloc_on(allocator, 3 * MIB, stream);
    OK(memopt_allocator_free(allocator, first));
    void *other = alloc_on(allocator, 3 * MIB, NULL);
    assert_ptr_not_equal(other, first);
    assert_ptr_equal(alloc_on(allocator, 3 * MIB, stream), first);
    OK(memopt_allocator_free(allocator, first));
    OK(memopt_allocator_free(allocator, other));
    OK(memopt_allocator_trim_sync(allocator, 0, NULL));
}

static void pause_stream(void *user)
{
    pthread_mutex_lock(user);
    pthread_mutex_unlock(user);
}

/* A recorded block is pending until the other stream is done; then it is reused. */
ALLOCATOR_TEST(free_is_deferred, allocator, eager(CAPACITY), CLASSIC)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    memopt_stream other = stream_on(device);
    void *block = alloc(allocator, 1000);
    pthread_mutex_lock(&gate);
    OK(memopt_stream_host_callback(device, other, pause_stream, &gate));
    OK(memopt_allocator_record_stream(allocator, block, NULL)); /* its own: nothing to do */
    OK(memopt_allocator_record_stream(allocator, block, other));
    OK(memopt_allocator_record_stream(allocator, block, other));
    OK(memopt_allocator_free(allocator, block));
    assert_int_equal(stat_of(allocator, "allocation.all.current"), 0);
    assert_int_equal(stat_of(allocator, "active.all.current"), 1);
    void *second = alloc(allocator, 1000);
    assert_ptr_not_equal(second, block);
    OK(mo_allocator_check(allocator));
    REFUSED_SAYING("in free memory", memopt_allocator_free(allocator, block));
    pthread_mutex_unlock(&gate);
    OK(memopt_stream_sync(device, other));
    assert_ptr_equal(alloc(allocator, 1000), block);
    assert_int_equal(stat_of(allocator, "active.all.current"), 2);
}

/* At the limit pending frees are waited for, by their own stream or, for another one, by the host. */
ALLOCATOR_TEST(pressure_waits_for_pending_frees, allocator,
               open_cpu(40 * MIB, MEMOPT_STREAM_ORDER_ADVERSARIAL, 3), BOTH, BOTH)
{
    memopt_stream other = stream_on(device);
    void *block = alloc(allocator, 30 * MIB);
    OK(memopt_fill(device, block, 1, 30 * MIB, NULL));
    OK(memopt_allocator_record_stream(allocator, block, other));
    OK(memopt_allocator_free(allocator, block));
    void *next = alloc_on(allocator, 30 * MIB, c < 2 ? NULL : other);
    if (c < 2)
        assert_ptr_equal(next, block);
    assert_int_equal(stat_of(allocator, "num_alloc_retries"), c < 2 ? 0 : 1);
    assert_int_equal(stat_of(allocator, "num_ooms"), 0);
    OK(memopt_allocator_free(allocator, next));
    OK(memopt_device_sync(device));
    OK(memopt_allocator_trim_sync(allocator, 0, NULL));
}

/* Destroy waits for pending frees; destroy by force frees what is live and recorded. */
TEST(destroy_with_pending)
{
    for (int c = 0; c < 2; c++) {
        memopt_device *device = open_cpu(CAPACITY, MEMOPT_STREAM_ORDER_ADVERSARIAL, 1);
        memopt_allocator *allocator = new_allocator(device, configs[c]);
        memopt_stream other = stream_on(device);
        void *pending = alloc(allocator, 3000), *live = alloc(allocator, 5 * MIB);
        (void)alloc(allocator, 100);
        (void)alloc(allocator, 2 * MIB);
        OK(memopt_allocator_record_stream(allocator, pending, other));
        OK(memopt_allocator_record_stream(allocator, live, other));
        OK(memopt_fill(device, live, 1, MIB, other));
        OK(memopt_allocator_free(allocator, pending));
        OK(memopt_allocator_destroy_force(allocator));
        OK(memopt_stream_destroy(device, other));
        OK(memopt_device_close(device));
    }
}

/* What docs/guide/porting.md says of a host kernel: it writes a new block after a wait for the
 * block's stream; without it, work of the previous owner comes later. */
ALLOCATOR_TEST(host_kernel_waits_behind_alloc, allocator,
               open_cpu(64 * MIB, MEMOPT_STREAM_ORDER_ADVERSARIAL, 1), CLASSIC)
{
    for (int waits = 0; waits < 2; waits++) {
        void *before = alloc(allocator, MIB);
        OK(memopt_fill(device, before, 7, MIB, NULL));
        OK(memopt_allocator_free(allocator, before));
        void *block = alloc(allocator, MIB);
        assert_ptr_equal(block, before);
        if (waits)
            OK(memopt_stream_sync(device, NULL));
        memset(block, 1, MIB);
        OK(memopt_stream_sync(device, NULL));
        assert_int_equal(all_bytes(block, 1, MIB), waits);
        OK(memopt_allocator_free(allocator, block));
    }
}
