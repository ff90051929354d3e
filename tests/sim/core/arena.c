/*
 * Physical memory and the addresses it shows at.
 *
 * Addresses are handed out once: what is freed keeps its addresses without memory for the life of
 * the process, so that a use after free faults or is told by name, and never finds a later owner.
 * Freed physical ranges are reused oldest first and only when the file has been used up.
 */
#include "core/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CELL_BYTES 12u /* of shadow for 4 bytes */
#define TAG_BYTES 16u  /* of race shadow for a byte */

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

/* Addresses of `bytes` behind a guard. 0: none are left. */
uintptr_t sim_take_addresses(sim_arena *arena, uint64_t bytes, uint64_t align)
{
    uint64_t start = sim_round_up(arena->va + arena->va_used + SIM_PAGE, align) - arena->va;
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

int sim_anything_mapped(const sim_arena *arena, uintptr_t address, uint64_t bytes)
{
    uint64_t at = lower_mapping(arena, address);
    return at < arena->mapping_count && arena->mappings[at]->address < address + bytes;
}

int sim_accessible(int device, uintptr_t address, uint64_t bytes)
{
    const sim_arena *arena = sim_arena_of(address);
    uintptr_t end = address + bytes;
    if (arena == NULL || end < address)
        return 0;
    while (address < end) {
        const sim_mapping *m = sim_find_mapping(arena, address);
        if (m == NULL || (!m->plain && (m->access >> device & 1) == 0))
            return 0;
        address = m->address + m->bytes;
    }
    return 1;
}

sim_mapping *sim_add_mapping(sim_arena *arena, uintptr_t address, uint64_t bytes,
                             sim_physical *physical)
{
    sim_mapping *m = calloc(1, sizeof *m);
    int protection = arena == &sim_host ? PROT_READ | PROT_WRITE : PROT_NONE;
    int file = physical->shared >= 0 ? physical->shared : arena->file;
    off_t offset = physical->shared >= 0 ? 0 : (off_t)physical->offset;
    if (m == NULL || mmap((void *)address, bytes, protection,
                          MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, offset) == MAP_FAILED) {
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

void sim_end_physical(sim_physical *physical)
{
    if (physical->mapped != 0 || physical->ghosts != 0 || !physical->released)
        return;
    if (physical->arena->index >= 0 && !physical->imported)
        sim_devices[physical->arena->index].used -= physical->bytes;
    sim_unshare(physical);
    give_physical(physical->arena, physical->offset, physical->bytes);
    if (physical->file >= 0)
        close(physical->file);
    physical->arena = NULL; /* the struct stays: a dead handle is told from a wild one */
}

void sim_remove_mapping(sim_arena *arena, sim_mapping *m)
{
    uint64_t at = lower_mapping(arena, m->address);
    (void)mmap((void *)m->address, m->bytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    memmove(&arena->mappings[at], &arena->mappings[at + 1],
            (--arena->mapping_count - at) * sizeof *arena->mappings);
    m->physical->mapped--;
    sim_end_physical(m->physical);
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

/* --- memory that is visible late -------------------------------------------------------------- */

struct sim_late {
    struct sim_late *next;
    char *at; /* in the alias; `saved` is what belongs there */
    uint64_t bytes;
    char saved[];
};

static int touches(const sim_op *op, const sim_mapping *m)
{
    if (op->kind == SIM_LAUNCH)
        return 1; /* of all that is mapped */
    return (op->kind == SIM_COPY || op->kind == SIM_FILL) &&
           ((op->destination < m->address + m->bytes && m->address < op->destination + op->bytes) ||
            (op->source < m->address + m->bytes && m->address < op->source + op->bytes));
}

struct sim_late *sim_begin_late(const sim_op *op)
{
    struct sim_late *all = NULL;
    const sim_arena *arena = &sim_devices[op->context->device].arena;
    for (uint64_t i = 0; sim_options.late_maps && i < arena->mapping_count; i++) {
        sim_mapping *m = arena->mappings[i];
        if (!m->late || !touches(op, m))
            continue;
        struct sim_late *late = malloc(sizeof *late + m->bytes);
        if (late == NULL)
            abort();
        *late = (struct sim_late){all, arena->alias + m->physical->offset, m->bytes};
        memcpy(late->saved, late->at, m->bytes);
        memset(late->at, 0, m->bytes);
        m->late = 0;
        all = late;
    }
    return all;
}

/* What was stored is lost. */
void sim_end_late(struct sim_late *late)
{
    while (late != NULL) {
        struct sim_late *next = late->next;
        memcpy(late->at, late->saved, late->bytes);
        free(late);
        late = next;
    }
}

/* --- physical memory ----------------------------------------------------------------------- */

sim_physical *sim_new_physical(sim_arena *arena, uint64_t bytes)
{
    uint64_t offset = take_physical(arena, bytes);
    sim_physical *p = offset != UINT64_MAX ? sim_handle_new(sizeof *p) : NULL;
    if (p == NULL)
        return NULL;
    *p = (sim_physical){.arena = arena,
                        .offset = offset,
                        .bytes = bytes,
                        .file = -1,
                        .shared = -1,
                        .magic = SIM_PHYSICAL_MAGIC};
    /* What a program must not rely on: neither zero nor a small number. */
    if (sim_options.fill && arena->index >= 0 && bytes <= (64u << 20))
        memset(arena->alias + offset, 0xC7, bytes);
    return p;
}
