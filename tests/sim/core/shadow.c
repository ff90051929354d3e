/*
 * Who touched which bytes, and whether the accesses were ordered.
 *
 * For each aligned word of 4 bytes of device and pinned memory the shadow keeps the site of the
 * last write and of the last reads since, from up to two streams. Operations are checked when they
 * run: an earlier access is ordered before an operation if the operation's clock includes it. What
 * is not, could have come in the other order on a real device, whatever order this run took. Words
 * of which an operation touches only a part are left out: no false alarms where two streams share
 * a word.
 */
#include "core/sim.h"

#include <string.h>

typedef struct sim_cell {
    uint32_t write; /* site; 0: never written */
    uint32_t reads[2];
} sim_cell;

static int ordered(const sim_op *op, uint32_t site)
{
    const sim_site *s = sim_site_at(site);
    return s->clock <= op->needs.at[s->slot];
}

static void hazard(const sim_op *op, const sim_arena *arena, uint64_t offset, uint32_t earlier,
                   const char *what)
{
    if (arena->index >= 0)
        sim_violation(earlier, op->site,
                      "%s without an order between them, physical byte %#llx of "
                      "device %d",
                      what, (unsigned long long)offset, arena->index);
    else
        sim_violation(earlier, op->site, "%s without an order between them, pinned byte %#llx",
                      what, (unsigned long long)offset);
}

/* True if the cell's earlier accesses come before a write of op. */
static int check_write(const sim_op *op, const sim_arena *arena, uint64_t offset,
                       const sim_cell *cell)
{
    if (cell->write != 0 && cell->write != op->site && !ordered(op, cell->write)) {
        hazard(op, arena, offset, cell->write, "two writes");
        return 0;
    }
    for (int i = 0; i < 2; i++)
        if (cell->reads[i] != 0 && cell->reads[i] != op->site && !ordered(op, cell->reads[i])) {
            hazard(op, arena, offset, cell->reads[i], "a read and a write");
            return 0;
        }
    return 1;
}

/* A read on the same stream as an earlier one, or after it, replaces it. */
static void note_read(const sim_op *op, sim_cell *cell)
{
    uint32_t *free_slot = NULL;
    for (int i = 0; i < 2; i++) {
        if (cell->reads[i] == 0 || ordered(op, cell->reads[i]) ||
            sim_site_at(cell->reads[i])->slot == sim_site_at(op->site)->slot) {
            cell->reads[i] = 0;
            free_slot = &cell->reads[i];
        }
    }
    if (free_slot == NULL)
        free_slot = &cell->reads[sim_random() & 1];
    *free_slot = op->site;
}

static int same_cell(const sim_cell *a, const sim_cell *b)
{
    return a->write == b->write && a->reads[0] == b->reads[0] && a->reads[1] == b->reads[1];
}

/* False if it reported a hazard. */
static int access_cell(const sim_op *op, const sim_arena *arena, uint64_t offset, sim_cell *cell,
                       int write, int silent)
{
    int right = 1;
    if (write) {
        if (cell->write == op->site && cell->reads[0] == 0 && cell->reads[1] == 0)
            return 1;
        right = silent || check_write(op, arena, offset, cell);
        *cell = (sim_cell){.write = op->site, .reads = {0, 0}};
        return right;
    }
    if (cell->reads[0] == op->site || cell->reads[1] == op->site)
        return 1;
    if (!silent && cell->write != 0 && cell->write != op->site && !ordered(op, cell->write)) {
        hazard(op, arena, offset, cell->write, "a write and a read");
        right = 0;
    }
    note_read(op, cell);
    return right;
}

void sim_shadow_access(const sim_op *op, const sim_arena *arena, uint64_t offset, uint64_t bytes,
                       int write)
{
    uint64_t first = (offset + 3) / 4, end = (offset + bytes) / 4;
    int silent = 0; /* one report for one range */
    if (write)      /* words that are only written in part are initialised too */
        for (uint64_t edge = offset / 4; edge * 4 < offset + bytes;) {
            sim_cell *cell = &arena->cells[edge];
            if (cell->write == 0)
                cell->write = op->site;
            edge = edge < end && end * 4 < offset + bytes ? end : (offset + bytes + 3) / 4;
        }
    sim_cell before = {0}, after = {0}; /* of the last word: its neighbours are mostly the same */
    for (uint64_t i = first; i < end; i++) {
        sim_cell *cell = &arena->cells[i];
        if (i == first || !same_cell(cell, &before)) {
            before = *cell;
            silent = !access_cell(op, arena, i * 4, cell, write, silent) || silent;
            after = *cell;
        }
        *cell = after;
    }
}

void sim_shadow_written(const sim_arena *arena, uint64_t offset, uint64_t bytes)
{
    uint32_t site = sim_site_here(0, 0, NULL);
    for (uint64_t i = offset / 4; i < (offset + bytes) / 4; i++)
        arena->cells[i] = (sim_cell){.write = site, .reads = {0, 0}};
}

void sim_shadow_range(const sim_op *op, uintptr_t address, uint64_t bytes, int write)
{
    const sim_arena *arena = sim_arena_of(address);
    uintptr_t end = address + bytes;
    while (arena != NULL && address < end) {
        const sim_mapping *m = sim_find_mapping(arena, address);
        if (m == NULL)
            return;
        uint64_t within = address - m->address;
        uint64_t here = m->bytes - within < end - address ? m->bytes - within : end - address;
        sim_shadow_access(op, arena, m->physical->offset + within, here, write);
        address += here;
    }
}

int sim_shadow_initialised(const sim_op *op, uintptr_t address, uint64_t bytes)
{
    const sim_arena *arena = sim_arena_of(address);
    uintptr_t end = address + bytes;
    if (arena == NULL || arena == &sim_host)
        return 1;
    while (address < end) {
        const sim_mapping *m = sim_find_mapping(arena, address);
        if (m == NULL)
            return 1;
        uint64_t start = m->physical->offset + (address - m->address);
        uint64_t left = m->address + m->bytes - address;
        uint64_t here = left < end - address ? left : end - address;
        for (uint64_t i = start / 4; i * 4 < start + here; i++)
            if (arena->cells[i].write == 0) {
                sim_violation(0, op->site,
                              "memory that was never written is read, %llu bytes into the range",
                              (unsigned long long)(address - (end - bytes) + i * 4 - start));
                return 0;
            }
        address += here;
    }
    return 1;
}
