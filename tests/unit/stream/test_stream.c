/* Weights that stream: values, budget, order and refusals. It also runs under the race finder (unit/race). */
#include "support.h"
#include "support/sweep.h"
#include "unit/offload/disk_support.h"

#include <fcntl.h>
#include <math.h>

enum { PART = 40000, LAYER = 2 * 40192 };

/* A use whose reads are not waited for: copies of the parts, looked at later. */
typedef struct result {
    void *copies[MOST_PARTS];
    uint32_t layer;
    int value;
} result;

static void use(streaming *s, uint32_t layer, memopt_stream stream, result *out)
{
    void *parts[MOST_PARTS];
    OK(memopt_streamer_begin(s->streamer, layer, stream, parts));
    *out = (result){.layer = layer, .value = s->layers[layer].value};
    for (uint32_t i = 0; i < s->layers[layer].count; i++) {
        uint64_t bytes = s->layers[layer].parts[i].bytes;
        assert_int_equal((uintptr_t)parts[i] % 256, 0);
        out->copies[i] = device_block(&s->w, bytes, stream);
        OK(memopt_copy(s->w.device, out->copies[i], parts[i], bytes, stream));
    }
    OK(memopt_streamer_end(s->streamer, layer, stream));
}

static int look(streaming *s, const result *r, memopt_stream stream)
{
    int good = 1;
    for (uint32_t i = 0; i < s->layers[r->layer].count; i++) {
        good &= holds(&s->w, r->copies[i], r->value + (int)i, s->layers[r->layer].parts[i].bytes,
                      stream);
        OK(memopt_allocator_free(s->w.allocator, r->copies[i]));
    }
    return good;
}

static void step(streaming *s)
{
    result results[2 * MOST_LAYERS];
    uint32_t n = s->count;
    for (uint32_t i = 0; i < 2 * n; i++)
        use(s, i < n ? i : 2 * n - 1 - i, s->w.s, &results[i]);
    for (uint32_t i = 0; i < 2 * n; i++)
        assert_true(look(s, &results[i], s->w.s));
}

/* Forward and backward over n layers, k of them on the device: the bound of copies from the second
 * step on, from the first where the order is told; never above the budget. */
TEST(test_steps)
{
    for (int kind = 0; kind < 8; kind++) {
        uint32_t n = 6, k = 1 + (uint32_t)kind / 2, order[12];
        uint64_t budget = k * LAYER + LAYER / 2;
        streaming s = open_streaming(MEMOPT_STREAM_ORDER_ADVERSARIAL, (uint64_t)kind, budget);
        for (uint32_t i = 0; i < n; i++)
            add_layer(&s, 2, PART);
        for (uint32_t i = 0; i < 2 * n; i++)
            order[i] = i < n ? i : 2 * n - 1 - i;
        memopt_stream_plan plan = MEMOPT_STREAM_PLAN_INIT;
        OK(memopt_streamer_get_plan(s.streamer, NULL, 0, &plan));
        assert_int_equal(plan.copies, 2 * (n - k));
        assert_int_equal(plan.copied_bytes, plan.copies * LAYER);
        assert_int_equal(plan.resident, k);
        assert_int_equal(plan.layer_bytes, n * LAYER);
        if (kind % 2 == 1)
            OK(memopt_streamer_expect(s.streamer, order, 2 * n));
        for (int round = 0; round < 4; round++) {
            memopt_stream_stats before = streamed(&s);
            step(&s);
            memopt_stream_stats after = streamed(&s);
            uint64_t copies = after.copies - (round == 0 ? 0 : before.copies);
            uint64_t more = round != 0 ? 0 : kind % 2 == 1 ? k : n;
            assert_true(copies <= 2 * (n - k) + more);
            assert_true(round == 0 || copies == plan.copies);
            assert_true(k == 1 || round == 0 || after.late == before.late);
            assert_true(round != 0 || after.late == (kind % 2 == 1 ? 0 : copies));
            assert_true(after.resident_bytes_peak <= budget);
        }
        assert_int_equal(streamed(&s).begins, 8 * n);
        close_streaming(&s);
    }
}

