/* Lists of ranges, and what the driver has mapped. */
#include "picture.h"

#include "base/lock.h"
#include "device/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

/* The first range that ends at or behind the address. */
static uint64_t place(const picture *p, uintptr_t address)
{
    uint64_t low = 0, high = p->count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (p->ranges[middle].end < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void insert(picture *p, uint64_t at, picture_range range)
{
    if (p->count == p->capacity) {
        p->capacity = 2 * p->capacity + 16;
        p->ranges = realloc(p->ranges, p->capacity * sizeof *p->ranges);
        if (p->ranges == NULL)
            abort();
    }
    memmove(&p->ranges[at + 1], &p->ranges[at], (p->count - at) * sizeof *p->ranges);
    p->ranges[at] = range;
    p->count++;
}

static void erase(picture *p, uint64_t at)
{
    p->count--;
    memmove(&p->ranges[at], &p->ranges[at + 1], (p->count - at) * sizeof *p->ranges);
}

int picture_add(picture *p, uintptr_t start, uint64_t bytes)
{
    uint64_t at = place(p, start);
    picture_range *r = &p->ranges[at];
    uintptr_t end = start + bytes;
    if (at < p->count && r->end == start)
        r = &p->ranges[++at];
    if (at < p->count && r->start < end)
        return 0;
    insert(p, at, (picture_range){start, end});
    if (at + 1 < p->count && p->ranges[at + 1].start == end) {
        p->ranges[at].end = p->ranges[at + 1].end;
        erase(p, at + 1);
    }
    if (at > 0 && p->ranges[at - 1].end == start) {
        p->ranges[at - 1].end = p->ranges[at].end;
        erase(p, at);
    }
    return 1;
}

int picture_covers(const picture *p, uintptr_t start, uint64_t bytes)
{
    uint64_t at = place(p, start + 1);
    return at < p->count && p->ranges[at].start <= start && p->ranges[at].end >= start + bytes;
}

int picture_remove(picture *p, uintptr_t start, uint64_t bytes)
{
    uint64_t at = place(p, start + 1);
    uintptr_t end = start + bytes;
    if (!picture_covers(p, start, bytes))
        return 0;
    picture_range whole = p->ranges[at];
    erase(p, at);
    if (end < whole.end)
        insert(p, at, (picture_range){end, whole.end});
    if (whole.start < start)
        insert(p, at, (picture_range){whole.start, start});
    return 1;
}

int picture_equals(const picture *a, const picture *b)
{
    return a->count == b->count &&
           (a->count == 0 || memcmp(a->ranges, b->ranges, a->count * sizeof *a->ranges) == 0);
}

uint64_t picture_bytes(const picture *p)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < p->count; i++)
        bytes += p->ranges[i].end - p->ranges[i].start;
    return bytes;
}

void picture_end(picture *p)
{
    free(p->ranges);
    memset(p, 0, sizeof *p);
}

/* --- drivers -------------------------------------------------------------------------------- */

static void add_all(picture *out, const mo_ranges *some)
{
    for (const mo_range *r = mo_ranges_after(some, 0); r != NULL;
         r = mo_ranges_after(some, r->start + r->size))
        if (!picture_add(out, r->start, r->size))
            abort();
}

void driver_picture(memopt_device *device, const char *name, picture *out)
{
    const driver_hooks *driver = driver_of(name);
    uint64_t address = 0, bytes = 0;
    out->count = 0;
    if (driver == NULL) {
        mo_cpu_device *cpu = (mo_cpu_device *)(void *)device;
        mo_lock(&cpu->memory.lock);
        add_all(out, &cpu->memory.accessible);
        add_all(out, &cpu->memory.plain);
        mo_unlock(&cpu->memory.lock);
        return;
    }
    for (uint64_t i = 0; driver->mapping(0, i, &address, &bytes); i++)
        if (!picture_add(out, (uintptr_t)address, bytes))
            abort();
}
