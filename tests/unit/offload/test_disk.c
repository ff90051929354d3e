/* The disk tier: what goes there, what comes back, the limits, the accounts, the file. */
#include "disk_support.h"
#include "support/sweep.h"

#include <fcntl.h>
#include <sys/stat.h>

enum { LAYERS = 12 };

/* Four times what the host may hold goes out and comes back, last first, prefetched or not. */
static void check_step(world *w, int prefetch)
{
    memopt_ticket tickets[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        tickets[i] = packed(w, MIB, i + 1, w->s);
        assert_null(broken_disk(w->offloader));
    }
    assert_int_equal(stats_of(w).kept_bytes, 0);
    assert_true(stats_of(w).disk_tickets >= LAYERS - 3);
    assert_int_equal(stats_of(w).disk_bytes_used, stats_of(w).disk_tickets * MIB);
    assert_true(stats_of(w).host_bytes <= 3 * MIB);
    for (int i = LAYERS - 1; i >= 0; i--) {
        if (prefetch && i > 0)
            OK(memopt_offloader_prefetch(w->offloader, tickets[i - 1]));
        assert_true(is_value(w, tickets[i], i + 1, MIB));
        OK(memopt_offloader_release(w->offloader, tickets[i], w->s));
        assert_null(broken_disk(w->offloader));
    }
    OK(memopt_device_sync(w->device));
    assert_int_equal(stats_of(w).disk_tickets, 0);
    assert_int_equal(stats_of(w).disk_bytes_used, 0);
    assert_int_equal(stats_of(w).disk_bytes, 0);
    assert_int_equal(w->offloader->disk->extents.end, 0);
}

TEST_WITH(test_step, healthy_disk, NULL)
{
    world w = open_spilling(3 * MIB, 0);
    for (int step = 0; step < 4; step++)
        check_step(&w, step % 2);
    memopt_offloader_stats stats = stats_of(&w);
    assert_int_equal(stats.kept_overflow, 0);
    assert_int_equal(stats.copied_out_bytes, 4 * LAYERS * MIB);
    assert_int_equal(stats.copied_back_bytes, 4 * LAYERS * MIB);
    assert_true(stats.disk_written_bytes >= 4 * (LAYERS - 3) * MIB);
    assert_true(stats.disk_read_bytes >= 4 * (LAYERS - 3) * MIB);
    assert_true(stats.disk_read_bytes <= stats.disk_written_bytes);
    assert_true(stats.disk_bytes_peak >= (LAYERS - 3) * MIB);
    assert_true(stats.disk_bytes_peak <= LAYERS * MIB);
    assert_true(stats.prefetch_hits > 0);
    assert_true(stats.host_bytes_peak <= 3 * MIB);
    assert_int_equal(files_left(), 0);
    world_close(&w);
}

/* The same on the NULL stream: at once, and nothing is written that need not be. */
TEST_WITH(test_null_stream, healthy_disk, NULL)
{
    memopt_offloader_options options = spilling(3 * MIB, 0);
    options.flags = MEMOPT_OFFLOADER_NULL_STREAM;
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0, 64 * MIB, &options);
    memopt_ticket tickets[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        tickets[i] = packed(&w, MIB, i + 1, NULL);
    assert_int_equal(stats_of(&w).disk_tickets, LAYERS - 3);
    assert_int_equal(stats_of(&w).disk_written_bytes, (LAYERS - 3) * MIB);
    assert_int_equal(stats_of(&w).disk_waits, 0);
    for (int i = LAYERS - 1; i >= 0; i--) {
        void *data = NULL;
        OK(memopt_offloader_unpack(w.offloader, tickets[i], NULL, &data));
        assert_true(all_bytes(data, i + 1, MIB));
        OK(memopt_offloader_release(w.offloader, tickets[i], NULL));
    }
    assert_int_equal(stats_of(&w).disk_read_bytes, (LAYERS - 3) * MIB);
    world_close(&w);
}

