/* Making the text of an error; log.c records it. */
#include "base/error.h"
#include "base/precondition.h"

#include "memopt/experimental/hooks.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#ifdef MEMOPT_TEST_HOOKS
void (*mo_precondition_hook)(const char *condition, const char *file, int line);
#endif

memopt_status mo_fail(memopt_status status, const char *format, ...)
{
    char text[MO_ERROR_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return memopt_set_error(status, 0, "", text);
}

memopt_status mo_fail_driver(memopt_status status, int32_t code, const char *name,
                             const char *format, ...)
{
    char text[MO_ERROR_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return memopt_set_error(status, code, name, text);
}

memopt_status mo_fail_null(const char *call, const char *names, size_t index)
{
    for (; index > 0; index--)
        names = strchr(names, ',') + 2;
    return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: %.*s is NULL", call, (int)strcspn(names, ","),
                   names);
}

const char *mo_size_text(char *text, uint64_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        snprintf(text, MO_SIZE_TEXT, "%" PRIu64 " B", bytes);
        return text;
    }
    double value = (double)bytes / 1024.0;
    size_t unit = 0;
    while (value >= 1023.995 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024.0;
        unit++;
    }
    snprintf(text, MO_SIZE_TEXT, "%.2f %s", value, units[unit]);
    return text;
}
