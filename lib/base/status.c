/* Statuses: their names, and the thread's last error, one record for all libraries of the project.
 */
#include "base/error.h"

static _Thread_local mo_error_record last;

mo_error_record *mo_error_here(void)
{
    return &last;
}

const char *memopt_last_error(void)
{
    return last.message;
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
