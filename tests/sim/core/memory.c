/*
 * Physical memory, the addresses it shows at, and pinned host memory.
 *
 * Addresses are handed out once: what is freed keeps its addresses without memory for the life of
 * the process, so that a use after free faults or is told by name, and never finds a later owner.
 * Freed physical ranges are reused oldest first and only when the file has been used up.
 */
#include "core/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef SIM_SMALL /* ThreadSanitizer leaves 1.5 TiB of addresses to all mappings of a program */
#define SIM_SPAN ((uint64_t)1 << 32)
#define SIM_VA ((uint64_t)1 << 37)
#else
#define SIM_SPAN ((uint64_t)1 << 38) /* physical addresses of an arena */
#define SIM_VA ((uint64_t)1 << 40)   /* addresses of an arena that programs see */
#endif
#define CELL_BYTES 12u               /* of shadow for 4 bytes */
#define TAG_BYTES 16u                /* of race shadow for a byte */
#define PHYSICAL_MAGIC 0x7068797369636C31u

static sim_ranges registered;

/* --- arenas -------------------------------------------------------------------------------- */

static void *nothing_at(uint64_t bytes, int protection)
{
    void *p = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p != MAP_FAILED ? p : NULL;
}

int sim_arena_init(sim_arena *arena, int index)
{
    arena->index = index;
    arena->file = memfd_create("memopt-sim", MFD_CLOEXEC);
    if (arena->file < 0 || ftruncate(arena->file, (off_t)SIM_SPAN) != 0)
        return 0;
    void *alias =
        mmap(NULL, SIM_SPAN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, arena->file, 0);
    void *va = nothing_at(SIM_VA, PROT_NONE);
    arena->cells = nothing_at(SIM_SPAN / 4 * CELL_BYTES, PROT_READ | PROT_WRITE);
    arena->tags = nothing_at(SIM_SPAN * TAG_BYTES, PROT_READ | PROT_WRITE);
    if (alias == MAP_FAILED || va == NULL || arena->cells == NULL || arena->tags == NULL)
        return 0;
    arena->alias = alias;
    arena->va = (uintptr_t)va;
    return 1;
}

sim_arena *sim_arena_of(uintptr_t address)
{
    if (address - sim_host.va < SIM_VA)
        return &sim_host;
    for (int i = 0; i < sim_options.devices; i++)
        if (address - sim_devices[i].arena.va < SIM_VA)
            return &sim_devices[i].arena;
    return NULL;
}

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Addresses of `bytes` behind a guard. 0: none are left. */
static uintptr_t take_addresses(sim_arena *arena, uint64_t bytes, uint64_t align)
{
    uint64_t start = round_up(arena->va + arena->va_used + SIM_PAGE, align) - arena->va;
    if (bytes > SIM_VA || start > SIM_VA - bytes)
        return 0;
    arena->va_used = start + bytes;
    return arena->va + start;
}

/* Pre: bytes is a multiple of the page. UINT64_MAX: the arena is spent. */
static uint64_t take_physical(sim_arena *arena, uint64_t bytes)
{
    if (bytes <= SIM_SPAN - arena->physical_used) {
        uint64_t offset = arena->physical_used;
        arena->physical_used += bytes;
        return offset;
    }
    for (uint64_t i = 0; i < arena->spare_count; i++) {
        sim_chunk *chunk = &arena->spare[i];
        uint64_t offset = chunk->offset;
        if (chunk->bytes < bytes)
            continue;
        chunk->offset += bytes;
        chunk->bytes -= bytes;
        if (chunk->bytes == 0)
            memmove(chunk, chunk + 1, (--arena->spare_count - i) * sizeof *chunk);
        return offset;
    }
    return UINT64_MAX;
}

