#include "base/error.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local mo_error_record last;

mo_error_record *mo_error_here(void)
{
    return &last;
}

/* Messages may quote the previous one, so the text is made apart and copied in the end. */
static void record(memopt_status status, int32_t code, const char *name, const char *format,
                   va_list arguments)
{
    char text[MO_ERROR_MESSAGE_BYTES];
    vsnprintf(text, sizeof text, format, arguments);
    last.status = status;
    last.driver_code = code;
    memcpy(last.message, text, sizeof text);
    snprintf(last.driver_message, sizeof last.driver_message, "%s", name);
    mo_log(MEMOPT_LOG_ERROR, "%s: %s", memopt_status_name(status), text);
}

memopt_status mo_fail(memopt_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    record(status, 0, "", format, arguments);
    va_end(arguments);
    return status;
}

memopt_status mo_fail_driver(memopt_status status, int32_t code, const char *name,
                             const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    record(status, code, name, format, arguments);
    va_end(arguments);
    return status;
}

const char *memopt_last_error(void)
{
    return last.message;
}

memopt_status memopt_last_error_info(memopt_error_info *out_info)
{
    if (out_info == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "last_error_info: out_info is NULL");
    if (out_info->struct_size < sizeof(size_t))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "last_error_info: struct_size is %zu, below %zu",
                       out_info->struct_size, sizeof(size_t));
    memopt_error_info full = {out_info->struct_size, last.status, last.driver_code, last.message,
                              last.driver_message};
    size_t size = out_info->struct_size < sizeof full ? out_info->struct_size : sizeof full;
    memcpy(out_info, &full, size);
    return MEMOPT_OK;
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
