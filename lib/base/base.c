/* Version, status names, element types and sizes: the tables of base.h. */
#include "base/error.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

uint32_t memopt_version(void)
{
    return MEMOPT_VERSION;
}

const char *memopt_version_string(void)
{
    return TEXT(MEMOPT_VERSION_MAJOR) "." TEXT(MEMOPT_VERSION_MINOR) "." TEXT(MEMOPT_VERSION_PATCH);
}

const char *memopt_status_name(memopt_status status)
{
    switch (status) {
#define NAME(name, value, message)                                                                 \
    case value:                                                                                    \
        return #name;
        MEMOPT_STATUS_LIST(NAME)
#undef NAME
    default:
        return status >= MEMOPT_STATUS_USER ? "USER" : "UNKNOWN";
    }
}

const char *memopt_status_message(memopt_status status)
{
    switch (status) {
#define MESSAGE(name, value, message)                                                              \
    case value:                                                                                    \
        return message;
        MEMOPT_STATUS_LIST(MESSAGE)
#undef MESSAGE
    default:
        return status >= MEMOPT_STATUS_USER ? "a callback of the caller returned this"
                                            : "not a status of this library";
    }
}

static const struct {
    memopt_dtype dtype;
    size_t size;
    const char *names[4]; /* the first is ours */
} dtypes[] = {
    {MEMOPT_DTYPE_F32, 4, {"f32", "fp32", "float32", "float"}},
    {MEMOPT_DTYPE_F16, 2, {"f16", "fp16", "float16", "half"}},
    {MEMOPT_DTYPE_BF16, 2, {"bf16", "bfloat16", NULL, NULL}},
    {MEMOPT_DTYPE_F8_E4M3, 1, {"f8_e4m3", "fp8_e4m3", "float8_e4m3fn", "e4m3"}},
    {MEMOPT_DTYPE_F8_E5M2, 1, {"f8_e5m2", "fp8_e5m2", "float8_e5m2", "e5m2"}},
    {MEMOPT_DTYPE_U8, 1, {"u8", "uint8", NULL, NULL}},
    {MEMOPT_DTYPE_I32, 4, {"i32", "int32", NULL, NULL}},
    {MEMOPT_DTYPE_I64, 8, {"i64", "int64", NULL, NULL}},
    {MEMOPT_DTYPE_F64, 8, {"f64", "fp64", "float64", "double"}},
};

enum { DTYPE_ROWS = sizeof dtypes / sizeof dtypes[0] };

size_t memopt_dtype_size(memopt_dtype dtype)
{
    for (int i = 0; i < DTYPE_ROWS; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].size;
    return 0;
}

const char *memopt_dtype_name(memopt_dtype dtype)
{
    for (int i = 0; i < DTYPE_ROWS; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].names[0];
    return "invalid";
}

memopt_status memopt_dtype_parse(const char *name, memopt_dtype *out_dtype)
{
    if (name == NULL || out_dtype == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "dtype_parse: a pointer is NULL");
    for (int i = 0; i < DTYPE_ROWS; i++) {
        for (int j = 0; j < 4 && dtypes[i].names[j] != NULL; j++) {
            if (strcasecmp(dtypes[i].names[j], name) == 0) {
                *out_dtype = dtypes[i].dtype;
                return MEMOPT_OK;
            }
        }
    }
    return mo_fail(MEMOPT_NOT_FOUND,
                   "dtype_parse: no element type is called \"%.40s\"; f32, f16, bf16, f8_e4m3, "
                   "f8_e5m2, u8, i32, i64 and f64 are",
                   name);
}

/* The factor of a size's suffix, or 0 where there is no such suffix. */
static double suffix_factor(const char *suffix)
{
    static const struct {
        const char *name;
        double factor;
    } rows[] = {
        {"", 1},       {"b", 1},        {"k", 0x1p10},   {"kib", 0x1p10}, {"kb", 1e3},
        {"m", 0x1p20}, {"mib", 0x1p20}, {"mb", 1e6},     {"g", 0x1p30},   {"gib", 0x1p30},
        {"gb", 1e9},   {"t", 0x1p40},   {"tib", 0x1p40}, {"tb", 1e12},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcasecmp(rows[i].name, suffix) == 0)
            return rows[i].factor;
    return 0;
}

/* A plain whole number keeps all 64 bits; anything else goes through double. */
static int parse_whole(const char *text, uint64_t *out_bytes)
{
    char *end;
    if (!isdigit((unsigned char)*text))
        return 0;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    while (isspace((unsigned char)*end))
        end++;
    if (*end != '\0' || errno != 0)
        return 0;
    *out_bytes = value;
    return 1;
}

/* Reads digits with an optional fraction, whatever the locale; NULL where there is no digit. */
static const char *parse_decimal(const char *text, double *out_value)
{
    double value = 0, unit = 1;
    int digits = 0;
    for (; isdigit((unsigned char)*text); text++, digits++)
        value = value * 10 + (*text - '0');
    if (*text == '.')
        for (text++; isdigit((unsigned char)*text); text++, digits++, unit *= 10)
            value = value * 10 + (*text - '0');
    *out_value = value / unit;
    return digits > 0 ? text : NULL;
}

memopt_status memopt_parse_size(const char *text, uint64_t *out_bytes)
{
    static const char blanks[] = " \t\n";
    char suffix[8] = "";
    double value, factor = 0;
    if (text == NULL || out_bytes == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "parse_size: a pointer is NULL");
    const char *start = text + strspn(text, blanks);
    if (parse_whole(start, out_bytes))
        return MEMOPT_OK;
    const char *end = parse_decimal(start, &value);
    if (end != NULL) {
        end += strspn(end, blanks);
        size_t length = strcspn(end, blanks);
        int last_word = end[length + strspn(end + length, blanks)] == '\0';
        if (length < sizeof suffix && last_word) {
            memcpy(suffix, end, length);
            factor = suffix_factor(suffix);
        }
    }
    if (factor <= 0 || !(value * factor < 0x1p64))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "parse_size: \"%.40s\" is not a size; write 1536, 512MiB, 1.5GiB or 2GB",
                       text);
    *out_bytes = (uint64_t)(value * factor + 0.5);
    return MEMOPT_OK;
}
