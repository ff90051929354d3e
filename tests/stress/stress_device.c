/*
 * Seeded stress of a device: threads that each run a right program of random operations over their
 * own streams and buffers, on one device, in both orders. A naive model says what every buffer must
 * hold; memory is mapped, moved, unmapped and released all the while.
 *
 *     stress_device [--seed N] [--seconds S]
 */
#include "device/device.h"

#include "base/memory.h"
#include "support/clock.h"
#include "support/random.h"
#include "support/sweep.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRANULE ((uint64_t)65536)

enum { THREADS = 3, STREAMS = 4, BUFFERS = 6, OPERATIONS = 400 };

static atomic_int failures;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,                     \
                    memopt_last_error());                                                          \
            atomic_fetch_add(&failures, 1);                                                        \
        }                                                                                          \
    } while (0)
#define OK(call) CHECK((call) == MEMOPT_OK)

/* A granule of device memory: what it holds, and the event after its last use. */
typedef struct buffer {
    unsigned char *address;
    mo_vm_handle handle;
    unsigned char value;
    memopt_event *last_use;
} buffer;

typedef struct worker {
    memopt_device *device;
    uint64_t random;
    memopt_stream streams[STREAMS]; /* the first is NULL */
    buffer buffers[BUFFERS];
    unsigned char *pinned;
    pthread_t thread;
} worker;

static uint64_t below(worker *w, uint64_t n)
{
    return next_random(&w->random) % n;
}

typedef struct add_args {
    unsigned char *bytes;
    uint64_t amount;
} add_args;

enum { ITEM_BYTES = 1024 };

static void add(const void *args, uint64_t begin, uint64_t end)
{
    const add_args *a = args;
    for (uint64_t i = begin * ITEM_BYTES; i < end * ITEM_BYTES; i++)
        a->bytes[i] = (unsigned char)(a->bytes[i] + a->amount);
}

static const mo_kernel add_kernel = {
    "stress_add", sizeof(add_args), 1, {add, NULL, NULL}, NULL, NULL, NULL};

static int holds(const unsigned char *bytes, unsigned char value)
{
    for (uint64_t i = 0; i < GRANULE; i++)
        if (bytes[i] != value)
            return 0;
    return 1;
}

static void map_buffer(worker *w, buffer *b)
{
    OK(mo_vm_map(w->device, b->address, GRANULE, b->handle));
    OK(mo_vm_set_access(w->device, b->address, GRANULE));
}

static void make_buffer(worker *w, buffer *b)
{
    void *address = NULL;
    OK(mo_vm_reserve(w->device, GRANULE, &address));
    OK(mo_vm_create(w->device, GRANULE, &b->handle));
    OK(memopt_event_create(w->device, 0, &b->last_use));
    b->address = address;
    b->value = 0;
    map_buffer(w, b);
    mo_note_alloc(w->device, b->address, GRANULE, w->streams[0]);
    OK(memopt_event_record(b->last_use, w->streams[0]));
}

static void end_buffer(worker *w, buffer *b)
{
    memopt_stream stream = w->streams[below(w, STREAMS)];
    OK(memopt_stream_wait_event(w->device, stream, b->last_use));
    mo_note_free(w->device, b->address, GRANULE, stream);
    OK(memopt_stream_sync(w->device, stream));
    OK(mo_vm_unmap(w->device, b->address, GRANULE));
    OK(mo_vm_release(w->device, b->handle, GRANULE));
    OK(mo_vm_unreserve(w->device, b->address, GRANULE));
    OK(memopt_event_destroy(b->last_use));
}

/* Unmaps a buffer and maps it elsewhere; what it holds moves along. */
static void move_buffer(worker *w, buffer *b)
{
    void *address = NULL;
    OK(memopt_event_sync(b->last_use));
    OK(mo_vm_unmap(w->device, b->address, GRANULE));
    OK(mo_vm_reserve(w->device, GRANULE, &address));
    OK(mo_vm_unreserve(w->device, b->address, GRANULE));
    b->address = address;
    map_buffer(w, b);
    CHECK(holds(b->address, b->value));
}

static void polled_check(worker *w, buffer *b)
{
    memopt_status status;
    while ((status = memopt_event_query(b->last_use)) == MEMOPT_NOT_READY)
        sched_yield();
    OK(status);
    CHECK(holds(b->address, b->value));
}

/* Through page-locked memory and back, as an offloader does. */
static void round_trip(worker *w, buffer *b, memopt_stream stream)
{
    OK(memopt_copy(w->device, w->pinned, b->address, GRANULE, stream));
    OK(memopt_fill(w->device, b->address, 0xEE, GRANULE, stream));
    OK(memopt_copy(w->device, b->address, w->pinned, GRANULE, stream));
    OK(memopt_event_record(b->last_use, stream));
    OK(memopt_event_sync(b->last_use)); /* the pinned block is free again */
}

