/*
 * gpu_bench --device NAME [--json FILE] [--rounds N] [--seconds S] [--small] [--first]
 *
 * --first: only how long the first step of the process takes. A caller that empties the caches of
 * kernels before (MEMOPT_CACHE_DIR, CUDA_CACHE_PATH) sees what a first run on the machine takes.
 *
 * Prints Markdown tables and writes one JSON object a line, each as soon as it is known. It reports
 * and never fails on a time; 77 if the device is not there.
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_ROUNDS = 100, MOST_CASES = 16, MOST_REPEATED = 64 };

_Noreturn void bench_fail(const char *file, int line, const char *call, memopt_status status)
{
    fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, call, memopt_status_name(status),
            memopt_last_error());
    exit(1);
}

double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, compare);
    return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

/* --- rows ---------------------------------------------------------------------------------- */

static uint32_t row_count;

void skip_row(bench *b, const char *table, const char *name, const char *reason)
{
    row_count++;
    printf("| %s | %s | skipped: %s | | | |\n", table, name, reason);
    if (b->json != NULL)
        fprintf(b->json, "{\"table\": \"%s\", \"case\": \"%s\", \"skipped\": \"%s\"}\n", table,
                name, reason);
    fflush(NULL);
}

void figure_row(bench *b, const char *table, const char *name, double value, const char *unit)
{
    row_count++;
    printf("| %s | %s | %.4g %s | | | |\n", table, name, value, unit);
    if (b->json != NULL)
        fprintf(b->json,
                "{\"table\": \"%s\", \"case\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n", table,
                name, value, unit);
    fflush(NULL);
}

static void timed_row(bench *b, const char *table, const bench_case *c, double middle, double best,
                      double floor_rate)
{
    double rate = middle > 0 ? c->bytes / middle : 0;
    double of_copy = floor_rate > 0 ? rate / floor_rate : 0;
    row_count++;
    printf("| %s | %s | %.1f us | %.1f us | %.1f GB/s | %.2f |\n", table, c->name, 1e6 * middle,
           1e6 * best, 1e-9 * rate, of_copy);
    if (b->json != NULL)
        fprintf(b->json,
                "{\"table\": \"%s\", \"case\": \"%s\", \"seconds_median\": %.9g, "
                "\"seconds_best\": %.9g, \"bytes\": %.0f, \"bytes_per_second\": %.6g, "
                "\"of_copy\": %.4f}\n",
                table, c->name, middle, best, c->bytes, rate, of_copy);
    fflush(NULL);
}

/* --- timing -------------------------------------------------------------------------------- */

static double run_once(bench *b, bench_case *c)
{
    double seconds = 0;
    OK(memopt_event_record(b->start, b->stream));
    for (uint32_t i = 0; i < c->repeated; i++)
        c->run(b, c->context);
    OK(memopt_event_record(b->end, b->stream));
    OK(memopt_event_sync(b->end));
    OK(memopt_event_elapsed(b->start, b->end, &seconds));
    return seconds / c->repeated;
}

/* Short cases run several times between two events, so that starting them costs little beside. */
static void warm_up(bench *b, bench_case *c)
{
    c->repeated = 1;
    (void)run_once(b, c);
    double seconds = run_once(b, c);
    if (!b->small && seconds < 2e-3)
        c->repeated = seconds > 2e-3 / MOST_REPEATED ? (uint32_t)(2e-3 / seconds) : MOST_REPEATED;
    if (c->repeated < 1)
        c->repeated = 1;
}

