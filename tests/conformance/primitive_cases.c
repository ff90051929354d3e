/* The allocator, checkpoint regions and save-on-CPU on a device. */
#include "conformance.h"

#include "memopt/checkpoint.h"
#include "memopt/offload.h"
#include "memopt/stream.h"

#include <stdlib.h>
#include <string.h>

/* --- allocator ----------------------------------------------------------------------------- */

/* Blocks on two streams, written and read back while others come and go. */
static void allocator_blocks_are_separate(world *w)
{
    enum { BLOCKS = 24 };
    void *blocks[BLOCKS];
    uint64_t sizes[BLOCKS];
    unsigned char byte = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            memopt_stream stream = i % 3 == 0 ? w->other : w->stream;
            sizes[i] = 100 + (uint64_t)(i * 7919 % 13) * 50000 * (uint64_t)(round + 1);
            OK(memopt_allocator_alloc(w->allocator, sizes[i], MEMOPT_TAG_OTHER, stream,
                                      &blocks[i]));
            OK(memopt_fill(w->device, blocks[i], i + 1, sizes[i], stream));
        }
        for (int i = 0; i < BLOCKS; i++) {
            memopt_stream stream = i % 3 == 0 ? w->other : w->stream;
            OK(memopt_copy(w->device, &byte, (char *)blocks[i] + sizes[i] - 1, 1, stream));
            OK(memopt_stream_sync(w->device, stream));
            CHECK(byte == i + 1);
            OK(memopt_allocator_free(w->allocator, blocks[i]));
        }
    }
    OK(memopt_allocator_trim_sync(w->allocator, 0, NULL));
}

/* Memory that another stream still uses goes to nobody else before that. */
static void recorded_streams_protect_blocks(world *w)
{
    unsigned char *back = NULL;
    void *p = NULL, *q = NULL;
    memopt_event *written = NULL;
    OK(memopt_host_alloc(w->device, 4096, (void **)&back));
    OK(memopt_event_create(w->device, 0, &written));
    for (int i = 0; i < 10; i++) {
        OK(memopt_allocator_alloc(w->allocator, 4096, MEMOPT_TAG_OTHER, w->stream, &p));
        OK(memopt_fill(w->device, p, i, 4096, w->stream));
        OK(memopt_event_record(written, w->stream));
        OK(memopt_stream_wait_event(w->device, w->other, written));
        OK(memopt_copy(w->device, back, p, 4096, w->other));
        OK(memopt_allocator_record_stream(w->allocator, p, w->other));
        OK(memopt_allocator_free(w->allocator, p));
        OK(memopt_allocator_alloc(w->allocator, 4096, MEMOPT_TAG_OTHER, w->stream, &q));
        OK(memopt_fill(w->device, q, 0xEE, 4096, w->stream));
        OK(memopt_stream_sync(w->device, w->other));
        CHECK(back[0] == i && back[4095] == i);
        OK(memopt_allocator_free(w->allocator, q));
    }
    OK(memopt_event_destroy(written));
    OK(memopt_device_sync(w->device));
    OK(memopt_host_free(w->device, back));
}

/* --- checkpoint and offload ---------------------------------------------------------------- */

typedef struct layer {
    world *w;
    int value, spoil;
} layer;

static memopt_status run_layer(void *user, memopt_region *region, memopt_region_pass pass,
                               memopt_stream stream)
{
    layer *l = user;
    memopt_tensor kept = {NULL, 100000, MEMOPT_DTYPE_U8};
    int value = l->value + (pass == MEMOPT_PASS_RECOMPUTE ? l->spoil : 0);
    memopt_status status = memopt_region_alloc(region, kept.count, &kept.data);
    if (status == MEMOPT_OK)
        status = memopt_fill(l->w->device, kept.data, value, kept.count, stream);
    return status == MEMOPT_OK ? memopt_region_check(region, "kept", &kept) : status;
}

