/* memopt_cast: many tensors, options, streams, thread counts; and everything that it refuses. */
#include "support.h"

/* 300 tensors of mixed sizes (some empty), more than a launch describes, give what one alone gives. */
TEST(many_tensors)
{
    enum { TENSORS = 300 };
    memopt_device *device = open_cpu(2);
    memopt_tensor from[TENSORS], to[TENSORS];
    static const memopt_dtype types[] = {MEMOPT_DTYPE_BF16, MEMOPT_DTYPE_F16, MEMOPT_DTYPE_F32,
                                         MEMOPT_DTYPE_F8_E4M3, MEMOPT_DTYPE_F8_E5M2};
    uint64_t seed = 5, total = 0;
    for (int i = 0; i < TENSORS; i++) {
        uint64_t count = i % 7 == 3 ? 0 : (uint64_t)(i * i) % 977 + (i == 100 ? 100000 : 0);
        from[i] = tensor_of(NULL, count, MEMOPT_DTYPE_F32);
        to[i] = tensor_of(NULL, count, types[i % 5]);
        total += count;
    }
    float *source = device_memory(device, total * 4);
    unsigned char *result = device_memory(device, total * 4), *alone = malloc(total * 4);
    memset(alone, 0x5a, total * 4);
    memset(result, 0x5a, total * 4);
    for (uint64_t i = 0; i < total; i++)
        source[i] = next_float(&seed) * 1000;
    for (uint64_t i = 0, at = 0; i < TENSORS; at += from[i].count, i++) {
        from[i].data = source + at;
        to[i].data = alone + 4 * at;
        OK(memopt_cast(device, &to[i], &from[i], 1, NULL, NULL));
        to[i].data = result + 4 * at;
    }
    OK(memopt_cast(device, to, from, TENSORS, NULL, NULL));
    assert_memory_equal(result, alone, total * 4);
    free(alone);
    OK(mo_mem_free(device, source, total * 4));
    OK(mo_mem_free(device, result, total * 4));
    OK(memopt_device_close(device));
}

/* The bits of element i of tensor t depend on nothing but (seed, sequence, t, i). */
TEST(stochastic_bits_are_those_told)
{
    enum { COUNT = 50001 };
    for (uint32_t threads = 1; threads <= 2; threads++) {
        memopt_device *device = open_cpu(threads);
        memopt_cast_options options = MEMOPT_CAST_OPTIONS_INIT;
        float *source = device_memory(device, COUNT * 4);
        uint16_t *result = device_memory(device, 2 * COUNT * 2);
        uint64_t seed = 6;
        for (int i = 0; i < COUNT; i++)
            source[i] = next_float(&seed);
        memopt_tensor from[3] = {tensor_of(source, COUNT, MEMOPT_DTYPE_F32),
                                 tensor_of(NULL, 0, MEMOPT_DTYPE_F32),
                                 tensor_of(source, COUNT, MEMOPT_DTYPE_F32)};
        memopt_tensor to[3] = {tensor_of(result, COUNT, MEMOPT_DTYPE_BF16),
                               tensor_of(NULL, 0, MEMOPT_DTYPE_BF16),
                               tensor_of(result + COUNT, COUNT, MEMOPT_DTYPE_BF16)};
        options.rounding = MEMOPT_ROUND_STOCHASTIC;
        options.seed = 77;
        options.sequence = (uint64_t)1 << 33;
        OK(memopt_cast(device, to, from, 3, &options, NULL));
        for (uint64_t t = 0; t < 3; t += 2) {
            mo_random_stream stream = mo_random_stream_of(77, (uint64_t)1 << 33, t);
            for (uint64_t i = 0; i < COUNT; i++)
                assert_int_equal(
                    ((uint16_t *)to[t].data)[i],
                    mo_f32_to_bf16_stochastic(source[i], mo_random_element(&stream, i)));
        }
        OK(mo_mem_free(device, source, COUNT * 4));
        OK(mo_mem_free(device, result, 2 * COUNT * 2));
        OK(memopt_device_close(device));
    }
}

