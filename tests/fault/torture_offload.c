/* Every host allocation and every device operation of the offloader fails once. */
#include "offload_support.h"

enum { SMALL = 5000 };

static void setup_block(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_device(device, context);
    OK(run_create(device, context));
    f->block = filled_block(&f->w, f->bytes, VALUE, f->w.s);
    f->into = filled_block(&f->w, f->bytes, 0, f->w.t);
    OK(memopt_device_sync(device));
}

static void setup_ticket(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_block(device, context);
    OK(memopt_offloader_pack(f->w.offloader, f->block, f->bytes, f->w.s, &f->ticket));
    OK(memopt_device_sync(device));
    if (f->trim_first)
        OK(memopt_allocator_trim_sync(f->w.allocator, 0, NULL));
}

static void setup_unpacked(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_ticket(device, context);
    OK(memopt_offloader_prefetch(f->w.offloader, f->ticket));
    OK(memopt_offloader_unpack(f->w.offloader, f->ticket, f->w.t, &f->data));
}

static void setup_prefetched(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_ticket(device, context);
    OK(memopt_offloader_prefetch(f->w.offloader, f->ticket));
}

/* The block is still the caller's and has its value; there is no ticket. */
static void not_packed(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_int_equal(f->ticket, 0);
    assert_int_equal(stats_of(&f->w).tickets, 0);
    assert_int_equal(stats_of(&f->w).packs, 0);
    assert_int_equal(stats_of(&f->w).host_bytes_used, 0);
    assert_true(holds(&f->w, f->block, VALUE, f->bytes, f->w.s));
}

static void unpack_and_release(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(memopt_offloader_unpack(f->w.offloader, f->ticket, f->w.t, &f->data));
    assert_true(holds(&f->w, f->data, VALUE, f->bytes, f->w.t));
    OK(memopt_offloader_release(f->w.offloader, f->ticket, f->w.t));
    f->ticket = 0;
}

static memopt_status run_borrow(memopt_device *device, void *context)
{
    fixture *f = context;
    int32_t kept;
    return mo_offloader_pack_borrowed(f->w.offloader, f->block, f->bytes, f->w.s, &f->ticket,
                                      &kept);
}

static memopt_offloader_request request_of(const fixture *f, memopt_stream stream, void *data)
{
    memopt_offloader_request request = MEMOPT_OFFLOADER_REQUEST_INIT;
    request.offloader = f->w.offloader;
    request.stream = stream;
    request.data = data;
    request.bytes = f->bytes;
    request.ticket = f->ticket;
    return request;
}

static memopt_status run_request_pack(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_offloader_request request = request_of(f, f->w.s, f->block);
    memopt_status status = memopt_offloader_request_pack(&request);
    f->ticket = request.ticket; /* also where it failed: it is to be what it was */
    return status;
}

static memopt_status run_request_unpack(memopt_device *device, void *context)
{
    fixture *f = context;
    const memopt_offloader_request request = request_of(f, f->w.t, f->into);
    return memopt_offloader_request_unpack(&request);
}

static void unpack_and_free(memopt_device *device, void *context)
{
    fixture *f = context;
    unpack_and_release(device, context);
    OK(memopt_device_sync(device));
    OK(memopt_allocator_free(f->w.allocator, f->block));
}

static void still_there(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_int_equal(stats_of(&f->w).tickets, 1);
    assert_int_equal(stats_of(&f->w).prefetch_hits, f->data != NULL);
}

static void into_and_release(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_true(holds(&f->w, f->into, VALUE, f->bytes, f->w.t));
    unpack_and_release(device, context);
}

static void released(memopt_device *device, void *context)
{
    fixture *f = context;
    void *data = NULL;
    FAILS(MEMOPT_NOT_FOUND, memopt_offloader_unpack(f->w.offloader, f->ticket, f->w.t, &data));
}

TORTURE_CALL(run_wait, memopt_offloader_wait_packed(f->w.offloader, f->ticket, f->w.t))

static memopt_status run_query(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_status status = memopt_offloader_query_packed(f->w.offloader, f->ticket);
    return status == MEMOPT_NOT_READY ? MEMOPT_OK : status;
}

TORTURE_CALL(run_trim, memopt_offloader_trim_sync(f->w.offloader, NULL))

static void setup_cached(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_ticket(device, context);
    OK(mo_offloader_unpack_into(f->w.offloader, f->ticket, f->into, f->bytes, f->w.t));
    OK(memopt_offloader_release(f->w.offloader, f->ticket, f->w.t));
}