/* The least time of a step, by hand: six layers of a second each way, three of them in the budget.
 * The first three stay for the next step; forward waits for the others, which come while those
 * before them run, behind the end of the one whose place they take. */
TEST(test_limit)
{
    enum { N = 6 };
    double work[2 * N], seconds, most = 0;
    streaming s = open_streaming(MEMOPT_STREAM_ORDER_EAGER, 0, 3 * LAYER);
    for (uint32_t i = 0; i < N; i++)
        add_layer(&s, 2, PART);
    for (int i = 0; i < 2 * N; i++)
        work[i] = 1;
    OK(memopt_streamer_get_limit(s.streamer, NULL, 0, work, INFINITY, &seconds));
    assert_true(seconds == 2 * N);
    OK(memopt_streamer_get_limit(s.streamer, NULL, 0, work, 2.0 * LAYER, &seconds));
    assert_true(seconds == 2 * N); /* half a second a copy hides */
    /* Ten seconds a copy: copies of 4 to 6 and back of 3 to 1, and what the link waits for: at the
     * turn two begins of 6 with it, at the next step those of 1. */
    OK(memopt_streamer_get_limit(s.streamer, NULL, 0, work, 0.1 * LAYER, &seconds));
    assert_true(seconds > 60 && seconds <= 60 + 4);
    for (int k = 1; k <= 16; k++, most = seconds) {
        OK(memopt_streamer_get_limit(s.streamer, NULL, 0, work, LAYER * 2.0 / k, &seconds));
        assert_true(seconds >= 2 * N && seconds >= 6 * 0.5 * k && seconds >= most);
    }
    uint64_t bytes[N] = {LAYER, LAYER, LAYER, LAYER, LAYER, LAYER};
    memopt_stream_plan plan = MEMOPT_STREAM_PLAN_INIT;
    OK(memopt_streamer_rehearse(bytes, N, 3 * LAYER, work, 0.1 * LAYER, &plan, &most));
    OK(memopt_streamer_get_limit(s.streamer, NULL, 0, work, 0.1 * LAYER, &seconds));
    assert_true(most == seconds && plan.copies == 6);
    FAILS(MEMOPT_LIMIT_REACHED,
          memopt_streamer_rehearse(bytes, N, LAYER - 1, work, 1, &plan, &most));
    FAILS(MEMOPT_INVALID_ARGUMENT,
          memopt_streamer_rehearse(bytes, 0, LAYER, work, 1, &plan, &most));
    FAILS(MEMOPT_INVALID_ARGUMENT,
          memopt_streamer_rehearse(bytes, N, LAYER, work, NAN, &plan, &most));
    bytes[4] = 0;
    FAILS(MEMOPT_INVALID_ARGUMENT,
          memopt_streamer_rehearse(bytes, N, LAYER, work, 1, &plan, &most));
    work[3] = -1;
    FAILS(MEMOPT_INVALID_ARGUMENT,
          memopt_streamer_get_limit(s.streamer, NULL, 0, work, 1, &seconds));
    assert_non_null(strstr(memopt_last_error(), "work[3] is -1 seconds"));
    FAILS(MEMOPT_INVALID_ARGUMENT,
          memopt_streamer_get_limit(s.streamer, NULL, 0, work, 0, &seconds));
    FAILS(MEMOPT_INVALID_ARGUMENT,
          memopt_streamer_get_limit(s.streamer, NULL, 2, (double[12]){0}, 1, &seconds));
    close_streaming(&s);
}

/* --- any program */

/* One operation: uses of one or two layers at once, on two streams, weights that change on the
 * device or on the host. */
