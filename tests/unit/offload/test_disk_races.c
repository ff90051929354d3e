/*
 * The order of the disk's work, under the adversarial order, where every operation runs as late as
 * it legally may and all others overtake it: each program is right for every seed, and goes wrong
 * when the one dependency that protects it is left out. Not always for every seed: the memory that
 * a function of the host uses is not known to the scheduler, so the seed decides what overtakes it.
 */
#include "disk_support.h"
#include "left_out.h"

enum { BYTES = 200000, PAGES = 49 * 4096, A = 0x11, B = 0x22, C = 0x33 };

static world race_world(uint64_t seed)
{
    memopt_offloader_options options = spilling(PAGES, 0);
    return open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 16 * MIB, &options);
}

static uint64_t race_seeds(void)
{
    return is_long() ? 80 : 40;
}

/* 1 if the ticket gives `value` on the stream; what the disk found out counts, too. */
static int gives(world *w, memopt_ticket ticket, int value, memopt_stream stream)
{
    void *data = NULL;
    memopt_status status = memopt_offloader_unpack(w->offloader, ticket, stream, &data);
    if (status == MEMOPT_CORRUPT)
        return 0;
    OK(status);
    return holds(w, data, value, BYTES, stream);
}

/* The file is written after the copy to the host. */
RACE(written_after_copy, STORE_WAIT, 1, healthy_disk)
{
    memopt_ticket first = packed(w, BYTES, A, w->s);
    memopt_ticket second = packed(w, BYTES, B, w->s); /* the host has room for one */
    assert_int_equal(stats_of(w).disk_tickets, 1);
    int good = gives(w, first, A, w->t);
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_release(w->offloader, first, w->t));
    OK(memopt_offloader_release(w->offloader, second, w->t));
    return good;
}

/* The copy back comes after the disk has read. */
RACE(copied_after_read, FETCH_WAIT, 1, healthy_disk)
{
    memopt_ticket first = packed(w, BYTES, A, w->s), second = packed(w, BYTES, B, w->s);
    void *mine = filled_block(w, BYTES, C, w->t);
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_release(w->offloader, second, w->s)); /* leaves its bytes on the host */
    OK(mo_offloader_unpack_into(w->offloader, first, mine, BYTES, w->t));
    int good = holds(w, mine, A, BYTES, w->t);
    OK(memopt_offloader_release(w->offloader, first, w->s));
    OK(memopt_allocator_free(w->allocator, mine));
    return good;
}

/* The disk reads into host memory after the copies that are still to use it. */
RACE(read_after_former_copies, STAGING_WAIT, 1, healthy_disk)
{
    memopt_ticket first = packed(w, BYTES, A, w->s), second = packed(w, BYTES, B, w->s);
    void *mine = filled_block(w, BYTES, C, w->t), *other = filled_block(w, BYTES, C, w->s);
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_prefetch_into(w->offloader, second, mine, BYTES, w->t));
    OK(memopt_offloader_release(w->offloader, second, w->t)); /* its copy back has not run */
    OK(memopt_offloader_prefetch_into(w->offloader, first, other, BYTES, w->s));
    OK(mo_timeline_sync(&w->offloader->disk->line, w->offloader->disk->line.last));
    OK(memopt_offloader_wait_unpacked(w->offloader, first, w->s));
    int good = holds(w, other, A, BYTES, w->s);
    OK(memopt_device_sync(w->device));
    good = holds(w, mine, B, BYTES, w->t) && good;
    OK(memopt_offloader_release(w->offloader, first, w->s));
    OK(memopt_allocator_free(w->allocator, mine));
    OK(memopt_allocator_free(w->allocator, other));
    return good;
}

/* Host memory that was taken for a read whose copy back failed is written again after the read. */
RACE(written_after_abandoned_read, STORED_WAIT, 5, healthy_disk)
{
    memopt_ticket first = packed(w, BYTES, A, w->s), second = packed(w, BYTES, B, w->s);
    void *mine = filled_block(w, BYTES, C, w->t), *block = filled_block(w, BYTES, C, w->t);
    int begun = 0;
    int32_t kept;
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_release(w->offloader, second, w->s));
    for (int64_t n = 1; !begun; n++) { /* the first failure behind the read itself */
        mo_device_fail_at(w->device, n);
        FAILS(MEMOPT_DRIVER_ERROR,
              memopt_offloader_prefetch_into(w->offloader, first, mine, BYTES, w->s));
        mo_device_fail_at(w->device, 0);
        begun = w->offloader->packed[0].fetching != MO_FETCH_NONE;
    }
    memopt_ticket third = 0;
    OK(mo_offloader_pack_borrowed(w->offloader, block, BYTES, w->t, &third, &kept));
    OK(memopt_offloader_wait_packed(w->offloader, third, w->t));
    OK(memopt_stream_sync(w->device, w->t));
    OK(memopt_device_sync(w->device));
    OK(mo_offloader_unpack_into(w->offloader, third, mine, BYTES, w->t));
    int good = holds(w, mine, C, BYTES, w->t);
    OK(memopt_offloader_release(w->offloader, third, w->t));
    OK(memopt_offloader_release(w->offloader, first, w->s));
    OK(memopt_allocator_free(w->allocator, mine));
    OK(memopt_allocator_free(w->allocator, block));
    return good;
}

/* Two training steps in a quarter of the host memory that they need, nothing waited for by hand. */
TEST_WITH(test_two_steps, healthy_disk, NULL)
{
    enum { LAYERS = 8 };
    FOR_SEEDS (seed, 80) {
        memopt_offloader_options options = spilling(LAYERS / 4 * PAGES, 0);
        memopt_ticket tickets[LAYERS];
        world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 16 * MIB, &options);
        unsigned char *results = device_block(&w, 2 * LAYERS * BYTES, w.s);
        for (int step = 0; step < 2; step++) {
            for (int i = 0; i < LAYERS; i++)
                tickets[i] = packed(&w, BYTES, 16 * step + i + 1, w.s);
            for (int i = LAYERS - 1; i >= 0; i--) {
                void *data = NULL;
                if (i > 0)
                    OK(memopt_offloader_prefetch(w.offloader, tickets[i - 1]));
                OK(memopt_offloader_unpack(w.offloader, tickets[i], w.s, &data));
                OK(memopt_copy(w.device, results + (step * LAYERS + i) * BYTES, data, BYTES, w.s));
                OK(memopt_offloader_release(w.offloader, tickets[i], w.s));
                assert_null(broken_disk(w.offloader));
            }
        }
        OK(memopt_stream_sync(w.device, w.s));
        for (int i = 0; i < 2 * LAYERS; i++)
            assert_true(all_bytes(results + i * BYTES, 16 * (i / LAYERS) + i % LAYERS + 1, BYTES));
        assert_int_equal(stats_of(&w).kept_overflow, 0);
        assert_true(stats_of(&w).disk_read_bytes >= LAYERS * BYTES);
        world_close(&w);
    }
}

int main(void)
{
    return run_all_tests(make_folder, remove_folder);
}
