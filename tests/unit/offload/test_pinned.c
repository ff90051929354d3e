/*
 * Page-locked memory is a budget of its own: whatever its size, and wherever a driver refuses more, values
 * are the same bits, limits hold, and one warning tells of it. Where the driver says in a pack that the device
 * is lost, the pack says so.
 */
#include "support.h"
#include "support/simulated.h"

enum { PAGE = 4096, VALUES = 4, FROM_HERE = 7 };

static const uint64_t sizes[VALUES] = {140000, 5000, 131072, 200};
static const char *name = "cpu";
static int warnings;

static void hear(void *user, memopt_log_level level, const char *message)
{
    (void)user;
    warnings += level == MEMOPT_LOG_WARNING && strstr(message, "page-lock") != NULL;
}

static world open_on(const memopt_offloader_options *options)
{
    memopt_device *opened = NULL;
    memopt_device_options device = MEMOPT_DEVICE_OPTIONS_INIT;
    if (strcmp(name, "cpu") == 0)
        device.capacity = 64 * MIB;
    OK(memopt_device_open(name, &device, &opened));
    return world_on(opened, options);
}

/* 1: the driver refuses, which is worth a warning. */
static int refuses(void)
{
    return strcmp(name, "cpu") != 0;
}

/* The limit is the driver's where there is one to refuse, else the option's. */
static void limit_pins(memopt_offloader_options *options, uint64_t bytes)
{
    if (refuses())
        driver_of(name)->pin_limit(bytes);
    else
        options->pinned_limit = bytes;
}

static void pack_and_unpack(world *w)
{
    memopt_ticket tickets[VALUES];
    for (int i = 0; i < VALUES; i++)
        tickets[i] = packed(w, sizes[i], FROM_HERE + i, w->s);
    OK(memopt_offloader_prefetch(w->offloader, tickets[VALUES - 2]));
    for (int i = VALUES; i-- > 0;) {
        void *data = NULL;
        OK(memopt_offloader_unpack(w->offloader, tickets[i], w->t, &data));
        assert_true(holds(w, data, FROM_HERE + i, sizes[i], w->t));
        OK(memopt_offloader_release(w->offloader, tickets[i], w->t));
    }
}

/* Two rounds within a limit of page-locked bytes; whether it was reached. */
static int rounds(uint32_t overflow, uint64_t host_limit, uint64_t pins)
{
    memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
    options.host_limit = host_limit;
    options.overflow = overflow;
    options.disk_path = overflow == MEMOPT_OVERFLOW_SPILL ? "/tmp" : NULL;
    limit_pins(&options, pins == 0 ? 1 : pins); /* 0 is no limit */
    world w = open_on(&options);
    warnings = 0;
    pack_and_unpack(&w);
    pack_and_unpack(&w);
    memopt_offloader_stats stats = stats_of(&w);
    assert_true(info_of(w.device).pinned_peak <= pins);
    assert_true(stats.host_bytes_peak <= (host_limit != 0 ? host_limit : UINT64_MAX));
    assert_int_equal(stats.kept_overflow, 0);
    assert_null(broken_pool(&w.offloader->pool));
    int reached = stats.pageable_bytes != 0;
    assert_true(warnings >= (reached && refuses()) && warnings <= refuses());
    OK(memopt_offloader_trim_sync(w.offloader, NULL));
    assert_int_equal(stats_of(&w).pageable_bytes, 0);
    world_close(&w);
    return reached;
}

TEST(whatever_the_limit_values_are_the_same_bits)
{
    const uint64_t all = (35 + 2 + 32) * PAGE, most = 40 * PAGE;
    for (uint64_t pins = 0; pins <= all; pins += PAGE) {
        assert_int_equal(rounds(MEMOPT_OVERFLOW_FAIL, all, pins), pins < all);
        (void)rounds(MEMOPT_OVERFLOW_KEEP, 0, pins);
        if (pins % (4 * PAGE) == 0)
            assert_true(rounds(MEMOPT_OVERFLOW_SPILL, most, pins) || pins > 30 * PAGE);
    }
}

/* What the system refuses once is asked for again after a trim. */
TEST(a_trim_forgets_what_was_refused)
{
    memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
    if (!refuses())
        return;
    limit_pins(&options, 0);
    world w = open_on(&options);
    pack_and_unpack(&w);
    assert_int_equal(info_of(w.device).pinned, 0);
    limit_pins(&options, UINT64_MAX);
    pack_and_unpack(&w);
    assert_int_equal(info_of(w.device).pinned, 0);
    OK(memopt_offloader_trim_sync(w.offloader, NULL));
    pack_and_unpack(&w);
    assert_true(info_of(w.device).pinned > 0);
    assert_int_equal(stats_of(&w).pageable_bytes, 0);
    world_close(&w);
}

/* Whichever of its events meets that: the block is still the caller's. */
TEST(a_pack_tells_of_a_lost_device)
{
    enum { LOST = 719, EVENTS = 3 }; /* of the value, of the block, of the copy */
    const char *record = strncmp(name, "hip", 3) == 0 ? "hipEventRecord" : "cuEventRecord";
    int struck = refuses();
    limit_pins(&(memopt_offloader_options){0}, UINT64_MAX);
    for (int n = 1; struck; n++) {
        memopt_ticket ticket = 0;
        world w = open_on(NULL);
        void *block = filled_block(&w, sizes[0], 1, w.s);
        OK(memopt_device_sync(w.device));
        driver_of(name)->fail_at(record, n, LOST);
        memopt_status status = memopt_offloader_pack(w.offloader, block, sizes[0], w.s, &ticket);
        struck = driver_of(name)->pending() == 0;
        driver_of(name)->fail_at(record, 0, LOST);
        assert_int_equal(status, struck ? MEMOPT_DEVICE_LOST : MEMOPT_OK);
        OK(struck ? memopt_allocator_free(w.allocator, block)
                  : memopt_offloader_release(w.offloader, ticket, w.s));
        assert_int_equal(stats_of(&w).host_bytes_used, 0);
        OK(memopt_offloader_destroy(w.offloader));
        OK(memopt_allocator_destroy(w.allocator));
        OK(memopt_stream_destroy(w.device, w.s));
        OK(memopt_stream_destroy(w.device, w.t));
        OK(memopt_device_close(w.device));
        assert_true(struck || n == EVENTS + 1);
    }
}

int main(int argc, char **argv)
{
    name = argc > 1 ? argv[1] : name;
    (void)memopt_set_log(hear, NULL, MEMOPT_LOG_WARNING);
    return run_all_tests(NULL, NULL);
}
