/* Sizes as people write them. */
#include "support/unit.h"

#include "base/error.h"

#include <locale.h>
#include <string.h>

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define GIB (MIB * KIB)
#define TIB (GIB * KIB)

TEST(sizes_people_write)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } rows[] = {
        {"0", 0},
        {"1536", 1536},
        {"512MiB", 512 * MIB},
        {"1.5GiB", 3 * GIB / 2},
        {"2 GB", UINT64_C(2000000000)},
        {"4g", 4 * GIB},
        {"4k", 4 * KIB},
        {"7M", 7 * MIB},
        {"1t", TIB},
        {"3KB", 3000},
        {"3mb", 3000000},
        {"2TB", UINT64_C(2000000000000)},
        {"100b", 100},
        {"  12  KiB\n", 12 * KIB},
        {"\t64", 64},
        {".5k", 512},
        {"1.", 1},
        {"0.1GB", 100000000},
        {"0.3KiB", 307},
        {"0.7", 1},
        {"0.000000001", 0},
        {"007", 7},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t bytes = 1;
        assert_int_equal(memopt_parse_size(rows[i].text, &bytes), MEMOPT_OK);
        assert_int_equal(bytes, rows[i].bytes);
    }
}

/* A double would round these. */
TEST(whole_numbers_keep_every_bit)
{
    uint64_t bytes;
    assert_int_equal(memopt_parse_size("18446744073709551615", &bytes), MEMOPT_OK);
    assert_true(bytes == UINT64_MAX);
    assert_int_equal(memopt_parse_size("9007199254740993", &bytes), MEMOPT_OK);
    assert_true(bytes == UINT64_C(9007199254740993));
    assert_int_equal(memopt_parse_size("9007199254740993KiB", &bytes), MEMOPT_OK);
    assert_true(bytes == UINT64_C(9007199254740993) * KIB);
    assert_int_equal(memopt_parse_size("18014398509481983KiB", &bytes), MEMOPT_OK);
    assert_true(bytes == UINT64_C(18014398509481983) * KIB);
}

TEST(what_is_no_size)
{
    static const char *const rows[] = {
        "",    " ",     "GiB",   "-1",    "+1",        "-0.5GiB", "1e9", "0x10",     "1.5.2",
        "1,5", "12 34", "4 G B", "1GiBs", "1gibibyte", ".",       "nan", "infinity", "1 GiB extra",
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t bytes = 99;
        assert_int_equal(memopt_parse_size(rows[i], &bytes), MEMOPT_INVALID_ARGUMENT);
        assert_int_equal(bytes, 99);
        assert_non_null(strstr(memopt_last_error(), rows[i]));
    }
}

TEST(sizes_beyond_64_bits)
{
    static const char *const rows[] = {
        "18446744073709551616",
        "18014398509481984KiB",
        "16777216TiB",
        "18446744073709551615.6",
        "99999999999999999999999999999999999999999",
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t bytes = 99;
        assert_int_equal(memopt_parse_size(rows[i], &bytes), MEMOPT_INVALID_ARGUMENT);
        assert_int_equal(bytes, 99);
    }
}

TEST(null_pointers)
{
    uint64_t bytes = 99;
    assert_int_equal(memopt_parse_size(NULL, &bytes), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_parse_size("1", NULL), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(bytes, 99);
}

/* A long text is quoted in part, never read past its end. */
TEST(a_long_text)
{
    char text[3000];
    uint64_t bytes;
    memset(text, '9', sizeof text);
    text[sizeof text - 1] = '\0';
    assert_int_equal(memopt_parse_size(text, &bytes), MEMOPT_INVALID_ARGUMENT);
    assert_true(strlen(memopt_last_error()) < 200);
    memset(text, '0', sizeof text - 1);
    text[1] = '.';
    assert_int_equal(memopt_parse_size(text, &bytes), MEMOPT_OK);
    assert_int_equal(bytes, 0);
}

TEST(sizes_as_the_library_writes_them)
{
    assert_string_equal(MO_SIZE(0), "0 B");
    assert_string_equal(MO_SIZE(1023), "1023 B");
    assert_string_equal(MO_SIZE(1024), "1.00 KiB");
    assert_string_equal(MO_SIZE(3 * GIB / 2), "1.50 GiB");
    /* 1023.999 MiB is a GiB to two digits, not "1024.00 MiB". */
    assert_string_equal(MO_SIZE(GIB - 1), "1.00 GiB");
    assert_string_equal(MO_SIZE(UINT64_MAX), "16.00 EiB");
}

int main(void)
{
    setlocale(LC_ALL, "");
    return run_all_tests(NULL, NULL);
}
