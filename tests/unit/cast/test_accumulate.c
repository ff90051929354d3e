/* Accumulation: each form against the formula element by element. Scaling by a factor in memory, the check
 * alone, bad input; kernels_reduce compares their kernels. */
#include "support.h"

#include "kernels/cast/accumulate.h"
#include "support/forms.h"

static const memopt_dtype types[] = {MEMOPT_DTYPE_F32, MEMOPT_DTYPE_F16, MEMOPT_DTYPE_BF16};
enum { TYPES = 3, MOST = 2 * MO_CHUNK_ELEMENTS + 77 };

static float get(const void *data, uint64_t i, memopt_dtype dtype)
{
    if (dtype == MEMOPT_DTYPE_F32)
        return ((const float *)data)[i];
    uint16_t code = ((const uint16_t *)data)[i];
    return dtype == MEMOPT_DTYPE_F16 ? mo_f16_to_f32(code) : mo_bf16_to_f32(code);
}

static void put(void *data, uint64_t i, memopt_dtype dtype, float value)
{
    if (dtype == MEMOPT_DTYPE_F32)
        ((float *)data)[i] = value;
    else
        ((uint16_t *)data)[i] =
            dtype == MEMOPT_DTYPE_F16 ? mo_f32_to_f16(value) : mo_f32_to_bf16(value);
}

/* Numbers of all magnitudes; now and then any bits at all: infinities, NaNs, subnormals. */
static void fill(void *data, uint64_t count, memopt_dtype dtype, uint64_t *seed)
{
    for (uint64_t i = 0; i < count; i++) {
        if (next_random(seed) % 16 != 0)
            put(data, i, dtype, ldexpf(next_float(seed), (int)(next_random(seed) % 30) - 15));
        else if (dtype == MEMOPT_DTYPE_F32)
            ((uint32_t *)data)[i] = (uint32_t)next_random(seed);
        else
            ((uint16_t *)data)[i] = (uint16_t)next_random(seed);
    }
}

/* The specification, by the C library's fma. */
static float added(float sum, float value, float scale)
{
    float result = fmaf(scale, value, sum);
    return isnan(result) ? mo_f32_from_bits(0x7fc00000u) : result;
}

TEST(each_form)
{
    static float to[MOST], from[MOST], before[MOST], wanted[MOST];
    const uint64_t counts[] = {1, 7, 8, 15, 16, 17, 1000, MO_CHUNK_ELEMENTS, MOST};
    const float scales[] = {1.0f, 0.25f, -1.0f / 3, 1e30f};
    uint64_t seed = 5;
    for (int round = 0; round < 9 * 4 * TYPES * TYPES; round++) {
        uint64_t count = counts[round % 9], bytes;
        float scale = scales[round / 9 % 4];
        memopt_dtype t = types[round / 36 % TYPES], f = types[round / 36 / TYPES];
        bytes = count * memopt_dtype_size(t);
        fill(before, count, t, &seed);
        fill(from, count, f, &seed);
        for (uint64_t i = 0; i < count; i++)
            put(wanted, i, t, added(get(before, i, t), get(from, i, f), scale));
        mo_accumulate_args args = {.count = 1, .scale = scale};
        args.segments[0] = (mo_cast_segment){from, to, count, 0, 0, (uint16_t)f, (uint16_t)t};
        FOR_EACH_FORM (isa, &mo_kernel_accumulate) {
            memcpy(to, before, bytes);
            mo_kernel_accumulate.cpu[isa](&args, 0, mo_chunks_of(count));
            assert_memory_equal(to, wanted, bytes);
        }
    }
}

DEVICE_TEST(bad_tensors, device, open_cpu(1))
{
    float *memory = device_memory(device, 400);
    memopt_tensor to = tensor_of(memory, 10, MEMOPT_DTYPE_F32);
    memopt_tensor from = tensor_of(memory + 20, 10, MEMOPT_DTYPE_F32);
    memopt_tensor other = from, f8 = from, pair[2];
    for (int i = 0; i < 100; i++)
        memory[i] = 3.0f;
    other.count = 9;
    f8.dtype = MEMOPT_DTYPE_F8_E4M3;
    REFUSED_SAYING("device is NULL", memopt_accumulate(NULL, &to, &from, 1, 1.0f, NULL));
    REFUSED_SAYING("sources is NULL", memopt_accumulate(device, &to, NULL, 1, 1.0f, NULL));
    REFUSED_SAYING("scale is inf", memopt_accumulate(device, &to, &from, 1, INFINITY, NULL));
    REFUSED_SAYING("source 0 has 9 elements",
                   memopt_accumulate(device, &to, &other, 1, 1.0f, NULL));
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "f8_e4m3", memopt_accumulate(device, &to, &f8, 1, 1.0f, NULL));
    other = tensor_of(memory + 9, 10, MEMOPT_DTYPE_F32);
    REFUSED_SAYING("overlap", memopt_accumulate(device, &to, &other, 1, 1.0f, NULL));
    pair[0] = pair[1] = from;
    memopt_tensor twice[2] = {to, to};
    REFUSED_SAYING("overlap", memopt_accumulate(device, twice, pair, 2, 1.0f, NULL));
    REFUSED_SAYING("2^32", memopt_accumulate(device, &to, &from, (uint64_t)1 << 32, 1.0f, NULL));
    for (int i = 0; i < 100; i++)
        assert_true(memory[i] == 3.0f);
    OK(memopt_accumulate(device, NULL, NULL, 0, 1.0f, NULL));
    OK(mo_mem_free(device, memory, 400));
}

/* --- memopt_scale and memopt_check_finite ---------------------------------------------------- */

DEVICE_TEST(bad_cells, device, open_cpu(1))
{
    float *memory = device_memory(device, 64), *crooked = (void *)((char *)memory + 2);
    memopt_tensor tensor = tensor_of(memory + 4, 4, MEMOPT_DTYPE_F32);
    memory[0] = 2.0f, memory[1] = 0.0f, memory[4] = 3.0f;
    REFUSED_SAYING("device is NULL", memopt_scale(NULL, &tensor, 1, memory, NULL, NULL));
    REFUSED_SAYING("factor is NULL", memopt_scale(device, &tensor, 1, NULL, NULL, NULL));
    REFUSED_SAYING("factor", memopt_scale(device, &tensor, 1, crooked, NULL, NULL));
    REFUSED_SAYING("found_inf", memopt_scale(device, &tensor, 1, memory, crooked, NULL));
    REFUSED_SAYING("tensors are NULL", memopt_scale(device, NULL, 1, memory, NULL, NULL));
    REFUSED_SAYING("device is NULL", memopt_check_finite(NULL, &tensor, 1, memory, NULL));
    REFUSED_SAYING("found_inf is NULL", memopt_check_finite(device, &tensor, 1, NULL, NULL));
    assert_true(memory[4] == 3.0f);
    OK(memopt_scale(device, &tensor, 1, memory, NULL, NULL));
    assert_true(memory[4] == 6.0f);
    OK(mo_mem_free(device, memory, 64));
}
