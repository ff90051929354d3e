/* The public functions of base.h that may fail, with their tables: element types and sizes. */
#include "base/checked.h"
#include "base/log.h"

#include <ctype.h>
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
    {MEMOPT_DTYPE_F8_E4M3FNUZ, 1, {"f8_e4m3fnuz", "fp8_e4m3fnuz", "float8_e4m3fnuz", "e4m3fnuz"}},
    {MEMOPT_DTYPE_F8_E5M2FNUZ, 1, {"f8_e5m2fnuz", "fp8_e5m2fnuz", "float8_e5m2fnuz", "e5m2fnuz"}},
    {MEMOPT_DTYPE_U8, 1, {"u8", "uint8", NULL, NULL}},
    {MEMOPT_DTYPE_I16, 2, {"i16", "int16", NULL, NULL}},
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
    MO_NOT_NULL("dtype_parse", name, out_dtype);
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
                   "f8_e5m2, f8_e4m3fnuz, f8_e5m2fnuz, u8, i16, i32, i64 and f64 are",
                   name);
}

/* The factor of a size's suffix, or 0 for an unknown suffix. */
static uint64_t suffix_factor(const char *suffix)
{
    static const struct {
        const char *name;
        uint64_t factor;
    } rows[] = {
        {"", 1},
        {"b", 1},
        {"k", UINT64_C(1) << 10},
        {"kib", UINT64_C(1) << 10},
        {"kb", UINT64_C(1000)},
        {"m", UINT64_C(1) << 20},
        {"mib", UINT64_C(1) << 20},
        {"mb", UINT64_C(1000000)},
        {"g", UINT64_C(1) << 30},
        {"gib", UINT64_C(1) << 30},
        {"gb", UINT64_C(1000000000)},
        {"t", UINT64_C(1) << 40},
        {"tib", UINT64_C(1) << 40},
        {"tb", UINT64_C(1000000000000)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcasecmp(rows[i].name, suffix) == 0)
            return rows[i].factor;
    return 0;
}

/* Reads digits with an optional fraction, whatever the locale. The whole part keeps all 64 bits.
 * NULL where there is no digit or the whole part overflows. */
static const char *parse_decimal(const char *text, uint64_t *out_whole, double *out_fraction)
{
    uint64_t whole = 0;
    double fraction = 0, place = 0.1;
    int digits = 0;
    for (; isdigit((unsigned char)*text); text++, digits++)
        if (!mo_mul_u64(whole, 10, &whole) || !mo_add_u64(whole, (uint64_t)(*text - '0'), &whole))
            return NULL;
    if (*text == '.')
        for (text++; isdigit((unsigned char)*text); text++, digits++, place /= 10)
            fraction += place * (*text - '0');
    *out_whole = whole;
    *out_fraction = fraction;
    return digits > 0 ? text : NULL;
}

/* The factor of the suffix at the end of `text`; 0 if it is not a suffix. */
static uint64_t parse_suffix(const char *text)
{
    static const char blanks[] = " \t\n";
    char suffix[8] = "";
    text += strspn(text, blanks);
    size_t length = strcspn(text, blanks);
    if (length >= sizeof suffix || text[length + strspn(text + length, blanks)] != '\0')
        return 0;
    memcpy(suffix, text, length);
    return suffix_factor(suffix);
}

memopt_status memopt_parse_size(const char *text, uint64_t *out_bytes)
{
    uint64_t whole, factor, bytes;
    double fraction;
    MO_NOT_NULL("parse_size", text, out_bytes);
    const char *end = parse_decimal(text + strspn(text, " \t\n"), &whole, &fraction);
    if (end == NULL || (factor = parse_suffix(end)) == 0 || !mo_mul_u64(whole, factor, &bytes) ||
        !mo_add_u64(bytes, (uint64_t)(fraction * (double)factor + 0.5), &bytes))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "parse_size: \"%.40s\" is not a size; write 1536, 512MiB, 1.5GiB or 2GB",
                       text);
    *out_bytes = bytes;
    return MEMOPT_OK;
}

memopt_status memopt_last_error_info(memopt_error_info *out_info)
{
    MO_NOT_NULL("last_error_info", out_info);
    if (out_info->struct_size < sizeof(size_t))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "last_error_info: struct_size is %zu, below %zu",
                       out_info->struct_size, sizeof(size_t));
    const mo_error_record *last = mo_error_here();
    memopt_error_info full = {out_info->struct_size, last->status, last->driver_code, last->message,
                              last->driver_message};
    size_t size = out_info->struct_size < sizeof full ? out_info->struct_size : sizeof full;
    memcpy(out_info, &full, size);
    return MEMOPT_OK;
}

memopt_status memopt_set_log(memopt_log_callback callback, void *user, memopt_log_level level)
{
    if ((int)level < MEMOPT_LOG_OFF || (int)level > MEMOPT_LOG_DEBUG)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "set_log: %d is not a log level (0 to %d)",
                       (int)level, MEMOPT_LOG_DEBUG);
    if (!mo_log_set_sink(callback, user, level))
        return mo_fail(MEMOPT_BUSY, "set_log: the callback cannot replace itself while it runs");
    return MEMOPT_OK;
}
