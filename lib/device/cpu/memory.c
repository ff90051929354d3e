/*
 * Device memory of the "cpu" device.
 *
 * Physical memory is a sparse memfd; a handle is a run of its bytes. Mapping a handle maps that run
 * shared at a fixed address, so contents survive unmapping and show at every address where the
 * handle is mapped; releasing it punches a hole, and the pages go back to the system at once.
 * Misuse that a GPU driver rejects is rejected.
 *
 * Invariants (under `lock`): used ≤ capacity; free_offsets and the handles' runs tile
 * [0, file_size), with lingering ones; mappings lie in reservations; accessible lies in mappings.
 */
#define _GNU_SOURCE /* memfd_create, fallocate */

#include "device/cpu/adversary.h"
#include "device/cpu/cpu.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Addresses are aligned to this at least, so that large granules can be huge pages. */
#define HUGE_PAGE ((uint64_t)2 << 20)

/* Plain allocations go into so many addresses, and over others' memory there in such leaps. */
#define SPAN ((uint64_t)1 << 38)
#define LEAP ((uint64_t)1 << 32)

memopt_status mo_cpu_memory_init(mo_cpu_memory *memory, uint64_t capacity, uint64_t granularity)
{
    mo_ranges *const sets[] = {&memory->free_offsets, &memory->handles,    &memory->reservations,
                               &memory->mappings,     &memory->accessible, &memory->plain,
                               &memory->lingering};
    memory->capacity = capacity;
    memory->granularity = granularity;
    memory->fd = memfd_create("memopt-device-memory", MFD_CLOEXEC);
    if (memory->fd < 0)
        return mo_fail_driver(MEMOPT_DRIVER_ERROR, errno, strerror(errno),
                              "cpu: the system cannot create a memfd for device memory (%s)",
                              strerror(errno));
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        if (!mo_ranges_init(sets[i])) {
            while (i-- > 0)
                mo_ranges_fini(sets[i]);
            close(memory->fd);
            return MEMOPT_OUT_OF_HOST_MEMORY;
        }
    }
    pthread_mutex_init(&memory->lock, NULL);
    return MEMOPT_OK;
}

void mo_cpu_memory_fini(mo_cpu_memory *memory)
{
    mo_ranges_fini(&memory->free_offsets);
    mo_ranges_fini(&memory->handles);
    mo_ranges_fini(&memory->reservations);
    mo_ranges_fini(&memory->mappings);
    mo_ranges_fini(&memory->accessible);
    mo_ranges_fini(&memory->plain);
    mo_ranges_fini(&memory->lingering);
    close(memory->fd);
    pthread_mutex_destroy(&memory->lock);
}

static memopt_status out_of_memory(const mo_cpu_memory *memory, uint64_t size)
{
    return mo_fail(MEMOPT_OUT_OF_DEVICE_MEMORY, "cpu: %s asked, %s free of %s", MO_SIZE(size),
                   MO_SIZE(memory->capacity - memory->used), MO_SIZE(memory->capacity));
}

/* An mmap or the like that the system refused: its own limits, not the device's capacity. */
memopt_status mo_cpu_system_refused(const char *what, uint64_t size)
{
    int error = errno;
    return mo_fail_driver(
        error == ENOMEM || error == ENOSPC ? MEMOPT_OUT_OF_HOST_MEMORY : MEMOPT_DRIVER_ERROR, error,
        strerror(error), "cpu: %s of %s refused by the system: %s%s", what, MO_SIZE(size),
        strerror(error),
        error == ENOMEM ? " (address space, or vm.max_map_count mappings, used up)" : "");
}

/* --- plain allocations --------------------------------------------------------------------- */

