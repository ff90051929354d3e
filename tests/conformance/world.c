/* Worlds, tensors, and what cases compute. */
#include "conformance.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Results beyond this are kept as hashes only. */
#define MOST_BYTES (64 * MIB)

const memopt_dtype float_types[FLOAT_TYPES] = {
    MEMOPT_DTYPE_F32,     MEMOPT_DTYPE_F16,         MEMOPT_DTYPE_BF16,       MEMOPT_DTYPE_F8_E4M3,
    MEMOPT_DTYPE_F8_E5M2, MEMOPT_DTYPE_F8_E4M3FNUZ, MEMOPT_DTYPE_F8_E5M2FNUZ};

const uint64_t *odd_sizes(suite_scale scale, uint32_t *out_count)
{
    static const uint64_t sizes[] = {1,    7,    255,  256,  257,    2047,    2048,
                                     2049, 4095, 4096, 4097, 100003, 1 << 22, 5000011};
    *out_count = scale == SCALE_SMALL ? 11 : scale == SCALE_NORMAL ? 12 : 14;
    return sizes;
}

/* --- worlds -------------------------------------------------------------------------------- */

memopt_status open_device(const suite_options *options, const char *name,
                          memopt_device **out_device)
{
    memopt_device_options device = MEMOPT_DEVICE_OPTIONS_INIT;
    if (strncmp(name, "cpu", 3) == 0) {
        device.capacity = options->capacity;
        device.threads = options->scale == SCALE_LARGE ? 0 : 1;
    }
    return memopt_device_open(name, &device, out_device);
}

memopt_memory_info info_of(world *w)
{
    memopt_memory_info info = {.struct_size = sizeof info};
    OK(memopt_device_get_memory_info(w->device, &info));
    return info;
}

memopt_allocator *new_allocator(world *w)
{
    memopt_allocator *allocator = NULL;
    const char *config = w->properties.virtual_memory ? "expandable_segments:True" : NULL;
    OK(memopt_allocator_create(w->device, config, NULL, &allocator));
    return allocator;
}

void open_world(world *w, memopt_device *device, const suite_options *options)
{
    w->device = device;
    w->options = options;
    w->properties.struct_size = sizeof w->properties;
    OK(memopt_device_get_properties(device, &w->properties));
    w->allocator = new_allocator(w);
    OK(memopt_stream_create(device, &w->stream));
    OK(memopt_stream_create(device, &w->other));
}

void close_world(world *w)
{
    OK(memopt_device_sync(w->device));
    OK(memopt_allocator_destroy(w->allocator));
    OK(memopt_stream_destroy(w->device, w->stream));
    OK(memopt_stream_destroy(w->device, w->other));
}

/* --- values -------------------------------------------------------------------------------- */

