/*
 * test_gpu_lost told|untold cuda|hip: what ends on a device that is lost, on the simulated driver.
 * told: a call has said that the device is lost, and all ends succeed. untold: the first end that
 * waits says so, and takes its handle with it all the same. A process each, since the driver does
 * not come back.
 */
#include "support/checks.h"
#include "support/simulated.h"

#include "base/memory.h"
#include "memopt/memopt.h"

static const char *mode, *backend;
static const driver_hooks *sim;

typedef struct world {
    memopt_device *device;
    memopt_allocator *allocator, *forced;
    memopt_offloader *offloader, *idle;
    memopt_optimizer *optimizer;
    memopt_scaler *scaler;
    memopt_stream stream, other;
    memopt_event *event;
} world;

static void *block_of(world *w, memopt_allocator *allocator, memopt_stream stream)
{
    void *block = NULL;
    OK(memopt_allocator_alloc(allocator, 3 * MIB, MEMOPT_TAG_OTHER, stream, &block));
    OK(memopt_fill(w->device, block, 1, 3 * MIB, stream));
    return block;
}

/* Something of everything, with work under way. */
static void make(world *w, const char *config)
{
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_ticket ticket;
    uint32_t number;
    memset(w, 0, sizeof *w);
    OK(memopt_device_open(backend, NULL, &w->device));
    OK(memopt_allocator_create(w->device, config, NULL, &w->allocator));
    OK(memopt_allocator_create(w->device, config, NULL, &w->forced));
    OK(memopt_stream_create(w->device, &w->stream));
    OK(memopt_stream_create(w->device, &w->other));
    OK(memopt_event_create(w->device, 0, &w->event));
    OK(memopt_scaler_create(w->device, NULL, &w->scaler));
    OK(memopt_offloader_create(w->device, w->allocator, NULL, &w->offloader));
    OK(memopt_offloader_create(w->device, w->allocator, NULL, &w->idle));
    OK(memopt_optimizer_create(w->allocator, NULL, &w->optimizer));
    OK(memopt_optimizer_add_group(w->optimizer, &group, &number));
    OK(memopt_offloader_pack(w->offloader, block_of(w, w->allocator, w->stream), 3 * MIB, w->stream,
                             &ticket));
    void *pending = block_of(w, w->allocator, w->stream);
    OK(memopt_allocator_record_stream(w->allocator, pending, w->other));
    OK(memopt_event_record(w->event, w->stream));
    OK(memopt_stream_wait_event(w->device, w->other, w->event));
    OK(memopt_fill(w->device, pending, 2, 1000, w->other));
    OK(memopt_allocator_free(w->allocator, pending));
    (void)block_of(w, w->forced, w->stream); /* live */
}

static void end_told(const char *config)
{
    world w;
    int64_t blocks = mo_memory_live_blocks();
    make(&w, config);
    void *live = block_of(&w, w.allocator, w.stream);
    OK(memopt_allocator_record_stream(w.allocator, live, w.other));
    sim->lose(719);
    memopt_error_info error = {sizeof error, 0, 0, NULL, NULL};
    assert_int_equal(memopt_stream_sync(w.device, w.stream), MEMOPT_DEVICE_LOST);
    OK(memopt_last_error_info(&error));
    assert_int_equal(error.driver_code, 719);
    assert_true(strlen(error.driver_message) > 0);
    FAILS_SAYING(MEMOPT_DEVICE_LOST, "lost before", memopt_event_record(w.event, w.stream));
    OK(memopt_allocator_free(w.allocator, live));
    OK(memopt_scaler_destroy(w.scaler));
    OK(memopt_optimizer_destroy(w.optimizer));
    OK(memopt_offloader_destroy(w.idle));
    OK(memopt_offloader_destroy_force(w.offloader));
    OK(memopt_stream_release_sync(w.device, w.other));
    OK(memopt_stream_destroy(w.device, w.stream));
    OK(memopt_allocator_destroy(w.allocator));
    OK(memopt_allocator_destroy_force(w.forced));
    OK(memopt_stream_destroy(w.device, w.other));
    OK(memopt_event_destroy(w.event));
    OK(memopt_device_close(w.device));
    assert_int_equal(mo_memory_live_blocks(), blocks);
}

static void end_untold(const char *config)
{
    world w;
    int64_t blocks = mo_memory_live_blocks();
    make(&w, config);
    OK(memopt_scaler_destroy(w.scaler));
    OK(memopt_optimizer_destroy(w.optimizer));
    OK(memopt_offloader_destroy(w.idle));
    OK(memopt_offloader_destroy_force(w.offloader));
    sim->lose(719);
    assert_int_equal(memopt_allocator_destroy(w.allocator), MEMOPT_DEVICE_LOST);
    OK(memopt_allocator_destroy_force(w.forced)); /* it has been told now */
    OK(memopt_stream_destroy(w.device, w.stream));
    OK(memopt_stream_destroy(w.device, w.other));
    OK(memopt_event_destroy(w.event));
    OK(memopt_device_close(w.device));
    assert_int_equal(mo_memory_live_blocks(), blocks);
}

TEST(test_the_end)
{
    static const char *const configs[] = {"", "expandable_segments:True"};
    for (int c = 0; c < 2; c++) {
        if (strcmp(mode, "told") == 0)
            end_told(configs[c]);
        else
            end_untold(configs[c]);
        sim->lose(0); /* the driver is there again for the next round */
    }
}

/* The codes that the vendors document as the end, and one that is an end on CUDA alone. */
TEST(test_the_codes)
{
    static const int ends[] = {4,   214, 220, 226, 700, 702, 709, 710, 714,
                               715, 716, 717, 718, 719, 721, 810, 911, 999};
    memopt_device *device = NULL;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        if (strcmp(backend, "hip") == 0 && ends[i] > 719)
            continue;
        OK(memopt_device_open(backend, NULL, &device));
        sim->lose(ends[i]);
        FAILS(MEMOPT_DEVICE_LOST, memopt_stream_sync(device, NULL));
        sim->lose(0);
        FAILS(MEMOPT_DEVICE_LOST, memopt_stream_sync(device, NULL));
        OK(memopt_device_close(device));
    }
    if (strcmp(backend, "hip") != 0)
        return;
    OK(memopt_device_open(backend, NULL, &device));
    sim->lose(999);
    FAILS(MEMOPT_DRIVER_ERROR, memopt_stream_sync(device, NULL));
    sim->lose(0);
    OK(memopt_stream_sync(device, NULL));
    OK(memopt_device_close(device));
}

int main(int count, char **words)
{
    if (count != 3)
        return 2;
    mode = words[1];
    backend = words[2];
    sim = driver_of(backend);
    return run_all_tests(NULL, NULL);
}
