/*
 * The races of the field's offloaders, each as a small program under the adversarial order, where
 * every operation runs as late as it legally may and all others overtake it. Each program is run
 * twice: as the library is, it must be right for every seed; with the one dependency left out that
 * protects it, the same program must go wrong for every seed, which shows that it would be noticed.
 */
#include "left_out.h"

#include "base/memory.h"

enum { BYTES = 40000, A = 0x11, B = 0x22, C = 0x33 };

static world race_world(uint64_t seed)
{
    return open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 16 * MIB, NULL);
}

static uint64_t race_seeds(void)
{
    return seeds_of(300);
}

/* 1 if what the stream reads there is `value` and the device saw no misuse. */
static int right(world *w, const void *device, int value, memopt_stream stream)
{
    unsigned char *copy = malloc(BYTES);
    assert_non_null(copy);
    memopt_status status = memopt_copy(w->device, copy, device, BYTES, stream);
    if (status == MEMOPT_OK)
        status = memopt_stream_sync(w->device, stream);
    int same = all_bytes(copy, value, BYTES);
    free(copy);
    if (status != MEMOPT_OK && status != MEMOPT_DEVICE_FAULT)
        fail_msg("sync: %s", memopt_last_error());
    return status == MEMOPT_OK && same;
}

/* The copy to the host must come after the work that wrote the value. */
RACE(copy_after_value, PACK_WAIT, 1, NULL)
{
    memopt_ticket ticket = packed(w, BYTES, A, w->s);
    void *data = NULL;
    OK(memopt_offloader_unpack(w->offloader, ticket, w->s, &data));
    int good = right(w, data, A, w->s);
    OK(memopt_offloader_release(w->offloader, ticket, w->s));
    return good;
}

/* The source is given to the next owner only after the copy (freed source before copy done). */
RACE(source_kept_until_copied, FREE_RECORD, 1, NULL)
{
    memopt_ticket ticket = packed(w, BYTES, A, w->s);
    void *next = filled_block(w, BYTES, B, w->s); /* likely the same memory */
    int synced = right(w, next, B, w->s);
    void *data = NULL;
    OK(memopt_offloader_unpack(w->offloader, ticket, w->t, &data));
    int good = right(w, data, A, w->t);
    OK(memopt_offloader_release(w->offloader, ticket, w->t));
    OK(memopt_allocator_free(w->allocator, next));
    return good && synced;
}

/* The copy back must come after the copy to the host (unpack before the pack is done). */
RACE(back_after_out, BRING_WAIT, 1, NULL)
{
    memopt_ticket old = packed(w, BYTES, B, w->s); /* leaves other bytes in the slab */
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_release(w->offloader, old, w->s));
    void *source = filled_block(w, BYTES, A, w->s), *data = NULL;
    memopt_ticket ticket = 0;
    int32_t kept;
    OK(mo_offloader_pack_borrowed(w->offloader, source, BYTES, w->s, &ticket, &kept));
    OK(memopt_offloader_unpack(w->offloader, ticket, w->t, &data));
    int good = right(w, data, A, w->t);
    OK(memopt_offloader_release(w->offloader, ticket, w->t));
    OK(memopt_device_sync(w->device));
    OK(memopt_allocator_free(w->allocator, source));
    return good;
}

/* Host memory is written again only after the copy back that reads it. */
RACE(slab_kept_until_read, REUSE_WAIT, 1, NULL)
{
    void *result = filled_block(w, BYTES, C, w->s);
    memopt_ticket first = packed(w, BYTES, A, w->s);
    OK(memopt_device_sync(w->device));
    OK(mo_offloader_unpack_into(w->offloader, first, result, BYTES, w->s));
    OK(memopt_offloader_release(w->offloader, first, w->s));
    memopt_ticket second = packed(w, BYTES, B, w->t); /* the same host memory */
    OK(memopt_offloader_wait_packed(w->offloader, second, w->t));
    OK(memopt_stream_sync(w->device, w->t));
    int good = right(w, result, A, w->s);
    OK(memopt_offloader_release(w->offloader, second, w->t));
    OK(memopt_allocator_free(w->allocator, result));
    return good;
}