static void *map_at(void *wish, uint64_t size, int protection)
{
    return mmap(wish, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

/* Where an allocation should be: after the one before, as on a GPU. Allocators prefer low
 * addresses, so that what they hold depends on this order. NULL: anywhere. The span ends where the
 * system would map, and is not mapped: emulators keep books of each page that ever was. */
static char *next_address(mo_cpu_memory *memory, uint64_t size)
{
    if (size > memory->unused_end - memory->unused) {
        char *top = map_at(NULL, HUGE_PAGE, PROT_NONE);
        if (top == MAP_FAILED)
            return NULL;
        munmap(top, HUGE_PAGE);
        memory->unused_end = (uintptr_t)top / HUGE_PAGE * HUGE_PAGE;
        memory->unused = memory->unused_end - mo_min_u64(SPAN, memory->unused_end);
    }
    return memory->unused == 0 || size > memory->unused_end - memory->unused
               ? NULL
               : (char *)memory->unused;
}

static void *map_plain(mo_cpu_memory *memory, uint64_t size)
{
    uint64_t room = mo_ceil_div_u64(size, HUGE_PAGE) * HUGE_PAGE;
    for (uint64_t i = 0; i < SPAN / LEAP; i++) {
        char *wish = next_address(memory, room);
        void *found = map_at(wish, size, PROT_READ | PROT_WRITE);
        if (wish == NULL || found == MAP_FAILED)
            return found;
        int granted = found == wish;
        memory->unused += mo_min_u64(granted ? room : LEAP, memory->unused_end - memory->unused);
        if (granted)
            return found;
        munmap(found, size); /* something else is there */
    }
    return map_at(NULL, size, PROT_READ | PROT_WRITE);
}

memopt_status mo_cpu_mem_alloc(memopt_device *device, uint64_t size, void **out_pointer)
{
    mo_cpu_memory *memory = &mo_cpu(device)->memory;
    memopt_status status = MEMOPT_OK;
    mo_lock(&memory->lock);
    if (size > memory->capacity - memory->used) {
        status = out_of_memory(memory, size);
        goto unlock;
    }
    void *pointer = map_plain(memory, size);
    if (pointer == MAP_FAILED) {
        status = mo_cpu_system_refused("an allocation", size);
        goto unlock;
    }
    if (!mo_ranges_insert(&memory->plain, (uintptr_t)pointer, size, NULL)) {
        munmap(pointer, size);
        status = MEMOPT_OUT_OF_HOST_MEMORY;
        goto unlock;
    }
    if (size >= HUGE_PAGE)
        (void)madvise(pointer, size, MADV_HUGEPAGE);
    memory->used += size;
    *out_pointer = pointer;
unlock:
    mo_unlock(&memory->lock);
    return status;
}

/* Waits for all work first, as drivers do: pending work may use the memory. */
memopt_status mo_cpu_mem_free(memopt_device *device, void *pointer, uint64_t size)
{
    mo_cpu_memory *memory = &mo_cpu(device)->memory;
    memopt_status status = MEMOPT_OK;
    mo_cpu_settle(mo_cpu(device));
    mo_lock(&memory->lock);
    mo_range *range = mo_ranges_find(&memory->plain, (uintptr_t)pointer);
    if (range == NULL || range->size != size) {
        status = mo_fail(MEMOPT_INVALID_ARGUMENT,
                         "mem_free: [%p, +%" PRIu64 ") is not a live allocation of this device",
                         pointer, size);
    } else {
        munmap(pointer, size);
        mo_ranges_remove(&memory->plain, range);
        memory->used -= size;
    }
    mo_unlock(&memory->lock);
    if (status == MEMOPT_OK)
        mo_cpu_forget(mo_cpu(device), pointer, size);
    return status;
}

/* --- addresses ----------------------------------------------------------------------------- */

memopt_status mo_cpu_vm_reserve(memopt_device *device, uint64_t size, void **out_address)
{
    mo_cpu_memory *memory = &mo_cpu(device)->memory;
    uint64_t alignment = mo_max_u64(memory->granularity, HUGE_PAGE), whole;
    char *raw = MAP_FAILED;
    errno = ENOMEM;
    if (mo_add_u64(size, alignment, &whole) && whole <= SIZE_MAX / 2)
        raw = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return mo_cpu_system_refused("a reservation", size);
    uint64_t before = (alignment - (uintptr_t)raw % alignment) % alignment;
    char *address = raw + before;
    if (before != 0)
        munmap(raw, before);
    if (alignment - before != 0)
        munmap(address + size, alignment - before);
    mo_lock(&memory->lock);
    int kept = mo_ranges_insert(&memory->reservations, (uintptr_t)address, size, NULL);
    mo_unlock(&memory->lock);
    if (!kept) {
        munmap(address, size);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    *out_address = address;
    return MEMOPT_OK;
}

memopt_status mo_cpu_vm_unreserve(memopt_device *device, void *address, uint64_t size)
{
    mo_cpu_memory *memory = &mo_cpu(device)->memory;
    memopt_status status = MEMOPT_OK;
    mo_lock(&memory->lock);
    mo_range *range = mo_ranges_find(&memory->reservations, (uintptr_t)address);
    if (range == NULL || range->size != size)
        status =
            mo_fail(MEMOPT_INVALID_ARGUMENT,
                    "vm_unreserve: [%p, +%" PRIu64 ") is not a whole reservation", address, size);
    else if (mo_ranges_overlapping(&memory->mappings, (uintptr_t)address, size) != NULL)
        status =
            mo_fail(MEMOPT_BUSY, "vm_unreserve: [%p, +%" PRIu64 ") has mapped memory; unmap it",
                    address, size);
    if (status == MEMOPT_OK) {
        munmap(address, size);
        mo_ranges_remove(&memory->reservations, range);
    }
    mo_unlock(&memory->lock);
    return status;
}

/* --- physical memory ----------------------------------------------------------------------- */

/* A run of `size` unused bytes of the file: the first that is large enough, else new ones. */
static memopt_status take_offsets(mo_cpu_memory *memory, uint64_t size, uint64_t *out_offset)
{
    mo_ranges *set = &memory->free_offsets;
    for (mo_range *run = mo_ranges_after(set, 0); run != NULL;
         run = mo_ranges_after(set, run->start + run->size)) {
        if (run->size < size)
            continue;
        *out_offset = run->start;
        run->start += size;
        run->size -= size;
        if (run->size == 0)
            mo_ranges_remove(set, run);
        return MEMOPT_OK;
    }
    uint64_t end;
    if (!mo_add_u64(memory->file_size, size, &end) || end > INT64_MAX) {
        errno = EFBIG;
        return mo_cpu_system_refused("device memory", size);
    }
    if (ftruncate(memory->fd, (off_t)end) != 0)
        return mo_cpu_system_refused("device memory", size);
    *out_offset = memory->file_size;
    memory->file_size = end;
    return MEMOPT_OK;
}

/* Gives a run of the file back, joined with its neighbours; its pages go. Room for one more range
 * was kept by mo_cpu_vm_create. */
static memopt_status give_offsets(mo_cpu_memory *memory, uint64_t offset, uint64_t size)
{
    mo_ranges *set = &memory->free_offsets;
    if (fallocate(memory->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                  (off_t)size) != 0)
        return mo_cpu_system_refused("a release", size);
    memory->used -= size;
    mo_range *after = mo_ranges_find(set, offset + size);
    if (after != NULL) {
        size += after->size;
        mo_ranges_remove(set, after);
    }
    mo_range *before = offset > 0 ? mo_ranges_overlapping(set, offset - 1, 1) : NULL;
    if (before != NULL)
        before->size += size;
    else
        (void)mo_ranges_insert(set, offset, size, NULL);
    return MEMOPT_OK;
}

void mo_cpu_reap(mo_cpu_memory *memory)
{
    for (mo_range *run = mo_ranges_after(&memory->lingering, 0), *next; run != NULL; run = next) {
        uint64_t offset = run->start, size = run->size;
        if (!mo_cpu_is_shared(memory, offset, size) &&
            give_offsets(memory, offset, size) == MEMOPT_OK)
            mo_ranges_remove(&memory->lingering, run);
        next = mo_ranges_after(&memory->lingering, offset + size);
    }
}

memopt_status mo_cpu_vm_create(memopt_device *device, uint64_t size, mo_vm_handle *out_handle)
{
    mo_cpu_memory *memory = &mo_cpu(device)->memory;
    memopt_status status = MEMOPT_OUT_OF_HOST_MEMORY;
    mo_cpu_handle *handle = mo_calloc(1, sizeof *handle);
    if (handle == NULL)
        return status;
    mo_lock(&memory->lock);
    mo_cpu_reap(memory);
    uint64_t runs = memory->handles.count + memory->lingering.count + 1;
    /* There is at most one more free run than runs in use. */
    if (size > memory->capacity - memory->used)
        status = out_of_memory(memory, size);
    else if (mo_ranges_reserve(&memory->free_offsets, runs + 1) &&
             mo_ranges_insert(&memory->handles, (uintptr_t)handle, sizeof *handle, handle))
        status = take_offsets(memory, size, &handle->offset);
    if (status == MEMOPT_OK)
        memory->used += size;
    else if (mo_ranges_find(&memory->handles, (uintptr_t)handle) != NULL)
        mo_ranges_remove(&memory->handles, mo_ranges_find(&memory->handles, (uintptr_t)handle));
    mo_unlock(&memory->lock);
    if (status != MEMOPT_OK) {
        mo_free(handle);
        return status;
    }
    handle->size = size;
    handle->file = -1;
    *out_handle = (mo_vm_handle)handle;
    return MEMOPT_OK;
}

mo_cpu_handle *mo_cpu_find_handle(mo_cpu_memory *memory, mo_vm_handle handle, uint64_t size,
                                  const char *operation)
{
    const mo_range *range = mo_ranges_find(&memory->handles, (uintptr_t)handle);
    if (range == NULL)
        mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: %p is not a live handle of this device", operation,
                (void *)handle);
    else if (((mo_cpu_handle *)range->value)->size != size)
        mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: %" PRIu64 " bytes, but the handle has %" PRIu64,
                operation, size, ((mo_cpu_handle *)range->value)->size);
    else
        return range->value;
    return NULL;
}

/* The bytes of a handle of the device's own; lock held. What other processes have lingers. Room for
 * one more range was kept by mo_cpu_vm_export. */
static memopt_status release_own(mo_cpu_memory *memory, const mo_cpu_handle *handle)
{
    memopt_status status = MEMOPT_OK;
    if (handle->exported && mo_cpu_is_shared(memory, handle->offset, handle->size))
        (void)mo_ranges_insert(&memory->lingering, handle->offset, handle->size, NULL);
    else
        status = give_offsets(memory, handle->offset, handle->size);
    if (status == MEMOPT_OK && handle->exported)
        memory->exported--;
    return status;
}

memopt_status mo_cpu_vm_release(memopt_device *device, mo_vm_handle given, uint64_t size)
{
    mo_cpu_memory *memory = &mo_cpu(device)->memory;
    memopt_status status = MEMOPT_INVALID_ARGUMENT;
    mo_lock(&memory->lock);
    mo_cpu_handle *handle = mo_cpu_find_handle(memory, given, size, "vm_release");
    if (handle != NULL && handle->mapped != 0)
        status =
            mo_fail(MEMOPT_BUSY,
                    "vm_release: the handle of %s is still mapped at %" PRIu64 " places; unmap it",
                    MO_SIZE(size), handle->mapped);
    else if (handle != NULL)
        status = handle->file >= 0 ? MEMOPT_OK : release_own(memory, handle);
    if (status == MEMOPT_OK)
        mo_ranges_remove(&memory->handles, mo_ranges_find(&memory->handles, (uintptr_t)handle));
    mo_unlock(&memory->lock);
    if (status != MEMOPT_OK)
        return status;
    if (handle->file >= 0)
        (void)close(handle->file);
    mo_free(handle);
    return MEMOPT_OK;
}

/* --- mappings ------------------------------------------------------------------------------ */

static memopt_status check_unmapped(mo_cpu_memory *memory, const void *address, uint64_t size)
{
    uintptr_t start = (uintptr_t)address;
    const mo_range *home = mo_ranges_overlapping(&memory->reservations, start, 1);
    if (home == NULL || start + size > home->start + home->size)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "vm_map: [%p, +%" PRIu64 ") does not lie in one reservation", address, size);
    const mo_range *taken = mo_ranges_overlapping(&memory->mappings, start, size);
    if (taken != NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "vm_map: [%p, +%" PRIu64 ") is mapped already at [%p, +%" PRIu64 ")",
                       address, size, (void *)taken->start, taken->size);
    return MEMOPT_OK;
}

