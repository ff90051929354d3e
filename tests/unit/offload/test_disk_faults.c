/*
 * A disk that is full, ends early, loses bytes or does not answer: the call that finds out says so,
 * every value stays where it was, and when the disk is well again so is the offloader.
 */
#include "disk_support.h"

#include "device/front/handle.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

enum { COUNT = 5 };

static void check_all(world *w, const memopt_ticket *tickets, int count)
{
    for (int i = 0; i < count; i++)
        assert_true(is_value(w, tickets[i], i + 1, MIB));
}

/* The fourth value needs room that a disk refusing `problem` does not make. */
static void write_fails(int problem, const char *words, uint32_t order, uint32_t flags)
{
    memopt_ticket tickets[COUNT], none = 0;
    memopt_offloader_options options = spilling(3 * MIB, 0);
    options.flags = flags;
    world w = open_world(order, 1, 64 * MIB, &options);
    fail_write = disk_writes + 1;
    disk_problem = problem;
    for (int i = 0; i < 3; i++)
        tickets[i] = packed(&w, MIB, i + 1, w.s);
    void *block = filled_block(&w, MIB, 4, w.s);
    OK(memopt_device_sync(w.device));
    for (int again = 0; again < 2; again++) {
        FAILS_SAYING(MEMOPT_IO_ERROR, "writing 1.00 MiB to the disk tier",
                     memopt_offloader_pack(w.offloader, block, MIB, w.s, &none));
        SAYS(words);
        SAYS("of its file system are free); the value stays where it was");
        assert_int_equal(none, 0);
        assert_null(broken_disk(w.offloader));
    }
    memopt_error_info error = {.struct_size = sizeof error};
    OK(memopt_last_error_info(&error));
    assert_int_equal(error.driver_code, problem);
    assert_true(holds(&w, block, 4, MIB, w.s)); /* still the caller's */
    assert_int_equal(stats_of(&w).disk_bytes_used, 0);
    assert_int_equal(stats_of(&w).disk_written_bytes, 0);
    check_all(&w, tickets, 3);
    fail_write = 0;
    OK(memopt_offloader_pack(w.offloader, block, MIB, w.s, &tickets[3]));
    tickets[4] = packed(&w, MIB, 5, w.s);
    assert_null(broken_disk(w.offloader));
    check_all(&w, tickets, COUNT);
    release_all(&w, tickets, COUNT);
    OK(memopt_device_sync(w.device));
    assert_int_equal(stats_of(&w).disk_bytes, 0);
    world_close(&w);
}

TEST_WITH(test_write_fails, healthy_disk, NULL)
{
    for (uint32_t order = 0; order < 2; order++)
        for (uint32_t flags = 0; flags < 2; flags++) {
            (void)healthy_disk(NULL);
            write_fails(ENOSPC, "No space left on device", order, flags);
            write_fails(EIO, "Input/output error", order, flags);
        }
}

/* Some writes fail, others do not: what failed is tried again later, and nothing is lost. */
TEST_WITH(test_some_writes_fail, healthy_disk, NULL)
{
    for (int nth = 1; nth <= 12; nth++) {
        memopt_ticket tickets[16];
        (void)healthy_disk(NULL);
        world w = open_spilling(3 * MIB, 0);
        disk_problem = EIO;
        int count = 0;
        for (int i = 0; i < 16; i++) {
            void *block = filled_block(&w, MIB, count + 1, w.s);
            fail_write = disk_writes < nth + 3 ? nth : 0; /* a few in a row */
            memopt_status status =
                memopt_offloader_pack(w.offloader, block, MIB, w.s, &tickets[count]);
            if (status == MEMOPT_OK) {
                count++;
            } else {
                FAILS(MEMOPT_IO_ERROR, status);
                OK(memopt_allocator_free(w.allocator, block));
            }
            assert_null(broken_disk(w.offloader));
        }
        fail_write = 0;
        assert_true(count >= 8);
        check_all(&w, tickets, count);
        release_all(&w, tickets, count);
        world_close(&w);
    }
}