static void regions_recompute(world *w)
{
    static const uint32_t checks[] = {MEMOPT_CHECK_HASH, MEMOPT_CHECK_EXACT};
    for (int c = 0; c < 2; c++) {
        layer l = {w, 3, 0};
        memopt_region_callbacks callbacks = {sizeof callbacks, run_layer, NULL, NULL, &l};
        memopt_region_options options = MEMOPT_REGION_OPTIONS_INIT;
        memopt_region *region = NULL;
        options.check = checks[c];
        OK(memopt_region_create(w->device, w->allocator, &callbacks, &options, &region));
        OK(memopt_region_forward(region, w->stream));
        OK(memopt_region_recompute(region, w->stream));
        OK(memopt_region_release(region));
        OK(memopt_region_forward(region, w->stream));
        l.spoil = 1;
        FAILS(MEMOPT_MISMATCH, memopt_region_recompute(region, w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
        OK(memopt_region_destroy(region));
    }
}

static void offloaded_values_return(world *w)
{
    enum { TENSORS = 6 };
    const uint64_t bytes = 300001;
    memopt_offloader *offloader = NULL;
    memopt_ticket tickets[TENSORS];
    unsigned char *sent = malloc(bytes), *back = malloc(bytes);
    void *data = NULL;
    CHECK(sent != NULL && back != NULL);
    OK(memopt_offloader_create(w->device, w->allocator, NULL, &offloader));
    for (int i = 0; i < TENSORS; i++) {
        fill_bytes(sent, bytes, (uint64_t)i + 1);
        OK(memopt_allocator_alloc(w->allocator, bytes, MEMOPT_TAG_ACTIVATIONS, w->stream, &data));
        OK(memopt_copy(w->device, data, sent, bytes, w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
        OK(memopt_offloader_pack(offloader, data, bytes, w->stream, &tickets[i]));
    }
    for (int i = TENSORS - 1; i >= 0; i--) {
        if (i > 0)
            OK(memopt_offloader_prefetch(offloader, tickets[i - 1]));
        OK(memopt_offloader_unpack(offloader, tickets[i], w->stream, &data));
        OK(memopt_copy(w->device, back, data, bytes, w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
        fill_bytes(sent, bytes, (uint64_t)i + 1);
        CHECK(memcmp(sent, back, bytes) == 0);
        OK(memopt_offloader_release(offloader, tickets[i], w->stream));
    }
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_destroy(offloader));
    free(sent);
    free(back);
}

/* Four times what the host may hold: out to a disk by the driver's own calls of host functions. */
static void offloaded_values_return_from_a_disk(world *w)
{
    enum { COUNT = 16, ROUNDS = 3, BYTES = 200000, PAGES = 49 * 4096 };
    memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
    memopt_offloader_stats stats = {.struct_size = sizeof stats};
    memopt_ticket tickets[COUNT];
    memopt_offloader *offloader = NULL;
    unsigned char *back = host_memory(BYTES);
    void *data = NULL;
    options.host_limit = COUNT / 4 * PAGES;
    options.overflow = MEMOPT_OVERFLOW_SPILL;
    options.disk_path = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
    OK(memopt_offloader_create(w->device, w->allocator, &options, &offloader));
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++) {
            OK(memopt_allocator_alloc(w->allocator, BYTES, MEMOPT_TAG_OTHER, w->stream, &data));
            OK(memopt_fill(w->device, data, round * COUNT + i + 1, BYTES, w->stream));
            OK(memopt_offloader_pack(offloader, data, BYTES, w->stream, &tickets[i]));
        }
        for (int i = COUNT - 1; i >= 0; i--) {
            if (i > 0)
                OK(memopt_offloader_prefetch(offloader, tickets[i - 1]));
            OK(memopt_offloader_unpack(offloader, tickets[i], w->stream, &data));
            OK(memopt_copy(w->device, back, data, BYTES, w->stream));
            OK(memopt_offloader_release(offloader, tickets[i], w->stream));
            OK(memopt_stream_sync(w->device, w->stream));
            for (int k = 0; k < BYTES; k++)
                CHECK(back[k] == round * COUNT + i + 1);
        }
    }
    OK(memopt_offloader_get_stats(offloader, &stats));
    CHECK(stats.kept_overflow == 0 && stats.host_bytes_peak <= options.host_limit);
    CHECK(stats.disk_read_bytes >= (uint64_t)ROUNDS * COUNT / 2 * BYTES);
    OK(memopt_offloader_destroy(offloader));
    free(back);
}

/* Five layers through the place of two, forward and backward; each pass changes the weights. */
static void streamed_weights_come_and_go(world *w)
{
    enum { LAYERS = 5, ROUNDS = 3, BYTES = 200000, PLACE = 200192 };
    memopt_offloader *store = NULL;
    memopt_streamer *streamer = NULL;
    memopt_stream_part parts[LAYERS];
    memopt_stream_stats stats = MEMOPT_STREAM_STATS_INIT;
    unsigned char *back = host_memory(BYTES);
    void *weights = NULL;
    OK(memopt_offloader_create(w->device, w->allocator, NULL, &store));
    OK(memopt_streamer_create(w->device, store, 2 * PLACE, &streamer));
    for (uint32_t i = 0, number; i < LAYERS; i++) {
        parts[i].bytes = BYTES;
        OK(memopt_offloader_reserve(store, BYTES, &parts[i].ticket, &weights));
        memset(weights, (int)i * 10, BYTES);
        OK(memopt_offloader_host_end(store, parts[i].ticket));
        OK(memopt_streamer_add(streamer, &parts[i], 1, &number));
    }
    for (uint32_t i = 0; i < ROUNDS * 2 * LAYERS; i++) {
        uint32_t pass = i / LAYERS, n = pass % 2 == 0 ? i % LAYERS : LAYERS - 1 - i % LAYERS;
        OK(memopt_streamer_begin(streamer, n, w->stream, &weights));
        OK(memopt_copy(w->device, back, weights, BYTES, w->stream));
        OK(memopt_fill(w->device, weights, (uint8_t)(n * 10 + pass + 1), BYTES, w->stream));
        OK(memopt_streamer_write(streamer, n, w->stream));
        OK(memopt_streamer_end(streamer, n, w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
        for (int k = 0; k < BYTES; k++)
            CHECK(back[k] == n * 10 + pass);
    }
    OK(memopt_streamer_get_stats(streamer, &stats));
    CHECK(stats.resident_bytes_peak == 2 * PLACE && stats.copies <= 7 + 2 * 6 + 2);
    OK(memopt_streamer_destroy(streamer));
    for (uint32_t i = 0; i < LAYERS; i++)
        OK(memopt_offloader_release(store, parts[i].ticket, w->stream));
    OK(memopt_offloader_destroy(store));
    free(back);
}

const conformance_case primitive_cases[] = {
    {"allocator", allocator_blocks_are_separate, 0, 0, 0},
    {"record_stream", recorded_streams_protect_blocks, 0, 0, 0},
    {"checkpoint", regions_recompute, 0, 0, 0},
    {"offload", offloaded_values_return, 0, 0, 0},
    {"offload_disk", offloaded_values_return_from_a_disk, 0, 0, 0},
    {"streamer", streamed_weights_come_and_go, 0, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
