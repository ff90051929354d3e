/*
 * Save-on-CPU: park activations in page-locked host memory between forward and backward.
 *
 * A chain of 24 layers produces 2 MiB of activations each, and may hold 16 MiB of the device.
 * Without help the ninth layer does not fit. With an offloader each activation is packed as soon as
 * it is written (the copy runs on the offloader's own stream while the next layer computes), and
 * prefetched one layer ahead in backward. A host limit below the whole shows the overflow policy; a
 * second step with a quarter of that limit spills to a disk what the host has no room for.
 *
 * Build it with:  cc offload.c $(pkg-config --cflags --libs memopt)
 */
#include "example.h"

#include <inttypes.h>

enum { LAYERS = 24 };

#define BYTES (2 * MIB)
#define DEVICE_LIMIT (16 * MIB)
#define HOST_LIMIT (45 * MIB)  /* less than 24 × 2 MiB: the rest stays on the device */
#define SPILL_LIMIT (10 * MIB) /* five activations: the rest goes to the disk */

/* The "layer": enqueues work that writes an activation. On a GPU, a kernel on the stream. */
static memopt_status forward_layer(memopt_device *device, void *activation, int layer,
                                   memopt_stream stream)
{
    return memopt_fill(device, activation, layer + 1, BYTES, stream);
}

/* Its backward reads the activation: here it takes one byte of each MiB to the host. */
static memopt_status backward_layer(memopt_device *device, const char *activation,
                                    unsigned char *seen, memopt_stream stream)
{
    for (uint64_t i = 0; i < BYTES / MIB; i++) {
        memopt_status status = memopt_copy(device, seen + i, activation + i * MIB, 1, stream);
        if (status != MEMOPT_OK)
            return status;
    }
    return MEMOPT_OK;
}

/* How many layers fit when every activation stays on the device. */
static int layers_without_offload(memopt_device *device, memopt_allocator *allocator,
                                  memopt_stream stream)
{
    void *activations[LAYERS];
    int layers = 0;
    while (layers < LAYERS && memopt_allocator_alloc(allocator, BYTES, MEMOPT_TAG_ACTIVATIONS,
                                                     stream, &activations[layers]) == MEMOPT_OK) {
        CHECK(forward_layer(device, activations[layers], layers, stream));
        layers++;
    }
    for (int i = 0; i < layers; i++)
        CHECK(memopt_allocator_free(allocator, activations[i]));
    return layers;
}

static void forward_pass(memopt_device *device, memopt_allocator *allocator,
                         memopt_offloader *offloader, memopt_stream stream, memopt_ticket *tickets)
{
    for (int i = 0; i < LAYERS; i++) {
        void *activation = NULL;
        CHECK(
            memopt_allocator_alloc(allocator, BYTES, MEMOPT_TAG_ACTIVATIONS, stream, &activation));
        CHECK(forward_layer(device, activation, i, stream));
        /* The offloader takes the block over: copied after the work above, then freed. */
        CHECK(memopt_offloader_pack(offloader, activation, BYTES, stream, &tickets[i]));
    }
}

static void backward_pass(memopt_device *device, memopt_offloader *offloader, memopt_stream stream,
                          const memopt_ticket *tickets, unsigned char (*seen)[BYTES / MIB])
{
    for (int i = LAYERS - 1; i >= 0; i--) {
        void *activation = NULL;
        /* Before the work that it shall overlap with: the copy of the layer below. */
        if (i > 0)
            CHECK(memopt_offloader_prefetch(offloader, tickets[i - 1]));
        CHECK(memopt_offloader_unpack(offloader, tickets[i], stream, &activation));
        CHECK(backward_layer(device, activation, seen[i], stream));
        CHECK(memopt_offloader_release(offloader, tickets[i], stream));
    }
}

static int all_right(unsigned char (*seen)[BYTES / MIB])
{
    int right = 1;
    for (int i = 0; i < LAYERS; i++)
        for (uint64_t k = 0; k < BYTES / MIB; k++) {
            right = right && seen[i][k] == i + 1;
            seen[i][k] = 0;
        }
    return right;
}

/* The same step with little host memory and a directory to spill to. The file there has no name:
 * nothing is left of it, however the program ends. */