/* Reads that fail: unpack says so and gives nothing; the value can be asked for again. */
static void read_fails(int problem, memopt_status wanted, const char *words, int prefetch)
{
    memopt_ticket tickets[COUNT];
    void *data = NULL;
    world w = open_spilling(3 * MIB, 0);
    for (int i = 0; i < COUNT; i++)
        tickets[i] = packed(&w, MIB, i + 1, w.s);
    OK(memopt_device_sync(w.device));
    uint64_t active = active_bytes(&w);
    fail_read = disk_reads + 1;
    disk_problem = problem;
    if (prefetch)
        OK(memopt_offloader_prefetch(w.offloader, tickets[0]));
    FAILS_SAYING(wanted, "reading 1.00 MiB from the disk tier",
                 memopt_offloader_unpack(w.offloader, tickets[0], w.s, &data));
    SAYS(words);
    assert_null(data);
    OK(memopt_device_sync(w.device));
    assert_int_equal(active_bytes(&w), active);
    assert_int_equal(stats_of(&w).disk_read_bytes, 0);
    void *mine = filled_block(&w, MIB, 0, w.s);
    FAILS(wanted, mo_offloader_unpack_into(w.offloader, tickets[0], mine, MIB, w.s));
    OK(memopt_offloader_prefetch_into(w.offloader, tickets[0], mine, MIB, w.s));
    FAILS(wanted, memopt_offloader_wait_unpacked(w.offloader, tickets[0], w.s));
    assert_null(broken_disk(w.offloader));
    fail_read = 0;
    OK(mo_offloader_unpack_into(w.offloader, tickets[0], mine, MIB, w.s));
    OK(memopt_offloader_wait_unpacked(w.offloader, tickets[0], w.s)); /* it was told */
    assert_true(holds(&w, mine, 1, MIB, w.s));
    check_all(&w, tickets, COUNT);
    OK(memopt_allocator_free(w.allocator, mine));
    release_all(&w, tickets, COUNT);
    world_close(&w);
}

TEST_WITH(test_read_fails, healthy_disk, NULL)
{
    for (int prefetch = 0; prefetch < 2; prefetch++) {
        (void)healthy_disk(NULL);
        read_fails(EIO, MEMOPT_IO_ERROR, "Input/output error", prefetch);
        read_fails(0, MEMOPT_IO_ERROR, "the file is too short", prefetch);
    }
}

/* A failed prefetch into one's memory is told to who waits for it, also when the ticket was read
 * again meanwhile. */
TEST_WITH(test_failure_is_not_lost, healthy_disk, NULL)
{
    memopt_ticket tickets[COUNT];
    void *data = NULL;
    world w = open_spilling(3 * MIB, 0);
    for (int i = 0; i < COUNT; i++)
        tickets[i] = packed(&w, MIB, i + 1, w.s);
    OK(memopt_device_sync(w.device));
    void *mine = filled_block(&w, MIB, 0, w.s);
    fail_read = disk_reads + 1;
    disk_problem = EIO;
    OK(memopt_offloader_prefetch_into(w.offloader, tickets[0], mine, MIB, w.s));
    FAILS(MEMOPT_IO_ERROR, memopt_offloader_unpack(w.offloader, tickets[0], w.t, &data));
    fail_read = 0;
    OK(memopt_offloader_unpack(w.offloader, tickets[0], w.t, &data));
    FAILS(MEMOPT_IO_ERROR, memopt_offloader_wait_unpacked(w.offloader, tickets[0], w.s));
    OK(memopt_allocator_free(w.allocator, mine));
    release_all(&w, tickets, COUNT);
    world_close(&w);
}

/* Behind the failed wait the memory is the stream's again: the copy of what was not read comes before. */
TEST_WITH(test_failed_copy_is_over, healthy_disk, NULL)
{
    memopt_ticket tickets[COUNT];
    memopt_offloader_options options = spilling(3 * MIB, 0);
    world w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, 1, 64 * MIB, &options);
    for (int i = 0; i < COUNT; i++)
        tickets[i] = packed(&w, MIB, i + 1, w.s);
    OK(memopt_device_sync(w.device));
    void *mine = filled_block(&w, MIB, 0, w.s);
    fail_read = disk_reads + 1;
    disk_problem = EIO;
    OK(memopt_offloader_prefetch_into(w.offloader, tickets[0], mine, MIB, w.s));
    FAILS(MEMOPT_IO_ERROR, memopt_offloader_wait_unpacked(w.offloader, tickets[0], w.s));
    OK(memopt_fill(w.device, mine, 9, MIB, w.s));
    OK(memopt_stream_sync(w.device, w.s));
    OK(memopt_device_sync(w.device));
    assert_true(holds(&w, mine, 9, MIB, w.s));
    OK(memopt_allocator_free(w.allocator, mine));
    release_all(&w, tickets, COUNT);
    world_close(&w);
}

/* The file has other bytes than were written: each place of the value is looked at. */
TEST_WITH(test_damage_is_noticed, healthy_disk, NULL)
{
    const uint64_t places[] = {0, 4095, 4096, 300000, 2 * MIB - 1, 2 * MIB + 76};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        for (int slowly = 0; slowly < 2; slowly++) {
            uint64_t bytes = 2 * MIB + 77;
            unsigned char byte = 0;
            void *data = NULL;
            world w = open_spilling(4 * MIB, 0);
            memopt_ticket first = packed(&w, bytes, 1, w.s);
            memopt_ticket second = packed(&w, slowly ? 4 * MIB : bytes, 2, w.s);
            OK(memopt_device_sync(w.device));
            int file = w.offloader->disk->file;
            off_t place = (off_t)(w.offloader->packed[0].slot->offset + places[i]);
            assert_int_equal(pread(file, &byte, 1, place), 1);
            assert_int_equal(byte, 1);
            byte ^= 0x40;
            assert_int_equal(pwrite(file, &byte, 1, place), 1);
            FAILS_SAYING(MEMOPT_CORRUPT, "the bytes are not the ones that were written",
                         memopt_offloader_unpack(w.offloader, first, w.s, &data));
            byte ^= 0x40;
            assert_int_equal(pwrite(file, &byte, 1, place), 1);
            assert_true(is_value(&w, first, 1, bytes));
            release_all(&w, &first, 1);
            release_all(&w, &second, 1);
            world_close(&w);
        }
    }
}

