/* Plain device memory, virtual memory and page-locked host memory, over arenas (arena.c). */
#include "core/arena.h"
#include "core/control.h"

#include <stdlib.h>
#include <unistd.h>

static sim_ranges registered;

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
    uint64_t size = sim_round_up(bytes, SIM_PAGE);
    if (bytes == 0)
        return SIM_INVALID_VALUE;
    if (bytes > SIM_SPAN || take_device_memory(context->device, size) != SIM_OK)
        return SIM_OUT_OF_MEMORY;
    sim_physical *physical = sim_new_physical(arena, size);
    uintptr_t address = physical != NULL ? sim_take_addresses(arena, size, SIM_PAGE) : 0;
    sim_mapping *m = address != 0 ? sim_add_mapping(arena, address, size, physical) : NULL;
    if (m == NULL) {
        sim_devices[context->device].used -= size;
        free(physical);
        return SIM_OUT_OF_MEMORY;
    }
    m->plain = 1;
    m->access = UINT32_C(1) << context->device;
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
    sim_context_wait(context);
    if (context->sticky != SIM_OK)
        return context->sticky;
    m = sim_find_mapping(arena, address); /* another thread may have freed it meanwhile */
    if (m == NULL)
        return SIM_INVALID_VALUE;
    sim_remove_mapping(arena, m);
    return SIM_OK;
}

/* --- virtual memory ------------------------------------------------------------------------ */

static int granular(uint64_t value)
{
    return value % sim_granule() == 0;
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
    list->items[list->count++] = (sim_range){start, bytes, 0};
}

sim_status sim_vm_reserve(int device, uint64_t bytes, uint64_t align, uintptr_t *out_address)
{
    sim_device *d = &sim_devices[device];
    if (bytes == 0 || !granular(bytes) || (align & (align - 1)) != 0)
        return SIM_INVALID_VALUE;
    uint64_t unit = align > sim_granule() ? align : sim_granule();
    uintptr_t address = sim_take_addresses(&d->arena, bytes, unit);
    if (address == 0)
        return SIM_OUT_OF_MEMORY;
    add_range(&d->reservations, address, bytes);
    *out_address = address;
    return SIM_OK;
}

/* The memory that the range has kept goes. */
static void end_ghosts(int device, uintptr_t address, uint64_t bytes)
{
    sim_ghosts *ghosts = &sim_devices[device].ghosts;
    for (uint64_t i = 0; i < ghosts->count;) {
        sim_ghost ghost = ghosts->items[i];
        if (ghost.address - address >= bytes) {
            i++;
            continue;
        }
        ghosts->items[i] = ghosts->items[--ghosts->count];
        ghost.physical->ghosts--;
        sim_end_physical(ghost.physical);
    }
}

static void add_ghost(const sim_mapping *m)
{
    sim_ghosts *ghosts = &sim_devices[m->physical->arena->index].ghosts;
    ghosts->items =
        sim_grow(ghosts->items, ghosts->count, &ghosts->capacity, sizeof *ghosts->items);
    ghosts->items[ghosts->count++] = (sim_ghost){m->address, m->physical};
    m->physical->ghosts++;
}

sim_status sim_vm_unreserve(uintptr_t address, uint64_t bytes)
{
    sim_ranges *list = NULL;
    sim_range *r = reservation_of(address, bytes, &list);
    if (r == NULL || r->start != address || r->bytes != bytes || r->stuck ||
        sim_anything_mapped(sim_arena_of(address), address, bytes))
        return SIM_INVALID_VALUE;
    *r = list->items[--list->count];
    end_ghosts(sim_arena_of(address)->index, address, bytes);
    return SIM_OK;
}

sim_status sim_vm_create(int device, uint64_t bytes, sim_physical **out_physical)
{
    if (bytes == 0 || !granular(bytes))
        return SIM_INVALID_VALUE;
    if (bytes > SIM_SPAN || take_device_memory(device, bytes) != SIM_OK)
        return SIM_OUT_OF_MEMORY;
    sim_physical *physical = sim_new_physical(&sim_devices[device].arena, bytes);
    if (physical == NULL) {
        sim_devices[device].used -= bytes;
        return SIM_OUT_OF_MEMORY;
    }
    /* ROCm 7.14: a descriptor for each handle, and where there is none, no memory. */
    if (sim_options.handle_files && (physical->file = dup(physical->arena->file)) < 0) {
        physical->released = 1;
        sim_end_physical(physical);
        return SIM_OUT_OF_MEMORY;
    }
    *out_physical = physical;
    return SIM_OK;
}

static int live_physical(const sim_physical *physical)
{
    return physical != NULL && physical->magic == SIM_PHYSICAL_MAGIC && physical->arena != NULL;
}