static void operate(streaming *s, unsigned *random)
{
    uint32_t layer = (uint32_t)rand_r(random) % s->count;
    weights *l = &s->layers[layer];
    memopt_stream stream = rand_r(random) % 2 == 0 ? s->w.s : s->w.t;
    void *parts[MOST_PARTS], *others[MOST_PARTS], *host = NULL;
    uint32_t other = (layer + 1) % s->count;
    int kind = rand_r(random) % 8;
    if (kind == 0) { /* on the host */
        l->value += 3;
        for (uint32_t i = 0; i < l->count; i++) {
            OK(memopt_offloader_host(s->w.offloader, l->parts[i].ticket, MEMOPT_HOST_WRITE, &host));
            memset(host, l->value + (int)i, l->parts[i].bytes);
            OK(memopt_offloader_host_end(s->w.offloader, l->parts[i].ticket));
        }
        OK(memopt_streamer_evict(s->streamer, layer));
        return;
    }
    OK(memopt_streamer_begin(s->streamer, layer, stream, parts));
    memopt_status second = memopt_streamer_begin(s->streamer, other, s->w.t, others);
    if (second == MEMOPT_OK) {
        assert_true(is_layer(s, other, others, s->w.t));
        OK(memopt_streamer_end(s->streamer, other, s->w.t));
    } else {
        assert_int_equal(second, MEMOPT_LIMIT_REACHED);
    }
    if (kind == 1 && layer != other) { /* trained on the device */
        l->value += 5;
        for (uint32_t i = 0; i < l->count; i++)
            OK(memopt_fill(s->w.device, parts[i], (uint8_t)(l->value + (int)i), l->parts[i].bytes,
                           stream));
        OK(memopt_streamer_write(s->streamer, layer, stream));
    } else {
        assert_true(is_layer(s, layer, parts, stream));
    }
    OK(memopt_streamer_end(s->streamer, layer, stream));
    if (kind == 1 &&
        layer != other) /* the next use is on any stream: it has to be behind the fill */
        OK(memopt_stream_sync(s->w.device, stream));
}

TEST(test_any_program)
{
    FOR_SEEDS (seed, 100) {
        unsigned random = (unsigned)seed * 7919 + 1;
        uint64_t budget = 130 * KIB + (uint64_t)rand_r(&random) % (300 * KIB);
        streaming s = open_streaming(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed, budget);
        uint32_t layers = 2 + (uint32_t)rand_r(&random) % 6;
        for (uint32_t i = 0; i < layers; i++)
            add_layer(&s, 1 + (uint32_t)rand_r(&random) % MOST_PARTS,
                      1 + (uint64_t)rand_r(&random) % 40000);
        for (int i = 0; i < 60; i++)
            operate(&s, &random);
        assert_true(streamed(&s).resident_bytes_peak <= budget);
        assert_true(stats_of(&s.w).host_bytes_used <= stats_of(&s.w).host_bytes);
        close_streaming(&s);
    }
}

static void fill_layer(streaming *s, int value, int is_written)
{
    void *parts[MOST_PARTS];
    OK(memopt_streamer_begin(s->streamer, 0, s->w.s, parts));
    OK(memopt_fill(s->w.device, parts[0], value, PART, s->w.s));
    if (is_written)
        OK(memopt_streamer_write(s->streamer, 0, s->w.s));
    OK(memopt_streamer_end(s->streamer, 0, s->w.s));
}

/* The store has the weights of the write, although the next use changes them at once, or another layer takes their
 * place. */
TEST(test_written_weights_reach_the_store)
{
    FOR_SEEDS (seed, 200) {
        streaming s = open_streaming(MEMOPT_STREAM_ORDER_ADVERSARIAL, seed / 2, 48 * KIB);
        void *parts[MOST_PARTS], *host = NULL;
        add_layer(&s, 1, PART);
        add_layer(&s, 1, PART);
        fill_layer(&s, 77, 1);
        if (seed % 2 == 0) {
            fill_layer(&s, 78, 0);
        } else {
            OK(memopt_streamer_begin(s.streamer, 1, s.w.t, parts));
            OK(memopt_streamer_end(s.streamer, 1, s.w.t));
        }
        OK(memopt_device_sync(s.w.device));
        OK(memopt_offloader_host(s.w.offloader, s.layers[0].parts[0].ticket, MEMOPT_HOST_READ,
                                 &host));
        assert_true(all_bytes(host, 77, PART));
        OK(memopt_offloader_host_end(s.w.offloader, s.layers[0].parts[0].ticket));
        close_streaming(&s);
    }
}