void *host_memory(uint64_t bytes)
{
    void *memory = malloc(bytes == 0 ? 1 : bytes);
    CHECK(memory != NULL);
    return memory;
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

void fill_any_floats(float *out, uint64_t count, uint64_t seed)
{
    fill_floats(out, count, seed);
    for (uint64_t i = seed % 29; i < count; i += 29) {
        uint64_t r = next_random(&seed);
        uint32_t bits = r % 3 == 0 ? 0x7F800000u : 0x7F800000u | (uint32_t)(r >> 32 & 0x7FFFFFu);
        bits |= (uint32_t)(r >> 8) & 0x80000000u;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

void fill_smooth(float *out, uint64_t count, uint64_t seed, float size)
{
    for (uint64_t i = 0; i < count; i++)
        out[i] = size * ((float)(next_random(&seed) >> 40) / 8388608.0f - 1.0f);
}

/* --- tensors ------------------------------------------------------------------------------- */

uint64_t tensor_bytes(const memopt_tensor *tensor)
{
    return tensor->count * memopt_dtype_size(tensor->dtype);
}

static void *block_of(world *w, uint64_t bytes)
{
    void *data = NULL;
    OK(memopt_allocator_alloc(w->allocator, bytes, MEMOPT_TAG_OTHER, w->stream, &data));
    return data;
}

memopt_tensor new_raw_tensor(world *w, uint64_t count, memopt_dtype dtype, const void *bytes,
                             uint64_t shift)
{
    memopt_tensor t = {NULL, count, dtype};
    uint64_t skipped = shift * memopt_dtype_size(dtype);
    t.data = (char *)block_of(w, tensor_bytes(&t) + skipped + 1) + skipped;
    if (bytes == NULL)
        OK(memopt_fill(w->device, t.data, 0, tensor_bytes(&t), w->stream));
    else {
        OK(memopt_copy(w->device, t.data, bytes, tensor_bytes(&t), w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
    }
    return t;
}

memopt_tensor new_shifted_tensor(world *w, uint64_t count, memopt_dtype dtype, const float *values,
                                 uint64_t shift)
{
    if (values == NULL || dtype == MEMOPT_DTYPE_F32)
        return new_raw_tensor(w, count, dtype, values, shift);
    memopt_tensor t = new_raw_tensor(w, count, dtype, NULL, shift);
    memopt_tensor source = new_raw_tensor(w, count, MEMOPT_DTYPE_F32, values, 0);
    OK(memopt_cast(w->device, &t, &source, 1, NULL, w->stream));
    free_tensor(w, &source);
    return t;
}

memopt_tensor new_tensor(world *w, uint64_t count, memopt_dtype dtype, const float *values)
{
    return new_shifted_tensor(w, count, dtype, values, 0);
}

/* The data may lie behind the block's first byte. */
void free_tensor(world *w, memopt_tensor *tensor)
{
    void *base = NULL;
    OK(memopt_allocator_get_block(w->allocator, tensor->data, &base, NULL));
    OK(memopt_allocator_free(w->allocator, base));
    tensor->data = NULL;
}

/* --- results ------------------------------------------------------------------------------- */

void label(world *w, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(w->label, sizeof w->label, format, arguments);
    va_end(arguments);
}

static void *grown(void *memory, uint64_t *capacity, uint64_t needed, uint64_t size)
{
    if (needed <= *capacity)
        return memory;
    *capacity = 2 * needed + 64;
    memory = realloc(memory, *capacity * size);
    CHECK(memory != NULL);
    return memory;
}

static uint64_t hash_of(const unsigned char *data, uint64_t bytes)
{
    uint64_t hash = bytes, word;
    for (uint64_t i = 0; i < bytes; i += sizeof word) {
        word = 0;
        memcpy(&word, data + i, bytes - i < sizeof word ? bytes - i : sizeof word);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    return hash;
}

void result(world *w, const void *data, uint64_t bytes)
{
    w->segments = grown(w->segments, &w->segment_capacity, w->segment_count + 1, sizeof(segment));
    segment *s = &w->segments[w->segment_count++];
    memcpy(s->label, w->label, sizeof s->label);
    s->bytes = bytes;
    s->hash = hash_of(data, bytes);
    if (bytes == 0 || w->byte_count + bytes > MOST_BYTES)
        return;
    w->bytes = grown(w->bytes, &w->byte_capacity, w->byte_count + bytes, 1);
    memcpy(w->bytes + w->byte_count, data, bytes);
    w->byte_count += bytes;
}

void result_of(world *w, const void *device_data, uint64_t bytes)
{
    void *host = host_memory(bytes);
    OK(memopt_copy(w->device, host, device_data, bytes, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    result(w, host, bytes);
    free(host);
}

void result_of_tensor(world *w, const memopt_tensor *tensor)
{
    result_of(w, tensor->data, tensor_bytes(tensor));
}

void free_results(world *w)
{
    free(w->segments);
    free(w->bytes);
    w->segments = NULL;
    w->bytes = NULL;
    w->segment_count = w->segment_capacity = w->byte_count = w->byte_capacity = 0;
}

uint64_t digest_of(const world *w)
{
    uint64_t digest = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < w->segment_count; i++)
        digest = (digest ^ w->segments[i].hash) * 0x100000001b3u;
    return digest;
}

int same_results(const world *mine, const world *reference, char *message, uint64_t size)
{
    uint64_t at = 0; /* of the segment's bytes, as long as they are kept */
    if (mine->segment_count != reference->segment_count) {
        snprintf(message, size, "%llu results, %llu on the reference",
                 (unsigned long long)mine->segment_count,
                 (unsigned long long)reference->segment_count);
        return 0;
    }
    for (uint64_t i = 0; i < mine->segment_count; i++) {
        const segment *a = &mine->segments[i], *b = &reference->segments[i];
        if (a->bytes == b->bytes && a->hash == b->hash) {
            at += a->bytes;
            continue;
        }
        uint64_t byte = 0;
        int kept = a->bytes == b->bytes && at + a->bytes <= mine->byte_count &&
                   at + a->bytes <= reference->byte_count;
        while (kept && byte < a->bytes && mine->bytes[at + byte] == reference->bytes[at + byte])
            byte++;
        snprintf(message, size, "result %llu (%s), %llu bytes, differs from the reference's%s",
                 (unsigned long long)i, a->label, (unsigned long long)a->bytes,
                 a->bytes != b->bytes ? " size" : "");
        size_t used = strlen(message);
        if (kept && byte < a->bytes)
            snprintf(message + used, size - used, " at byte %llu: %02x, there %02x",
                     (unsigned long long)byte, mine->bytes[at + byte], reference->bytes[at + byte]);
        return 0;
    }
    return 1;
}