/* Device memory for the copy back may still be in use by its former owner's work. */
RACE(memory_free_before_back, MEMORY_WAIT, 1, NULL)
{
    memopt_ticket ticket = packed(w, BYTES, A, w->s);
    OK(memopt_device_sync(w->device));
    OK(memopt_allocator_trim_sync(w->allocator, 0, NULL));
    void *former = filled_block(w, BYTES, B, w->s);
    OK(memopt_allocator_free(w->allocator, former));
    OK(memopt_offloader_prefetch(w->offloader, ticket));
    void *data = NULL;
    OK(memopt_offloader_unpack(w->offloader, ticket, w->s, &data));
    assert_ptr_equal(data, former);
    int good = right(w, data, A, w->s);
    OK(memopt_offloader_release(w->offloader, ticket, w->s));
    return good;
}

/* The stream that uses the value waits for the copy back, prefetched or not. */
RACE(consumer_waits, UNPACK_WAIT, 1, NULL)
{
    memopt_ticket ticket = packed(w, BYTES, A, w->s);
    OK(memopt_device_sync(w->device));
    OK(memopt_allocator_trim_sync(w->allocator, 0, NULL));
    void *former = filled_block(w, BYTES, B, w->s), *data = NULL;
    OK(memopt_device_sync(w->device));
    OK(memopt_allocator_free(w->allocator, former)); /* leaves other bytes in the memory */
    OK(memopt_offloader_prefetch(w->offloader, ticket));
    OK(memopt_offloader_unpack(w->offloader, ticket, w->t, &data));
    assert_ptr_equal(data, former);
    int good = right(w, data, A, w->t);
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_release(w->offloader, ticket, w->t));
    return good;
}

/* The same for a prefetch into the caller's memory. */
RACE(consumer_of_own_memory_waits, UNPACK_WAIT, 1, NULL)
{
    memopt_ticket ticket = packed(w, BYTES, A, w->s);
    void *mine = filled_block(w, BYTES, B, w->s);
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_prefetch_into(w->offloader, ticket, mine, BYTES, w->s));
    OK(memopt_offloader_wait_unpacked(w->offloader, ticket, w->t));
    int good = right(w, mine, A, w->t);
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_release(w->offloader, ticket, w->t));
    OK(memopt_allocator_free(w->allocator, mine));
    return good;
}

/* The same where the value is on the device, too, and is copied from there. */
RACE(consumer_of_own_copy_waits, UNPACK_WAIT, 1, NULL)
{
    memopt_ticket ticket = packed(w, BYTES, A, w->s);
    void *mine = filled_block(w, BYTES, B, w->s), *data = NULL;
    OK(memopt_offloader_unpack(w->offloader, ticket, w->s, &data));
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_prefetch_into(w->offloader, ticket, mine, BYTES, w->s));
    OK(memopt_offloader_wait_unpacked(w->offloader, ticket, w->t));
    int good = right(w, mine, A, w->t);
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_release(w->offloader, ticket, w->t));
    OK(memopt_allocator_free(w->allocator, mine));
    return good;
}

/* The caller's memory may still be in use by work of the stream that it is free on. */
RACE(own_memory_free_before_back, MEMORY_WAIT, 1, NULL)
{
    memopt_ticket ticket = packed(w, BYTES, A, w->s);
    OK(memopt_device_sync(w->device));
    void *mine = filled_block(w, BYTES, B, w->s); /* not done when the copy back is asked for */
    OK(memopt_offloader_prefetch_into(w->offloader, ticket, mine, BYTES, w->s));
    OK(memopt_offloader_wait_unpacked(w->offloader, ticket, w->s));
    int good = right(w, mine, A, w->s);
    OK(memopt_offloader_release(w->offloader, ticket, w->s));
    OK(memopt_allocator_free(w->allocator, mine));
    return good;
}

/* Device memory that another stream reads is given to the next owner only after that. */
RACE(memory_kept_for_other_stream, RELEASE_RECORD, 1, NULL)
{
    void *result = filled_block(w, BYTES, C, w->t);
    memopt_ticket ticket = packed(w, BYTES, A, w->s);
    OK(memopt_device_sync(w->device));
    void *data = NULL;
    OK(memopt_offloader_prefetch(w->offloader, ticket)); /* allocated in the order of s */
    OK(memopt_offloader_unpack(w->offloader, ticket, w->t, &data));
    OK(memopt_copy(w->device, result, data, BYTES, w->t)); /* the consumer */
    OK(memopt_offloader_release(w->offloader, ticket, w->t));
    void *next = filled_block(w, BYTES, B, w->s);
    memopt_status status = memopt_stream_sync(w->device, w->s);
    int good = right(w, result, A, w->t) && status == MEMOPT_OK;
    OK(memopt_allocator_free(w->allocator, next));
    OK(memopt_allocator_free(w->allocator, result));
    return good;
}

