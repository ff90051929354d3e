/*
 * A training step as events for memopt_fit: which memory lives when, and what could be done about it.
 *
 * The tape is written by a rehearsal (model.c): while memory.tape is set, the step's functions run as
 * always, but memory_tensor() and memory_free() only write births and deaths, and no kernel runs. So
 * the tape is the step that will be run, and planning needs no memory of the device. A tensor's
 * pointer is a number then, which nothing reads through.
 *
 * Errors stick: after the first one nothing is written, and tape_fit() returns it.
 */
#ifndef GPT_TAPE_H
#define GPT_TAPE_H

#include <memopt/memopt.h>
#include <stdint.h>

typedef struct tape tape;

/* What a plan came to. */
typedef struct fit_figures {
    uint64_t budget;        /* 0: there is no plan */
    uint64_t fixed, plain;  /* bytes of the device: all the time; at most, if all is kept */
    uint64_t planned, host; /* at most, as planned: of the device and of the host */
    uint32_t recomputed;    /* layers */
    uint32_t sent;          /* values that go to the host */
} fit_figures;

/* NULL if there is no memory. */
tape *tape_create(void);
void tape_free(tape *t);

/* A block; `what` names it for the message of a budget that cannot be met. */
void *tape_birth(tape *t, uint64_t bytes, const char *what);
void tape_death(tape *t, const void *block);

/* Backward needs a block: its number, for the two calls of backward. *away is set to 1 if the plan sends
 * the block to the host in between; NULL: it stays. */
uint64_t tape_pack(tape *t, const void *block, uint32_t *away);
void tape_unpack(tape *t, uint64_t pack);
void tape_release(tape *t, uint64_t pack);

/* Around a layer's forward, which takes `operations`. *again is set to 1 if the plan recomputes it. */
void tape_enter(tape *t, uint32_t layer, double operations, uint32_t *again);
void tape_leave(tape *t, uint32_t layer);

/* Forward is over. */
void tape_backward(tape *t);

/* What runs from here on, for the message: such as "the backward of layer", 3. */
void tape_place(tape *t, const char *name, uint32_t number);

/* Plans: sets what is to be done. fixed: bytes that live all the time; host_limit: 0 for none.
 * LIMIT_REACHED: the budget is below the floor; the message says what sets it. */
memopt_status tape_fit(tape *t, uint64_t fixed, uint64_t budget, uint64_t host_limit,
                       fit_figures *out_figures);

#endif