memopt_status mo_cpu_vm_map(memopt_device *device, void *address, uint64_t size, mo_vm_handle given)
{
    mo_cpu_memory *memory = &mo_cpu(device)->memory;
    mo_lock(&memory->lock);
    mo_cpu_handle *handle = mo_cpu_find_handle(memory, given, size, "vm_map");
    memopt_status status =
        handle == NULL ? MEMOPT_INVALID_ARGUMENT : check_unmapped(memory, address, size);
    /* Reserves host memory for set_access here, where a failure is harmless. */
    if (status == MEMOPT_OK &&
        (!mo_ranges_reserve(&memory->accessible, memory->mappings.count + 1) ||
         !mo_ranges_insert(&memory->mappings, (uintptr_t)address, size, handle)))
        status = MEMOPT_OUT_OF_HOST_MEMORY;
    else if (status == MEMOPT_OK && mmap(address, size, PROT_NONE, MAP_SHARED | MAP_FIXED,
                                         handle->file >= 0 ? handle->file : memory->fd,
                                         (off_t)handle->offset) == MAP_FAILED) {
        status = mo_cpu_system_refused("a mapping", size);
        mo_ranges_remove(&memory->mappings, mo_ranges_find(&memory->mappings, (uintptr_t)address));
    }
    if (status == MEMOPT_OK) {
        handle->mapped++;
        if (memory->granularity >= HUGE_PAGE)
            (void)madvise(address, size, MADV_HUGEPAGE); /* slower without, not wrong */
    }
    mo_unlock(&memory->lock);
    return status;
}