/* The same for a prefetch that nobody unpacked: the late copy must not hit the next owner. */
RACE(unused_prefetch, RELEASE_RECORD, 1, NULL)
{
    memopt_ticket ticket = packed(w, BYTES, A, w->s);
    OK(memopt_device_sync(w->device));
    OK(memopt_allocator_trim_sync(w->allocator, 0, NULL));
    OK(memopt_offloader_prefetch(w->offloader, ticket));
    OK(memopt_offloader_release(w->offloader, ticket, w->s));
    void *next = filled_block(w, BYTES, B, w->s);
    memopt_status status = memopt_stream_sync(w->device, w->s);
    memopt_status device = memopt_device_sync(w->device);
    int good = right(w, next, B, w->s) && status == MEMOPT_OK && device == MEMOPT_OK;
    OK(memopt_allocator_free(w->allocator, next));
    return good;
}

/* The same for small values that shared a slab, whose places are one again. */
RACE(joined_slab_kept_until_read, REUSE_WAIT, 1, NULL)
{
    enum { HALF = 20032 };
    void *result = filled_block(w, BYTES, C, w->s), *mine = filled_block(w, BYTES, A, w->s);
    memopt_ticket whole = packed(w, 2 * HALF, B, w->s), first = 0, second = 0;
    int32_t kept;
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_release(w->offloader, whole, w->s));
    OK(mo_offloader_pack_borrowed(w->offloader, mine, HALF, w->s, &first, &kept));
    OK(mo_offloader_pack_borrowed(w->offloader, mine, HALF, w->s, &second, &kept));
    OK(memopt_device_sync(w->device));
    OK(memopt_fill(w->device, result, A, BYTES, w->s));
    OK(mo_offloader_unpack_into(w->offloader, second, result, HALF, w->s));
    OK(memopt_offloader_release(w->offloader, second, w->s));
    OK(memopt_offloader_release(w->offloader, first, w->s));
    memopt_ticket third = packed(w, 2 * HALF, B, w->t); /* over both */
    assert_int_equal(w->offloader->pool.slab_count, 1);
    OK(memopt_offloader_wait_packed(w->offloader, third, w->t));
    OK(memopt_stream_sync(w->device, w->t));
    int good = right(w, result, A, w->s);
    OK(memopt_offloader_release(w->offloader, third, w->t));
    OK(memopt_allocator_free(w->allocator, result));
    OK(memopt_allocator_free(w->allocator, mine));
    return good;
}

/* A value that was kept on the device, released on another stream than the one that wrote it. */
RACE(kept_value_written_before_reuse, KEPT_WAIT, 1, NULL)
{
    memopt_ticket ticket = 0;
    void *block = device_block(w, BYTES, w->t);
    w->offloader->options.min_bytes = BYTES + 1;
    memopt_event *event = event_on(w->device);
    OK(memopt_event_record(event, w->t));
    OK(memopt_stream_wait_event(w->device, w->s, event));
    OK(memopt_fill(w->device, block, A, BYTES, w->s));
    OK(memopt_offloader_pack(w->offloader, block, BYTES, w->s, &ticket));
    OK(memopt_offloader_release(w->offloader, ticket, w->t));
    void *next = filled_block(w, BYTES, B, w->t);
    OK(memopt_stream_sync(w->device, w->t));
    memopt_status status = memopt_device_sync(w->device);
    int good = right(w, next, B, w->t) && status == MEMOPT_OK;
    OK(memopt_allocator_free(w->allocator, next));
    OK(memopt_event_destroy(event));
    return good;
}

/* A rewrite comes after the work that wrote the new value. */
RACE(rewrite_after_value, PACK_WAIT, 1, NULL)
{
    memopt_ticket ticket = reserved(w, BYTES, B);
    void *trained = filled_block(w, BYTES, A, w->s), *data = NULL;
    OK(memopt_offloader_rewrite(w->offloader, ticket, trained, w->s));
    OK(memopt_offloader_unpack(w->offloader, ticket, w->t, &data));
    int good = right(w, data, A, w->t);
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_release(w->offloader, ticket, w->t));
    OK(memopt_allocator_free(w->allocator, trained));
    return good;
}

