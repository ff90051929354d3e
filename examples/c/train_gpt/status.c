/*
 * The trainer's last error and how failures are shown.
 */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>

static char own_message[1024];

memopt_status gpt_fail(memopt_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(own_message, sizeof own_message, format, arguments);
    va_end(arguments);
    return status;
}

const char *gpt_error(void)
{
    return own_message[0] ? own_message : memopt_last_error();
}

void gpt_error_clear(void)
{
    own_message[0] = 0;
}

static const char *advice(memopt_status status)
{
    switch (status) {
    case MEMOPT_OUT_OF_DEVICE_MEMORY:
        return "Try --checkpoint on, --offload on, --optimizer adamw8bit, --dtype bf16,\n"
               "--allocator expandable_segments:True, a smaller --batch with more --accumulation,\n"
               "or a larger --capacity.";
    case MEMOPT_LIMIT_REACHED:
        return "Raise the limit, --budget or --host-limit, or leave it out to use as much as is "
               "needed.";
    case MEMOPT_CORRUPT:
        return "The file cannot be used; resume from an older copy or start again without "
               "--resume.";
    case MEMOPT_DEVICE_FAULT:
        return "Some work ran without waiting for the work before it: a bug in the program.";
    default:
        return NULL;
    }
}

int gpt_report_failure(memopt_status status)
{
    const char *hint = advice(status);
    fflush(stdout);
    fprintf(stderr, "train_gpt: %s (%s)\n%s\n", memopt_status_message(status),
            memopt_status_name(status), gpt_error());
    if (hint)
        fprintf(stderr, "%s\n", hint);
    return status == MEMOPT_OUT_OF_DEVICE_MEMORY ? EXIT_CODE_MEMORY : EXIT_CODE_FAILED;
}