static void trimmed(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_int_equal(stats_of(&f->w).host_bytes, 0);
    assert_true(holds(&f->w, f->into, VALUE, f->bytes, f->w.t));
}

/* A pack that has to wait for host memory of another size. */
static void setup_full(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_block(device, context);
    void *first = filled_block(&f->w, 2 * f->bytes, 1, f->w.s);
    OK(memopt_offloader_pack(f->w.offloader, first, 2 * f->bytes, f->w.s, &f->other));
    OK(memopt_offloader_release(f->w.offloader, f->other, f->w.s));
}

static void not_packed_again(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_int_equal(f->ticket, 0);
    assert_int_equal(stats_of(&f->w).tickets, 0);
    assert_true(holds(&f->w, f->block, VALUE, f->bytes, f->w.s));
}

/* Copied, and kept on the device. */
static const fixture kinds[] = {
    {.bytes = BYTES},
    {.bytes = SMALL},
    {.bytes = BYTES, .adversarial = 1},
    {.bytes = BYTES, .trim_first = 1},
    {.bytes = SMALL, .options.min_bytes = SMALL + 1},
    {.bytes = SMALL, .options.min_bytes = SMALL + 1, .adversarial = 1},
};

static void in_all_kinds(torture_scenario scenario)
{
    int64_t struck = 0;
    scenario.open = open_device;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        fixture f = kinds[i];
        struck += torture(&scenario, &f);
    }
    assert_true(struck > 0);
}

TEST(test_create)
{
    in_all_kinds((torture_scenario){"offloader_create", NULL, setup_device, run_create, undo_create,
                                    NULL, teardown_device, 0, 0});
}

TEST(test_pack)
{
    in_all_kinds((torture_scenario){"offloader_pack", NULL, setup_block, run_pack,
                                    unpack_and_release, not_packed, teardown_offloader, 1, 1});
    in_all_kinds((torture_scenario){"offloader_pack_borrowed", NULL, setup_block, run_borrow,
                                    unpack_and_free, not_packed, teardown_offloader, 1, 1});
    in_all_kinds((torture_scenario){"offloader_request_pack", NULL, setup_block, run_request_pack,
                                    unpack_and_free, not_packed, teardown_offloader, 1, 1});
}

TEST(test_pack_that_waits)
{
    const torture_scenario scenario = {.name = "offload_pack, waiting",
                                       .open = open_device,
                                       .setup = setup_full,
                                       .run = run_pack,
                                       .undo = unpack_and_release,
                                       .check_unchanged = not_packed_again,
                                       .teardown = teardown_offloader,
                                       .absorbs = 1,
                                       .caches = 1};
    fixture f = {.bytes = BYTES,
                 .adversarial = 1,
                 .options.overflow = MEMOPT_OVERFLOW_WAIT,
                 .options.host_limit = 2 * BYTES + 4096};
    assert_true(torture(&scenario, &f) > 5);
}

TEST(test_unpack)
{
    in_all_kinds((torture_scenario){"offloader_prefetch", NULL, setup_ticket, run_prefetch,
                                    unpack_and_release, still_there, teardown_offloader, 1, 1});
    in_all_kinds((torture_scenario){"offloader_unpack", NULL, setup_ticket, run_unpack,
                                    unpack_and_release, still_there, teardown_offloader, 1, 1});
    in_all_kinds((torture_scenario){"offload_unpack, prefetched", NULL, setup_prefetched,
                                    run_unpack, unpack_and_release, still_there, teardown_offloader,
                                    0, 1});
    in_all_kinds((torture_scenario){"offloader_unpack_into", NULL, setup_ticket, run_unpack_into,
                                    into_and_release, still_there, teardown_offloader, 0, 1});
    in_all_kinds((torture_scenario){"offloader_request_unpack", NULL, setup_ticket,
                                    run_request_unpack, into_and_release, still_there,
                                    teardown_offloader, 0, 1});
}

/* --- fixed values */

static void setup_fixed(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_block(device, context);
    f->ticket = reserved(&f->w, f->bytes, 1);
}

static void setup_fixed_unpacked(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_fixed(device, context);
    OK(memopt_offloader_prefetch(f->w.offloader, f->ticket));
    OK(memopt_offloader_unpack(f->w.offloader, f->ticket, f->w.t, &f->data));
}

TORTURE_CALL(run_reserve, memopt_offloader_reserve(f->w.offloader, f->bytes, &f->ticket, &f->data))
TORTURE_CALL(run_map, memopt_offloader_map_file(f->w.offloader, "/proc/self/exe", 64, f->bytes / 64,
                                                &f->ticket))