/* Absent weights are NaN in every type, and a copy from them is a fault. */
TEST(test_absent_weights_are_nan)
{
    streaming s = open_streaming(MEMOPT_STREAM_ORDER_ADVERSARIAL, 3, 48 * KIB);
    void *parts[MOST_PARTS], *copy = NULL;
    add_layer(&s, 1, PART);
    OK(memopt_streamer_begin(s.streamer, 0, s.w.s, parts));
    assert_true(is_layer(&s, 0, parts, s.w.s));
    OK(memopt_streamer_end(s.streamer, 0, s.w.s));
    OK(memopt_streamer_evict(s.streamer, 0));
    OK(memopt_device_sync(s.w.device));
    const float *weights_now = parts[0];
    for (int i = 0; i < PART / 4; i++)
        assert_true(isnan(weights_now[i]));
    copy = device_block(&s.w, PART, s.w.s);
    OK(memopt_copy(s.w.device, copy, parts[0], PART, s.w.s));
    FAILS(MEMOPT_DEVICE_FAULT, memopt_stream_sync(s.w.device, s.w.s));
    close_streaming(&s);
}

/* --- refusals */

TEST(test_what_is_refused)
{
    streaming s = open_streaming(MEMOPT_STREAM_ORDER_EAGER, 0, 100 * KIB + 300);
    memopt_streamer *other = NULL;
    void *parts[MOST_PARTS];
    uint32_t number = 77;
    assert_int_equal(info_of(s.w.device).used, 100 * KIB);
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_streamer_create(s.w.device, s.w.offloader, 511, &other));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_streamer_create(s.w.device, NULL, 512, &other));
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY,
          memopt_streamer_create(s.w.device, s.w.offloader, 64 * MIB, &other));
    for (uint32_t i = 0; i < 4; i++)
        add_layer(&s, 1, 50 * KIB);
    memopt_ticket ticket = s.layers[0].parts[0].ticket;

    memopt_stream_part too_large[] = {{ticket, 50 * KIB}, {ticket, 50 * KIB + 257}};
    FAILS(MEMOPT_LIMIT_REACHED, memopt_streamer_add(s.streamer, too_large, 2, &number));
    assert_non_null(strstr(memopt_last_error(), "100.50 KiB"));
    assert_non_null(strstr(memopt_last_error(), "100.00 KiB"));
    too_large[0].bytes = UINT64_MAX - 1;
    FAILS(MEMOPT_LIMIT_REACHED, memopt_streamer_add(s.streamer, too_large, 2, &number));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_streamer_add(s.streamer, too_large, 0, &number));
    FAILS(MEMOPT_INVALID_ARGUMENT,
          memopt_streamer_add(s.streamer, &(memopt_stream_part){ticket, 0}, 1, &number));
    FAILS(MEMOPT_NOT_FOUND,
          memopt_streamer_add(s.streamer, &(memopt_stream_part){7, 10}, 1, &number));
    assert_int_equal(number, 77);

    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_streamer_begin(s.streamer, 4, s.w.s, parts));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_streamer_end(s.streamer, 0, s.w.s));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_streamer_write(s.streamer, 0, s.w.s));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_streamer_expect(s.streamer, &(uint32_t){4}, 1));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_streamer_expect(s.streamer, &(uint32_t){0}, 0));
    OK(memopt_streamer_begin(s.streamer, 0, s.w.s, parts));
    OK(memopt_streamer_begin(s.streamer, 1, s.w.s, parts));
    FAILS(MEMOPT_LIMIT_REACHED, memopt_streamer_begin(s.streamer, 2, s.w.s, parts));
    assert_non_null(strstr(memopt_last_error(), "2 layers in use"));
    FAILS(MEMOPT_BUSY, memopt_streamer_evict(s.streamer, 0));
    FAILS(MEMOPT_BUSY, memopt_streamer_destroy(s.streamer));
    OK(memopt_streamer_end(s.streamer, 0, s.w.s));
    OK(memopt_streamer_begin(s.streamer, 2, s.w.s, parts));
    assert_true(is_layer(&s, 2, parts, s.w.s));
    OK(memopt_streamer_destroy_force(s.streamer));
    s.streamer = NULL;
    close_streaming(&s);
}

