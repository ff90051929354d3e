/*
 * A turn: one thread at a time has it, for as long as it likes, and holds no lock meanwhile, so it
 * may run a user's callback. Log lines of the thread wait until it has given the turn back, as they
 * do for a lock.
 */
#ifndef MO_BASE_TURN_H
#define MO_BASE_TURN_H

#include "base/lock.h"

typedef struct mo_turn {
    pthread_mutex_t lock; /* guards what follows, for moments only */
    pthread_cond_t given;
    pthread_t owner;
    int taken;
} mo_turn;

static inline void mo_turn_init(mo_turn *turn)
{
    pthread_mutex_init(&turn->lock, NULL);
    pthread_cond_init(&turn->given, NULL);
    turn->taken = 0;
}

static inline void mo_turn_end(mo_turn *turn)
{
    pthread_cond_destroy(&turn->given);
    pthread_mutex_destroy(&turn->lock);
}

/* Waits for the turn. 0 if the calling thread has it already. */
static inline int mo_turn_take(mo_turn *turn)
{
    mo_lock(&turn->lock);
    int mine = turn->taken && pthread_equal(turn->owner, pthread_self());
    while (!mine && turn->taken)
        pthread_cond_wait(&turn->given, &turn->lock);
    if (!mine) {
        turn->taken = 1;
        turn->owner = pthread_self();
        mo_log_held.locks++;
    }
    mo_unlock(&turn->lock);
    return !mine;
}

/* Takes the turn if nobody has it; else 0. */
static inline int mo_turn_try(mo_turn *turn)
{
    mo_lock(&turn->lock);
    int got = !turn->taken;
    if (got) {
        turn->taken = 1;
        turn->owner = pthread_self();
        mo_log_held.locks++;
    }
    mo_unlock(&turn->lock);
    return got;
}

/* Pre: the calling thread has the turn. */
static inline void mo_turn_give(mo_turn *turn)
{
    mo_lock(&turn->lock);
    MO_PRE(turn->taken && pthread_equal(turn->owner, pthread_self()));
    turn->taken = 0;
    pthread_cond_signal(&turn->given);
    mo_log_held.locks--;
    mo_unlock(&turn->lock);
}

#endif
