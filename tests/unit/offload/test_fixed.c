/* Values that stay where they are: reserved host memory, and parts of files. */
#include "disk_support.h"
#include "support/sweep.h"

#include <fcntl.h>

enum { A = 0x11, B = 0x22, C = 0x33, BYTES = 200000 };

/* 1 if the value, copied to memory of the caller's, has this byte everywhere. */
static int reads_as(world *w, memopt_ticket ticket, int value, uint64_t bytes)
{
    void *into = filled_block(w, bytes, 0, w->t);
    OK(mo_offloader_unpack_into(w->offloader, ticket, into, bytes, w->t));
    int same = holds(w, into, value, bytes, w->t);
    OK(memopt_allocator_free(w->allocator, into));
    return same;
}

TEST(test_reserved_values_come_again_and_again)
{
    FOR_SEEDS (seed, 40) {
        world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 16 * MIB, NULL);
        memopt_ticket ticket = reserved(&w, BYTES, A);
        for (int round = 0; round < 3; round++) {
            void *data = NULL, *again = NULL;
            if (round == 1)
                OK(memopt_offloader_prefetch(w.offloader, ticket));
            OK(memopt_offloader_unpack(w.offloader, ticket, w.s, &data));
            OK(memopt_offloader_unpack(w.offloader, ticket, w.t, &again));
            assert_ptr_equal(data, again);
            assert_true(holds(&w, data, A, BYTES, w.s));
            OK(memopt_offloader_evict(w.offloader, ticket, w.s));
            OK(memopt_offloader_evict(w.offloader, ticket, w.s));
            assert_int_equal(active_bytes(&w), 0);
            assert_true(reads_as(&w, ticket, A, BYTES));
        }
        assert_int_equal(stats_of(&w).copied_back_bytes, 6 * BYTES);
        assert_int_equal(stats_of(&w).host_bytes_used, BYTES);
        OK(memopt_offloader_release(w.offloader, ticket, w.s));
        assert_null(broken_pool(&w.offloader->pool));
        world_close(&w);
    }
}

/* Trained weights: no second host memory, and each copy has the value of its moment. */
TEST(test_rewrite_in_place)
{
    FOR_SEEDS (seed, 100) {
        memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
        options.host_limit = 49 * 4096; /* exactly one value */
        world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 16 * MIB, &options);
        memopt_ticket ticket = reserved(&w, BYTES, A);
        void *old = filled_block(&w, BYTES, 0, w.s), *host = NULL, *data = NULL;
        OK(memopt_offloader_prefetch_into(w.offloader, ticket, old, BYTES, w.s));
        void *trained = filled_block(&w, BYTES, B, w.t);
        OK(memopt_offloader_rewrite(w.offloader, ticket, trained, w.t));
        OK(memopt_offloader_wait_packed(w.offloader, ticket, w.t));
        OK(memopt_fill(w.device, trained, C, BYTES, w.t));
        OK(memopt_offloader_unpack(w.offloader, ticket, w.s, &data));
        assert_true(holds(&w, data, B, BYTES, w.s));
        OK(memopt_offloader_wait_unpacked(w.offloader, ticket, w.s));
        assert_true(holds(&w, old, A, BYTES, w.s));

        /* Its own device memory, changed there; evicted while the copy is under way. */
        OK(memopt_fill(w.device, data, C, BYTES, w.s));
        OK(memopt_offloader_rewrite(w.offloader, ticket, data, w.s));
        OK(memopt_offloader_evict(w.offloader, ticket, w.s));
        void *next = filled_block(&w, BYTES, A, w.s);
        OK(memopt_stream_sync(w.device, w.s));
        OK(memopt_offloader_host(w.offloader, ticket, MEMOPT_HOST_READ, &host));
        assert_true(all_bytes(host, C, BYTES));
        OK(memopt_offloader_host_end(w.offloader, ticket));
        assert_int_equal(stats_of(&w).host_bytes_peak, options.host_limit);
        assert_int_equal(stats_of(&w).copied_out_bytes, 2 * BYTES);
        OK(memopt_allocator_free(w.allocator, next));
        OK(memopt_offloader_release(w.offloader, ticket, w.s));
        world_close(&w);
    }
}