static void one_operation(worker *w)
{
    memopt_stream stream = w->streams[below(w, STREAMS)];
    buffer *b = &w->buffers[below(w, BUFFERS)], *from = &w->buffers[below(w, BUFFERS)];
    OK(memopt_stream_wait_event(w->device, stream, b->last_use));
    switch (below(w, 10)) {
    case 0:
    case 1:
        b->value = (unsigned char)below(w, 256);
        OK(memopt_fill(w->device, b->address, b->value, GRANULE, stream));
        break;
    case 2:
    case 3:
        if (from == b)
            break;
        OK(memopt_stream_wait_event(w->device, stream, from->last_use));
        OK(memopt_copy(w->device, b->address, from->address, GRANULE, stream));
        b->value = from->value;
        OK(memopt_event_record(from->last_use, stream));
        break;
    case 4:
    case 5:
    case 6: {
        add_args args = {b->address, below(w, 256)};
        OK(mo_launch(w->device, stream, &add_kernel, &args, GRANULE / ITEM_BYTES));
        b->value = (unsigned char)(b->value + args.amount);
        break;
    }
    case 7:
        polled_check(w, b);
        break;
    case 8:
        if (below(w, 2) == 0) {
            round_trip(w, b, stream);
            break;
        }
        end_buffer(w, b);
        make_buffer(w, b);
        OK(memopt_stream_wait_event(w->device, stream, b->last_use));
        OK(memopt_fill(w->device, b->address, 0, GRANULE, stream)); /* new memory is undefined */
        break;
    default:
        move_buffer(w, b);
        break;
    }
    OK(memopt_event_record(b->last_use, stream));
}

static void *run_worker(void *user)
{
    worker *w = user;
    void *pinned = NULL;
    OK(memopt_host_alloc(w->device, GRANULE, &pinned));
    w->pinned = pinned;
    for (int s = 1; s < STREAMS; s++)
        OK(memopt_stream_create(w->device, &w->streams[s]));
    for (int b = 0; b < BUFFERS; b++)
        make_buffer(w, &w->buffers[b]);
    for (int i = 0; i < OPERATIONS && atomic_load(&failures) == 0; i++)
        one_operation(w);
    for (int b = 0; b < BUFFERS; b++) {
        OK(memopt_event_sync(w->buffers[b].last_use));
        CHECK(holds(w->buffers[b].address, w->buffers[b].value));
        end_buffer(w, &w->buffers[b]);
    }
    for (int s = 1; s < STREAMS; s++)
        OK(memopt_stream_destroy(w->device, w->streams[s]));
    OK(memopt_host_free(w->device, pinned));
    return NULL;
}

/* In eager order the NULL stream runs on each caller, so that it has no order between threads: each
 * thread then counts it as its own. In adversarial order it is one queue that all may use. */
static void one_round(uint32_t order, uint64_t seed)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device = NULL;
    memopt_memory_info info = {.struct_size = sizeof info};
    worker workers[THREADS];
    int64_t blocks = mo_memory_live_blocks();
    options.capacity = 64 * GRANULE;
    options.granularity = GRANULE;
    options.threads = 2;
    options.stream_order = order;
    options.seed = seed;
    OK(memopt_device_open("cpu", &options, &device));
    memset(workers, 0, sizeof workers);
    for (uint64_t t = 0; t < THREADS; t++) {
        workers[t].device = device;
        workers[t].random = (seed + 1) * 0x9E3779B97F4A7C15U + t * 0xD1B54A32D192ED03U + 1;
        CHECK(pthread_create(&workers[t].thread, NULL, run_worker, &workers[t]) == 0);
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(workers[t].thread, NULL);
    OK(memopt_device_sync(device));
    OK(memopt_device_get_memory_info(device, &info));
    CHECK(info.used == 0 && info.free == info.total && info.reserved_va == 0 && info.pinned == 0);
    OK(memopt_device_close(device));
    CHECK(mo_memory_live_blocks() == blocks);
}

int main(int argc, char **argv)
{
    uint64_t seed = first_seed(), rounds = 0;
    double seconds = 2;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0)
            seed = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0)
            seconds = strtod(argv[i + 1], NULL);
    }
    double end = seconds_now() + seconds;
    do {
        uint64_t round_seed = seed * 1000003 + rounds;
        one_round(rounds % 2 == 0 ? MEMOPT_STREAM_ORDER_EAGER : MEMOPT_STREAM_ORDER_ADVERSARIAL,
                  round_seed);
        rounds++;
        if (atomic_load(&failures) != 0) {
            fprintf(stderr, "stress_device: failed in round %llu of --seed %llu\n",
                    (unsigned long long)rounds, (unsigned long long)seed);
            return 1;
        }
    } while (seconds_now() < end);
    printf("stress_device: seed %llu, %llu rounds of %d operations on %d threads\n",
           (unsigned long long)seed, (unsigned long long)rounds, OPERATIONS, THREADS);
    return 0;
}
