/* Reductions and scaling: each form's bits equal the scalar form's, the scalar form equals the
 * specification written out naively here. */
#include "support.h"

#include "kernels/reduce/scale.h"

enum { ROOM = 2 * MO_CHUNK_ELEMENTS };

static _Alignas(64) unsigned char data[4 * ROOM + 64], copy[4 * ROOM + 64], other[4 * ROOM + 64];

static double element_value(const format *f, uint64_t i)
{
    uint32_t code = 0;
    memcpy(&code, data + i * f->size, f->size);
    uint32_t sign_bit = 1u << (8 * f->size - 1);
    double value = code_value(f, code & (sign_bit - 1));
    return code & sign_bit ? -value : value;
}

/* Finite values of a wide range, or with `wild`, everything. */
static void fill(const format *f, uint64_t count, uint64_t seed, int wild)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t code = (uint32_t)next_random(&seed), sign_bit = 1u << (8 * f->size - 1);
        uint32_t magnitude = code & (sign_bit - 1);
        if (!wild)
            magnitude %= f->largest + 1;
        code = magnitude | (code & sign_bit);
        memcpy(data + i * f->size, &code, f->size);
    }
}

/* The specification, index by index. */
static double spec_stripe(const double *values, uint64_t count)
{
    double lanes[32] = {0};
    for (uint64_t i = 0; i < count; i++)
        lanes[i % 32] = lanes[i % 32] + values[i];
    for (int distance = 16; distance >= 1; distance /= 2)
        for (int lane = 0; lane < distance; lane++)
            lanes[lane] = lanes[lane] + lanes[lane + distance];
    return lanes[0];
}

static double spec_chunk(const format *f, uint64_t count)
{
    double values[1024], sum = 0;
    for (uint64_t start = 0; start < count; start += 1024) {
        uint64_t n = count - start < 1024 ? count - start : 1024;
        for (uint64_t i = 0; i < n; i++) {
            double value = element_value(f, start + i);
            values[i] = value * value;
        }
        sum += spec_stripe(values, n);
    }
    return sum;
}

static mo_reduce_args reduce_args(const format *f, uint64_t count)
{
    mo_reduce_args args = {.count = 1};
    args.segments[0].data = data;
    args.segments[0].count = count;
    args.segments[0].dtype = f->dtype;
    return args;
}

static double run_square(const format *f, uint64_t count, int isa)
{
    double partials[2] = {-1, -1};
    mo_reduce_args args = reduce_args(f, count);
    args.partials = partials;
    mo_kernel_square_sum.cpu[isa](&args, 0, 1);
    assert_true(partials[1] == -1);
    return partials[0];
}

TEST(square_sums)
{
    for (int f = 0; f < 3; f++)
        FOR_EACH_FORM (isa, &mo_kernel_square_sum)
            for (uint64_t count = 1; count <= MO_CHUNK_ELEMENTS;
                 count = count < 300 ? count + 1 : count * 9 / 8) {
                fill(&formats[f], count, count, 0);
                double wanted = spec_chunk(&formats[f], count);
                double sum = run_square(&formats[f], count, isa);
                if (memcmp(&sum, &wanted, sizeof sum) != 0)
                    fail_msg("%s, %u elements, form %d: %a, not %a", formats[f].name,
                             (unsigned)count, isa, sum, wanted);
            }
}

TEST(sums_of_sums)
{
    static double values[5000], sums[5];
    uint64_t seed = 3;
    for (int i = 0; i < 5000; i++)
        values[i] = (double)(next_random(&seed) >> 20) * 1e-7;
    FOR_EACH_FORM (isa, &mo_kernel_sum)
        for (uint64_t count = 1; count <= 5000; count += 41) {
            mo_sum_args args = {values, sums, count};
            uint64_t items = (count + 1023) / 1024;
            mo_kernel_sum.cpu[isa](&args, 0, items);
            for (uint64_t i = 0; i < items; i++) {
                uint64_t n = count - 1024 * i < 1024 ? count - 1024 * i : 1024;
                assert_true(sums[i] == spec_stripe(values + 1024 * i, n));
            }
        }
}

static float run_check(const format *f, uint64_t count, int isa)
{
    float flag = 0;
    mo_reduce_args args = reduce_args(f, count);
    args.found_inf = &flag;
    mo_kernel_check.cpu[isa](&args, 0, mo_chunks_of(count));
    return flag;
}

