/*
 * A gate: stripes beside each other, each entered by one thread at a time, or all of them closed
 * for one thread. Who is in a stripe writes nothing that another stripe reads, so threads in
 * stripes of their own do not wait for each other's cache lines.
 *
 * Closing takes the mutex, marks the gate and waits until every stripe is empty; entering takes the
 * stripe and then looks at the mark. Both are sequentially consistent, so one of two that meet sees
 * the other. What the stripe has written is seen by who closes, and the other way round.
 *
 * Who finds the gate closed waits a little for it to open; closing it oneself would make the others
 * do the same. A gate may also be shut: left closed for all stripes (`leaving` says so). Then
 * closing costs no more than the mutex.
 *
 * mo_lock, mo_unlock and mo_is_locked take a gate as they take a mutex: they close it.
 */
#ifndef MO_BASE_GATE_H
#define MO_BASE_GATE_H

#include "base/lock.h"

#include <stdatomic.h>
#include <time.h>

enum { MO_GATE_STRIPES = 16, MO_GATE_PATIENCE = 5 };

/* MO_GATE_CLOSED: a thread has closed it. MO_GATE_SHUT: one may have, too, and it stays so. */
enum { MO_GATE_OPEN, MO_GATE_CLOSED, MO_GATE_SHUT };

typedef struct mo_gate {
    pthread_mutex_t mutex;
    _Atomic uint32_t closed;
    uint32_t stripes;                          /* in use; changed while closed */
    _Atomic uint32_t *stripe[MO_GATE_STRIPES]; /* 1: a thread is in it */
    void (*entered)(struct mo_gate *gate);     /* the stripes are empty */
    int (*leaving)(struct mo_gate *gate);      /* true: it is shut from now on */
} mo_gate;

static inline void mo_gate_init(mo_gate *gate, void (*entered)(mo_gate *gate),
                                int (*leaving)(mo_gate *gate))
{
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
#ifdef __GLIBC__ /* who waits looks a few times before it sleeps */
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
    pthread_mutex_init(&gate->mutex, &kind);
    pthread_mutexattr_destroy(&kind);
    atomic_init(&gate->closed, MO_GATE_SHUT);
    gate->entered = entered;
    gate->leaving = leaving;
}

static inline void mo_gate_end(mo_gate *gate)
{
    pthread_mutex_destroy(&gate->mutex);
}

/* Waits a little, longer from turn to turn: the holder works for less than a microsecond and may be
 * back at once, unless the system has put it to sleep. */
static inline void mo_gate_pause(unsigned turn)
{
    static const struct timespec moment = {0, 50000};
    if (turn >= 32) {
        nanosleep(&moment, NULL);
        return;
    }
#if defined __x86_64__ || defined __i386__
    for (unsigned i = 0; i < (turn < 6 ? 16u << turn : 512u); i++)
        __builtin_ia32_pause();
#elif defined __aarch64__
    for (unsigned i = 0; i < (turn < 6 ? 16u << turn : 512u); i++)
        __asm__ volatile("isb");
#endif
}

static inline void mo_gate_close(mo_gate *gate)
{
    mo_lock(&gate->mutex);
    if (atomic_load_explicit(&gate->closed, memory_order_relaxed) == MO_GATE_OPEN) {
        atomic_exchange(&gate->closed, MO_GATE_CLOSED);
        for (uint32_t i = 0; i < gate->stripes; i++)
            for (unsigned turn = 0; atomic_load(gate->stripe[i]) != 0; turn++)
                mo_gate_pause(turn);
    }
    gate->entered(gate);
}

static inline void mo_gate_open(mo_gate *gate)
{
    uint32_t then = gate->leaving(gate) ? MO_GATE_SHUT : MO_GATE_OPEN;
    atomic_store_explicit(&gate->closed, then, memory_order_release);
    mo_unlock(&gate->mutex);
}

/* Takes a stripe; 0 if the gate is closed by then. */
static inline int mo_gate_try(mo_gate *gate, _Atomic uint32_t *stripe)
{
    for (unsigned turn = 0; atomic_exchange(stripe, 1) != 0;)
        do
            mo_gate_pause(turn++);
        while (atomic_load_explicit(stripe, memory_order_relaxed) != 0);
    if (atomic_load(&gate->closed) == MO_GATE_OPEN)
        return 1;
    atomic_store_explicit(stripe, 0, memory_order_release);
    return 0;
}

/* The same where somebody is in it, or the gate is closed: waits a little. */
static __attribute__((noinline)) int mo_gate_enter_later(mo_gate *gate, _Atomic uint32_t *stripe)
{
    for (unsigned turn = 0; turn < MO_GATE_PATIENCE; turn++) {
        uint32_t closed = atomic_load_explicit(&gate->closed, memory_order_relaxed);
        if (closed == MO_GATE_OPEN && mo_gate_try(gate, stripe))
            return 1;
        if (closed == MO_GATE_SHUT)
            return 0;
        mo_gate_pause(turn);
    }
    return 0;
}

/* Takes a stripe; 0 if the gate does not open soon. Who is in logs nothing and calls nobody. */
static inline int mo_gate_enter(mo_gate *gate, _Atomic uint32_t *stripe)
{
    if (atomic_load_explicit(&gate->closed, memory_order_relaxed) == MO_GATE_OPEN &&
        atomic_exchange(stripe, 1) == 0) {
        if (atomic_load(&gate->closed) == MO_GATE_OPEN)
            return 1;
        atomic_store_explicit(stripe, 0, memory_order_release);
    }
    return mo_gate_enter_later(gate, stripe);
}

static inline void mo_gate_leave(_Atomic uint32_t *stripe)
{
    atomic_store_explicit(stripe, 0, memory_order_release);
}

static inline int mo_gate_is_closed(mo_gate *gate)
{
    return mo_is_locked(&gate->mutex);
}

#define mo_lock(lock) _Generic((lock), mo_gate * : mo_gate_close, default : mo_lock)(lock)
#define mo_unlock(lock) _Generic((lock), mo_gate * : mo_gate_open, default : mo_unlock)(lock)
#define mo_is_locked(lock)                                                                         \
    _Generic((lock), mo_gate * : mo_gate_is_closed, default : mo_is_locked)(lock)

#endif