static void give_physical(sim_arena *arena, uint64_t offset, uint64_t bytes)
{
    if (madvise(arena->alias + offset, bytes, MADV_REMOVE) != 0)
        memset(arena->alias + offset, 0, bytes);
    (void)madvise((char *)arena->cells + offset / 4 * CELL_BYTES, bytes / 4 * CELL_BYTES,
                  MADV_DONTNEED);
    (void)madvise((char *)arena->tags + offset * TAG_BYTES, bytes * TAG_BYTES, MADV_DONTNEED);
    arena->spare =
        sim_grow(arena->spare, arena->spare_count, &arena->spare_capacity, sizeof *arena->spare);
    arena->spare[arena->spare_count++] = (sim_chunk){offset, bytes};
}

/* --- mappings ------------------------------------------------------------------------------ */

/* The first mapping that ends behind the address. */
static uint64_t lower_mapping(const sim_arena *arena, uintptr_t address)
{
    uint64_t low = 0, high = arena->mapping_count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        const sim_mapping *m = arena->mappings[middle];
        if (m->address + m->bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

sim_mapping *sim_find_mapping(const sim_arena *arena, uintptr_t address)
{
    uint64_t at = lower_mapping(arena, address);
    if (at == arena->mapping_count || arena->mappings[at]->address > address)
        return NULL;
    return arena->mappings[at];
}

static int anything_mapped(const sim_arena *arena, uintptr_t address, uint64_t bytes)
{
    uint64_t at = lower_mapping(arena, address);
    return at < arena->mapping_count && arena->mappings[at]->address < address + bytes;
}

int sim_accessible(uintptr_t address, uint64_t bytes)
{
    const sim_arena *arena = sim_arena_of(address);
    uintptr_t end = address + bytes;
    if (arena == NULL || end < address)
        return 0;
    while (address < end) {
        const sim_mapping *m = sim_find_mapping(arena, address);
        if (m == NULL || !m->accessible)
            return 0;
        address = m->address + m->bytes;
    }
    return 1;
}

static sim_mapping *add_mapping(sim_arena *arena, uintptr_t address, uint64_t bytes,
                                sim_physical *physical)
{
    sim_mapping *m = calloc(1, sizeof *m);
    int protection = arena == &sim_host ? PROT_READ | PROT_WRITE : PROT_NONE;
    if (m == NULL ||
        mmap((void *)address, bytes, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
             arena->file, (off_t)physical->offset) == MAP_FAILED) {
        free(m);
        return NULL;
    }
    arena->mappings = sim_grow(arena->mappings, arena->mapping_count, &arena->mapping_capacity,
                               sizeof *arena->mappings);
    uint64_t at = lower_mapping(arena, address);
    memmove(&arena->mappings[at + 1], &arena->mappings[at],
            (arena->mapping_count - at) * sizeof *arena->mappings);
    *m = (sim_mapping){.address = address, .bytes = bytes, .physical = physical};
    arena->mappings[at] = m;
    arena->mapping_count++;
    physical->mapped++;
    return m;
}

static void end_physical(sim_physical *physical)
{
    if (physical->mapped != 0 || !physical->released)
        return;
    if (physical->arena->index >= 0)
        sim_devices[physical->arena->index].used -= physical->bytes;
    give_physical(physical->arena, physical->offset, physical->bytes);
    physical->arena = NULL; /* the struct stays: a dead handle is told from a wild one */
}

static void remove_mapping(sim_arena *arena, sim_mapping *m)
{
    uint64_t at = lower_mapping(arena, m->address);
    (void)mmap((void *)m->address, m->bytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    memmove(&arena->mappings[at], &arena->mappings[at + 1],
            (--arena->mapping_count - at) * sizeof *arena->mappings);
    m->physical->mapped--;
    end_physical(m->physical);
    free(m);
}

void sim_open_mapping(const sim_arena *arena, sim_mapping *m)
{
    if (arena == &sim_host || m->open)
        return;
    m->open = 1;
    (void)mprotect((void *)m->address, m->bytes, PROT_READ | PROT_WRITE);
}

void sim_close_mappings(void)
{
    for (int i = 0; i < sim_options.devices; i++) {
        sim_arena *arena = &sim_devices[i].arena;
        for (uint64_t k = 0; k < arena->mapping_count; k++) {
            sim_mapping *m = arena->mappings[k];
            if (m->open)
                (void)mprotect((void *)m->address, m->bytes, PROT_NONE);
            m->open = 0;
        }
    }
}

/* --- physical memory ----------------------------------------------------------------------- */

static sim_physical *new_physical(sim_arena *arena, uint64_t bytes)
{
    uint64_t offset = take_physical(arena, bytes);
    sim_physical *p = offset != UINT64_MAX ? sim_handle_new(sizeof *p) : NULL;
    if (p == NULL)
        return NULL;
    *p = (sim_physical){.arena = arena, .offset = offset, .bytes = bytes, .magic = PHYSICAL_MAGIC};
    /* What a program must not rely on: neither zero nor a small number. */
    memset(arena->alias + offset, 0xC7, arena->index >= 0 && bytes <= (64u << 20) ? bytes : 0);
    return p;
}

static sim_status take_device_memory(int device, uint64_t bytes)
{
    sim_device *d = &sim_devices[device];
    if (bytes > d->total || d->used > d->total - bytes)
        return SIM_OUT_OF_MEMORY;
    d->used += bytes;
    return SIM_OK;
}

/* A plain allocation takes whole pages of 4 KiB from the capacity and starts at 512 bytes. */
sim_status sim_mem_alloc(sim_context *context, uint64_t bytes, uintptr_t *out_address)
{
    sim_arena *arena = &sim_devices[context->device].arena;
    uint64_t size = round_up(bytes, SIM_PAGE);
    if (bytes == 0)
        return SIM_INVALID_VALUE;
    if (bytes > SIM_SPAN || take_device_memory(context->device, size) != SIM_OK)
        return SIM_OUT_OF_MEMORY;
    sim_physical *physical = new_physical(arena, size);
    uintptr_t address = physical != NULL ? take_addresses(arena, size, SIM_PAGE) : 0;
    sim_mapping *m = address != 0 ? add_mapping(arena, address, size, physical) : NULL;
    if (m == NULL) {
        sim_devices[context->device].used -= size;
        free(physical);
        return SIM_OUT_OF_MEMORY;
    }
    m->plain = m->accessible = 1;
    physical->released = 1; /* goes with its only mapping */
    *out_address = address;
    return SIM_OK;
}

sim_status sim_mem_free(sim_context *context, uintptr_t address)
{
    sim_arena *arena = sim_arena_of(address);
    sim_mapping *m = arena != NULL && arena != &sim_host ? sim_find_mapping(arena, address) : NULL;
    if (m == NULL || !m->plain || m->address != address)
        return SIM_INVALID_VALUE;
    if (sim_options.free_waits) {
        sim_context_wait(context);
        if (context->sticky != SIM_OK)
            return context->sticky;
        m = sim_find_mapping(arena, address); /* another thread may have freed it meanwhile */
        if (m == NULL)
            return SIM_INVALID_VALUE;
    }
    remove_mapping(arena, m);
    return SIM_OK;
}

/* --- virtual memory ------------------------------------------------------------------------ */

static int granular(uint64_t value)
{
    return value % sim_options.granularity == 0;
}

/* The reservation that holds the whole range, or NULL. */
static sim_range *reservation_of(uintptr_t address, uint64_t bytes, sim_ranges **out_list)
{
    const sim_arena *arena = sim_arena_of(address);
    if (arena == NULL || arena == &sim_host)
        return NULL;
    sim_ranges *list = &sim_devices[arena->index].reservations;
    for (uint64_t i = 0; i < list->count; i++) {
        sim_range *r = &list->items[i];
        if (address >= r->start && address - r->start < r->bytes &&
            bytes <= r->bytes - (address - r->start)) {
            if (out_list != NULL)
                *out_list = list;
            return r;
        }
    }
    return NULL;
}

static void add_range(sim_ranges *list, uintptr_t start, uint64_t bytes)
{
    list->items = sim_grow(list->items, list->count, &list->capacity, sizeof *list->items);
    list->items[list->count++] = (sim_range){start, bytes};
}

sim_status sim_vm_reserve(int device, uint64_t bytes, uint64_t align, uintptr_t *out_address)
{
    sim_device *d = &sim_devices[device];
    if (bytes == 0 || !granular(bytes) || (align & (align - 1)) != 0)
        return SIM_INVALID_VALUE;
    uint64_t unit = align > sim_options.granularity ? align : sim_options.granularity;
    uintptr_t address = take_addresses(&d->arena, bytes, unit);
    if (address == 0)
        return SIM_OUT_OF_MEMORY;
    add_range(&d->reservations, address, bytes);
    *out_address = address;
    return SIM_OK;
}

sim_status sim_vm_unreserve(uintptr_t address, uint64_t bytes)
{
    sim_ranges *list = NULL;
    sim_range *r = reservation_of(address, bytes, &list);
    if (r == NULL || r->start != address || r->bytes != bytes ||
        anything_mapped(sim_arena_of(address), address, bytes))
        return SIM_INVALID_VALUE;
    *r = list->items[--list->count];
    return SIM_OK;
}

sim_status sim_vm_create(int device, uint64_t bytes, sim_physical **out_physical)
{
    if (bytes == 0 || !granular(bytes))
        return SIM_INVALID_VALUE;
    if (bytes > SIM_SPAN || take_device_memory(device, bytes) != SIM_OK)
        return SIM_OUT_OF_MEMORY;
    sim_physical *physical = new_physical(&sim_devices[device].arena, bytes);
    if (physical == NULL) {
        sim_devices[device].used -= bytes;
        return SIM_OUT_OF_MEMORY;
    }
    *out_physical = physical;
    return SIM_OK;
}

static int live_physical(const sim_physical *physical)
{
    return physical != NULL && physical->magic == PHYSICAL_MAGIC && physical->arena != NULL;
}

/* A mapping shows the whole of its handle, as real drivers have it (the offset must be 0). */
sim_status sim_vm_map(uintptr_t address, uint64_t bytes, uint64_t offset, sim_physical *physical)
{
    sim_arena *arena = sim_arena_of(address);
    if (!live_physical(physical) || physical->released || bytes == 0 || offset != 0 ||
        bytes != physical->bytes || !granular(address) || !granular(bytes) ||
        reservation_of(address, bytes, NULL) == NULL || arena != physical->arena ||
        anything_mapped(arena, address, bytes))
        return SIM_INVALID_VALUE;
    return add_mapping(arena, address, bytes, physical) != NULL ? SIM_OK : SIM_OUT_OF_MEMORY;
}

/* Calls visit for each mapping if the range is exactly one or several adjacent ones. */
static int exact_mappings(const sim_arena *arena, uintptr_t address, uint64_t bytes,
                          uint64_t *out_count)
{
    uintptr_t end = address + bytes;
    *out_count = 0;
    while (address < end) {
        const sim_mapping *m = sim_find_mapping(arena, address);
        if (m == NULL || m->plain || m->address != address || m->bytes > end - address)
            return 0;
        address += m->bytes;
        ++*out_count;
    }
    return 1;
}

sim_status sim_vm_set_access(uintptr_t address, uint64_t bytes, int accessible)
{
    const sim_arena *arena = sim_arena_of(address);
    uint64_t count = 0;
    if (arena == NULL || arena == &sim_host || bytes == 0 || !granular(bytes) ||
        !exact_mappings(arena, address, bytes, &count))
        return SIM_INVALID_VALUE;
    for (uintptr_t at = address; at < address + bytes;) {
        sim_mapping *m = sim_find_mapping(arena, at);
        m->accessible = accessible;
        at += m->bytes;
    }
    return SIM_OK;
}

/* HIP loses track when one call unmaps several mappings, so there it is an error here. */
sim_status sim_vm_unmap(uintptr_t address, uint64_t bytes)
{
    sim_arena *arena = sim_arena_of(address);
    uint64_t count = 0;
    if (arena == NULL || arena == &sim_host || bytes == 0 || !granular(bytes) ||
        !exact_mappings(arena, address, bytes, &count) || (sim_is_hip && count > 1))
        return SIM_INVALID_VALUE;
    for (uintptr_t at = address; at < address + bytes;) {
        sim_mapping *m = sim_find_mapping(arena, at);
        at += m->bytes;
        remove_mapping(arena, m);
    }
    return SIM_OK;
}

/* While mapped, the memory stays until the last mapping goes. */
sim_status sim_vm_release(sim_physical *physical)
{
    if (!live_physical(physical) || physical->released)
        return SIM_INVALID_VALUE;
    physical->released = 1;
    end_physical(physical);
    return SIM_OK;
}

/* --- host memory --------------------------------------------------------------------------- */

sim_status sim_host_alloc(uint64_t bytes, void **out_pointer)
{
    uint64_t size = round_up(bytes, SIM_PAGE);
    if (bytes == 0)
        return SIM_INVALID_VALUE;
    if (bytes > SIM_SPAN)
        return SIM_OUT_OF_MEMORY;
    sim_physical *physical = new_physical(&sim_host, size);
    uintptr_t address = physical != NULL ? take_addresses(&sim_host, size, SIM_PAGE) : 0;
    sim_mapping *m = address != 0 ? add_mapping(&sim_host, address, size, physical) : NULL;
    if (m == NULL) {
        free(physical);
        return SIM_OUT_OF_MEMORY;
    }
    m->plain = m->accessible = 1;
    physical->released = 1;
    *out_pointer = (void *)address;
    return SIM_OK;
}

sim_status sim_host_free(uintptr_t address)
{
    sim_mapping *m =
        sim_arena_of(address) == &sim_host ? sim_find_mapping(&sim_host, address) : NULL;
    if (m == NULL || m->address != address)
        return SIM_INVALID_VALUE;
    remove_mapping(&sim_host, m);
    return SIM_OK;
}

int sim_registered(uintptr_t address, uint64_t bytes)
{
    for (uint64_t i = 0; i < registered.count; i++) {
        const sim_range *r = &registered.items[i];
        if (address >= r->start && address - r->start < r->bytes &&
            bytes <= r->bytes - (address - r->start))
            return 1;
    }
    return 0;
}

sim_status sim_host_register(uintptr_t address, uint64_t bytes)
{
    if (address == 0 || bytes == 0 || address + bytes < address)
        return SIM_INVALID_VALUE;
    if (sim_arena_of(address) != NULL)
        return sim_arena_of(address) == &sim_host ? SIM_HOST_REGISTERED : SIM_INVALID_VALUE;
    for (uint64_t i = 0; i < registered.count; i++) {
        const sim_range *r = &registered.items[i];
        if (address < r->start + r->bytes && r->start < address + bytes)
            return SIM_HOST_REGISTERED;
    }
    add_range(&registered, address, bytes);
    return SIM_OK;
}

sim_status sim_host_unregister(uintptr_t address)
{
    for (uint64_t i = 0; i < registered.count; i++)
        if (registered.items[i].start == address) {
            registered.items[i] = registered.items[--registered.count];
            return SIM_OK;
        }
    return SIM_HOST_NOT_REGISTERED;
}

/* A primary context that ends takes its memory along. */
void sim_context_sweep(int device)
{
    sim_arena *arena = &sim_devices[device].arena;
    while (arena->mapping_count > 0) {
        sim_mapping *m = arena->mappings[arena->mapping_count - 1];
        m->physical->released = 1;
        remove_mapping(arena, m);
    }
    sim_devices[device].reservations.count = 0;
}
