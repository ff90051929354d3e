/* What memory.c needs of arenas: physical memory and mappings. */
#ifndef MEMOPT_SIM_ARENA_H
#define MEMOPT_SIM_ARENA_H

#include "core/sim.h"

#ifdef SIM_SMALL /* sanitizers leave few addresses: 1.5 TiB to all mappings of a program */
#define SIM_SPAN ((uint64_t)1 << 32)
#define SIM_VA ((uint64_t)1 << 37)
#else
#define SIM_SPAN ((uint64_t)1 << 38) /* physical addresses of an arena */
#define SIM_VA ((uint64_t)1 << 42)   /* addresses of an arena that programs see */
#endif

#define SIM_PHYSICAL_MAGIC 0x7068797369636C31u

static inline uint64_t sim_round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Addresses of `bytes` behind a guard. 0: none are left. */
uintptr_t sim_take_addresses(sim_arena *arena, uint64_t bytes, uint64_t align);
int sim_anything_mapped(const sim_arena *arena, uintptr_t address, uint64_t bytes);
/* NULL where the host is out of memory. */
sim_mapping *sim_add_mapping(sim_arena *arena, uintptr_t address, uint64_t bytes,
                             sim_physical *physical);
void sim_remove_mapping(sim_arena *arena, sim_mapping *mapping);
/* Pre: bytes are whole pages. NULL: the arena is spent. */
sim_physical *sim_new_physical(sim_arena *arena, uint64_t bytes);
/* Gives the memory back once it is released and nothing shows it. */
void sim_end_physical(sim_physical *physical);

#endif