void measure(bench *b, const char *table, bench_case *cases, uint32_t count)
{
    static double seconds[MOST_CASES][MOST_ROUNDS];
    double floor_rate = 0;
    if (count > MOST_CASES || now() > b->deadline) {
        for (uint32_t c = 0; c < count; c++)
            skip_row(b, table, cases[c].name, "no time left");
        return;
    }
    for (uint32_t c = 0; c < count; c++)
        warm_up(b, &cases[c]);
    for (uint32_t round = 0; round < b->rounds; round++)
        for (uint32_t c = 0; c < count; c++)
            seconds[c][round] = run_once(b, &cases[c]);
    for (uint32_t c = 0; c < count; c++) {
        double middle = median(seconds[c], b->rounds), best = seconds[c][0];
        if (c == 0 && middle > 0)
            floor_rate = cases[0].bytes / middle;
        timed_row(b, table, &cases[c], middle, best, floor_rate);
    }
}

/* --- tensors ------------------------------------------------------------------------------- */

uint64_t room(bench *b)
{
    memopt_memory_info info = {sizeof info, 0, 0, 0, 0, 0, 0, 0, 0};
    OK(memopt_device_sync(b->device));
    OK(memopt_allocator_trim_sync(b->allocator, 0, &(uint64_t){0}));
    OK(memopt_device_get_memory_info(b->device, &info));
    return info.free - info.free / 8;
}

/* A pattern of 64 Ki floats, doubled on the device: no two neighbours are equal, none is 0. */
static void fill_floats(bench *b, float *into, uint64_t count, float scale)
{
    uint64_t done = count < 64 * KIB ? count : 64 * KIB, state = 88172645463325252u;
    float *host = malloc(done * sizeof *host);
    if (host == NULL)
        exit(1);
    for (uint64_t i = 0; i < done; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        host[i] = scale * ((float)(int32_t)(state >> 32 | 1) / 2147483648.0f);
    }
    OK(memopt_copy(b->device, into, host, done * sizeof *host, b->stream));
    OK(memopt_stream_sync(b->device, b->stream));
    free(host);
    while (done < count) {
        uint64_t more = count - done < done ? count - done : done;
        OK(memopt_copy(b->device, into + done, into, more * sizeof *into, b->stream));
        done += more;
    }
}

memopt_tensor new_tensor(bench *b, uint64_t count, memopt_dtype dtype, float scale)
{
    memopt_tensor t = {NULL, count, dtype}, floats = {NULL, count, MEMOPT_DTYPE_F32};
    OK(memopt_allocator_alloc(b->allocator, count * memopt_dtype_size(dtype), MEMOPT_TAG_OTHER,
                              b->stream, &t.data));
    if (dtype == MEMOPT_DTYPE_U8) {
        OK(memopt_fill(b->device, t.data, 0, count, b->stream));
        return t;
    }
    if (dtype == MEMOPT_DTYPE_F32) {
        fill_floats(b, t.data, count, scale);
        return t;
    }
    OK(memopt_allocator_alloc(b->allocator, 4 * count, MEMOPT_TAG_OTHER, b->stream, &floats.data));
    fill_floats(b, floats.data, count, scale);
    OK(memopt_cast(b->device, &t, &floats, 1, NULL, b->stream));
    free_tensor(b, &floats);
    return t;
}

void free_tensor(bench *b, memopt_tensor *tensor)
{
    OK(memopt_allocator_free(b->allocator, tensor->data));
    tensor->data = NULL;
}

/* --- the first step ------------------------------------------------------------------------ */

/* Nothing was launched before: the step loads the kernels, or compiles them. */
static void bench_first(bench *b)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_optimizer *optimizer;
    memopt_tensor of[2] = {{NULL, b->small ? 5000 : MIB, MEMOPT_DTYPE_F32}};
    of[1] = of[0];
    figure_row(b, "the first step", "open the device", 1e3 * b->opening, "ms");
    for (int i = 0; i < 2; i++) {
        OK(memopt_allocator_alloc(b->allocator, 4 * of[i].count, MEMOPT_TAG_OTHER, b->stream,
                                  &of[i].data));
        OK(memopt_fill(b->device, of[i].data, 0, 4 * of[i].count, b->stream));
    }
    options.state_format = MEMOPT_STATE_8BIT_DYNAMIC;
    double begin = now();
    OK(memopt_optimizer_create(b->allocator, &options, &optimizer));
    OK(memopt_optimizer_add_group(optimizer, &group, &(uint32_t){0}));
    OK(memopt_optimizer_add_parameter(optimizer, 0, &of[0], NULL, b->stream, &(uint64_t){0}));
    for (int step = 0; step < 2; step++) {
        OK(memopt_optimizer_step(optimizer, &of[1], 1, NULL, b->stream));
        OK(memopt_stream_sync(b->device, b->stream));
        figure_row(b, "the first step", step == 0 ? "first step" : "second step",
                   1e3 * (now() - begin), "ms");
        begin = now();
    }
    OK(memopt_optimizer_destroy(optimizer));
    free_tensor(b, &of[0]);
    free_tensor(b, &of[1]);
}