DEVICE_TEST(in_place_and_saturate, device, open_cpu(2))
{
    memopt_cast_options options = MEMOPT_CAST_OPTIONS_INIT;
    uint16_t *halves = device_memory(device, 4096);
    float *floats = device_memory(device, 4096);
    unsigned char *bytes = device_memory(device, 4096);
    for (uint16_t i = 0; i < 1000; i++)
        halves[i] = (uint16_t)(0x3c00 + i);
    memopt_tensor half = tensor_of(halves, 1000, MEMOPT_DTYPE_F16);
    memopt_tensor brain = tensor_of(halves, 1000, MEMOPT_DTYPE_BF16);
    OK(memopt_cast(device, &brain, &half, 1, NULL, NULL));
    for (uint16_t i = 0; i < 1000; i++)
        assert_int_equal(halves[i], mo_f32_to_bf16(mo_f16_to_f32((uint16_t)(0x3c00 + i))));
    floats[0] = 1e30f;
    floats[1] = -INFINITY;
    memopt_tensor wide = tensor_of(floats, 2, MEMOPT_DTYPE_F32);
    memopt_tensor narrow = tensor_of(bytes, 2, MEMOPT_DTYPE_F8_E4M3);
    OK(memopt_cast(device, &narrow, &wide, 1, NULL, NULL));
    assert_int_equal(bytes[0], 0x7f);
    assert_int_equal(bytes[1], 0xff);
    options.saturate = 1;
    OK(memopt_cast(device, &narrow, &wide, 1, &options, NULL));
    assert_int_equal(bytes[0], 0x7e);
    assert_int_equal(bytes[1], 0xfe);
    OK(mo_mem_free(device, halves, 4096));
    OK(mo_mem_free(device, floats, 4096));
    OK(mo_mem_free(device, bytes, 4096));
}

/* --- what is refused ------------------------------------------------------------------------- */

typedef struct fixture {
    memopt_device *device;
    unsigned char *memory; /* 64 KiB of 0x5a */
    memopt_tensor from, to;
} fixture;

enum { ROOM = 65536 };

static int begin(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->device = open_cpu(2);
    f->memory = device_memory(f->device, ROOM);
    memset(f->memory, 0x5a, ROOM);
    f->from = tensor_of(f->memory, 100, MEMOPT_DTYPE_F32);
    f->to = tensor_of(f->memory + 1024, 100, MEMOPT_DTYPE_BF16);
    *state = f;
    return 0;
}

/* Nothing was written by any of the calls. */
static int end(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < ROOM; i++)
        assert_int_equal(f->memory[i], 0x5a);
    OK(mo_mem_free(f->device, f->memory, ROOM));
    OK(memopt_device_close(f->device));
    free(f);
    return 0;
}

TEST_WITH(refuses_arguments, begin, end)
{
    fixture *f = *state;
    memopt_cast_options options = MEMOPT_CAST_OPTIONS_INIT;
    struct {
        memopt_cast_options known;
        uint64_t tail;
    } newer = {MEMOPT_CAST_OPTIONS_INIT, 1};
    REFUSED_SAYING("device", memopt_cast(NULL, &f->to, &f->from, 1, NULL, NULL));
    REFUSED_SAYING("destinations", memopt_cast(f->device, NULL, &f->from, 1, NULL, NULL));
    REFUSED_SAYING("sources", memopt_cast(f->device, &f->to, NULL, 1, NULL, NULL));
    REFUSED_SAYING("2^32", memopt_cast(f->device, &f->to, &f->from, (uint64_t)1 << 32, NULL, NULL));
    OK(memopt_cast(f->device, NULL, NULL, 0, NULL, NULL));
    options.rounding = 2;
    REFUSED_SAYING("rounding 2", memopt_cast(f->device, &f->to, &f->from, 1, &options, NULL));
    options.rounding = 0;
    options.saturate = 2;
    REFUSED_SAYING("saturate", memopt_cast(f->device, &f->to, &f->from, 1, &options, NULL));
    options.struct_size = 3;
    REFUSED_SAYING("struct_size", memopt_cast(f->device, &f->to, &f->from, 1, &options, NULL));
    newer.known.struct_size = sizeof newer;
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "memopt_cast_options",
                 memopt_cast(f->device, &f->to, &f->from, 1, &newer.known, NULL));
}

#define CAST_FAILS(status, text)                                                                   \
    do {                                                                                           \
        FAILS_SAYING(status, text, memopt_cast(f->device, to, from, 3, NULL, NULL));               \
        memcpy(from, good_from, sizeof from);                                                      \
        memcpy(to, good_to, sizeof to);                                                            \
    } while (0)

TEST_WITH(refuses_tensors, begin, end)
{
    fixture *f = *state;
    memopt_tensor good_from[3], good_to[3], from[3], to[3];
    for (int i = 0; i < 3; i++) {
        good_from[i] = tensor_of(f->memory + 4096 * i, 100, MEMOPT_DTYPE_F32);
        good_to[i] = tensor_of(f->memory + 4096 * i + 1024, 100, MEMOPT_DTYPE_F16);
    }
    memcpy(from, good_from, sizeof from);
    memcpy(to, good_to, sizeof to);
    from[2].dtype = 99;
    CAST_FAILS(MEMOPT_INVALID_ARGUMENT, "sources[2]: dtype 99");
    to[1].dtype = MEMOPT_DTYPE_I32;
    CAST_FAILS(MEMOPT_UNSUPPORTED, "destinations[1]");
    from[1].dtype = MEMOPT_DTYPE_F64;
    CAST_FAILS(MEMOPT_UNSUPPORTED, "sources[1]");
    to[2].count = 99;
    CAST_FAILS(MEMOPT_INVALID_ARGUMENT, "source 2 has 100 elements, its destination 99");
    from[0].data = f->memory + 2;
    CAST_FAILS(MEMOPT_INVALID_ARGUMENT, "sources[0]");
    to[0].data = f->memory + 1025;
    CAST_FAILS(MEMOPT_INVALID_ARGUMENT, "not aligned");
    to[1].data = NULL;
    CAST_FAILS(MEMOPT_INVALID_ARGUMENT, "destinations[1]: data is NULL");
    from[1].count = to[1].count = UINT64_MAX / 3;
    CAST_FAILS(MEMOPT_INVALID_ARGUMENT, "address space");
    from[1].count = to[1].count = UINT64_MAX / 4 - 100;
    CAST_FAILS(MEMOPT_INVALID_ARGUMENT, "address space");
}

