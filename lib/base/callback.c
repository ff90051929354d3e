/* What the last error says of a callback's status. It is read through the public interface, for all
 * libraries of the project. */
#include "base/error.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

memopt_status mo_callback_status(memopt_status status, const char *who, ...)
{
    memopt_error_info info = {.struct_size = sizeof info};
    char text[MO_ERROR_MESSAGE_BYTES / 2];
    va_list arguments;
    if (status == MEMOPT_OK)
        return status;
    (void)memopt_last_error_info(&info);
    if (status < MEMOPT_STATUS_USER && status == info.status)
        return status;
    va_start(arguments, who);
    vsnprintf(text, sizeof text, who, arguments);
    va_end(arguments);
    return mo_fail(status, "%s returned status %" PRId32 " (%s)", text, status,
                   memopt_status_name(status));
}
