/*
 * Several threads, each with its own offloader, share one device and one allocator: random pack,
 * prefetch, unpack and release, with the contents, the host limit and the invariants of pool and
 * disk checked. Some spill to a disk, which in every other round fails now and then. Rounds take
 * turns between the eager and the adversarial order.
 *
 *     stress_offload [--seed N] [--seconds S]
 */
#include "support/clock.h"
#include "support/random.h"
#include "support/sweep.h"
#include "unit/offload/disk_support.h"

#include <inttypes.h>
#include <pthread.h>

enum { THREADS = 3, LIVE = 40, OPERATIONS = 400, LARGEST = 600 * 1024 };

typedef struct value {
    memopt_ticket ticket; /* 0: none */
    uint64_t bytes;
    int byte;
    void *borrowed; /* the caller's block; NULL where it was taken over */
    int kept;
} value;

typedef struct worker {
    world w; /* shares device and allocator */
    uint64_t limit;
    uint64_t random;
    value values[LIVE];
    uint64_t checked;
    int spills;
    uint64_t spilled, troubles;
    char failure[256];
} worker;

/* --- a disk that fails one call in `unreliable`; 0: none */

static _Atomic uint64_t unreliable, disk_calls;

static int strikes(void)
{
    uint64_t rate = unreliable, number = ++disk_calls;
    errno = number % 2 ? ENOSPC : EIO;
    return rate != 0 && (number * 0x9E3779B97F4A7C15u >> 33) % rate == 0;
}

static ssize_t unreliable_write(int file, const void *from, size_t bytes, off_t offset)
{
    return strikes() ? -1 : pwrite(file, from, bytes, offset);
}

static ssize_t unreliable_read(int file, void *to, size_t bytes, off_t offset)
{
    return strikes() ? -1 : pread(file, to, bytes, offset);
}

/* 1 where a call met the failing disk: nothing has changed. */
static int met_trouble(worker *k, memopt_status status)
{
    int met = k->spills && unreliable != 0 && status == MEMOPT_IO_ERROR;
    k->troubles += (uint64_t)met;
    return met;
}

static uint64_t next(worker *k, uint64_t below)
{
    return next_random(&k->random) % below;
}

/* cmocka's assertions belong to one thread, so workers write their failure down. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        memopt_status try_status_ = (call);                                                        \
        if (try_status_ != MEMOPT_OK) {                                                            \
            snprintf(k->failure, sizeof k->failure, "%s: %s: %.150s", #call,                       \
                     memopt_status_name(try_status_), memopt_last_error());                        \
            return 0;                                                                              \
        }                                                                                          \
    } while (0)

#define HOLD(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            snprintf(k->failure, sizeof k->failure, "line %d: %s", __LINE__, #condition);          \
            return 0;                                                                              \
        }                                                                                          \
    } while (0)

static memopt_stream any_stream(worker *k)
{
    return next(k, 3) ? k->w.s : k->w.t;
}

static int check_bytes(worker *k, const void *device, const value *v, memopt_stream stream)
{
    unsigned char *copy = malloc(v->bytes);
    HOLD(copy != NULL);
    memset(copy, 0, v->bytes);
    memopt_status status = memopt_copy(k->w.device, copy, device, v->bytes, stream);
    if (status == MEMOPT_OK)
        status = memopt_stream_sync(k->w.device, stream);
    int same = all_bytes(copy, v->byte, v->bytes);
    free(copy);
    TRY(status);
    HOLD(same);
    k->checked += v->bytes;
    return 1;
}

static int pack_one(worker *k, value *v)
{
    memopt_stream stream = any_stream(k);
    void *block = NULL;
    int32_t kept = 0;
    v->bytes = 1 + next(k, next(k, 4) ? 30000 : LARGEST);
    v->byte = (int)(1 + next(k, 255));
    memopt_status status =
        memopt_allocator_alloc(k->w.allocator, v->bytes, MEMOPT_TAG_OTHER, stream, &block);
    if (status == MEMOPT_OUT_OF_DEVICE_MEMORY)
        return 1;
    TRY(status);
    TRY(memopt_fill(k->w.device, block, v->byte, v->bytes, stream));
    v->borrowed = NULL;
    if (next(k, 3) != 0) {
        status = memopt_offloader_pack(k->w.offloader, block, v->bytes, stream, &v->ticket);
    } else {
        status =
            mo_offloader_pack_borrowed(k->w.offloader, block, v->bytes, stream, &v->ticket, &kept);
        if (status == MEMOPT_OK && kept) {
            v->borrowed = block;
        } else if (status == MEMOPT_OK) { /* overwrite it behind the copy, then free it */
            TRY(memopt_offloader_wait_packed(k->w.offloader, v->ticket, stream));
            TRY(memopt_fill(k->w.device, block, 0, v->bytes, stream));
            TRY(memopt_allocator_free(k->w.allocator, block));
        }
    }
    if (status == MEMOPT_LIMIT_REACHED || met_trouble(k, status)) {
        v->ticket = 0;
        TRY(memopt_allocator_free(k->w.allocator, block));
        return 1;
    }
    TRY(status);
    return 1;
}

