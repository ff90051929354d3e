/*
 * What tests of the library start with: cmocka, units, and checks of a call that print the
 * library's own words.
 */
#ifndef TEST_SUPPORT_CHECKS_H
#define TEST_SUPPORT_CHECKS_H

#include "support/unit.h"

#include "memopt/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

/* The call succeeds, or the test fails with the library's own message. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        memopt_status ok_status_ = (call);                                                         \
        if (ok_status_ != MEMOPT_OK)                                                               \
            fail_msg("%s: %s: %s", #call, memopt_status_name(ok_status_), memopt_last_error());    \
    } while (0)

/* The call returns this status, which may be one of a callback. */
#define GIVES(wanted, call)                                                                        \
    do {                                                                                           \
        memopt_status got_ = (call);                                                               \
        if (got_ != (wanted))                                                                      \
            fail_msg("%s: %s, not %s", #call, memopt_status_name(got_),                            \
                     memopt_status_name(wanted));                                                  \
    } while (0)

/* The call fails with this status, and the last error is this failure's. */
#define FAILS(wanted, call)                                                                        \
    do {                                                                                           \
        memopt_error_info info_ = {.struct_size = sizeof info_};                                   \
        GIVES(wanted, call);                                                                       \
        assert_int_equal(memopt_last_error_info(&info_), MEMOPT_OK);                               \
        assert_int_equal(info_.status, wanted);                                                    \
    } while (0)

/* The last error's message has this text in it. */
#define SAYS(text)                                                                                 \
    do {                                                                                           \
        if (strstr(memopt_last_error(), (text)) == NULL)                                           \
            fail_msg("\"%s\" is not in \"%s\"", (text), memopt_last_error());                      \
    } while (0)

#define FAILS_SAYING(wanted, text, call)                                                           \
    do {                                                                                           \
        FAILS(wanted, call);                                                                       \
        SAYS(text);                                                                                \
    } while (0)

/* The call is refused as MEMOPT_INVALID_ARGUMENT. */
#define REFUSED(call) FAILS(MEMOPT_INVALID_ARGUMENT, call)
#define REFUSED_SAYING(text, call) FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, text, call)

static inline int all_bytes(const void *start, int value, uint64_t count)
{
    const unsigned char *bytes = start;
    for (uint64_t i = 0; i < count; i++)
        if (bytes[i] != value)
            return 0;
    return 1;
}

#endif