/* A write of the host waits for the copies that read; later copies have what it wrote. */
TEST(test_host_write_in_order)
{
    FOR_SEEDS (seed, 100) {
        world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, 16 * MIB, NULL);
        memopt_ticket ticket = reserved(&w, BYTES, A);
        void *old = filled_block(&w, BYTES, 0, w.s), *host = NULL;
        OK(memopt_offloader_prefetch_into(w.offloader, ticket, old, BYTES, w.s));
        OK(memopt_offloader_host(w.offloader, ticket, MEMOPT_HOST_WRITE, &host));
        memset(host, B, BYTES);
        OK(memopt_offloader_host_end(w.offloader, ticket));
        assert_true(reads_as(&w, ticket, B, BYTES));
        OK(memopt_offloader_wait_unpacked(w.offloader, ticket, w.s));
        assert_true(holds(&w, old, A, BYTES, w.s));

        /* A read of it waits for the rewrite. */
        void *trained = filled_block(&w, BYTES, C, w.t);
        OK(memopt_offloader_rewrite(w.offloader, ticket, trained, w.t));
        OK(memopt_offloader_host(w.offloader, ticket, MEMOPT_HOST_READ, &host));
        assert_true(all_bytes(host, C, BYTES));
        assert_true(reads_as(&w, ticket, C, BYTES)); /* copies run while the host reads */
        OK(memopt_offloader_release(w.offloader, ticket, w.s));

        /* Reserved again: the memory is the host's at once. */
        ticket = reserved(&w, BYTES, A);
        assert_true(reads_as(&w, ticket, A, BYTES));
        OK(memopt_offloader_release(w.offloader, ticket, w.s));
        world_close(&w);
    }
}

TEST(test_what_is_refused)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0, 16 * MIB, NULL);
    memopt_ticket ticket = 0, other = packed(&w, BYTES, A, w.s);
    void *host = NULL, *data = NULL, *block = filled_block(&w, BYTES, B, w.s);
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_offloader_reserve(w.offloader, 0, &ticket, &host));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_offloader_reserve(w.offloader, 1, &ticket, NULL));
    FAILS(MEMOPT_UNSUPPORTED, memopt_offloader_host(w.offloader, other, MEMOPT_HOST_READ, &host));
    FAILS(MEMOPT_UNSUPPORTED, memopt_offloader_rewrite(w.offloader, other, block, w.s));
    OK(memopt_offloader_reserve(w.offloader, BYTES, &ticket, &host));
    memset(host, C, BYTES);
    FAILS(MEMOPT_BUSY, memopt_offloader_unpack(w.offloader, ticket, w.s, &data));
    FAILS(MEMOPT_BUSY, memopt_offloader_prefetch(w.offloader, ticket));
    FAILS(MEMOPT_BUSY, memopt_offloader_prefetch_into(w.offloader, ticket, block, BYTES, w.s));
    FAILS(MEMOPT_BUSY, memopt_offloader_rewrite(w.offloader, ticket, block, w.s));
    FAILS(MEMOPT_BUSY, memopt_offloader_host(w.offloader, ticket, MEMOPT_HOST_READ, &host));
    OK(memopt_offloader_host_end(w.offloader, ticket));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_offloader_host_end(w.offloader, ticket));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_offloader_host(w.offloader, ticket, 3, &host));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_offloader_rewrite(w.offloader, ticket, NULL, w.s));
    OK(memopt_offloader_unpack(w.offloader, ticket, w.s, &data));
    assert_true(holds(&w, data, C, BYTES, w.s));
    FAILS(MEMOPT_BUSY, memopt_offloader_host(w.offloader, ticket, MEMOPT_HOST_WRITE, &host));
    FAILS(MEMOPT_BUSY, memopt_offloader_rewrite(w.offloader, ticket, block, w.s));
    OK(memopt_offloader_release(w.offloader, ticket, w.s));
    FAILS(MEMOPT_NOT_FOUND, memopt_offloader_evict(w.offloader, ticket, w.s));
    OK(memopt_offloader_release(w.offloader, other, w.s));

    w.offloader->options.min_bytes = BYTES + 1;
    OK(memopt_offloader_pack(w.offloader, block, BYTES, w.s, &other)); /* kept on the device */
    FAILS(MEMOPT_UNSUPPORTED, memopt_offloader_evict(w.offloader, other, w.s));
    OK(memopt_offloader_release(w.offloader, other, w.s));
    world_close(&w);
}

