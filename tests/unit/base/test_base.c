/* Version, status names, element types: the tables of base.h. */
#include "support/unit.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

TEST(version_is_the_headers)
{
    char text[32];
    assert_int_equal(memopt_version(), MEMOPT_VERSION);
    snprintf(text, sizeof text, "%d.%d.%d", MEMOPT_VERSION_MAJOR, MEMOPT_VERSION_MINOR,
             MEMOPT_VERSION_PATCH);
    assert_string_equal(memopt_version_string(), text);
}

/* Programs compiled against 1.0 have these numbers in them: a change breaks them. */
TEST(statuses_keep_their_values)
{
    static const char *const names[] = {
        "OK",
        "INVALID_ARGUMENT",
        "UNSUPPORTED",
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_DEVICE_MEMORY",
        "LIMIT_REACHED",
        "DRIVER_MISSING",
        "DRIVER_ERROR",
        "DEVICE_LOST",
        "DEVICE_FAULT",
        "BUSY",
        "NOT_READY",
        "NOT_FOUND",
        "CORRUPT",
        "IO_ERROR",
        "MISMATCH",
        "INTERNAL",
    };
    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++)
        assert_string_equal(memopt_status_name(i), names[i]);
    assert_int_equal(MEMOPT_STATUS_USER, 65536);
}

TEST(every_status_has_a_message_of_its_own)
{
#define DIFFERENT(name, value, message)                                                            \
    assert_true(strlen(memopt_status_message(value)) > 0);                                         \
    assert_string_not_equal(memopt_status_message(value), memopt_status_message(-1));
    MEMOPT_STATUS_LIST(DIFFERENT)
#undef DIFFERENT
}

TEST(values_that_are_no_status)
{
    assert_string_equal(memopt_status_name(-1), "UNKNOWN");
    assert_string_equal(memopt_status_name(17), "UNKNOWN");
    assert_string_equal(memopt_status_name(MEMOPT_STATUS_USER - 1), "UNKNOWN");
    assert_string_equal(memopt_status_name(MEMOPT_STATUS_USER), "USER");
    assert_string_equal(memopt_status_name(INT32_MAX), "USER");
    assert_non_null(strstr(memopt_status_message(MEMOPT_STATUS_USER), "callback"));
    assert_non_null(memopt_status_message(INT32_MIN));
}

TEST(element_sizes)
{
    static const size_t sizes[] = {0, 4, 2, 2, 1, 1, 1, 4, 8, 8, 1, 1, 2, 0};
    for (int i = 0; i < (int)(sizeof sizes / sizeof sizes[0]); i++)
        assert_int_equal(memopt_dtype_size(i), sizes[i]);
    assert_int_equal(memopt_dtype_size(-1), 0);
    assert_string_equal(memopt_dtype_name(MEMOPT_DTYPE_INVALID), "invalid");
    assert_string_equal(memopt_dtype_name(99), "invalid");
}

TEST(names_lead_back_to_their_type)
{
    for (memopt_dtype dtype = MEMOPT_DTYPE_F32; dtype <= MEMOPT_DTYPE_I16; dtype++) {
        memopt_dtype back = MEMOPT_DTYPE_INVALID;
        assert_int_equal(memopt_dtype_parse(memopt_dtype_name(dtype), &back), MEMOPT_OK);
        assert_int_equal(back, dtype);
    }
}

TEST(aliases_in_any_case)
{
    static const struct {
        const char *name;
        memopt_dtype dtype;
    } rows[] = {
        {"float32", MEMOPT_DTYPE_F32},
        {"FP32", MEMOPT_DTYPE_F32},
        {"Half", MEMOPT_DTYPE_F16},
        {"BFloat16", MEMOPT_DTYPE_BF16},
        {"e4m3", MEMOPT_DTYPE_F8_E4M3},
        {"float8_e5m2", MEMOPT_DTYPE_F8_E5M2},
        {"uint8", MEMOPT_DTYPE_U8},
        {"int16", MEMOPT_DTYPE_I16},
        {"double", MEMOPT_DTYPE_F64},
        {"float8_e4m3fnuz", MEMOPT_DTYPE_F8_E4M3FNUZ},
        {"E5M2FNUZ", MEMOPT_DTYPE_F8_E5M2FNUZ},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        memopt_dtype dtype;
        assert_int_equal(memopt_dtype_parse(rows[i].name, &dtype), MEMOPT_OK);
        assert_int_equal(dtype, rows[i].dtype);
    }
}

TEST(a_name_that_is_no_type)
{
    memopt_dtype dtype = 77;
    assert_int_equal(memopt_dtype_parse("fp31", &dtype), MEMOPT_NOT_FOUND);
    assert_non_null(strstr(memopt_last_error(), "\"fp31\""));
    assert_non_null(strstr(memopt_last_error(), "bf16"));
    assert_int_equal(memopt_dtype_parse("", &dtype), MEMOPT_NOT_FOUND);
    assert_int_equal(memopt_dtype_parse("invalid", &dtype), MEMOPT_NOT_FOUND);
    assert_int_equal(memopt_dtype_parse(NULL, &dtype), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_dtype_parse("f32", NULL), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(dtype, 77);
}