static int step_with_disk(memopt_device *device, memopt_allocator *allocator, memopt_stream stream,
                          unsigned char (*seen)[BYTES / MIB])
{
    memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
    memopt_offloader_stats stats = MEMOPT_OFFLOADER_STATS_INIT;
    memopt_ticket tickets[LAYERS];
    memopt_offloader *offloader = NULL;
    options.host_limit = SPILL_LIMIT;
    options.overflow = MEMOPT_OVERFLOW_SPILL;
    options.disk_path = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
    options.disk_limit = LAYERS * BYTES;
    CHECK(memopt_offloader_create(device, allocator, &options, &offloader));
    forward_pass(device, allocator, offloader, stream, tickets);
    CHECK(memopt_offloader_get_stats(offloader, &stats));
    printf("  spilled: %" PRIu64 " MiB on the host (limit %d), %" PRIu64 " layers only in %s\n",
           stats.host_bytes / MIB, (int)(SPILL_LIMIT / MIB), stats.disk_tickets, options.disk_path);
    backward_pass(device, offloader, stream, tickets, seen);
    CHECK(memopt_stream_sync(device, stream));
    CHECK(memopt_offloader_get_stats(offloader, &stats));
    int right = all_right(seen);
    printf("  backward read %s values; %" PRIu64 " MiB were written to the disk, %" PRIu64
           " MiB read back, and %" PRIu64 " calls had to wait for it\n",
           right ? "the right" : "WRONG", stats.disk_written_bytes / MIB,
           stats.disk_read_bytes / MIB, stats.disk_waits);
    CHECK(memopt_offloader_destroy(offloader));
    return right && stats.kept_overflow == 0 && stats.disk_read_bytes > 0 &&
           stats.host_bytes_peak <= SPILL_LIMIT;
}

int main(int count, char **words)
{
    memopt_device *device = open_device(device_argument(count, words, "cpu"), 0);
    memopt_allocator_options limits = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
    memopt_offloader_stats stats = MEMOPT_OFFLOADER_STATS_INIT;
    memopt_memory_info info = MEMOPT_MEMORY_INFO_INIT;
    static unsigned char seen[LAYERS][BYTES / MIB];
    memopt_ticket tickets[LAYERS];
    memopt_allocator *allocator = NULL;
    memopt_offloader *offloader = NULL;
    memopt_stream stream = NULL;

    limits.limit = DEVICE_LIMIT;
    CHECK(memopt_allocator_create(device, "", &limits, &allocator));
    CHECK(memopt_stream_create(device, &stream));

    int fits = layers_without_offload(device, allocator, stream);
    printf("%d MiB of the device, activations of %d MiB a layer\n", (int)(DEVICE_LIMIT / MIB),
           (int)(BYTES / MIB));
    printf("  everything on the device: %d of %d layers fit\n    %s\n", fits, LAYERS,
           memopt_last_error());

    options.host_limit = HOST_LIMIT;
    options.overflow = MEMOPT_OVERFLOW_KEEP;
    CHECK(memopt_offloader_create(device, allocator, &options, &offloader));
    forward_pass(device, allocator, offloader, stream, tickets);
    CHECK(memopt_offloader_get_stats(offloader, &stats));
    printf("  offloaded: %d layers, %" PRIu64 " MiB on the host (limit %d), %" PRIu64
           " MiB kept on the device by the overflow policy\n",
           LAYERS, stats.host_bytes / MIB, (int)(HOST_LIMIT / MIB), stats.kept_bytes / MIB);

    backward_pass(device, offloader, stream, tickets, seen);
    CHECK(memopt_stream_sync(device, stream));
    int right = all_right(seen);
    CHECK(memopt_offloader_get_stats(offloader, &stats));
    CHECK(memopt_device_get_memory_info(device, &info));
    printf("  backward read %s values; %" PRIu64 " of %" PRIu64
           " copies back had been started by a prefetch\n",
           right ? "the right" : "WRONG", stats.prefetch_hits, stats.copied_back_bytes / BYTES);
    printf("  peaks: %" PRIu64 " MiB of the device, %" PRIu64 " MiB page-locked\n",
           info.used_peak / MIB, info.pinned_peak / MIB);

    int good = fits < LAYERS && right && stats.kept_overflow > 0 &&
               stats.host_bytes_peak <= HOST_LIMIT && info.used_peak <= DEVICE_LIMIT;
    CHECK(memopt_offloader_destroy(offloader));
    good = step_with_disk(device, allocator, stream, seen) && good;
    CHECK(memopt_stream_destroy(device, stream));
    CHECK(memopt_allocator_destroy(allocator));
    CHECK(memopt_device_close(device));
    printf("%s\n", good ? "Three times the layers in the same device memory."
                        : "FAILED: this is not what should have happened");
    return good ? 0 : 1;
}
