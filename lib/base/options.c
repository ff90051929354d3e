#include "base/options.h"

#include <inttypes.h>
#include <string.h>

memopt_status mo_options_read(void *copy, size_t copy_size, const void *options, const char *name)
{
    const unsigned char *bytes = options;
    size_t size = copy_size;
    memset(copy, 0, copy_size);
    if (options != NULL) {
        memcpy(&size, options, sizeof size);
        if (size < sizeof size)
            return mo_fail(MEMOPT_INVALID_ARGUMENT,
                           "%s: struct_size is %zu, below %zu; set it to sizeof(%s)", name, size,
                           sizeof size, name);
        for (size_t i = copy_size; i < size; i++)
            if (bytes[i] != 0)
                return mo_fail(MEMOPT_UNSUPPORTED,
                               "%s: byte %zu is set, but this library knows only %zu bytes; update "
                               "libmemopt",
                               name, i, copy_size);
        memcpy(copy, options, size < copy_size ? size : copy_size);
    }
    memcpy(copy, &copy_size, sizeof copy_size);
    return MEMOPT_OK;
}

memopt_status mo_result_write(void *out, const void *full, size_t full_size, const char *name)
{
    size_t size;
    if (out == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: the result pointer is NULL", name);
    memcpy(&size, out, sizeof size);
    if (size < sizeof size)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: struct_size is %zu, below %zu; set it to sizeof(%s)", name, size,
                       sizeof size, name);
    size_t known = size < full_size ? size : full_size;
    memcpy((unsigned char *)out + sizeof size, (const unsigned char *)full + sizeof size,
           known - sizeof size);
    return MEMOPT_OK;
}

memopt_status mo_ranges_check(const char *call, const mo_value_range *ranges, size_t count)
{
    for (const mo_value_range *r = ranges; r < ranges + count; r++)
        if (!(r->value >= r->least && r->value <= r->most))
            return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: %s is %g; it must be in [%g, %g]", call,
                           r->name, r->value, r->least, r->most);
    return MEMOPT_OK;
}
