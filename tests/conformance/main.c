/*
 * conformance --device NAME [--capacity BYTES] [--only CASE] [--require] [--list]
 *
 * Runs every case on the device, and those that compute on "cpu" too. Exits with 0 if all pass, 1
 * if one fails, 77 if the device is not there (1 with --require).
 */
#include "conformance.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static jmp_buf case_end;
static const char *config = "expandable_segments:True";

_Noreturn void fail(const char *file, int line, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "%s:%d: ", file, line);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    longjmp(case_end, 1);
}

/* --- what cases share ---------------------------------------------------------------------- */

void result(world *w, const void *data, uint64_t bytes)
{
    while (w->result_bytes + bytes > w->result_capacity) {
        w->result_capacity = w->result_capacity == 0 ? MIB : 2 * w->result_capacity;
        w->results = realloc(w->results, w->result_capacity);
        if (w->results == NULL)
            abort();
    }
    memcpy(w->results + w->result_bytes, data, bytes);
    w->result_bytes += bytes;
}

void result_of(world *w, const void *device_data, uint64_t bytes)
{
    void *host = malloc(bytes);
    CHECK(host != NULL);
    OK(memopt_copy(w->device, host, device_data, bytes, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    result(w, host, bytes);
    free(host);
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

void fill_bytes(void *out, uint64_t count, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i++)
        ((unsigned char *)out)[i] = (unsigned char)(next_random(&seed) >> 24);
}

/* Mostly gradients as they are, some zeros, and exponents over the whole range of finite floats. */
void fill_floats(float *out, uint64_t count, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t r = next_random(&seed);
        uint32_t exponent =
            r % 16 == 0 ? (uint32_t)(r >> 40) % 255u : 110 + (uint32_t)(r >> 40) % 20;
        uint32_t bits = (uint32_t)(r >> 32 & 0x807FFFFFu) | exponent << 23;
        if (r % 32 == 1)
            bits &= 0x80000000u;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

uint64_t tensor_bytes(const memopt_tensor *tensor)
{
    return tensor->count * memopt_dtype_size(tensor->dtype);
}

memopt_tensor new_tensor(world *w, uint64_t count, memopt_dtype dtype, const float *values)
{
    memopt_tensor t = {NULL, count, dtype, 0}, source = {NULL, count, MEMOPT_DTYPE_F32, 0};
    OK(memopt_allocator_alloc(w->allocator, tensor_bytes(&t), MEMOPT_TAG_OTHER, w->stream,
                              &t.data));
    OK(memopt_fill(w->device, t.data, 0, tensor_bytes(&t), w->stream));
    if (values == NULL)
        return t;
    OK(memopt_allocator_alloc(w->allocator, 4 * count, MEMOPT_TAG_OTHER, w->stream, &source.data));
    OK(memopt_copy(w->device, source.data, values, 4 * count, w->stream));
    if (dtype == MEMOPT_DTYPE_F32)
        OK(memopt_copy(w->device, t.data, source.data, 4 * count, w->stream));
    else
        OK(memopt_cast(w->device, &t, &source, 1, NULL, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    OK(memopt_allocator_free(w->allocator, source.data));
    return t;
}

void free_tensor(world *w, memopt_tensor *tensor)
{
    OK(memopt_allocator_free(w->allocator, tensor->data));
    tensor->data = NULL;
}

/* --- running ------------------------------------------------------------------------------- */

static void open_world(world *w, memopt_device *device)
{
    memset(w, 0, sizeof *w);
    w->device = device;
    w->properties.struct_size = sizeof w->properties;
    OK(memopt_device_get_properties(device, &w->properties));
    OK(memopt_allocator_create(device, w->properties.virtual_memory ? config : NULL, NULL,
                               &w->allocator));
    OK(memopt_stream_create(device, &w->stream));
    OK(memopt_stream_create(device, &w->other));
}

static void close_world(world *w)
{
    OK(memopt_device_sync(w->device));
    OK(memopt_allocator_destroy(w->allocator));
    OK(memopt_stream_destroy(w->device, w->stream));
    OK(memopt_stream_destroy(w->device, w->other));
}

/* 0 where the case failed. After a failure the world is left as it is: the program ends soon. */
static int run_on(const conformance_case *c, memopt_device *device, world *w)
{
    if (setjmp(case_end) != 0)
        return 0;
    open_world(w, device);
    c->run(w);
    close_world(w);
    return 1;
}

static int run_case(const conformance_case *c, memopt_device *device, memopt_device *cpu)
{
    static world mine, reference;
    int good = run_on(c, device, &mine);
    if (good && c->compared && cpu != device) {
        good = run_on(c, cpu, &reference);
        if (good && mine.result_bytes != reference.result_bytes) {
            fprintf(stderr, "%llu bytes of results, %llu on the cpu\n",
                    (unsigned long long)mine.result_bytes,
                    (unsigned long long)reference.result_bytes);
            good = 0;
        }
        for (uint64_t i = 0; good && i < mine.result_bytes; i++)
            if (mine.results[i] != reference.results[i]) {
                fprintf(stderr, "byte %llu of the results is %02x, %02x on the cpu\n",
                        (unsigned long long)i, mine.results[i], reference.results[i]);
                good = 0;
            }
        free(reference.results);
    }
    printf("%-6s %s\n", good ? "ok" : "FAILED", c->name);
    fflush(stdout);
    free(mine.results);
    return good;
}

static int run_all(const conformance_case *cases, const char *only, memopt_device *device,
                   memopt_device *cpu, int *out_ran)
{
    int failures = 0;
    for (const conformance_case *c = cases; c->name != NULL; c++) {
        if (only != NULL && strcmp(only, c->name) != 0)
            continue;
        ++*out_ran;
        failures += !run_case(c, device, cpu);
    }
    return failures;
}

typedef struct arguments {
    const char *device, *only;
    uint64_t capacity;
    int require, list;
} arguments;

static int read_arguments(int count, char **words, arguments *a)
{
    *a = (arguments){.device = "cpu", .capacity = 256 * MIB};
    for (int i = 1; i < count; i++) {
        const char *value = i + 1 < count ? words[i + 1] : NULL;
        if (strcmp(words[i], "--require") == 0) {
            a->require = 1;
        } else if (strcmp(words[i], "--list") == 0) {
            a->list = 1;
        } else if (value == NULL) {
            return 0;
        } else if (strcmp(words[i], "--device") == 0) {
            a->device = words[++i];
        } else if (strcmp(words[i], "--only") == 0) {
            a->only = words[++i];
        } else if (strcmp(words[i], "--capacity") == 0) {
            a->capacity = strtoull(words[++i], NULL, 0);
        } else {
            return 0;
        }
    }
    return 1;
}

static void list_cases(void)
{
    for (const conformance_case *c = device_cases; c->name != NULL; c++)
        puts(c->name);
    for (const conformance_case *c = primitive_cases; c->name != NULL; c++)
        puts(c->name);
}

static memopt_status open_device(const char *name, uint64_t capacity, memopt_device **out_device)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    if (strncmp(name, "cpu", 3) == 0) {
        options.capacity = capacity;
        options.threads = 1;
    }
    return memopt_device_open(name, &options, out_device);
}

int main(int count, char **words)
{
    arguments a;
    memopt_device *device = NULL, *cpu = NULL;
    int ran = 0;
    if (!read_arguments(count, words, &a)) {
        fputs("conformance --device NAME [--capacity BYTES] [--only CASE] [--require] [--list]\n",
              stderr);
        return 2;
    }
    if (a.list) {
        list_cases();
        return 0;
    }
    memopt_status status = open_device(a.device, a.capacity, &device);
    if (status != MEMOPT_OK) {
        fprintf(stderr, "%s: %s: %s\n", a.device, memopt_status_name(status), memopt_last_error());
        int absent = status == MEMOPT_DRIVER_MISSING || status == MEMOPT_NOT_FOUND ||
                     status == MEMOPT_UNSUPPORTED;
        return absent && !a.require ? 77 : 1;
    }
    if (open_device("cpu", a.capacity, &cpu) != MEMOPT_OK)
        return 1;
    int failures = run_all(device_cases, a.only, device, cpu, &ran);
    failures += run_all(primitive_cases, a.only, device, cpu, &ran);
    if (failures == 0 && memopt_device_close(device) != MEMOPT_OK) {
        fprintf(stderr, "%s cannot be closed: %s\n", a.device, memopt_last_error());
        failures++;
    }
    if (failures == 0)
        (void)memopt_device_close(cpu);
    printf("%s: %d cases, %d failed\n", a.device, ran, failures);
    return failures == 0 && ran > 0 ? 0 : 1;
}