static int look_at(worker *k, value *v)
{
    memopt_stream stream = any_stream(k);
    void *data = NULL;
    memopt_status status = memopt_offloader_unpack(k->w.offloader, v->ticket, stream, &data);
    if (status == MEMOPT_OUT_OF_DEVICE_MEMORY || met_trouble(k, status))
        return 1;
    TRY(status);
    return next(k, 2) ? check_bytes(k, data, v, stream) : 1;
}

static int copy_out(worker *k, value *v)
{
    memopt_stream stream = any_stream(k);
    void *mine = NULL;
    memopt_status status =
        memopt_allocator_alloc(k->w.allocator, v->bytes, MEMOPT_TAG_OTHER, stream, &mine);
    if (status == MEMOPT_OUT_OF_DEVICE_MEMORY)
        return 1;
    TRY(status);
    TRY(memopt_fill(k->w.device, mine, 0, v->bytes, stream));
    if (next(k, 2)) {
        status = mo_offloader_unpack_into(k->w.offloader, v->ticket, mine, v->bytes, stream);
    } else {
        status = memopt_offloader_prefetch_into(k->w.offloader, v->ticket, mine, v->bytes, stream);
        if (status == MEMOPT_OK)
            status = memopt_offloader_wait_unpacked(k->w.offloader, v->ticket, stream);
    }
    int without = met_trouble(k, status) || (k->spills && status == MEMOPT_LIMIT_REACHED);
    if (!without) {
        TRY(status);
        if (!check_bytes(k, mine, v, stream))
            return 0;
    }
    TRY(memopt_offloader_wait_unpacked(k->w.offloader, v->ticket, stream));
    TRY(memopt_allocator_free(k->w.allocator, mine));
    return 1;
}

static int release_one(worker *k, value *v)
{
    memopt_stream stream = any_stream(k);
    TRY(memopt_offloader_release(k->w.offloader, v->ticket, stream));
    HOLD(memopt_offloader_release(k->w.offloader, v->ticket, stream) == MEMOPT_NOT_FOUND);
    v->ticket = 0;
    if (v->borrowed != NULL) { /* both streams may have used it */
        TRY(memopt_device_sync(k->w.device));
        TRY(memopt_allocator_free(k->w.allocator, v->borrowed));
    }
    v->borrowed = NULL;
    return 1;
}

static int one_operation(worker *k)
{
    value *v = &k->values[next(k, LIVE)];
    if (v->ticket == 0)
        return pack_one(k, v);
    switch (next(k, 8)) {
    case 0:
    case 1: {
        memopt_status status = memopt_offloader_prefetch(k->w.offloader, v->ticket);
        if (status != MEMOPT_OUT_OF_DEVICE_MEMORY && !met_trouble(k, status))
            TRY(status);
        return 1;
    }
    case 2:
    case 3:
        return look_at(k, v);
    case 4:
        return copy_out(k, v);
    case 5:
        if (next(k, 20) == 0)
            TRY(memopt_offloader_trim_sync(k->w.offloader, NULL));
        return 1;
    default:
        return release_one(k, v);
    }
}

static int work(worker *k)
{
    for (int i = 0; i < OPERATIONS; i++) {
        if (!one_operation(k))
            return 0;
        const char *broken = i % 8 != 0  ? NULL
                             : k->spills ? broken_disk(k->w.offloader)
                                         : broken_pool(&k->w.offloader->pool);
        if (broken != NULL) {
            snprintf(k->failure, sizeof k->failure, "operation %d: %s", i, broken);
            return 0;
        }
    }
    for (int i = 0; i < LIVE; i++)
        if (k->values[i].ticket != 0 && !release_one(k, &k->values[i]))
            return 0;
    return 1;
}

