/* What the device tests share: opening, and the assertions that tell what failed. */
#ifndef TEST_DEVICE_SUPPORT_H
#define TEST_DEVICE_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)
#define GRANULE (2 * MIB)

/* The call succeeds, or the test fails with the library's own message. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        memopt_status ok_status_ = (call);                                                         \
        if (ok_status_ != MEMOPT_OK)                                                               \
            fail_msg("%s: %s: %s", #call, memopt_status_name(ok_status_), memopt_last_error());    \
    } while (0)

/* The call fails with this status, and the last error is this failure's. */
#define FAILS(wanted, call)                                                                        \
    do {                                                                                           \
        memopt_error_info info_ = {sizeof info_, 0, 0, NULL, NULL};                                \
        memopt_status got_ = (call);                                                               \
        if (got_ != (wanted))                                                                      \
            fail_msg("%s: %s, not %s", #call, memopt_status_name(got_),                            \
                     memopt_status_name(wanted));                                                  \
        assert_int_equal(memopt_last_error_info(&info_), MEMOPT_OK);                               \
        assert_int_equal(info_.status, wanted);                                                    \
    } while (0)

#define SAYS(text)                                                                                 \
    do {                                                                                           \
        if (strstr(memopt_last_error(), (text)) == NULL)                                           \
            fail_msg("\"%s\" is not in \"%s\"", (text), memopt_last_error());                      \
    } while (0)

static inline memopt_device *open_cpu(uint64_t capacity, uint32_t order, uint64_t seed)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device = NULL;
    options.capacity = capacity;
    options.threads = 2;
    options.stream_order = order;
    options.seed = seed;
    OK(memopt_device_open("cpu", &options, &device));
    return device;
}

static inline memopt_memory_info info_of(memopt_device *device)
{
    memopt_memory_info info = {.struct_size = sizeof info};
    OK(memopt_device_memory_info(device, &info));
    return info;
}

/* Mapped and accessible memory at new addresses. */
typedef struct mapped {
    char *address;
    mo_vm_handle handle;
    uint64_t size;
} mapped;

static inline mapped map_new(memopt_device *device, uint64_t size)
{
    mapped m = {NULL, NULL, size};
    void *address = NULL;
    OK(mo_vm_reserve(device, size, &address));
    OK(mo_vm_create(device, size, &m.handle));
    OK(mo_vm_map(device, address, size, m.handle));
    OK(mo_vm_set_access(device, address, size));
    m.address = address;
    return m;
}

static inline void unmap(memopt_device *device, mapped *m)
{
    OK(mo_vm_unmap(device, m->address, m->size));
    OK(mo_vm_release(device, m->handle, m->size));
    OK(mo_vm_unreserve(device, m->address, m->size));
}

static inline int all_bytes(const void *start, int value, uint64_t count)
{
    const unsigned char *bytes = start;
    for (uint64_t i = 0; i < count; i++)
        if (bytes[i] != value)
            return 0;
    return 1;
}

#endif
