/*
 * Races between the threads of one launch, byte by byte: two accesses of which one writes, by
 * different blocks, or by different threads of a block without a barrier between them. A shuffle
 * orders only its warp's earlier reads before its later writes. Each byte's tag holds its last
 * writer and its last reader.
 */
#include "launch.h"

#include "emulator.h"

#include <stdint.h>
#include <stdio.h>

/* From the top: launch 12, block 20, phase 10, shuffle 10, who 12 bits; 0: nobody. Numbers wrap
 * around, which can hide a race once in hundreds and cannot invent one. */
typedef struct sim_tag {
    uint64_t writer, reader;
} sim_tag;

enum { WARP_OF_READERS = 0x400, MANY = 0xFFF }; /* in place of a thread; the first plus its warp */

static uint64_t tag_of(uint32_t thread)
{
    return (uint64_t)(sim_now.launch % 0xFFF + 1) << 52 |
           (uint64_t)(sim_now.block & 0xFFFFF) << 32 | (uint64_t)(sim_now.phase & 0x3FF) << 22 |
           (uint64_t)(sim_now.shuffles & 0x3FF) << 12 | thread;
}

static uint32_t who(uint64_t tag)
{
    return (uint32_t)(tag & 0xFFF);
}

static uint32_t block_of(uint64_t tag)
{
    return (uint32_t)(tag >> 32 & 0xFFFFF);
}

static uint32_t warp_of(uint64_t tag)
{
    if (who(tag) == MANY)
        return MANY;
    return who(tag) >= WARP_OF_READERS ? who(tag) - WARP_OF_READERS
                                       : who(tag) / sim_options.warp_size;
}

/* True if the other access is of this launch and nothing orders it before the running thread's.
 * Shared memory of another block is other memory. */
static int unordered(uint64_t other, uint64_t own, int shared)
{
    if (other == 0 || other >> 52 != own >> 52 || who(other) == who(own))
        return other != 0 && other >> 52 == own >> 52 && block_of(other) != block_of(own) &&
               !shared;
    return other >> 22 == own >> 22 || (!shared && block_of(other) != block_of(own));
}

/* A lane whose value has come through a shuffle has read what it was made of: a write of the same
 * warp after the shuffle comes later. */
static int read_unordered(uint64_t reader, uint64_t own, int shared)
{
    if (!unordered(reader, own, shared))
        return 0;
    return block_of(reader) != block_of(own) || warp_of(reader) != warp_of(own) ||
           (reader >> 12 & 0x3FF) == (own >> 12 & 0x3FF);
}

/* The byte's readers of this phase in one tag. */
static uint64_t join_readers(uint64_t earlier, uint64_t own)
{
    if (earlier >> 22 != own >> 22 || earlier == own)
        return own;
    if (warp_of(earlier) != warp_of(own))
        return own | MANY;
    if (earlier >> 12 != own >> 12)
        return own; /* a shuffle ago */
    return (own & ~(uint64_t)0xFFF) | (WARP_OF_READERS + warp_of(own));
}

static void tell(uint64_t other, const char *what, uintptr_t address, int shared)
{
    char text[64];
    if (sim_now.reported)
        return; /* one for a launch */
    sim_now.reported = 1;
    if (who(other) == MANY)
        snprintf(text, sizeof text, "threads of several warps");
    else if (who(other) >= WARP_OF_READERS)
        snprintf(text, sizeof text, "several threads of warp %u", warp_of(other));
    else
        snprintf(text, sizeof text, "thread %u", who(other));
    sim_violation(0, sim_now.op->site,
                  "%s: a race in %s memory at %p: %s by thread %u of block %u and %s of block %u",
                  sim_now.op->launch->kernel->name, shared ? "shared" : "global", (void *)address,
                  what, sim_now.thread, sim_now.block, text, block_of(other));
}

void sim_race_check(sim_tag *tags, uint64_t bytes, int write, uintptr_t address, int shared)
{
    uint64_t own = tag_of(sim_now.thread);
    for (uint64_t i = 0; i < bytes; i++) {
        sim_tag *tag = &tags[i];
        if (unordered(tag->writer, own, shared))
            tell(tag->writer, write ? "two writes" : "a read and a write", address + i, shared);
        if (write && read_unordered(tag->reader, own, shared))
            tell(tag->reader, "a write and a read", address + i, shared);
        if (write)
            tag->writer = own;
        else
            tag->reader = join_readers(tag->reader, own);
    }
}