/* Below the limit the file is not touched; near it the oldest are written ahead, and stay. */
TEST_WITH(test_written_ahead, healthy_disk, NULL)
{
    memopt_ticket tickets[8];
    world w = open_spilling(8 * MIB, 0);
    for (int i = 0; i < 6; i++)
        tickets[i] = packed(&w, MIB, i + 1, w.s);
    OK(memopt_device_sync(w.device));
    assert_int_equal(stats_of(&w).disk_written_bytes, 0);
    for (int i = 6; i < 8; i++)
        tickets[i] = packed(&w, MIB, i + 1, w.s);
    OK(memopt_device_sync(w.device));
    assert_int_equal(stats_of(&w).disk_written_bytes, 2 * MIB);
    assert_int_equal(stats_of(&w).disk_bytes, 2 * MIB);
    assert_int_equal(stats_of(&w).disk_tickets, 0); /* they are on the host still */
    memopt_ticket more = packed(&w, MIB, 9, w.s);
    assert_int_equal(stats_of(&w).disk_tickets, 1);
    assert_int_equal(stats_of(&w).disk_waits, 0);
    assert_int_equal(w.offloader->packed[0].range == NULL, 1); /* the oldest went */
    for (int i = 0; i < 8; i++)
        assert_true(is_value(&w, tickets[i], i + 1, MIB));
    /* the host memory to read the first into was the second's */
    assert_int_equal(stats_of(&w).disk_read_bytes, 2 * MIB);
    release_all(&w, tickets, 8);
    release_all(&w, &more, 1);
    world_close(&w);
}

/* Both tiers full: the value stays on the device. */
TEST_WITH(test_disk_limit, healthy_disk, NULL)
{
    memopt_ticket tickets[8];
    world w = open_spilling(2 * MIB, 3 * MIB + 4095);
    for (int i = 0; i < 8; i++)
        tickets[i] = packed(&w, MIB, i + 1, w.s);
    OK(memopt_device_sync(w.device));
    assert_int_equal(stats_of(&w).kept_overflow, 3);
    assert_int_equal(stats_of(&w).disk_bytes_peak, 3 * MIB);
    assert_int_equal(stats_of(&w).disk_tickets, 3);
    for (int i = 0; i < 8; i++)
        assert_true(is_value(&w, tickets[i], i + 1, MIB));
    assert_null(broken_disk(w.offloader));
    OK(memopt_offloader_release(w.offloader, tickets[0], w.s)); /* on the disk: room for one more */
    OK(memopt_device_sync(w.device));
    tickets[0] = packed(&w, MIB, 1, w.s);
    assert_int_equal(stats_of(&w).kept_overflow, 3);
    release_all(&w, tickets, 8);
    world_close(&w);
}

/* A value that can never be on the host stays on the device; small ones are spilled as well. */
TEST_WITH(test_sizes, healthy_disk, NULL)
{
    enum { COUNT = 64 };
    memopt_ticket tickets[COUNT];
    world w = open_spilling(MIB, 0);
    memopt_ticket huge = packed(&w, MIB + 1, 7, w.s);
    assert_int_equal(stats_of(&w).kept_overflow, 1);
    for (int i = 0; i < COUNT; i++)
        tickets[i] = packed(&w, 40000 + (uint64_t)i, i + 1, w.s);
    assert_int_equal(stats_of(&w).kept_overflow, 1);
    assert_true(stats_of(&w).disk_tickets > 0);
    memopt_ticket large = packed(&w, MIB, 99, w.s); /* all the small ones must go */
    assert_int_equal(stats_of(&w).kept_overflow, 1);
    assert_int_equal(stats_of(&w).disk_tickets, COUNT);
    assert_null(broken_disk(w.offloader));
    for (int i = 0; i < COUNT; i++)
        assert_true(is_value(&w, tickets[i], i + 1, 40000 + (uint64_t)i));
    assert_true(is_value(&w, large, 99, MIB));
    assert_true(is_value(&w, huge, 7, MIB + 1));
    release_all(&w, tickets, COUNT);
    release_all(&w, &large, 1);
    release_all(&w, &huge, 1);
    world_close(&w);
}

/* No host memory to read into, and none to be had: unpack waits and reads in pieces; a prefetch
 * leaves the value, one into the caller's memory says so. */