/* A part that is smaller than its ticket, one that the host is writing, one that is gone. */
TEST(test_tickets_that_cannot_be_copied)
{
    streaming s = open_streaming(MEMOPT_STREAM_ORDER_EAGER, 0, 200 * KIB);
    memopt_ticket ticket = 0;
    void *host = NULL, *parts[MOST_PARTS];
    uint32_t small, busy;
    add_layer(&s, 2, PART);
    OK(memopt_offloader_reserve(s.w.offloader, PART, &ticket, &host));
    memset(host, 5, PART);
    OK(memopt_streamer_add(s.streamer, &(memopt_stream_part){ticket, PART - 1}, 1, &small));
    OK(memopt_streamer_add(s.streamer, &(memopt_stream_part){ticket, PART}, 1, &busy));
    FAILS(MEMOPT_BUSY, memopt_streamer_begin(s.streamer, busy, s.w.s, parts));
    OK(memopt_offloader_host_end(s.w.offloader, ticket));
    OK(memopt_streamer_begin(s.streamer, busy, s.w.s, parts));
    assert_true(holds(&s.w, parts[0], 5, PART, s.w.s));
    OK(memopt_streamer_end(s.streamer, busy, s.w.s));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_streamer_begin(s.streamer, small, s.w.s, parts));
    assert_int_equal(streamed(&s).copies, 1);
    OK(memopt_offloader_release(s.w.offloader, ticket, s.w.s));
    FAILS(MEMOPT_NOT_FOUND, memopt_streamer_begin(s.streamer, busy, s.w.s, parts));
    OK(memopt_streamer_begin(s.streamer, 0, s.w.s, parts));
    assert_true(is_layer(&s, 0, parts, s.w.s));
    OK(memopt_streamer_end(s.streamer, 0, s.w.s));
    close_streaming(&s);
}

/* --- from a file */

/* Also where the host has no memory to read into; and a file that is too short for a while. */
TEST_WITH(test_weights_in_a_file, healthy_disk, NULL)
{
    char path[64];
    unsigned char *bytes = malloc(PART);
    assert_non_null(bytes);
    snprintf(path, sizeof path, "%s/weights", disk_folder);
    for (int scarce = 0; scarce < 2; scarce++) {
        memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
        options.host_limit = scarce ? 4096 : 0;
        streaming s = {.w = open_world(MEMOPT_STREAM_ORDER_ADVERSARIAL, 1, 64 * MIB, &options)};
        OK(memopt_streamer_create(s.w.device, s.w.offloader, 2 * 40192, &s.streamer));
        int file = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
        assert_true(file >= 0);
        for (uint32_t i = 0; i < 5; i++) {
            weights *l = &s.layers[i];
            uint32_t number;
            *l = (weights){.count = 1, .value = 10 * ((int)i + 1)};
            memset(bytes, l->value, PART);
            assert_int_equal(pwrite(file, bytes, PART, (off_t)i * PART), PART);
            l->parts[0].bytes = PART;
            OK(memopt_offloader_map_file(s.w.offloader, path, i * (uint64_t)PART, PART,
                                         &l->parts[0].ticket));
            OK(memopt_streamer_add(s.streamer, l->parts, 1, &number));
            s.count++;
        }
        for (int round = 0; round < 3; round++)
            step(&s);
        assert_true(streamed(&s).resident_bytes_peak <= 2 * 40192);

        void *parts[MOST_PARTS];
        assert_int_equal(ftruncate(file, 4 * PART), 0);
        OK(memopt_streamer_evict(s.streamer, 4));
        FAILS(MEMOPT_IO_ERROR, memopt_streamer_begin(s.streamer, 4, s.w.s, parts));
        memset(bytes, 50, PART);
        assert_int_equal(pwrite(file, bytes, PART, 4 * PART), PART);
        memopt_status status = memopt_streamer_begin(s.streamer, 4, s.w.s, parts);
        if (status != MEMOPT_OK) /* a copy ahead met the short file, too */
            status = memopt_streamer_begin(s.streamer, 4, s.w.s, parts);
        OK(status);
        assert_true(is_layer(&s, 4, parts, s.w.s));
        OK(memopt_streamer_end(s.streamer, 4, s.w.s));
        close(file);
        assert_int_equal(unlink(path), 0);
        close_streaming(&s);
    }
    free(bytes);
}

int main(void)
{
    return run_all_tests(make_folder, remove_folder);
}
