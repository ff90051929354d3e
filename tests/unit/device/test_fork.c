/*
 * The child of a fork: each call with a handle of the parent's is refused at once, even if a lock
 * was held, and the parent's memory and figures stay as they were. On "cpu" (the argument names the
 * device) the child opens a device of its own.
 */
#include "support.h"

#include "offload/offload.h"

#include "allocator/allocator.h"
#include "allocator/blocks/state.h"
#include "device/front/handle.h"
#include "memopt/cast.h"
#include "memopt/checkpoint.h"
#include "memopt/offload.h"
#include "memopt/optim.h"
#include "memopt/stream.h"
#include "support/pausing.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *name = "cpu";

typedef struct handles {
    memopt_device *device;
    memopt_stream stream;
    memopt_event *event;
    memopt_allocator *allocator;
    memopt_region *region;
    memopt_offloader *offloader;
    memopt_ticket ticket, weight;
    memopt_streamer *streamer;
    memopt_optimizer *optimizer;
    memopt_scaler *scaler;
    void *block, *cached, *pinned;
    memopt_tensor tensor;
} handles;

static memopt_status lease(void *user, memopt_region *region, memopt_region_pass pass,
                           memopt_stream stream)
{
    void *pointer = NULL;
    return memopt_region_alloc(region, MIB, &pointer);
}

static void make_primitives(handles *h)
{
    memopt_region_callbacks callbacks = MEMOPT_REGION_CALLBACKS_INIT;
    memopt_region_options options = MEMOPT_REGION_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    uint32_t first = 0;
    uint64_t index = 0;
    void *value = NULL;
    callbacks.run = lease;
    options.mode = MEMOPT_REGION_KEEP;
    OK(memopt_region_create(h->device, h->allocator, &callbacks, &options, &h->region));
    OK(memopt_region_forward(h->region, h->stream));
    OK(memopt_offloader_create(h->device, h->allocator, NULL, &h->offloader));
    OK(memopt_allocator_alloc(h->allocator, MIB, MEMOPT_TAG_OTHER, h->stream, &value));
    OK(memopt_fill(h->device, value, 0, MIB, h->stream));
    OK(memopt_offloader_pack(h->offloader, value, MIB, h->stream, &h->ticket));
    OK(memopt_offloader_reserve(h->offloader, MIB, &h->weight, &value));
    OK(memopt_offloader_host_end(h->offloader, h->weight));
    OK(memopt_streamer_create(h->device, h->offloader, MIB, &h->streamer));
    OK(memopt_streamer_add(h->streamer, &(memopt_stream_part){h->weight, MIB}, 1, &first));
    OK(memopt_streamer_begin(h->streamer, 0, h->stream, &value));
    OK(memopt_streamer_end(h->streamer, 0, h->stream));
    OK(memopt_optimizer_create(h->allocator, NULL, &h->optimizer));
    OK(memopt_optimizer_add_group(h->optimizer, &group, &first));
    OK(memopt_optimizer_add_parameter(h->optimizer, first, &h->tensor, NULL, h->stream, &index));
    OK(memopt_scaler_create(h->device, NULL, &h->scaler));
}

static void make(handles *h)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memset(h, 0, sizeof *h);
    options.capacity = strcmp(name, "cpu") == 0 ? 64 * MIB : 0;
    OK(memopt_device_open(name, &options, &h->device));
    OK(memopt_stream_create(h->device, &h->stream));
    OK(memopt_event_create(h->device, 0, &h->event));
    OK(memopt_host_alloc(h->device, MIB, &h->pinned));
    OK(memopt_allocator_create(h->device, "expandable_segments:True", NULL, &h->allocator));
    OK(memopt_allocator_alloc(h->allocator, 4 * MIB, MEMOPT_TAG_OTHER, h->stream, &h->block));
    OK(memopt_allocator_alloc(h->allocator, 4 * MIB, MEMOPT_TAG_OTHER, h->stream, &h->cached));
    OK(memopt_fill(h->device, h->block, 7, 4 * MIB, h->stream));
    OK(memopt_allocator_free(h->allocator, h->cached));
    h->tensor = (memopt_tensor){h->block, MIB, MEMOPT_DTYPE_F32};
    make_primitives(h);
    OK(memopt_event_record(h->event, h->stream));
    OK(memopt_stream_sync(h->device, h->stream));
}