TEST_WITH(test_full_host, healthy_disk, NULL)
{
    void *data = NULL;
    uint64_t bytes = 3 * MIB + 123;
    world w = open_spilling(4 * MIB, 4 * MIB);
    memopt_ticket first = packed(&w, bytes, 1, w.s);
    memopt_ticket second = packed(&w, 4 * MIB, 2, w.s); /* fills the host; the file is full too */
    assert_int_equal(stats_of(&w).disk_tickets, 1);
    OK(memopt_offloader_prefetch(w.offloader, first));
    assert_int_equal(stats_of(&w).disk_read_bytes, 0);
    void *mine = device_block(&w, bytes, w.s);
    FAILS_SAYING(MEMOPT_LIMIT_REACHED, "3.00 MiB to bring back from the disk",
                 memopt_offloader_prefetch_into(w.offloader, first, mine, bytes, w.s));
    OK(mo_offloader_unpack_into(w.offloader, first, mine, bytes, w.s));
    assert_true(holds(&w, mine, 1, bytes, w.s));
    OK(memopt_offloader_unpack(w.offloader, first, w.t, &data));
    assert_true(holds(&w, data, 1, bytes, w.t));
    assert_int_equal(stats_of(&w).disk_read_bytes, 2 * bytes);
    assert_int_equal(stats_of(&w).prefetch_hits, 0);
    assert_true(is_value(&w, second, 2, 4 * MIB));
    OK(memopt_allocator_free(w.allocator, mine));
    release_all(&w, &first, 1);
    release_all(&w, &second, 1);
    world_close(&w);
}

/* Into the caller's memory, twice, on two streams; and what is on the device already. */
TEST_WITH(test_into, healthy_disk, NULL)
{
    memopt_ticket tickets[4];
    world w = open_spilling(2 * MIB, 0);
    for (int i = 0; i < 4; i++)
        tickets[i] = packed(&w, MIB, i + 1, w.s);
    OK(memopt_device_sync(w.device)); /* one of those on the host was written ahead */
    void *a = filled_block(&w, MIB, 0, w.s), *b = filled_block(&w, MIB, 0, w.t);
    OK(memopt_offloader_prefetch_into(w.offloader, tickets[0], a, MIB, w.s));
    OK(memopt_offloader_prefetch_into(w.offloader, tickets[0], b, MIB, w.t));
    OK(memopt_offloader_wait_unpacked(w.offloader, tickets[0], w.s));
    assert_true(holds(&w, a, 1, MIB, w.s));
    OK(memopt_offloader_wait_unpacked(w.offloader, tickets[0], w.t));
    assert_true(holds(&w, b, 1, MIB, w.t));
    assert_true(is_value(&w, tickets[1], 2, MIB));
    OK(mo_offloader_unpack_into(w.offloader, tickets[1], a, MIB, w.s));
    assert_true(holds(&w, a, 2, MIB, w.s));
    OK(memopt_allocator_free(w.allocator, a));
    OK(memopt_allocator_free(w.allocator, b));
    release_all(&w, tickets, 4);
    world_close(&w);
}

/* Released with its write, or its read, still to come; ended by force. */
TEST_WITH(test_released_early, healthy_disk, NULL)
{
    FOR_SEEDS (seed, 50) {
        memopt_offloader_options options = spilling(2 * MIB, 0);
        memopt_ticket tickets[6];
        world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 64 * MIB, &options);
        for (int i = 0; i < 6; i++)
            tickets[i] = packed(&w, MIB, i + 1, w.s);
        OK(memopt_offloader_prefetch(w.offloader, tickets[0]));
        OK(memopt_offloader_release(w.offloader, tickets[0], w.s)); /* the read is to come */
        OK(memopt_offloader_release(w.offloader, tickets[5], w.s));
        OK(memopt_offloader_release(w.offloader, tickets[4], w.s));
        assert_null(broken_disk(w.offloader));
        memopt_ticket next = packed(&w, MIB, 9, w.s);
        assert_true(is_value(&w, next, 9, MIB));
        OK(memopt_offloader_prefetch(w.offloader, tickets[1]));
        OK(memopt_offloader_destroy_force(w.offloader));
        w.offloader = NULL;
        world_close(&w);
    }
}