/* The limit holds for reserved values to the byte, under every policy. */
TEST(test_reserve_at_the_limit)
{
    for (uint32_t policy = MEMOPT_OVERFLOW_KEEP; policy <= MEMOPT_OVERFLOW_SPILL; policy++) {
        memopt_offloader_options options = spilling(512 * KIB, 0);
        options.overflow = policy;
        options.disk_path = policy == MEMOPT_OVERFLOW_SPILL ? disk_folder : NULL;
        world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0, 16 * MIB, &options);
        memopt_ticket first = reserved(&w, 256 * KIB, A), second = reserved(&w, 256 * KIB, B);
        memopt_ticket third = 0;
        void *host = NULL;
        FAILS(MEMOPT_LIMIT_REACHED,
              memopt_offloader_reserve(w.offloader, 128 * KIB, &third, &host));
        assert_int_equal(stats_of(&w).tickets, 2);
        OK(memopt_offloader_release(w.offloader, first, w.s));
        third = reserved(&w, 128 * KIB, C); /* the cached 256 KiB go back for it */
        assert_true(reads_as(&w, third, C, 128 * KIB) && reads_as(&w, second, B, 256 * KIB));
        assert_int_equal(stats_of(&w).host_bytes_peak, 512 * KIB);
        OK(memopt_offloader_release(w.offloader, second, w.s));
        OK(memopt_offloader_release(w.offloader, third, w.s));
        world_close(&w);
    }
}

/* Values that are read in a cycle stay; what moves to the disk are others. */
TEST(test_spilling_leaves_fixed_values)
{
    world w = open_spilling(1024 * KIB, 0);
    memopt_ticket fixed[2] = {reserved(&w, 256 * KIB, A), reserved(&w, 256 * KIB, B)};
    memopt_ticket others[8];
    for (int i = 0; i < 8; i++) {
        others[i] = packed(&w, 256 * KIB, i + 1, w.s);
        assert_null(broken_disk(w.offloader));
    }
    assert_true(stats_of(&w).disk_tickets >= 6);
    uint64_t read = stats_of(&w).disk_read_bytes;
    assert_true(reads_as(&w, fixed[0], A, 256 * KIB) && reads_as(&w, fixed[1], B, 256 * KIB));
    assert_int_equal(stats_of(&w).disk_read_bytes, read);
    for (int i = 0; i < 8; i++)
        assert_true(is_value(&w, others[i], i + 1, 256 * KIB));
    release_all(&w, others, 8);
    release_all(&w, fixed, 2);
    assert_int_equal(w.offloader->fixed_bytes, 0);
    world_close(&w);
}

/* --- files */

static char file_path[64];