static void end(handles *h)
{
    OK(memopt_scaler_destroy(h->scaler));
    OK(memopt_optimizer_destroy(h->optimizer));
    OK(memopt_streamer_destroy(h->streamer));
    OK(memopt_offloader_release(h->offloader, h->weight, h->stream));
    OK(memopt_offloader_release(h->offloader, h->ticket, h->stream));
    OK(memopt_offloader_destroy(h->offloader));
    OK(memopt_region_destroy(h->region));
    OK(memopt_allocator_free(h->allocator, h->block));
    OK(memopt_host_free(h->device, h->pinned));
    OK(memopt_event_destroy(h->event));
    OK(memopt_stream_destroy(h->device, h->stream));
    OK(memopt_allocator_destroy(h->allocator));
    OK(memopt_device_close(h->device));
}

/* --- the child: no cmocka there; a missed check hangs on a lock, and the alarm ends it -------- */

#define AS_CHILD(call)                                                                             \
    do {                                                                                           \
        if ((call) != MEMOPT_UNSUPPORTED || strstr(memopt_last_error(), "fork") == NULL) {         \
            fprintf(stderr, "in the child: %s: %s\n", #call, memopt_last_error());                 \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static void try_device(handles *h)
{
    void *pointer = NULL;
    memopt_stream stream = NULL;
    memopt_event *event = NULL;
    memopt_memory_info info = MEMOPT_MEMORY_INFO_INIT;
    memopt_device_properties properties = MEMOPT_DEVICE_PROPERTIES_INIT;
    AS_CHILD(memopt_device_get_properties(h->device, &properties));
    AS_CHILD(memopt_device_get_memory_info(h->device, &info));
    AS_CHILD(memopt_device_set_threads(h->device, 1));
    AS_CHILD(memopt_device_sync(h->device));
    AS_CHILD(memopt_stream_create(h->device, &stream));
    AS_CHILD(memopt_stream_sync(h->device, h->stream));
    AS_CHILD(memopt_stream_query(h->device, h->stream));
    AS_CHILD(memopt_stream_wait_event(h->device, h->stream, h->event));
    AS_CHILD(memopt_stream_release_sync(h->device, h->stream));
    AS_CHILD(memopt_event_create(h->device, 0, &event));
    AS_CHILD(memopt_event_record(h->event, h->stream));
    AS_CHILD(memopt_event_query(h->event));
    AS_CHILD(memopt_event_sync(h->event));
    AS_CHILD(memopt_fill(h->device, h->block, 9, MIB, NULL));
    AS_CHILD(memopt_copy(h->device, h->block, h->pinned, MIB, h->stream));
    AS_CHILD(memopt_host_alloc(h->device, MIB, &pointer));
    AS_CHILD(memopt_host_register(h->device, h->block, MIB));
    AS_CHILD(memopt_host_unregister(h->device, h->block));
    AS_CHILD(memopt_host_free(h->device, h->pinned));
}

static void try_allocator(handles *h)
{
    memopt_allocator *other = NULL;
    void *pointer = NULL;
    uint64_t value = 0;
    memopt_tag tag = 0;
    memopt_tag_stats stats = MEMOPT_TAG_STATS_INIT;
    memopt_allocator_info info = MEMOPT_ALLOCATOR_INFO_INIT;
    AS_CHILD(memopt_allocator_create(h->device, NULL, NULL, &other));
    AS_CHILD(memopt_allocator_alloc(h->allocator, 4 * MIB, MEMOPT_TAG_OTHER, h->stream, &pointer));
    AS_CHILD(memopt_allocator_record_stream(h->allocator, h->block, h->stream));
    AS_CHILD(memopt_allocator_get_block(h->allocator, h->block, &pointer, &value));
    AS_CHILD(memopt_allocator_get_stats(h->allocator, 1, NULL, &value, NULL));
    AS_CHILD(memopt_allocator_get_stat(h->allocator, "num_ooms", &value));
    AS_CHILD(memopt_allocator_get_tag_stats(h->allocator, MEMOPT_TAG_OTHER, &stats));
    AS_CHILD(memopt_allocator_register_tag(h->allocator, "child", &tag));
    AS_CHILD(memopt_allocator_reset_peaks(h->allocator));
    AS_CHILD(memopt_allocator_get_info(h->allocator, &info));
    AS_CHILD(memopt_allocator_trace(h->allocator, "/nowhere", NULL));
    AS_CHILD(memopt_allocator_trace(h->allocator, NULL, NULL));
    AS_CHILD(memopt_allocator_set_limit(h->allocator, MIB));
    AS_CHILD(memopt_allocator_free(h->allocator, h->block));
    AS_CHILD(memopt_allocator_trim_sync(h->allocator, 0, &value));
    AS_CHILD(memopt_pool_create(h->allocator, NULL, &other));
    AS_CHILD(pause_pool(h->allocator, MEMOPT_PAUSE_KEEP, &value));
    AS_CHILD(memopt_pool_resume_sync(h->allocator, 0));
    if (pool_is_paused(h->allocator))
        _exit(2);
    if (mo_allocator_owns(h->allocator, h->block))
        _exit(2);
}

static memopt_status keep_nothing(void *user, const void *piece, uint64_t bytes)
{
    return MEMOPT_OK;
}

static void try_primitives(handles *h)
{
    void *pointer = NULL;
    uint64_t index = 0;
    int32_t kept = 0;
    memopt_ticket ticket = 0;
    memopt_region_stats region = MEMOPT_REGION_STATS_INIT;
    memopt_offloader_stats offloader = MEMOPT_OFFLOADER_STATS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_scaler_state state = MEMOPT_SCALER_STATE_INIT;
    memopt_stream_plan plan = MEMOPT_STREAM_PLAN_INIT;
    memopt_stream_stats streamed = MEMOPT_STREAM_STATS_INIT;
    memopt_stream_part part = {h->weight, MIB};
    AS_CHILD(memopt_region_get_stats(h->region, &region));
    AS_CHILD(memopt_region_recompute(h->region, h->stream));
    AS_CHILD(memopt_region_forward(h->region, h->stream));
    AS_CHILD(memopt_region_release(h->region));
    AS_CHILD(memopt_region_reset(h->region));
    AS_CHILD(memopt_offloader_get_stats(h->offloader, &offloader));
    AS_CHILD(memopt_offloader_pack(h->offloader, h->block, MIB, h->stream, &ticket));
    AS_CHILD(mo_offloader_pack_borrowed(h->offloader, h->block, MIB, h->stream, &ticket, &kept));
    AS_CHILD(memopt_offloader_prefetch(h->offloader, h->ticket));
    AS_CHILD(memopt_offloader_unpack(h->offloader, h->ticket, h->stream, &pointer));
    AS_CHILD(mo_offloader_unpack_into(h->offloader, h->ticket, h->block, MIB, h->stream));
    AS_CHILD(memopt_offloader_release(h->offloader, h->ticket, h->stream));
    AS_CHILD(memopt_offloader_give_way(h->offloader, MIB, &index));
    AS_CHILD(memopt_offloader_trim_sync(h->offloader, NULL));
    AS_CHILD(memopt_offloader_reserve(h->offloader, MIB, &ticket, &pointer));
    AS_CHILD(memopt_offloader_map_file(h->offloader, "/proc/self/exe", 0, 1, &ticket));
    AS_CHILD(memopt_offloader_host(h->offloader, h->weight, MEMOPT_HOST_READ, &pointer));
    AS_CHILD(memopt_offloader_host_end(h->offloader, h->weight));
    AS_CHILD(memopt_offloader_rewrite(h->offloader, h->weight, h->block, h->stream));
    AS_CHILD(memopt_offloader_evict(h->offloader, h->ticket, h->stream));
    AS_CHILD(memopt_streamer_begin(h->streamer, 0, h->stream, &pointer));
    AS_CHILD(memopt_streamer_end(h->streamer, 0, h->stream));
    AS_CHILD(memopt_streamer_write(h->streamer, 0, h->stream));
    AS_CHILD(memopt_streamer_evict(h->streamer, 0));
    AS_CHILD(memopt_streamer_expect(h->streamer, &(uint32_t){0}, 1));
    AS_CHILD(memopt_streamer_add(h->streamer, &part, 1, &(uint32_t){0}));
    AS_CHILD(memopt_streamer_get_plan(h->streamer, NULL, 0, &plan));
    AS_CHILD(memopt_streamer_get_limit(h->streamer, NULL, 0, (double[64]){0}, 1, &(double){0}));
    AS_CHILD(memopt_streamer_get_stats(h->streamer, &streamed));
    AS_CHILD(memopt_streamer_destroy(h->streamer));
    AS_CHILD(memopt_streamer_destroy_force(h->streamer));
    AS_CHILD(memopt_optimizer_add_group(h->optimizer, &group, &(uint32_t){0}));
    AS_CHILD(memopt_optimizer_get_group(h->optimizer, 0, &group));
    AS_CHILD(memopt_optimizer_add_parameter(h->optimizer, 0, &h->tensor, NULL, NULL, &index));
    AS_CHILD(memopt_optimizer_step(h->optimizer, &h->tensor, 1, NULL, h->stream));
    AS_CHILD(memopt_optimizer_get_steps_sync(h->optimizer, 0, h->stream, &index));
    AS_CHILD(memopt_optimizer_export_sync(h->optimizer, 0, NULL, NULL, &index));
    AS_CHILD(memopt_optimizer_export_sync(h->optimizer, MIB, h->stream, h->pinned, NULL));
    AS_CHILD(memopt_optimizer_import_sync(h->optimizer, h->pinned, MIB, 0, h->stream));
    AS_CHILD(memopt_optimizer_import_sync(h->optimizer, h->pinned, MIB, 1, h->stream));
    AS_CHILD(memopt_optimizer_export_pieces_sync(h->optimizer, keep_nothing, NULL, h->stream));
    AS_CHILD(memopt_scaler_update(h->scaler, h->stream));
    AS_CHILD(memopt_norm(h->device, h->pinned, &h->tensor, 1, 0, h->stream));
    AS_CHILD(memopt_scaler_unscale(h->scaler, &h->tensor, 1, h->stream));
    AS_CHILD(memopt_scaler_get_state_sync(h->scaler, h->stream, &state));
    AS_CHILD(memopt_check_finite(h->device, &h->tensor, 1, h->pinned, h->stream));
}

static void try_ends(handles *h)
{
    AS_CHILD(memopt_scaler_destroy(h->scaler));
    AS_CHILD(memopt_optimizer_destroy(h->optimizer));
    AS_CHILD(memopt_offloader_destroy_force(h->offloader));
    AS_CHILD(memopt_region_destroy(h->region));
    AS_CHILD(memopt_event_destroy(h->event));
    AS_CHILD(memopt_stream_destroy(h->device, h->stream));
    AS_CHILD(memopt_allocator_destroy(h->allocator));
    AS_CHILD(memopt_allocator_destroy_force(h->allocator));
    AS_CHILD(memopt_device_close(h->device));
}

static void open_own_device(void)
{
    memopt_device *device = NULL;
    memopt_stream stream = NULL;
    memopt_allocator *allocator = NULL;
    void *pointer = NULL;
    if (strcmp(name, "cpu") != 0) {
        AS_CHILD(memopt_device_open(name, NULL, &device));
        return;
    }
    if (memopt_device_open(name, NULL, &device) != MEMOPT_OK ||
        memopt_stream_create(device, &stream) != MEMOPT_OK ||
        memopt_allocator_create(device, "expandable_segments:True", NULL, &allocator) !=
            MEMOPT_OK ||
        memopt_allocator_alloc(allocator, MIB, MEMOPT_TAG_OTHER, stream, &pointer) != MEMOPT_OK ||
        memopt_fill(device, pointer, 3, MIB, stream) != MEMOPT_OK ||
        memopt_stream_sync(device, stream) != MEMOPT_OK || !all_bytes(pointer, 3, MIB) ||
        memopt_allocator_destroy_force(allocator) != MEMOPT_OK ||
        memopt_stream_destroy(device, stream) != MEMOPT_OK ||
        memopt_device_close(device) != MEMOPT_OK)
        _exit(3);
}

static void live_as_child(handles *h)
{
    alarm(60);
    try_device(h);
    try_allocator(h);
    try_primitives(h);
    try_ends(h);
    open_own_device();
    _exit(0);
}

TEST(test_child)
{
    handles h;
    int status = 0;
    unsigned char *bytes = malloc(4 * MIB);
    make(&h);
    pthread_mutex_lock(&h.device->lock); /* as if other threads were inside the library */
    pthread_mutex_lock(&h.device->listening);
    mo_gate_close(&h.allocator->lock);
    (void)mo_turn_take(&h.allocator->family->slow);
    pid_t child = fork();
    if (child == 0)
        live_as_child(&h);
    mo_turn_give(&h.allocator->family->slow);
    mo_gate_open(&h.allocator->lock);
    pthread_mutex_unlock(&h.device->listening);
    pthread_mutex_unlock(&h.device->lock);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_non_null(bytes);
    OK(memopt_copy(h.device, bytes, h.block, 4 * MIB, h.stream));
    OK(memopt_stream_sync(h.device, h.stream));
    assert_true(all_bytes(bytes, 7, 4 * MIB));
    free(bytes);
    end(&h);
}

int main(int count, char **arguments)
{
    name = count > 1 ? arguments[1] : name;
    return run_all_tests(NULL, NULL);
}
