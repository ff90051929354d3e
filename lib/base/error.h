/*
 * The thread's last error. Only the layer that first sees an error writes it: it calls mo_fail,
 * and everyone above returns the status unchanged. Success never clears it.
 */
#ifndef MO_BASE_ERROR_H
#define MO_BASE_ERROR_H

#include "memopt/base.h"

#define MO_PRINTF(text, first) __attribute__((format(printf, text, first)))

/* Records "subject: what happened, with numbers and names; what to do" and returns status. */
memopt_status mo_fail(memopt_status status, const char *format, ...) MO_PRINTF(2, 3);

/* The same with the driver's (or errno's) own code and name. */
memopt_status mo_fail_driver(memopt_status status, int32_t code, const char *name,
                             const char *format, ...) MO_PRINTF(4, 5);

/* What a callback of the caller's returned, unchanged. A status of the caller's own, and one that
 * the last error does not tell of, gets a line: "<who> returned status 65543 (USER)". */
memopt_status mo_callback_status(memopt_status status, const char *who, ...) MO_PRINTF(2, 3);

/* The thread's whole last error, to restore it later. */
enum { MO_ERROR_MESSAGE_BYTES = 1024, MO_ERROR_DRIVER_BYTES = 96 };
typedef struct mo_error_record {
    memopt_status status;
    int32_t driver_code;
    char message[MO_ERROR_MESSAGE_BYTES];
    char driver_message[MO_ERROR_DRIVER_BYTES];
} mo_error_record;
mo_error_record *mo_error_here(void);

/* Returns a failure of the call from the function that it stands in. */
#define MO_TRY(call)                                                                               \
    do {                                                                                           \
        const memopt_status mo_tried = (call);                                                     \
        if (mo_tried != MEMOPT_OK)                                                                 \
            return mo_tried;                                                                       \
    } while (0)

/* "call: name is NULL" for the first pointer that is NULL; `names` is "first, second". */
memopt_status mo_fail_null(const char *call, const char *names, size_t index);
static inline memopt_status mo_not_null(const char *call, const char *names,
                                        const void *const *pointers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (pointers[i] == NULL)
            return mo_fail_null(call, names, i);
    return MEMOPT_OK;
}

/* Returns INVALID_ARGUMENT from the function that it stands in where one of the pointers, variables
 * with the parameters' names, is NULL. */
#define MO_NOT_NULL(call, ...)                                                                     \
    MO_TRY(mo_not_null(call, #__VA_ARGS__, (const void *const[]){__VA_ARGS__},                     \
                       sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *)))

/* Several calls that are all made, whatever the others give: the first failure is kept. */
static inline void mo_keep_first(memopt_status *first, memopt_status status)
{
    if (*first == MEMOPT_OK)
        *first = status;
}

/* Room for one size as text, "1.50 GiB". */
#define MO_SIZE_TEXT 24

/* Writes bytes as people read them ("512 B", "1.50 GiB") into text[MO_SIZE_TEXT]; returns text. */
const char *mo_size_text(char *text, uint64_t bytes);

/* Several sizes in one message: MO_SIZE(n) is a temporary that lives as long as the statement's
 * block. */
#define MO_SIZE(bytes) mo_size_text((char[MO_SIZE_TEXT]){0}, (bytes))

#endif
