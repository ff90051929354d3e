/* What the device tests share: opening, and memory that is mapped. */
#ifndef TEST_DEVICE_SUPPORT_H
#define TEST_DEVICE_SUPPORT_H

#include "support/bench.h"

#define GRANULE (2 * MIB)

static inline memopt_device *open_cpu(uint64_t capacity, uint32_t order, uint64_t seed)
{
    const bench_device wanted = {order, seed, capacity, 2};
    return bench_open_cpu(&wanted);
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

static inline void contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", part, text);
}

#endif