/* At every position, every kind of non-finite element is found by check and by the sum alike; the
 * largest finite ones are not. */
TEST(non_finite_found_everywhere)
{
    enum { COUNT = 1100 };
    for (int f = 0; f < 3; f++)
        FOR_EACH_FORM (isa, &mo_kernel_check) {
            const format *type = &formats[f];
            uint32_t sign_bit = 1u << (8 * type->size - 1);
            uint32_t bad[] = {type->overflow, type->overflow | sign_bit, type->overflow + 1,
                              sign_bit - 1};
            for (uint64_t i = 0; i < COUNT; i++)
                memcpy(data + i * type->size, &type->largest, type->size);
            assert_true(run_check(type, COUNT, isa) == 0);
            assert_true(isfinite(run_square(type, COUNT, isa)));
            for (uint64_t i = 0; i<COUNT; i += i> 100 && i < 1000 ? 31 : 1) {
                memcpy(data + i * type->size, &bad[i % 4], type->size);
                assert_true(run_check(type, COUNT, isa) == 1);
                assert_false(isfinite(run_square(type, COUNT, isa)));
                memcpy(data + i * type->size, &type->largest, type->size);
            }
        }
}

static float run_scale(unsigned char *at, const format *f, uint64_t count, float factor, int isa,
                       int unscale)
{
    float flag = 0;
    mo_scale_args args = {.count = 1, .found_inf = &flag};
    args.scale = unscale ? &factor : NULL;
    args.factor = unscale ? NULL : &factor;
    args.segments[0].data = at;
    args.segments[0].count = count;
    args.segments[0].dtype = f->dtype;
    mo_kernel_scale.cpu[isa](&args, 0, mo_chunks_of(count));
    return flag;
}

TEST(scale_forms_agree)
{
    const float factors[] = {0.5f, 1.0f / 3, 65536.0f, 0x1p-140f, 0.0f, INFINITY, NAN, 1.0f};
    for (int f = 0; f < 3; f++)
        FOR_EACH_WIDE_FORM (isa, &mo_kernel_scale)
            for (uint64_t count = 1; count < ROOM; count = count < 100 ? count + 1 : count * 5 / 4)
                for (int k = 0; k < 8; k++) {
                    const format *type = &formats[f];
                    fill(type, count, count + (uint64_t)k, 1);
                    memcpy(copy, data, sizeof copy);
                    memcpy(other, data, sizeof other);
                    float a = run_scale(copy, type, count, factors[k], 0, count % 2);
                    float b = run_scale(other, type, count, factors[k], isa, count % 2);
                    assert_true(a == b);
                    if (memcmp(copy, other, (count + 8) * type->size) != 0)
                        fail_msg("%s, %u elements, factor %g, form %d", type->name, (unsigned)count,
                                 (double)factors[k], isa);
                }
}

static uint32_t scaled(uint32_t input, float factor)
{
    memcpy(data, &input, 4);
    run_scale(data, &formats[0], 1, factor, 0, 0);
    uint32_t result;
    memcpy(&result, data, 4);
    return result;
}

TEST(scale_values)
{
    assert_int_equal(scaled(0x3f800000, 0.5f), 0x3f000000);
    assert_int_equal(scaled(0x7f800001, 0.5f), 0x7fc00001); /* quiet, payload kept */
    assert_int_equal(scaled(0xff812345, NAN), 0xffc12345);
    assert_int_equal(scaled(0x7f800000, 0.0f), 0x7fc00000); /* a NaN of our own */
    assert_int_equal(scaled(0x40000000, NAN), 0x7fc00000);
    assert_int_equal(scaled(0x7f800001, 1.0f), 0x7fc00001); /* factor 1, and judged */
    uint32_t signalling = 0x7f800001;
    float one = 1.0f;
    mo_scale_args unjudged = {.count = 1, .factor = &one};
    unjudged.segments[0] = (mo_tensor_segment){&signalling, 1, 0, MO_DTYPE_F32, 0};
    mo_kernel_scale.cpu[0](&unjudged, 0, 1);
    assert_int_equal(signalling, 0x7f800001); /* factor 1 alone touches nothing */
    /* f16: multiplied in f32, rounded once, also into subnormals */
    uint16_t half = 0x0401;
    memcpy(data, &half, 2);
    run_scale(data, &formats[1], 1, 4.0f, 0, 1); /* times float(1 / 4) */
    memcpy(&half, data, 2);
    assert_int_equal(half, 0x0100);
}