static void *thread_main(void *argument)
{
    worker *k = argument;
    (void)work(k);
    return NULL;
}

static void open_worker(worker *k, const world *shared, uint64_t seed)
{
    memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
    memset(k, 0, sizeof *k);
    k->w = *shared;
    k->random = seed * 0x9E3779B97F4A7C15u + 1;
    k->limit = next(k, 4) ? 1 * MIB + next(k, 4 * MIB) : 0;
    options.host_limit = k->limit;
    options.overflow = (uint32_t)next(k, 3);
    if (next(k, 2)) {
        k->spills = 1;
        k->limit = 500 * KIB + next(k, 2 * MIB);
        options = spilling(k->limit, next(k, 2) ? 0 : 3 * MIB);
    }
    options.min_bytes = next(k, 2) ? 0 : 2000;
    OK(memopt_stream_create(shared->device, &k->w.s));
    OK(memopt_stream_create(shared->device, &k->w.t));
    OK(memopt_offloader_create(shared->device, shared->allocator, &options, &k->w.offloader));
}

static void close_worker(worker *k)
{
    if (k->failure[0] != '\0')
        fail_msg("%s", k->failure);
    k->spilled = stats_of(&k->w).disk_written_bytes;
    assert_true(k->limit == 0 || stats_of(&k->w).host_bytes_peak <= k->limit);
    OK(memopt_offloader_destroy(k->w.offloader));
    OK(memopt_stream_destroy(k->w.device, k->w.s));
    OK(memopt_stream_destroy(k->w.device, k->w.t));
}

static uint64_t spilled, troubles;

static uint64_t one_round(uint64_t seed)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    static worker workers[THREADS];
    pthread_t threads[THREADS];
    world shared;
    uint64_t checked = 0;
    memset(&shared, 0, sizeof shared);
    unreliable = seed / 2 % 2 ? 20 : 0;
    options.capacity = 32 * MIB;
    options.threads = 1;
    options.stream_order = (uint32_t)(seed % 2);
    options.seed = seed;
    OK(memopt_device_open("cpu", &options, &shared.device));
    OK(memopt_allocator_create(shared.device, seed % 4 < 2 ? "expandable_segments:True" : NULL,
                               NULL, &shared.allocator));
    for (int i = 0; i < THREADS; i++)
        open_worker(&workers[i], &shared, seed * THREADS + (uint64_t)i + 1);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, thread_main, &workers[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        checked += workers[i].checked;
    }
    for (int i = 0; i < THREADS; i++) {
        close_worker(&workers[i]);
        spilled += workers[i].spilled;
        troubles += workers[i].troubles;
    }
    OK(memopt_device_sync(shared.device));
    OK(memopt_allocator_destroy(shared.allocator));
    OK(memopt_device_close(shared.device));
    return checked;
}

static uint64_t chosen_seed;
static double seconds = 1;

TEST(test_stress)
{
    double begin = seconds_now();
    mo_file_calls = (mo_file_system){unreliable_write, unreliable_read, fdatasync, 0};
    uint64_t checked = 0;
    int rounds = 0;
    do {
        checked += one_round(chosen_seed * 1000 + (uint64_t)rounds);
        rounds++;
    } while (seconds_now() - begin < seconds);
    printf("%d rounds of %d threads, %" PRIu64 " MiB compared, %" PRIu64 " MiB on a disk that "
           "failed %" PRIu64 " calls\n",
           rounds, THREADS, checked >> 20, spilled >> 20, troubles);
    assert_true(checked > 0 && spilled > 0);
}

int main(int count, char **arguments)
{
    chosen_seed = first_seed();
    for (int i = 1; i + 1 < count; i += 2) {
        if (strcmp(arguments[i], "--seed") == 0)
            chosen_seed = strtoull(arguments[i + 1], NULL, 10);
        else if (strcmp(arguments[i], "--seconds") == 0)
            seconds = strtod(arguments[i + 1], NULL);
    }
    return run_all_tests(make_folder, remove_folder);
}