/* A file of three values behind 100 other bytes. */
static void make_file(void)
{
    snprintf(file_path, sizeof file_path, "%s/weights", disk_folder);
    int file = open(file_path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(file >= 0);
    unsigned char *bytes = malloc(BYTES);
    assert_non_null(bytes);
    assert_int_equal(pwrite(file, bytes, 0, 0), 0);
    for (int i = 0; i < 3; i++) {
        memset(bytes, i == 0 ? A : i == 1 ? B : C, BYTES);
        assert_int_equal(pwrite(file, bytes, BYTES, 100 + (off_t)i * BYTES), BYTES);
    }
    free(bytes);
    close(file);
}

static memopt_ticket mapped(world *w, int part)
{
    memopt_ticket ticket = 0;
    OK(memopt_offloader_map_file(w->offloader, file_path, 100 + (uint64_t)part * BYTES, BYTES,
                                 &ticket));
    return ticket;
}

TEST_WITH(test_file_is_the_store, healthy_disk, NULL)
{
    make_file();
    for (uint64_t limit = 0; limit <= 256 * KIB; limit += 64 * KIB) { /* below 196 KiB: in pieces */
        memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
        options.host_limit = limit;
        world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, limit, 16 * MIB, &options);
        memopt_ticket first = mapped(&w, 0), last = mapped(&w, 2);
        assert_int_equal(stats_of(&w).disk_tickets, 2);
        assert_int_equal(stats_of(&w).disk_bytes, 0);
        for (int round = 0; round < 3; round++) {
            void *data = NULL;
            OK(memopt_offloader_prefetch(w.offloader, last));
            assert_true(reads_as(&w, first, A, BYTES));
            OK(memopt_offloader_unpack(w.offloader, last, w.s, &data));
            assert_true(holds(&w, data, C, BYTES, w.s));
            OK(memopt_offloader_evict(w.offloader, last, w.s));
        }
        assert_int_equal(w.offloader->disk->mapped->uses, 2);
        assert_null(w.offloader->disk->mapped->next);
        OK(memopt_offloader_prefetch(w.offloader, last)); /* a read is under way */
        OK(memopt_offloader_evict(w.offloader, last, w.s));
        OK(memopt_offloader_release(w.offloader, last, w.s));
        OK(memopt_offloader_release(w.offloader, first, w.s));
        assert_int_equal(stats_of(&w).disk_tickets, 0);
        world_close(&w);
    }
    assert_int_equal(unlink(file_path), 0);
}

/* A file that is shorter, gone, or another one is a status; SIGBUS would end this program. */
TEST_WITH(test_file_that_changes, healthy_disk, NULL)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0, 16 * MIB, NULL);
    memopt_ticket ticket = 0;
    void *data = NULL;
    make_file();
    FAILS(MEMOPT_INVALID_ARGUMENT,
          memopt_offloader_map_file(w.offloader, file_path, 101, 3 * BYTES, &ticket));
    FAILS(MEMOPT_INVALID_ARGUMENT,
          memopt_offloader_map_file(w.offloader, file_path, UINT64_MAX, 2, &ticket));
    FAILS(MEMOPT_INVALID_ARGUMENT,
          memopt_offloader_map_file(w.offloader, disk_folder, 0, 1, &ticket));
    FAILS(MEMOPT_INVALID_ARGUMENT,
          memopt_offloader_map_file(w.offloader, file_path, 0, 0, &ticket));
    FAILS(MEMOPT_IO_ERROR, memopt_offloader_map_file(w.offloader, "/nowhere/at", 0, 1, &ticket));
    memopt_ticket first = mapped(&w, 0), last = mapped(&w, 2);
    FAILS(MEMOPT_UNSUPPORTED, memopt_offloader_rewrite(w.offloader, first, &w, w.s));
    FAILS(MEMOPT_UNSUPPORTED, memopt_offloader_host(w.offloader, first, MEMOPT_HOST_READ, &data));
    assert_true(reads_as(&w, first, A, BYTES) && reads_as(&w, last, C, BYTES));

    assert_int_equal(truncate(file_path, 2 * BYTES), 0);
    FAILS(MEMOPT_IO_ERROR, memopt_offloader_unpack(w.offloader, last, w.s, &data));
    int file = open(file_path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(file, "x", 1, 5000), 1);
    close(file);
    FAILS(MEMOPT_CORRUPT, memopt_offloader_unpack(w.offloader, first, w.s, &data));

    make_file(); /* its bytes are back */
    assert_int_equal(unlink(file_path), 0);
    assert_true(reads_as(&w, first, A, BYTES) && reads_as(&w, last, C, BYTES));
    make_file(); /* another file of that name */
    memopt_ticket other = mapped(&w, 1);
    assert_true(reads_as(&w, other, B, BYTES));
    assert_int_equal(unlink(file_path), 0);
    OK(memopt_offloader_destroy_force(w.offloader));
    w.offloader = NULL;
    world_close(&w);
}

int main(void)
{
    return run_all_tests(make_folder, remove_folder);
}