/* Host memory that is still to be written to the file is not given back to the system. */
TEST_WITH(test_memory_of_a_pending_write, healthy_disk, NULL)
{
    FOR_SEEDS (seed, 30) {
        memopt_offloader_options options = spilling(2 * MIB, 0);
        world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 64 * MIB, &options);
        memopt_ticket first = packed(&w, MIB + MIB * 3 / 4, 1, w.s);
        assert_int_equal(stats_of(&w).disk_bytes, MIB + MIB * 3 / 4); /* written ahead, later */
        OK(memopt_offloader_release(w.offloader, first, w.s));
        if (seed % 2) {
            OK(memopt_offloader_trim_sync(w.offloader, NULL));
            assert_int_equal(stats_of(&w).host_bytes, 0);
            /* a write that is still to come would meet addresses without memory */
            OK(memopt_stream_sync(w.device, w.offloader->disk->line.stream));
        }
        memopt_ticket second = packed(&w, 2 * MIB, 2, w.s); /* needs memory of another size */
        assert_true(is_value(&w, second, 2, 2 * MIB));
        OK(memopt_offloader_release(w.offloader, second, w.s));
        world_close(&w);
    }
}

TEST_WITH(test_options, healthy_disk, NULL)
{
    memopt_offloader *none = NULL;
    world w = open_spilling(MIB, 0);
    memopt_offloader_options o = spilling(0, 0);
    REFUSED_SAYING("host_limit is 0", memopt_offloader_create(w.device, w.allocator, &o, &none));
    o = spilling(MIB, 0);
    o.disk_path = NULL;
    REFUSED_SAYING("disk_path is NULL", memopt_offloader_create(w.device, w.allocator, &o, &none));
    o = spilling(MIB, 0);
    o.overflow = MEMOPT_OVERFLOW_KEEP;
    REFUSED_SAYING("overflow is not spill",
                   memopt_offloader_create(w.device, w.allocator, &o, &none));
    o.disk_path = NULL;
    o.disk_limit = 1;
    REFUSED(memopt_offloader_create(w.device, w.allocator, &o, &none));
    o = spilling(MIB, 0);
    o.disk_path = "";
    REFUSED(memopt_offloader_create(w.device, w.allocator, &o, &none));
    o.disk_path = "/nowhere/to/be/found";
    FAILS_SAYING(MEMOPT_IO_ERROR, "No such file or directory",
                 memopt_offloader_create(w.device, w.allocator, &o, &none));
    o.disk_path = "/dev/null";
    REFUSED_SAYING("exists and is not a directory",
                   memopt_offloader_create(w.device, w.allocator, &o, &none));
    assert_null(none);
    world_close(&w);
}

/* The three ways to make the file; it never has a name afterwards, and belongs to its owner only.
 */
TEST_WITH(test_file, healthy_disk, NULL)
{
    char name[sizeof disk_folder + 8];
    snprintf(name, sizeof name, "%s/spill", disk_folder);
    for (int way = 0; way < 3; way++) {
        struct stat file;
        memopt_offloader_options options = spilling(MIB, 0);
        options.disk_path = way == 2 ? name : disk_folder;
        mo_file_calls.no_unnamed = way == 1;
        world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0, 64 * MIB, &options);
        assert_int_equal(files_left(), 0);
        assert_int_equal(fstat(w.offloader->disk->file, &file), 0);
        assert_int_equal(file.st_nlink, 0);
        assert_int_equal(file.st_mode & 0777, 0600);
        assert_true(fcntl(w.offloader->disk->file, F_GETFD) & FD_CLOEXEC);
        memopt_ticket tickets[2] = {packed(&w, MIB, 1, w.s), packed(&w, MIB, 2, w.s)};
        assert_int_equal(stats_of(&w).disk_tickets, 1);
        assert_true(is_value(&w, tickets[0], 1, MIB));
        release_all(&w, tickets, 2);
        world_close(&w);
    }
    mo_file_calls.no_unnamed = 0;
    FILE *mine = fopen(name, "w");
    assert_non_null(mine);
    fclose(mine);
    int file = -1;
    REFUSED_SAYING("a file that does not exist", mo_file_open("offload", "disk_path", name, &file));
    assert_int_equal(unlink(name), 0);
}

int main(void)
{
    return run_all_tests(make_folder, remove_folder);
}
