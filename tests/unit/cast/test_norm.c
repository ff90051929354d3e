/* Norm and clip: the specified order of additions over many tensors and levels, the same bits for
 * any thread count, and torch's clipping rule. */
#include "support.h"

static double square_at(const memopt_tensor *tensor, uint64_t i)
{
    float value;
    uint16_t code;
    if (tensor->dtype == MEMOPT_DTYPE_F32) {
        value = ((const float *)tensor->data)[i];
    } else {
        code = ((const uint16_t *)tensor->data)[i];
        value = tensor->dtype == MEMOPT_DTYPE_F16 ? mo_f16_to_f32(code) : mo_bf16_to_f32(code);
    }
    return (double)value * (double)value;
}

/* The specification, index by index. */
static double stripe(const double *values, uint64_t count)
{
    double lanes[32] = {0};
    for (uint64_t i = 0; i < count; i++)
        lanes[i % 32] += values[i];
    for (int distance = 16; distance >= 1; distance /= 2)
        for (int lane = 0; lane < distance; lane++)
            lanes[lane] += lanes[lane + distance];
    return lanes[0];
}

static double chunk(const memopt_tensor *tensor, uint64_t start)
{
    double values[1024], sum = 0;
    uint64_t end = start + 16384 < tensor->count ? start + 16384 : tensor->count;
    for (; start < end; start += 1024) {
        uint64_t n = end - start < 1024 ? end - start : 1024;
        for (uint64_t i = 0; i < n; i++)
            values[i] = square_at(tensor, start + i);
        sum += stripe(values, n);
    }
    return sum;
}

static double total(const memopt_tensor *tensors, uint64_t count)
{
    uint64_t used = 0, room = 1;
    for (uint64_t t = 0; t < count; t++)
        room += tensors[t].count / 16384 + 1;
    double *values = calloc(room, sizeof *values), result;
    for (uint64_t t = 0; t < count; t++)
        for (uint64_t start = 0; start < tensors[t].count; start += 16384)
            values[used++] = chunk(&tensors[t], start);
    while (used > 1) {
        uint64_t sums = (used + 1023) / 1024;
        for (uint64_t i = 0; i < sums; i++)
            values[i] = stripe(values + 1024 * i, used - 1024 * i < 1024 ? used - 1024 * i : 1024);
        used = sums;
    }
    result = values[0];
    free(values);
    return result;
}

/* Three hundred small tensors and one of 17 Mi elements, whose chunks make a second level. */
TEST(order_of_additions)
{
    enum { SMALL = 300, LARGE = 17 << 20 };
    uint32_t bits[2];
    for (uint32_t threads = 1; threads <= 2; threads++) {
        memopt_device *device = open_cpu(threads);
        uint64_t seed = 21;
        uint16_t *large = device_memory(device, LARGE * 2);
        float *small = device_memory(device, SMALL * 1000 * 4), *norm = device_memory(device, 64);
        memopt_tensor tensors[SMALL + 1];
        for (int i = 0; i < LARGE; i++)
            large[i] = mo_f32_to_bf16(next_float(&seed));
        for (int i = 0; i < SMALL * 1000; i++)
            small[i] = next_float(&seed) * 1e3f;
        for (uint64_t i = 0; i < SMALL; i++)
            tensors[i] = tensor_of(small + 1000 * i, 1 + i * 13 % 1000, MEMOPT_DTYPE_F32);
        tensors[SMALL] = tensors[100];
        tensors[100] = tensor_of(large, LARGE, MEMOPT_DTYPE_BF16);
        OK(memopt_norm(device, norm + 1, tensors, 50, 0, NULL));
        OK(memopt_norm(device, norm, tensors, SMALL + 1, 0, NULL));
        double *sums = (double *)(void *)(norm + 2);
        sums[1] = 1.0;
        OK(memopt_square_sum(device, sums, tensors, SMALL + 1, NULL));
        OK(memopt_square_sum(device, sums + 1, tensors, 0, NULL));
        REFUSED_SAYING("not aligned to 8",
                       memopt_square_sum(device, (double *)(void *)(norm + 1), tensors, 1, NULL));
        assert_true(sums[0] == total(tensors, SMALL + 1) && sums[1] == 0.0);
        assert_true(norm[1] == (float)sqrt(total(tensors, 50)));
        assert_true(norm[0] == (float)sqrt(total(tensors, SMALL + 1)));
        memcpy(&bits[threads - 1], norm, 4);
        OK(mo_mem_free(device, large, LARGE * 2));
        OK(mo_mem_free(device, small, SMALL * 1000 * 4));
        OK(mo_mem_free(device, norm, 64));
        OK(memopt_device_close(device));
    }
    assert_int_equal(bits[0], bits[1]);
}

static void set(norm_fixture *f, float a, float b, float c, float d)
{
    f->data[0] = a;
    f->data[1] = b;
    f->data[2] = c;
    f->data[3] = d;
}

