/* What the allocator tests share: opening, and the assertions that tell what failed. */
#ifndef TEST_ALLOCATOR_SUPPORT_H
#define TEST_ALLOCATOR_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "allocator/internal.h"

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

/* The call fails with this status, and the last error is this failure's and says `text`. */
#define FAILS(wanted, text, call)                                                                  \
    do {                                                                                           \
        memopt_error_info info_ = {.struct_size = sizeof info_};                                   \
        memopt_status got_ = (call);                                                               \
        if (got_ != (wanted))                                                                      \
            fail_msg("%s: %s, not %s", #call, memopt_status_name(got_),                            \
                     memopt_status_name(wanted));                                                  \
        assert_int_equal(memopt_last_error_info(&info_), MEMOPT_OK);                               \
        assert_int_equal(info_.status, wanted);                                                    \
        if (strstr(memopt_last_error(), (text)) == NULL)                                           \
            fail_msg("\"%s\" is not in \"%s\"", (text), memopt_last_error());                      \
    } while (0)

static inline memopt_device *open_cpu(uint64_t capacity, uint32_t order, uint64_t seed)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device = NULL;
    options.capacity = capacity;
    options.threads = 1;
    options.stream_order = order;
    options.seed = seed;
    OK(memopt_device_open("cpu", &options, &device));
    return device;
}

static inline memopt_allocator *new_allocator(memopt_device *device, const char *config)
{
    memopt_allocator *allocator = NULL;
    OK(memopt_allocator_create(device, config, NULL, &allocator));
    return allocator;
}

static inline void *alloc_on(memopt_allocator *allocator, uint64_t bytes, memopt_stream stream)
{
    void *pointer = NULL;
    OK(memopt_allocator_alloc(allocator, bytes, MEMOPT_TAG_OTHER, stream, &pointer));
    assert_non_null(pointer);
    return pointer;
}

static inline void *alloc(memopt_allocator *allocator, uint64_t bytes)
{
    return alloc_on(allocator, bytes, NULL);
}

static inline uint64_t stat_of(memopt_allocator *allocator, const char *name)
{
    uint64_t value = 0;
    OK(memopt_allocator_stat(allocator, name, &value));
    return value;
}

/* Destroys both; nothing may be left. */
static inline void finish(memopt_allocator *allocator, memopt_device *device)
{
    OK(mo_allocator_check(allocator));
    OK(memopt_allocator_destroy(allocator));
    OK(memopt_device_close(device));
}

#endif