/* A mapping shows the whole of its handle, as real drivers have it (the offset must be 0). */
sim_status sim_vm_map(uintptr_t address, uint64_t bytes, uint64_t offset, sim_physical *physical)
{
    sim_arena *arena = sim_arena_of(address);
    if (!live_physical(physical) || physical->released || bytes == 0 || offset != 0 ||
        bytes != physical->bytes || !granular(address) || !granular(bytes) ||
        reservation_of(address, bytes, NULL) == NULL || arena != physical->arena ||
        sim_anything_mapped(arena, address, bytes))
        return SIM_INVALID_VALUE;
    sim_mapping *m = sim_add_mapping(arena, address, bytes, physical);
    if (m == NULL)
        return SIM_OUT_OF_MEMORY;
    end_ghosts(arena->index, address, bytes);
    m->late = sim_options.late_maps;
    return SIM_OK;
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

/* ROCm 7.0 to 7.2 add up the mappings from the reservation's first one, wherever the range starts,
 * until they reach its size, and refuse the range where the sum is not exact. Some cards were seen
 * to refuse every range behind the first mapping (2), others only with several reservations (3). */
static int tail_refused(const sim_arena *arena, uintptr_t address, uint64_t bytes)
{
    const sim_range *home = reservation_of(address, bytes, NULL);
    uint64_t sum = 0, elsewhere = 0;
    if (home == NULL || sim_options.tail_access == 0)
        return 0;
    for (uint64_t i = 0; i < arena->mapping_count; i++)
        elsewhere +=
            !arena->mappings[i]->plain && arena->mappings[i]->address - home->start >= home->bytes;
    for (uint64_t i = 0; i < arena->mapping_count && sum < bytes; i++) {
        const sim_mapping *m = arena->mappings[i];
        if (m->address < home->start || m->address >= home->start + home->bytes)
            continue;
        if (sum == 0 && m->address != address &&
            (sim_options.tail_access == 2 || (sim_options.tail_access == 3 && elsewhere > 0)))
            return 1;
        sum += m->bytes;
    }
    return sum != bytes;
}

sim_status sim_vm_set_access(uintptr_t address, uint64_t bytes, uint32_t give, uint32_t take)
{
    const sim_arena *arena = sim_arena_of(address);
    uint64_t count = 0;
    if (arena == NULL || arena == &sim_host || bytes == 0 || !granular(bytes) ||
        !exact_mappings(arena, address, bytes, &count) || tail_refused(arena, address, bytes))
        return SIM_INVALID_VALUE;
    for (uintptr_t at = address; at < address + bytes;) {
        sim_mapping *m = sim_find_mapping(arena, at);
        m->access = (m->access | give) & ~take;
        at += m->bytes;
    }
    return SIM_OK;
}

/* HIP up to 6.4 loses count when one call unmaps several mappings, and never gives the addresses
 * back (ROCR-Runtime#285): an error here, or with MEMOPT_SIM_UNMAP=1 what happened there. */
sim_status sim_vm_unmap(uintptr_t address, uint64_t bytes)
{
    sim_arena *arena = sim_arena_of(address);
    uint64_t count = 0;
    if (arena == NULL || arena == &sim_host || bytes == 0 || !granular(bytes) ||
        !exact_mappings(arena, address, bytes, &count) ||
        (sim_is_hip && count > 1 && !sim_options.unmap_many))
        return SIM_INVALID_VALUE;
    if (sim_is_hip && count > 1)
        reservation_of(address, bytes, NULL)->stuck = 1;
    for (uintptr_t at = address; at < address + bytes;) {
        sim_mapping *m = sim_find_mapping(arena, at);
        at += m->bytes;
        if (sim_options.keeps)
            add_ghost(m);
        sim_remove_mapping(arena, m);
    }
    return SIM_OK;
}

/* While mapped, the memory stays until the last mapping goes. */
sim_status sim_vm_release(sim_physical *physical)
{
    if (!live_physical(physical) || physical->released)
        return SIM_INVALID_VALUE;
    physical->released = 1;
    sim_end_physical(physical);
    return SIM_OK;
}

/* --- host memory --------------------------------------------------------------------------- */

static uint64_t pinned, pin_limit = UINT64_MAX;

SIM_EXPORT void memopt_sim_pin_limit(uint64_t bytes)
{
    pin_limit = bytes;
}

sim_status sim_host_alloc(uint64_t bytes, void **out_pointer)
{
    uint64_t size = sim_round_up(bytes, SIM_PAGE);
    if (bytes == 0)
        return SIM_INVALID_VALUE;
    if (bytes > SIM_SPAN || size > pin_limit || pinned > pin_limit - size)
        return SIM_OUT_OF_MEMORY;
    sim_physical *physical = sim_new_physical(&sim_host, size);
    uintptr_t address = physical != NULL ? sim_take_addresses(&sim_host, size, SIM_PAGE) : 0;
    sim_mapping *m = address != 0 ? sim_add_mapping(&sim_host, address, size, physical) : NULL;
    if (m == NULL) {
        free(physical);
        return SIM_OUT_OF_MEMORY;
    }
    m->plain = 1;
    m->access = UINT32_MAX;
    physical->released = 1;
    pinned += size;
    *out_pointer = (void *)address;
    return SIM_OK;
}

sim_status sim_host_free(uintptr_t address)
{
    sim_mapping *m =
        sim_arena_of(address) == &sim_host ? sim_find_mapping(&sim_host, address) : NULL;
    if (m == NULL || m->address != address)
        return SIM_INVALID_VALUE;
    pinned -= m->bytes;
    sim_remove_mapping(&sim_host, m);
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
        sim_remove_mapping(arena, m);
    }
    end_ghosts(device, 0, UINTPTR_MAX);
    sim_devices[device].reservations.count = 0;
}
