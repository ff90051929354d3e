/* The launch that runs now: what the emulator, the access hooks and the race check share. */
#ifndef MEMOPT_SIM_LAUNCH_H
#define MEMOPT_SIM_LAUNCH_H

#include "core/sim.h"

typedef struct sim_launch_state {
    const sim_op *op; /* NULL: no launch runs */
    uint32_t thread, block, threads;
    uint32_t step;     /* from one thread that runs to the next: 1, or a warp's */
    uint32_t launch;   /* counts launches */
    uint32_t phase;    /* counts barriers */
    uint32_t shuffles; /* that the running thread has passed in this block */
    int failed, reported;
    uintptr_t stacks, shared;
    uint64_t stacks_bytes, shared_bytes;
} sim_launch_state;

extern sim_launch_state sim_now;

/* Ends the launch from within a thread; does not return. */
void sim_fail_launch(void) __attribute__((noreturn));
typedef enum sim_touch_kind { SIM_PLAIN, SIM_UNALIGNED, SIM_ATOMIC } sim_touch_kind;

/* A thread touches memory; called before it does. */
void sim_touch(uintptr_t address, uint64_t bytes, int write, sim_touch_kind kind);
/* Reports an access that no device allows, and ends the launch. */
void sim_illegal_access(uintptr_t address, uint64_t bytes, int write, const char *why);
/* Checks and notes an access against the other threads of the launch; the tags of the bytes. */
void sim_race_check(struct sim_tag *tags, uint64_t bytes, int write, uintptr_t address, int shared);

#endif
