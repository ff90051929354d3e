/*
 * Races between the threads of one launch, byte by byte: two accesses of which one writes, by
 * different blocks, or by different threads of a block without a barrier between them. (A shuffle
 * orders no memory.) Each byte's tag holds its last writer and its last reader.
 */
#include "launch.h"

#include "emulator.h"

#include <stdint.h>

/* launch 16, block 24, phase 12, thread 12 bits; 0: nobody. Phases and launches wrap around, which
 * can hide a race once in thousands, and cannot invent one within a launch. */
typedef struct sim_tag {
    uint64_t writer, reader;
} sim_tag;

enum { MANY = 0xFFF }; /* readers of one phase */

static uint64_t tag_of(uint32_t thread)
{
    return (uint64_t)(sim_now.launch % 0xFFFF + 1) << 48 |
           (uint64_t)(sim_now.block & 0xFFFFFF) << 24 | (uint64_t)(sim_now.phase & 0xFFF) << 12 |
           thread;
}

/* True if the other access is of this launch and nothing orders it before the running thread's.
 * Shared memory of another block is other memory. */
static int unordered(uint64_t other, uint64_t own, int shared)
{
    if (other == 0 || other >> 48 != own >> 48 || other == own)
        return 0;
    return other >> 12 == own >> 12 ||
           (!shared && (other >> 24 & 0xFFFFFF) != (own >> 24 & 0xFFFFFF));
}

static void tell(uint64_t other, const char *what, uintptr_t address, int shared)
{
    if (sim_now.reported)
        return; /* one for a launch */
    sim_now.reported = 1;
    sim_violation(0, sim_now.op->site,
                  "%s: a race in %s memory at %p: %s by thread %u of block %u and thread %u%s of "
                  "block %u",
                  sim_now.op->launch->kernel->name, shared ? "shared" : "global", (void *)address,
                  what, sim_now.thread, sim_now.block, (unsigned)(other & 0xFFF),
                  (other & 0xFFF) == MANY ? " (or others)" : "",
                  (unsigned)(other >> 24 & 0xFFFFFF));
}

void sim_race_check(sim_tag *tags, uint64_t bytes, int write, uintptr_t address, int shared)
{
    uint64_t own = tag_of(sim_now.thread);
    for (uint64_t i = 0; i < bytes; i++) {
        sim_tag *tag = &tags[i];
        if (unordered(tag->writer, own, shared))
            tell(tag->writer, write ? "two writes" : "a read and a write", address + i, shared);
        if (write && unordered(tag->reader, own, shared))
            tell(tag->reader, "a write and a read", address + i, shared);
        if (write)
            tag->writer = own;
        else if (unordered(tag->reader, own, shared) && tag->reader >> 12 == own >> 12)
            tag->reader = own | MANY;
        else
            tag->reader = own;
    }
}
