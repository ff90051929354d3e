/* The thread's last error: one record for all libraries of the project. */
#include "base/log.h"
#include "memopt/experimental/hooks.h"

#include <string.h>

static _Thread_local mo_error_record last;

mo_error_record *mo_error_here(void)
{
    return &last;
}

/* The text may be the last message itself, or NULL. */
static void keep(char *kept, size_t size, const char *text)
{
    size_t length = text != NULL ? strnlen(text, size - 1) : 0;
    if (length != 0)
        memmove(kept, text, length);
    kept[length] = '\0';
}

memopt_status memopt_set_error(memopt_status status, int32_t driver_code,
                               const char *driver_message, const char *message)
{
    last.status = status;
    last.driver_code = driver_code;
    keep(last.message, sizeof last.message, message);
    keep(last.driver_message, sizeof last.driver_message, driver_message);
    mo_log(MEMOPT_LOG_ERROR, "%s: %s", memopt_status_name(status), last.message);
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