TORTURE_CALL(run_host,
             memopt_offloader_host(f->w.offloader, f->ticket, MEMOPT_HOST_WRITE, &f->data))
TORTURE_CALL(run_rewrite, memopt_offloader_rewrite(f->w.offloader, f->ticket, f->block, f->w.s))
TORTURE_CALL(run_evict, memopt_offloader_evict(f->w.offloader, f->ticket, f->w.t))

static void end_fixed(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(memopt_offloader_release(f->w.offloader, f->ticket, f->w.t));
    OK(memopt_device_sync(device));
    OK(memopt_allocator_free(f->w.allocator, f->block));
    f->ticket = 0;
}

static void rewritten(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(mo_offloader_unpack_into(f->w.offloader, f->ticket, f->into, f->bytes, f->w.t));
    assert_true(holds(&f->w, f->into, VALUE, f->bytes, f->w.t));
    end_fixed(device, context);
}

/* Whole: the old value, or the new one. */
static void not_torn(memopt_device *device, void *context)
{
    fixture *f = context;
    void *host = NULL;
    OK(memopt_offloader_host(f->w.offloader, f->ticket, MEMOPT_HOST_READ, &host));
    assert_true(all_bytes(host, 1, f->bytes) || all_bytes(host, VALUE, f->bytes));
    OK(memopt_offloader_host_end(f->w.offloader, f->ticket));
}

static void evicted(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(mo_offloader_unpack_into(f->w.offloader, f->ticket, f->into, f->bytes, f->w.t));
    assert_true(holds(&f->w, f->into, 1, f->bytes, f->w.t));
    end_fixed(device, context);
}

static void still_hosted_by_none(memopt_device *device, void *context)
{
    fixture *f = context;
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_offloader_host_end(f->w.offloader, f->ticket));
}

TEST(test_fixed)
{
    in_all_kinds((torture_scenario){"offloader_reserve", NULL, setup_block, run_reserve, end_fixed,
                                    not_packed, teardown_offloader, 1, 1});
    in_all_kinds((torture_scenario){"offloader_map_file", NULL, setup_block, run_map, end_fixed,
                                    not_packed, teardown_offloader, 1, 1});
    in_all_kinds((torture_scenario){"offloader_rewrite", NULL, setup_fixed, run_rewrite, rewritten,
                                    not_torn, teardown_offloader, 1, 1});
    in_all_kinds((torture_scenario){"offloader_evict", NULL, setup_fixed_unpacked, run_evict,
                                    evicted, still_hosted_by_none, teardown_offloader, 1, 1});
}

static void setup_read_back(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_fixed(device, context);
    OK(memopt_offloader_rewrite(f->w.offloader, f->ticket, f->block, f->w.s));
    OK(mo_offloader_unpack_into(f->w.offloader, f->ticket, f->into, f->bytes, f->w.t));
}

TEST(test_host_access)
{
    in_all_kinds((torture_scenario){"offloader_host", NULL, setup_read_back, run_host, end_fixed,
                                    still_hosted_by_none, teardown_offloader, 0, 1});
}

TEST(test_release)
{
    in_all_kinds((torture_scenario){"offloader_release", NULL, setup_unpacked, run_release,
                                    released, NULL, teardown_offloader, 1, 1});
    in_all_kinds((torture_scenario){"offload_release, prefetched", NULL, setup_prefetched,
                                    run_release, released, NULL, teardown_offloader, 1, 1});
}

TEST(test_the_rest)
{
    in_all_kinds((torture_scenario){"offloader_wait_packed", NULL, setup_ticket, run_wait,
                                    unpack_and_release, still_there, teardown_offloader, 0, 1});
    in_all_kinds((torture_scenario){"offloader_query_packed", NULL, setup_ticket, run_query,
                                    unpack_and_release, still_there, teardown_offloader, 0, 1});
    const torture_scenario trim = {.name = "offloader_trim_sync",
                                   .open = open_device,
                                   .setup = setup_cached,
                                   .run = run_trim,
                                   .undo = trimmed,
                                   .teardown = teardown_offloader,
                                   .caches = 1};
    fixture f = {.bytes = BYTES, .adversarial = 1};
    assert_true(torture(&trim, &f) > 0);
    in_all_kinds((torture_scenario){"offloader_destroy_force", NULL, setup_unpacked, run_force,
                                    NULL, NULL, teardown_offloader, 1, 1});
}