/* Calls that do less than they were asked for; a part that lands in a wrong place is seen. */
TEST_WITH(test_short_transfers, healthy_disk, NULL)
{
    static unsigned char pattern[MIB], copy[MIB];
    memopt_ticket tickets[COUNT];
    void *data = NULL;
    for (uint32_t i = 0; i < MIB; i++)
        pattern[i] = (unsigned char)(i * 2654435761u >> 24);
    write_at_most = 100001;
    world w = open_spilling(2 * MIB, 0);
    data = filled_block(&w, MIB, 0, w.s);
    OK(memopt_copy(w.device, data, pattern, MIB, w.s));
    OK(memopt_offloader_pack(w.offloader, data, MIB, w.s, &tickets[0]));
    for (int i = 1; i < COUNT; i++)
        tickets[i] = packed(&w, MIB, i + 1, w.s);
    assert_true(stats_of(&w).disk_written_bytes >= MIB);
    OK(memopt_offloader_unpack(w.offloader, tickets[0], w.s, &data));
    OK(memopt_copy(w.device, copy, data, MIB, w.s));
    OK(memopt_stream_sync(w.device, w.s));
    assert_memory_equal(copy, pattern, MIB);
    for (int i = 1; i < COUNT; i++)
        assert_true(is_value(&w, tickets[i], i + 1, MIB));
    assert_true(disk_writes >= 3 * 11 && disk_reads >= 3 * 11);
    release_all(&w, tickets, COUNT);
    world_close(&w);
}

/* The system's own limit: no signal ends the process, and one that others sent is not eaten. */
TEST_WITH(test_file_size_limit, healthy_disk, NULL)
{
    for (int blocked = 0; blocked < 2; blocked++) {
        struct rlimit before, small;
        memopt_ticket tickets[COUNT], none = 0;
        sigset_t set, pending;
        sigemptyset(&set);
        sigaddset(&set, SIGXFSZ);
        memopt_offloader_options options = spilling(2 * MIB, 0);
        options.flags = MEMOPT_OFFLOADER_NULL_STREAM; /* the write is on this thread */
        world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0, 64 * MIB, &options);
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
        small = before;
        small.rlim_cur = MIB + MIB / 2; /* the second write stops in its middle */
        if (blocked) {
            assert_int_equal(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
            assert_int_equal(raise(SIGXFSZ), 0);
        }
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        for (int i = 0; i < 3; i++)
            tickets[i] = packed(&w, MIB, i + 1, NULL);
        void *block = filled_block(&w, MIB, 4, NULL);
        FAILS_SAYING(MEMOPT_IO_ERROR, "File too large",
                     memopt_offloader_pack(w.offloader, block, MIB, NULL, &none));
        assert_int_equal(sigpending(&pending), 0);
        assert_int_equal(sigismember(&pending, SIGXFSZ), blocked);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        if (blocked) {
            int signal = 0;
            assert_int_equal(sigwait(&set, &signal), 0);
            assert_int_equal(pthread_sigmask(SIG_UNBLOCK, &set, NULL), 0);
        }
        OK(memopt_offloader_pack(w.offloader, block, MIB, NULL, &tickets[3]));
        for (int i = 0; i < 4; i++)
            assert_true(is_value(&w, tickets[i], i + 1, MIB));
        release_all(&w, tickets, 4);
        world_close(&w);
    }
}

/* A driver that calls no functions of the host: the asking thread does the work. */
static memopt_status no_callback(memopt_device *device, memopt_stream stream,
                                 void (*function)(void *user), void *user)
{
    return mo_fail(MEMOPT_UNSUPPORTED, "no functions of the host");
}

TEST_WITH(test_no_host_functions, healthy_disk, NULL)
{
    for (uint32_t order = 0; order < 2; order++) {
        memopt_ticket tickets[COUNT];
        memopt_offloader_options options = spilling(2 * MIB, 0);
        world w = open_world(order, 3, 64 * MIB, &options);
        const mo_device_ops *ops = w.device->ops;
        mo_device_ops without = *ops;
        without.host_callback = no_callback;
        w.device->ops = &without;
        for (int i = 0; i < COUNT; i++)
            tickets[i] = packed(&w, MIB, i + 1, w.s);
        assert_true(stats_of(&w).disk_tickets >= COUNT - 2);
        check_all(&w, tickets, COUNT);
        release_all(&w, tickets, COUNT);
        w.device->ops = ops;
        world_close(&w);
    }
}

int main(void)
{
    return run_all_tests(make_folder, remove_folder);
}
