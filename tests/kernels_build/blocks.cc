#include "blocks.h"

#include "kernels/core/all_kernels.cu"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

namespace
{

enum { MOST_THREADS = 512, STACK = 64 << 10, MOST_SHARED = 16 };
enum State { RUNNING, AT_BARRIER, AT_SHUFFLE, FINISHED };

struct Fiber {
    ucontext_t context;
    State state;
    uint64_t bits; /* given, then received */
    uint32_t mask;
    const char *file;
    int line;
};

struct Shared {
    const void *key;
    void *memory;
};

Fiber fibers[MOST_THREADS];
unsigned char stacks[MOST_THREADS][STACK];
Shared shared[MOST_SHARED];
ucontext_t scheduler;
uint32_t current, threads, warp, block, shuffle_seed = 1;
void (*entry)(const void *args, uint64_t first_item);
const void *entry_args;

[[noreturn]] void fail(const char *what, const Fiber &fiber)
{
    fprintf(stderr, "%s: thread %u of block %u at %s:%d\n", what, (unsigned)(&fiber - fibers),
            block, fiber.file ? fiber.file : "?", fiber.line);
    exit(1);
}

void start()
{
    entry(entry_args, 0);
    fibers[current].state = FINISHED;
    swapcontext(&fibers[current].context, &scheduler);
}

void wait_at(State state, const char *file, int line)
{
    Fiber &self = fibers[current];
    self.state = state;
    self.file = file;
    self.line = line;
    swapcontext(&self.context, &scheduler);
}

/* Every thread that may run does so until it stops, in a scrambled order. */
void run_round()
{
    uint32_t step = shuffle_seed++ * 2 + 1, at = shuffle_seed * 7;
    for (uint32_t k = 0; k < threads; k++) {
        current = (at + k * step) % threads; /* threads is a power of two: a permutation */
        if (fibers[current].state == RUNNING)
            swapcontext(&scheduler, &fibers[current].context);
    }
}

bool deliver_shuffles(uint32_t first)
{
    if (fibers[first].state != AT_SHUFFLE)
        return false;
    uint64_t given[64];
    for (uint32_t lane = 0; lane < warp; lane++) {
        const Fiber &fiber = fibers[first + lane], &lead = fibers[first];
        if (fiber.state != AT_SHUFFLE || fiber.line != lead.line || fiber.mask != lead.mask)
            fail("a warp does not reach a shuffle together", fiber);
        given[lane] = fiber.bits;
    }
    for (uint32_t lane = 0; lane < warp; lane++) {
        fibers[first + lane].bits = given[lane ^ fibers[first].mask];
        fibers[first + lane].state = RUNNING;
    }
    return true;
}

void run_block()
{
    for (uint32_t t = 0; t < threads; t++) {
        getcontext(&fibers[t].context);
        fibers[t].context.uc_stack.ss_sp = stacks[t];
        fibers[t].context.uc_stack.ss_size = STACK;
        fibers[t].context.uc_link = nullptr;
        makecontext(&fibers[t].context, start, 0);
        fibers[t].state = RUNNING;
    }
    for (;;) {
        run_round();
        bool moved = false;
        for (uint32_t first = 0; first < threads; first += warp)
            moved |= deliver_shuffles(first);
        if (moved)
            continue;
        uint32_t finished = 0;
        for (uint32_t t = 0; t < threads; t++)
            finished += fibers[t].state == FINISHED;
        if (finished == threads)
            return;
        for (uint32_t t = 0; t < threads; t++) {
            if (fibers[t].state != AT_BARRIER)
                fail("a block does not reach a barrier together", fibers[t]);
            fibers[t].state = RUNNING;
        }
    }
}

} // namespace

uint32_t mo_sim_thread(void)
{
    return current;
}

uint32_t mo_sim_block(void)
{
    return block;
}

uint32_t mo_sim_threads(void)
{
    return threads;
}

uint32_t mo_sim_warp_size(void)
{
    return warp;
}

void mo_sim_barrier(const char *file, int line)
{
    wait_at(AT_BARRIER, file, line);
}

uint64_t mo_sim_shuffle_xor(uint64_t bits, uint32_t mask, const char *file, int line)
{
    fibers[current].bits = bits;
    fibers[current].mask = mask;
    wait_at(AT_SHUFFLE, file, line);
    return fibers[current].bits;
}

/* Fresh memory is filled with a pattern: a kernel that counts on zeros is found out. */
void *mo_sim_shared(uint64_t size, const void *key)
{
    Shared *place = shared;
    while (place->key && place->key != key)
        place++;
    if (!place->key) {
        place->key = key;
        place->memory = malloc(size);
        memset(place->memory, 0xA5, size);
    }
    return place->memory;
}

void blocks_run(const mo_kernel *kernel, const void *args, uint64_t items, uint32_t warp_size)
{
    const mo_sim_kernel *found = mo_sim_kernels;
    while (found->name && strcmp(found->name, kernel->name) != 0)
        found++;
    if (!found->name || found->args_size != kernel->args_size || kernel->threads % 64 != 0) {
        fprintf(stderr, "%s: no such GPU kernel, or arguments or threads differ\n", kernel->name);
        exit(1);
    }
    entry = found->run;
    entry_args = args;
    threads = kernel->threads;
    warp = warp_size;
    for (block = 0; block < items; block++) {
        run_block();
        for (Shared &place : shared) {
            free(place.memory);
            place = Shared{};
        }
    }
}
