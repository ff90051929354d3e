/*
 * How errors travel through the trainer: the library's own statuses everywhere, so that a failure
 * deep inside a layer comes out of main() unchanged, with the library's message beside it.
 */
#ifndef GPT_STATUS_H
#define GPT_STATUS_H

#include <memopt/memopt.h>

/* Returns from the function with the status of a call that failed. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        memopt_status try_status_ = (call);                                                        \
        if (try_status_ != MEMOPT_OK)                                                              \
            return try_status_;                                                                    \
    } while (0)

/* An error that the trainer itself has found: keeps the message and returns status. */
memopt_status gpt_fail(memopt_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The message of the last failure: the trainer's own where there is one, else the library's. */
const char *gpt_error(void);

/* Forgets the trainer's own message (a caller that has dealt with the failure). */
void gpt_error_clear(void);

/* Prints a failure on standard error with what to do about it; returns main()'s exit code. */
int gpt_report_failure(memopt_status status);

/* Exit codes. Usage errors give 2, as everywhere. */
enum { EXIT_CODE_OK = 0, EXIT_CODE_FAILED = 1, EXIT_CODE_USAGE = 2, EXIT_CODE_MEMORY = 3 };

#endif
