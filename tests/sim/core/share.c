/*
 * Memory as file descriptors. Memory that is exported moves into a file of its own, which importing
 * processes map as well; it stays while any of them has it. A page behind the bytes says what it
 * is.
 */
#include "core/arena.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LABEL "memopt simulated memory"

typedef struct label {
    char text[32];
    uint64_t bytes;
    int32_t device, is_hip;
} label;

static int map_at(void *address, uint64_t bytes, int protection, int file, uint64_t offset)
{
    return mmap(address, bytes, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file,
                (off_t)offset) != MAP_FAILED;
}

/* The alias and every mapping show the file. */
static int show(sim_physical *p, int file, uint64_t offset)
{
    sim_arena *arena = p->arena;
    if (!map_at(arena->alias + p->offset, p->bytes, PROT_READ | PROT_WRITE, file, offset))
        return 0;
    for (uint64_t i = 0; i < arena->mapping_count; i++) {
        sim_mapping *m = arena->mappings[i];
        if (m->physical != p)
            continue;
        m->open = 0;
        if (!map_at((void *)m->address, m->bytes, PROT_NONE, file, offset))
            return 0;
    }
    return 1;
}

static int write_all(int file, const char *from, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t count = pwrite(file, from + done, bytes - done, (off_t)done);
        if (count <= 0)
            return 0;
        done += (uint64_t)count;
    }
    return 1;
}

static int move_to_file(sim_physical *p)
{
    label l = {LABEL, p->bytes, p->arena->index, sim_is_hip};
    int file = memfd_create("memopt-sim-shared", MFD_CLOEXEC);
    if (file >= 0 && write_all(file, p->arena->alias + p->offset, p->bytes) &&
        pwrite(file, &l, sizeof l, (off_t)p->bytes) == (ssize_t)sizeof l && show(p, file, 0)) {
        p->shared = file;
        return 1;
    }
    if (file >= 0)
        close(file);
    return 0;
}

sim_status sim_vm_export(sim_physical *physical, int *out_file)
{
    if (physical == NULL || physical->magic != SIM_PHYSICAL_MAGIC || physical->arena == NULL ||
        physical->released || !physical->exportable)
        return SIM_INVALID_VALUE;
    if (physical->shared < 0 && !move_to_file(physical))
        return SIM_OUT_OF_MEMORY;
    int file = fcntl(physical->shared, F_DUPFD_CLOEXEC, 0);
    if (file < 0)
        return SIM_OUT_OF_MEMORY;
    *out_file = file;
    return SIM_OK;
}

sim_status sim_vm_import(int file, sim_physical **out_physical)
{
    label l = {.bytes = 0};
    struct stat stat;
    if (fstat(file, &stat) != 0 || stat.st_size <= (off_t)sizeof l ||
        pread(file, &l, sizeof l, stat.st_size - (off_t)sizeof l) != (ssize_t)sizeof l ||
        strcmp(l.text, LABEL) != 0 || l.is_hip != sim_is_hip || l.device < 0 ||
        l.device >= sim_options.devices)
        return SIM_INVALID_VALUE;
    int own = fcntl(file, F_DUPFD_CLOEXEC, 0);
    sim_physical *p = own >= 0 ? sim_new_physical(&sim_devices[l.device].arena, l.bytes) : NULL;
    if (p == NULL) {
        if (own >= 0)
            close(own);
        return SIM_OUT_OF_MEMORY;
    }
    p->imported = p->exportable = 1;
    p->shared = own;
    if (!show(p, own, 0)) {
        p->released = 1;
        sim_end_physical(p);
        return SIM_OUT_OF_MEMORY;
    }
    sim_shadow_written(p->arena, p->offset, p->bytes); /* by another process */
    *out_physical = p;
    return SIM_OK;
}

void sim_unshare(sim_physical *physical)
{
    if (physical->shared < 0)
        return;
    (void)show(physical, physical->arena->file, physical->offset);
    close(physical->shared);
    physical->shared = -1;
}