/* Pre: [start, +size) is whole mappings, as checked. Marks those that are not yet accessible. */
static void mark_accessible(mo_cpu_memory *memory, uintptr_t start, uint64_t size)
{
    const uintptr_t end = start + size;
    MO_PRE(mo_ranges_cover(&memory->mappings, start, size));
    while (start < end) {
        const mo_range *mapping = mo_ranges_overlapping(&memory->mappings, start, 1);
        if (mo_ranges_find(&memory->accessible, mapping->start) == NULL)
            (void)mo_ranges_insert(&memory->accessible, mapping->start, mapping->size, NULL);
        start = mapping->start + mapping->size;
    }
}

memopt_status mo_cpu_vm_set_access(memopt_device *device, void *address, uint64_t size)
{
    mo_cpu_memory *memory = &mo_cpu(device)->memory;
    uintptr_t start = (uintptr_t)address;
    memopt_status status = MEMOPT_OK;
    mo_lock(&memory->lock);
    const mo_range *last = mo_ranges_overlapping(&memory->mappings, start + size - 1, 1);
    if (mo_ranges_find(&memory->mappings, start) == NULL || last == NULL ||
        last->start + last->size != start + size ||
        !mo_ranges_cover(&memory->mappings, start, size))
        status = mo_fail(MEMOPT_INVALID_ARGUMENT,
                         "vm_set_access: [%p, +%" PRIu64 ") is not a run of whole mappings",
                         address, size);
    else if (mprotect(address, size, PROT_READ | PROT_WRITE) != 0)
        status = mo_cpu_system_refused("access", size);
    else
        mark_accessible(memory, start, size);
    mo_unlock(&memory->lock);
    return status;
}

