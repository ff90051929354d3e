/* Arithmetic on sizes at the edges of 64 bits. */
#include "support/unit.h"

#include "base/checked.h"

TEST(products)
{
    uint64_t out = 0;
    assert_true(mo_mul_u64(UINT32_MAX, UINT32_MAX, &out));
    assert_true(out == UINT64_C(0xfffffffe00000001));
    assert_true(mo_mul_u64(UINT64_MAX, 1, &out));
    assert_true(mo_mul_u64(UINT64_MAX, 0, &out));
    assert_int_equal(out, 0);
    assert_false(mo_mul_u64(UINT64_C(1) << 32, UINT64_C(1) << 32, &out));
    assert_false(mo_mul_u64(UINT64_MAX, 2, &out));
}

TEST(sums)
{
    uint64_t out = 0;
    assert_true(mo_add_u64(UINT64_MAX - 1, 1, &out));
    assert_true(out == UINT64_MAX);
    assert_false(mo_add_u64(UINT64_MAX, 1, &out));
}

TEST(rounding_up)
{
    uint64_t out = 0;
    for (uint64_t unit = 1; unit < 50; unit++) {
        for (uint64_t value = 0; value < 200; value++) {
            assert_true(mo_round_up_u64(value, unit, &out));
            assert_int_equal(out % unit, 0);
            assert_true(out >= value && out < value + unit);
        }
    }
    assert_true(mo_round_up_u64(UINT64_MAX, 5, &out)); /* a multiple of 5 already */
    assert_true(out == UINT64_MAX);
    assert_false(mo_round_up_u64(UINT64_MAX, 512, &out));
}

TEST(division_rounds_up)
{
    assert_int_equal(mo_ceil_div_u64(0, 256), 0);
    assert_int_equal(mo_ceil_div_u64(1, 256), 1);
    assert_int_equal(mo_ceil_div_u64(256, 256), 1);
    assert_int_equal(mo_ceil_div_u64(257, 256), 2);
    assert_true(mo_ceil_div_u64(UINT64_MAX, 1) == UINT64_MAX);
    assert_true(mo_ceil_div_u64(UINT64_MAX, 2) == UINT64_C(1) << 63);
}

TEST(smaller_and_larger)
{
    assert_int_equal(mo_min_u64(3, 5), 3);
    assert_int_equal(mo_max_u64(3, 5), 5);
    assert_true(mo_max_u64(0, UINT64_MAX) == UINT64_MAX);
}