TEST_WITH(clip_scales_large_norms, begin_norm, end_norm)
{
    norm_fixture *f = *state;
    set(f, 3, -4, 0, -0.0f);
    OK(memopt_norm(f->device, f->norm, &f->tensor, 1, 1.0, NULL));
    float factor = (float)(1.0 / (5.0 + 1e-6));
    assert_true(*f->norm == 5.0f);
    assert_true(f->data[0] == 3 * factor && f->data[1] == -4 * factor && f->data[2] == 0);
    assert_true(signbit(f->data[3]));
}

TEST_WITH(clip_leaves_small_norms, begin_norm, end_norm)
{
    norm_fixture *f = *state;
    set(f, 3, -4, 1e-40f, 0);
    float before[4];
    memcpy(before, f->data, sizeof before);
    OK(memopt_norm(f->device, f->norm, &f->tensor, 1, 5.1, NULL));
    assert_memory_equal(before, f->data, sizeof before);
    OK(memopt_norm(f->device, NULL, &f->tensor, 1, 1e300, NULL));
    assert_memory_equal(before, f->data, sizeof before);
}

/* As torch without error_if_nonfinite: inf scales by 0, NaN makes everything NaN. */
TEST_WITH(clip_non_finite, begin_norm, end_norm)
{
    norm_fixture *f = *state;
    set(f, INFINITY, 2, -3, 0);
    OK(memopt_norm(f->device, f->norm, &f->tensor, 1, 1.0, NULL));
    assert_true(isinf(*f->norm) && *f->norm > 0);
    assert_true(isnan(f->data[0]) && f->data[1] == 0 && f->data[2] == 0 && signbit(f->data[2]));
    set(f, NAN, 2, -3, 0);
    OK(memopt_norm(f->device, f->norm, &f->tensor, 1, 1.0, NULL));
    uint32_t norm;
    memcpy(&norm, f->norm, 4);
    assert_int_equal(norm, 0x7fc00000);
    for (int i = 0; i < 4; i++)
        assert_true(isnan(f->data[i]));
}

TEST_WITH(norm_beyond_f32, begin_norm, end_norm)
{
    norm_fixture *f = *state;
    set(f, 3e38f, 3e38f, 0, 0); /* finite in double, 4.2e38 as the norm */
    OK(memopt_norm(f->device, f->norm, &f->tensor, 1, 1.0, NULL));
    assert_true(isinf(*f->norm));
    assert_true(fabsf(f->data[0] - 0.70710677f) < 1e-6f);
}

TEST_WITH(nothing_has_norm_zero, begin_norm, end_norm)
{
    norm_fixture *f = *state;
    memopt_tensor empty = tensor_of(NULL, 0, MEMOPT_DTYPE_BF16);
    *f->norm = -1;
    OK(memopt_norm(f->device, f->norm, NULL, 0, 0, NULL));
    assert_true(*f->norm == 0.0f);
    *f->norm = -1;
    OK(memopt_norm(f->device, f->norm, &empty, 1, 0, NULL));
    assert_true(*f->norm == 0.0f);
    *f->norm = -1;
    OK(memopt_norm(f->device, f->norm, NULL, 0, 1.0, NULL));
    assert_true(*f->norm == 0.0f);
}

TEST_WITH(refuses, begin_norm, end_norm)
{
    norm_fixture *f = *state;
    const double bounds[] = {-1.0, -1e-300, (double)INFINITY, (double)NAN};
    set(f, 100, 100, 100, 100);
    for (int i = 0; i < 4; i++)
        FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "max_norm",
                     memopt_norm(f->device, f->norm, &f->tensor, 1, bounds[i], NULL));
    REFUSED_SAYING("norm is NULL", memopt_norm(f->device, NULL, &f->tensor, 1, 0, NULL));
    REFUSED_SAYING("device is NULL", memopt_norm(NULL, f->norm, &f->tensor, 1, 0, NULL));
    memopt_tensor twice[2] = {f->tensor, f->tensor};
    REFUSED_SAYING("tensors 0 and 1 overlap", memopt_norm(f->device, f->norm, twice, 2, 1.0, NULL));
    static memopt_tensor huge[4100]; /* of which each has 2^48 partial sums */
    for (int i = 0; i < 4100; i++)
        huge[i] = tensor_of(f->data, (UINT64_C(1) << 62) - (UINT64_C(1) << 46), MEMOPT_DTYPE_F32);
    REFUSED_SAYING("2^74 elements", memopt_norm(f->device, f->norm, huge, 4100, 0, NULL));
    REFUSED_SAYING("not aligned", memopt_norm(f->device, (float *)(void *)((char *)f->norm + 1),
                                              &f->tensor, 1, 0, NULL));
    assert_true(f->data[0] == 100);
}