/* Whether adjacent mappings of `each` bytes tile [address, +size). Lock held. */
static int tiled(const mo_cpu_memory *memory, const char *address, uint64_t size, uint64_t each)
{
    for (uint64_t at = 0; at < size; at += each) {
        const mo_range *range = mo_ranges_find(&memory->mappings, (uintptr_t)address + at);
        if (range == NULL || range->size != each)
            return 0;
    }
    return 1;
}

static void forget_mapping(mo_cpu_memory *memory, uintptr_t address)
{
    mo_range *range = mo_ranges_find(&memory->mappings, address);
    ((mo_cpu_handle *)range->value)->mapped--;
    mo_ranges_remove(&memory->mappings, range);
    range = mo_ranges_find(&memory->accessible, address);
    if (range != NULL)
        mo_ranges_remove(&memory->accessible, range);
}

memopt_status mo_cpu_vm_unmap_run(memopt_device *device, void *address, uint64_t size,
                                  uint64_t mapping)
{
    mo_cpu_memory *memory = &mo_cpu(device)->memory;
    memopt_status status = MEMOPT_OK;
    mo_lock(&memory->lock);
    if (!tiled(memory, address, size, mapping))
        status = mo_fail(MEMOPT_INVALID_ARGUMENT,
                         "vm_unmap: [%p, +%" PRIu64 ") is not exactly one mapping", address, size);
    else if (mmap(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                  -1, 0) == MAP_FAILED)
        status = mo_cpu_system_refused("an unmap", size);
    for (uint64_t at = 0; status == MEMOPT_OK && at < size; at += mapping)
        forget_mapping(memory, (uintptr_t)address + at);
    mo_unlock(&memory->lock);
    if (status == MEMOPT_OK)
        mo_cpu_forget(mo_cpu(device), address, size);
    return status;
}

memopt_status mo_cpu_vm_unmap(memopt_device *device, void *address, uint64_t size)
{
    return mo_cpu_vm_unmap_run(device, address, size, size);
}
