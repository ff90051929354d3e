/*
 * Devices, streams and events: how work is put in order, and how to test that it is.
 *
 * A stream runs its work in order. Two streams know nothing of each other, so where one needs what
 * the other made, an event has to say so. Forgetting that is the commonest bug of programs that
 * overlap copies with computing: it works on the author's machine and fails on a busier one. Part 3
 * shows how the "cpu" device makes such a bug fail every time, whichever device the others run on.
 *
 * Device memory itself comes from an allocator (see allocator.c); here page-locked host memory
 * stands on both ends of the copies.
 */
#include "example.h"

enum { BUFFER_MIB = 16 };

/* 1. What the device is, and what it holds. */
static int show_device(memopt_device *device)
{
    memopt_device_properties properties = MEMOPT_DEVICE_PROPERTIES_INIT;
    memopt_memory_info info = MEMOPT_MEMORY_INFO_INIT;
    CHECK(memopt_device_get_properties(device, &properties));
    CHECK(memopt_device_get_memory_info(device, &info));
    printf("device: %s (%s, %s, %u threads)\n", properties.name, properties.backend, properties.isa,
           properties.threads);
    printf("memory: %llu MiB in all, %llu MiB free, pages of %llu KiB\n",
           (unsigned long long)(info.total / MIB), (unsigned long long)(info.free / MIB),
           (unsigned long long)(properties.granularity / 1024));
    return info.total > 0 && info.free <= info.total ? 0 : 1;
}

/* 2. Two streams and an event between them: fill on one, copy on the other. */
static int ordered_by_an_event(memopt_device *device)
{
    memopt_stream producer, consumer;
    memopt_event *filled, *copied;
    void *from, *to;
    double seconds;
    CHECK(memopt_stream_create(device, &producer));
    CHECK(memopt_stream_create(device, &consumer));
    CHECK(memopt_event_create(device, 1, &filled));
    CHECK(memopt_event_create(device, 1, &copied));
    CHECK(memopt_host_alloc(device, BUFFER_MIB * MIB, &from));
    CHECK(memopt_host_alloc(device, BUFFER_MIB * MIB, &to));

    CHECK(memopt_fill(device, from, 42, BUFFER_MIB * MIB, producer));
    CHECK(memopt_event_record(filled, producer));
    CHECK(memopt_stream_wait_event(device, consumer, filled)); /* the whole point */
    CHECK(memopt_copy(device, to, from, BUFFER_MIB * MIB, consumer));
    CHECK(memopt_event_record(copied, consumer));

    CHECK(memopt_event_sync(copied)); /* the host waits only here */
    CHECK(memopt_event_elapsed(filled, copied, &seconds));
    const unsigned char *bytes = to;
    int right = bytes[0] == 42 && bytes[BUFFER_MIB * MIB - 1] == 42;
    printf("with an event: %s; the copy of %d MiB took %.2f ms (%.1f GiB/s)\n",
           right ? "the copy saw the fill" : "WRONG", BUFFER_MIB, seconds * 1e3,
           BUFFER_MIB / 1024.0 / seconds);

    memopt_memory_info info = MEMOPT_MEMORY_INFO_INIT;
    CHECK(memopt_device_get_memory_info(device, &info));
    printf("page-locked: %llu MiB\n", (unsigned long long)(info.pinned / MIB));
    CHECK(memopt_host_free(device, from));
    CHECK(memopt_host_free(device, to));
    CHECK(memopt_event_destroy(filled));
    CHECK(memopt_event_destroy(copied));
    CHECK(memopt_stream_destroy(device, producer));
    CHECK(memopt_stream_destroy(device, consumer));
    return right && info.pinned == 2 * BUFFER_MIB * MIB ? 0 : 1;
}

/* The program of part 2 in small, with the event or, as a bug, without. */
static int copy_is_right(uint64_t seed, int with_event, int *out_right)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device;
    memopt_stream producer, consumer;
    memopt_event *filled;
    unsigned char from[64] = {0}, to[64] = {0};
    options.capacity = 2 * MIB;
    options.stream_order = MEMOPT_STREAM_ORDER_ADVERSARIAL;
    options.seed = seed;
    options.race = MEMOPT_RACE_SEARCH_OFF; /* with it on, the wait below would tell the bug */
    CHECK(memopt_device_open("cpu", &options, &device));
    CHECK(memopt_stream_create(device, &producer));
    CHECK(memopt_stream_create(device, &consumer));
    CHECK(memopt_event_create(device, 0, &filled));

    CHECK(memopt_fill(device, from, 42, sizeof from, producer));
    if (with_event) {
        CHECK(memopt_event_record(filled, producer));
        CHECK(memopt_stream_wait_event(device, consumer, filled));
    }
    CHECK(memopt_copy(device, to, from, sizeof to, consumer));
    CHECK(memopt_device_sync(device));
    *out_right = to[0] == 42;

    CHECK(memopt_event_destroy(filled));
    CHECK(memopt_stream_destroy(device, producer));
    CHECK(memopt_stream_destroy(device, consumer));
    CHECK(memopt_device_close(device));
    return 0;
}

/* 3. The adversarial order runs every operation at its latest legal moment, and what may go first
 * goes first. What is not ordered by an event comes out wrong, each time. */
static int bugs_show(void)
{
    enum { SEEDS = 50 };
    int right_with = 0, right_without = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        int right;
        if (copy_is_right(seed, 1, &right) != 0)
            return 1;
        right_with += right;
        if (copy_is_right(seed, 0, &right) != 0)
            return 1;
        right_without += right;
    }
    printf("adversarial order, %d seeds: right %d times with the event, %d times without\n", SEEDS,
           right_with, right_without);
    return right_with == SEEDS && right_without == 0 ? 0 : 1;
}

int main(int count, char **words)
{
    memopt_device *device = open_device(device_argument(count, words, "cpu"), 512 * MIB);
    int failed = show_device(device) || ordered_by_an_event(device) || bugs_show();
    CHECK(memopt_device_close(device));
    return failed;
}
