/* Option structs that grow: shorter and longer callers than the library. */
#include "support/unit.h"

#include "base/options.h"

#include <stdio.h>
#include <string.h>

/* Three versions of one struct. */
typedef struct first {
    size_t struct_size;
    uint64_t a;
} first;

typedef struct second {
    size_t struct_size;
    uint64_t a, b;
} second;

typedef struct third {
    size_t struct_size;
    uint64_t a, b, c;
} third;

TEST(null_means_defaults)
{
    second options = {1, 2, 3};
    assert_int_equal(mo_options_read(&options, sizeof options, NULL, "opts"), MEMOPT_OK);
    assert_int_equal(options.struct_size, sizeof options);
    assert_int_equal(options.a, 0);
    assert_int_equal(options.b, 0);
}

TEST(the_same_version)
{
    second given = {sizeof given, 10, 20}, options;
    assert_int_equal(mo_options_read(&options, sizeof options, &given, "opts"), MEMOPT_OK);
    assert_memory_equal(&given, &options, sizeof given);
}

TEST(an_older_caller_gets_defaults_for_the_rest)
{
    struct {
        first given;
        uint64_t not_ours;
    } caller = {{sizeof caller.given, 10}, 666};
    second options;
    assert_int_equal(mo_options_read(&options, sizeof options, &caller.given, "opts"), MEMOPT_OK);
    assert_int_equal(options.a, 10);
    assert_int_equal(options.b, 0);
    assert_int_equal(options.struct_size, sizeof options);
}

TEST(a_newer_caller_with_a_zero_tail)
{
    third given = {sizeof given, 10, 20, 0};
    second options;
    assert_int_equal(mo_options_read(&options, sizeof options, &given, "opts"), MEMOPT_OK);
    assert_int_equal(options.b, 20);
}

/* Every byte of the unknown tail counts, and the message names it. */
TEST(a_newer_caller_who_asks_for_more)
{
    for (size_t byte = sizeof(second); byte < sizeof(third); byte++) {
        third given = {sizeof given, 10, 20, 0};
        second options;
        char number[32];
        ((unsigned char *)&given)[byte] = 1;
        assert_int_equal(mo_options_read(&options, sizeof options, &given, "my_options"),
                         MEMOPT_UNSUPPORTED);
        assert_non_null(strstr(memopt_last_error(), "my_options"));
        snprintf(number, sizeof number, "byte %zu", byte);
        assert_non_null(strstr(memopt_last_error(), number));
    }
}

TEST(a_struct_size_that_is_no_size)
{
    for (size_t size = 0; size < sizeof(size_t); size++) {
        second given = {size, 10, 20}, options, out = {size, 1, 1};
        assert_int_equal(mo_options_read(&options, sizeof options, &given, "opts"),
                         MEMOPT_INVALID_ARGUMENT);
        assert_non_null(strstr(memopt_last_error(), "sizeof(opts)"));
        assert_int_equal(mo_result_write(&out, &given, sizeof given, "out"),
                         MEMOPT_INVALID_ARGUMENT);
        assert_int_equal(out.a, 1);
    }
    assert_int_equal(mo_result_write(NULL, &(second){0}, sizeof(second), "out"),
                     MEMOPT_INVALID_ARGUMENT);
}

TEST(results_reach_as_far_as_the_caller)
{
    const second full = {sizeof full, 10, 20};
    struct {
        first out;
        uint64_t guard;
    } older = {{sizeof older.out, 0}, 7};
    third newer = {sizeof newer, 0, 0, 7};
    assert_int_equal(mo_result_write(&older.out, &full, sizeof full, "out"), MEMOPT_OK);
    assert_int_equal(older.out.struct_size, sizeof older.out);
    assert_int_equal(older.out.a, 10);
    assert_int_equal(older.guard, 7);
    assert_int_equal(mo_result_write(&newer, &full, sizeof full, "out"), MEMOPT_OK);
    assert_int_equal(newer.struct_size, sizeof newer);
    assert_int_equal(newer.b, 20);
    assert_int_equal(newer.c, 7);
}