TEST_WITH(refuses_overlap, begin, end)
{
    fixture *f = *state;
    memopt_tensor good_from[3], good_to[3], from[3], to[3];
    for (int i = 0; i < 3; i++) {
        good_from[i] = tensor_of(f->memory + 4096 * (2 - i), 100, MEMOPT_DTYPE_F32);
        good_to[i] = tensor_of(f->memory + 4096 * (2 - i) + 1024, 100, MEMOPT_DTYPE_F16);
    }
    memcpy(from, good_from, sizeof from);
    memcpy(to, good_to, sizeof to);
    to[0].data = from[0].data; /* in place, but the sizes differ */
    CAST_FAILS(MEMOPT_INVALID_ARGUMENT, "tensors 0 and 0 overlap");
    to[1].data = (char *)from[1].data + 398;
    CAST_FAILS(MEMOPT_INVALID_ARGUMENT, "tensors 1 and 1 overlap");
    to[2].data = (char *)to[0].data + 198; /* the last element of another destination */
    CAST_FAILS(MEMOPT_INVALID_ARGUMENT, "tensors 0 and 2 overlap");
    to[0].data = (char *)from[2].data - 198; /* another's source */
    CAST_FAILS(MEMOPT_INVALID_ARGUMENT, "tensors 0 and 2 overlap");
    from[1] = to[1]; /* in place is fine, but not twice */
    from[2] = to[2] = to[1];
    CAST_FAILS(MEMOPT_INVALID_ARGUMENT, "tensors 1 and 2 overlap");
    /* A short destination within a source that reaches over others. */
    from[0].count = to[0].count = 2000;
    from[0].data = f->memory;
    to[0].data = f->memory + 16384;
    CAST_FAILS(MEMOPT_INVALID_ARGUMENT, "overlap");
}

/* What looks near is allowed: touching ranges, shared sources, the same range in place. */
DEVICE_TEST(allows_neighbours, device, open_cpu(1))
{
    unsigned char *memory = device_memory(device, 4096);
    memset(memory, 0, 4096);
    memopt_tensor from[3] = {tensor_of(memory, 100, MEMOPT_DTYPE_F32),
                             tensor_of(memory + 4, 99, MEMOPT_DTYPE_F32),
                             tensor_of(memory + 1024, 10, MEMOPT_DTYPE_BF16)};
    memopt_tensor to[3] = {tensor_of(memory + 400, 100, MEMOPT_DTYPE_F16),
                           tensor_of(memory + 600, 99, MEMOPT_DTYPE_F16),
                           tensor_of(memory + 1024, 10, MEMOPT_DTYPE_F16)};
    OK(memopt_cast(device, to, from, 3, NULL, NULL));
    OK(mo_mem_free(device, memory, 4096));
}

/* 20,000 tensors: the overlap check is not quadratic, and finds the one pair. */
TEST(overlap_among_many)
{
    enum { TENSORS = 20000 };
    memopt_device *device = open_cpu(2);
    float *memory = device_memory(device, TENSORS * 16);
    uint16_t *halves = device_memory(device, TENSORS * 8 + 8);
    memopt_tensor *from = calloc(TENSORS, sizeof *from), *to = calloc(TENSORS, sizeof *to);
    memset(memory, 0, TENSORS * 16);
    for (uint64_t i = 0; i < TENSORS; i++) {
        uint64_t place = i * 7919 % TENSORS; /* in no order */
        from[i] = tensor_of(memory + 4 * place, 4, MEMOPT_DTYPE_F32);
        to[i] = tensor_of(halves + 4 * place, 4, MEMOPT_DTYPE_BF16);
    }
    OK(memopt_cast(device, to, from, TENSORS, NULL, NULL));
    to[12345].data = (uint16_t *)to[12345].data + 1;
    REFUSED_SAYING("12345", memopt_cast(device, to, from, TENSORS, NULL, NULL));
    free(from);
    free(to);
    OK(mo_mem_free(device, memory, TENSORS * 16));
    OK(mo_mem_free(device, halves, TENSORS * 8 + 8));
    OK(memopt_device_close(device));
}