/* --- the program --------------------------------------------------------------------------- */

static int read_arguments(int count, char **words, bench *b, const char **device, const char **json)
{
    double seconds = 120;
    for (int i = 1; i < count; i++) {
        const char *value = i + 1 < count ? words[i + 1] : NULL;
        if (strcmp(words[i], "--small") == 0 || strcmp(words[i], "--first") == 0) {
            *(words[i][2] == 's' ? &b->small : &b->first) = 1;
            continue;
        }
        if (value == NULL)
            return 0;
        if (strcmp(words[i], "--device") == 0)
            *device = value;
        else if (strcmp(words[i], "--json") == 0)
            *json = value;
        else if (strcmp(words[i], "--rounds") == 0)
            b->rounds = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(words[i], "--seconds") == 0)
            seconds = strtod(value, NULL);
        else
            return 0;
        i++;
    }
    b->deadline = now() + seconds;
    return b->rounds >= 1 && b->rounds <= MOST_ROUNDS;
}

static int open_bench(bench *b, const char *name)
{
    double begin = now();
    memopt_status status = memopt_device_open(name, NULL, &b->device);
    b->opening = now() - begin;
    if (status != MEMOPT_OK) {
        fprintf(stderr, "%s: %s: %s\n", name, memopt_status_name(status), memopt_last_error());
        return status == MEMOPT_DRIVER_MISSING || status == MEMOPT_NOT_FOUND ? 77 : 1;
    }
    b->properties.struct_size = sizeof b->properties;
    OK(memopt_device_get_properties(b->device, &b->properties));
    OK(memopt_allocator_create(b->device, NULL, NULL, &b->allocator));
    OK(memopt_stream_create(b->device, &b->stream));
    OK(memopt_event_create(b->device, 1, &b->start));
    OK(memopt_event_create(b->device, 1, &b->end));
    return 0;
}

static void close_bench(bench *b)
{
    OK(memopt_device_sync(b->device));
    OK(memopt_event_destroy(b->start));
    OK(memopt_event_destroy(b->end));
    OK(memopt_stream_destroy(b->device, b->stream));
    OK(memopt_allocator_destroy(b->allocator));
    OK(memopt_device_close(b->device));
}

int main(int count, char **words)
{
    bench b = {.rounds = 15};
    const char *device = "cuda:0", *json = NULL;
    if (!read_arguments(count, words, &b, &device, &json)) {
        fputs("gpu_bench --device NAME [--json FILE] [--rounds N] [--seconds S] [--small] "
              "[--first]\n",
              stderr);
        return 2;
    }
    if (json != NULL && (b.json = fopen(json, "w")) == NULL) {
        perror(json);
        return 1;
    }
    int status = open_bench(&b, device);
    if (status != 0)
        return status;
    printf("%s (%s), %u interleaved rounds\n\n| table | case | median | best | rate | of copy |\n"
           "|---|---|--:|--:|--:|--:|\n",
           b.properties.name, b.properties.isa, b.rounds);
    bench_first(&b);
    if (!b.first) {
        bench_memory(&b);
        bench_optimizers(&b);
    }
    close_bench(&b);
    printf("\n%u rows\n", row_count);
    return b.json != NULL && fclose(b.json) != 0;
}