/* Host memory is rewritten only after the copy back that reads the old value. */
RACE(rewrite_after_readers, REUSE_WAIT, 1, NULL)
{
    memopt_ticket ticket = reserved(w, BYTES, A);
    void *trained = filled_block(w, BYTES, B, w->t), *old = filled_block(w, BYTES, C, w->s);
    OK(memopt_device_sync(w->device));
    OK(mo_offloader_unpack_into(w->offloader, ticket, old, BYTES, w->s));
    OK(memopt_offloader_rewrite(w->offloader, ticket, trained, w->t));
    OK(memopt_offloader_wait_packed(w->offloader, ticket, w->t));
    OK(memopt_stream_sync(w->device, w->t));
    int good = right(w, old, A, w->s);
    OK(memopt_offloader_release(w->offloader, ticket, w->s));
    OK(memopt_allocator_free(w->allocator, trained));
    OK(memopt_allocator_free(w->allocator, old));
    return good;
}

/* A copy back has the value of the rewrite before it. */
RACE(back_after_rewrite, BRING_WAIT, 1, NULL)
{
    memopt_ticket ticket = reserved(w, BYTES, B);
    void *trained = filled_block(w, BYTES, A, w->s), *data = NULL;
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_rewrite(w->offloader, ticket, trained, w->s));
    OK(memopt_offloader_unpack(w->offloader, ticket, w->t, &data));
    int good = right(w, data, A, w->t);
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_release(w->offloader, ticket, w->t));
    OK(memopt_allocator_free(w->allocator, trained));
    return good;
}

/* Device memory of the ticket that is rewritten from goes to the next owner only after the copy. */
RACE(evicted_after_rewrite, FREE_RECORD, 1, NULL)
{
    memopt_ticket ticket = reserved(w, BYTES, B);
    void *data = NULL, *host = NULL;
    OK(memopt_offloader_unpack(w->offloader, ticket, w->s, &data));
    OK(memopt_fill(w->device, data, A, BYTES, w->s));
    OK(memopt_offloader_rewrite(w->offloader, ticket, data, w->s));
    OK(memopt_offloader_evict(w->offloader, ticket, w->s));
    void *next = filled_block(w, BYTES, B, w->s);
    int good = right(w, next, B, w->s);
    memopt_status status = memopt_device_sync(w->device);
    OK(memopt_offloader_host(w->offloader, ticket, MEMOPT_HOST_READ, &host));
    good = good && status == MEMOPT_OK && all_bytes(host, A, BYTES);
    OK(memopt_offloader_release(w->offloader, ticket, w->s));
    OK(memopt_allocator_free(w->allocator, next));
    return good;
}

/* A pack that fails after its copy was enqueued gives the block back as it was: the caller may
 * overwrite and free it in stream order at once. */
TEST(test_failed_pack_gives_the_block_back)
{
    int failures = 0;
    for (int device_fault = 0; device_fault < 2; device_fault++) {
        memopt_status status = MEMOPT_BUSY;
        for (int64_t n = 1; status != MEMOPT_OK; n++) {
            memopt_ticket ticket = 0;
            world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, (uint64_t)n, 16 * MIB, NULL);
            void *block = filled_block(&w, BYTES, A, w.s);
            if (device_fault)
                mo_device_fail_at(w.device, n);
            else
                mo_memory_fail_at(n);
            status = memopt_offloader_pack(w.offloader, block, BYTES, w.s, &ticket);
            mo_device_fail_at(w.device, 0);
            mo_memory_fail_at(0);
            if (status == MEMOPT_OK) {
                OK(memopt_offloader_release(w.offloader, ticket, w.s));
            } else {
                OK(memopt_allocator_free(w.allocator, block));
                void *next = filled_block(&w, BYTES, B, w.s);
                OK(memopt_stream_sync(w.device, w.s));
                OK(memopt_device_sync(w.device)); /* says DEVICE_FAULT after a late copy */
                OK(memopt_allocator_free(w.allocator, next));
                failures++;
            }
            world_close(&w);
        }
    }
    assert_true(failures > 10);
}
