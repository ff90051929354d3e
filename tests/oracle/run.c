/* Running cases: in this process, in a child, in threads. */
#define _GNU_SOURCE
#include "world.h"

#include "support/clock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void do_fault(hand *h, const oracle_op *op)
{
    h->w->fault_kind = op->slot % 4;
    h->w->fault_n = (int64_t)op->n;
}

#define OPERATION(name, text, a, b, c, n) do_##text,
static void (*const operations[ORACLE_KINDS])(hand *h,
                                              const oracle_op *op) = {ORACLE_OPS(OPERATION)};

void oracle_step(hand *h, const oracle_op *op)
{
    world *w = h->w;
    if (!w->threads) {
        w->refused = 0;
        w->unmaps = 0;
        if (op->kind != ORACLE_FAULT)
            w->struck = 0;
        w->seen->done[op->kind]++;
    }
    operations[op->kind](h, op);
    if (!w->threads && op->kind != ORACLE_FAULT)
        w->fault_n = 0; /* the operation had no call that it could strike */
}

static void count_end(const world *w)
{
    w->seen->live = w->seen->paused = 0;
    for (int i = 0; i < ORACLE_SLOTS; i++)
        w->seen->live += w->slots[i].at != NULL;
    for (int i = 0; i < ORACLE_MEMBERS; i++)
        w->seen->paused += w->members[i].paused != 0;
}

/* What is paused at the end comes back, if there is room; and then everything goes. */
static void finish(hand *h)
{
    world *w = h->w;
    w->seen->step = w->c->count;
    w->fault_n = 0;
    count_end(w);
    for (int i = 0; i < ORACLE_OBSERVERS; i++)
        w->extra[i].refuse = 0;
    do_end_capture(h, NULL);
    for (uint8_t i = 0; i < ORACLE_MEMBERS; i++)
        if (w->members[i].handle != NULL && w->members[i].paused)
            do_resume(h, &(oracle_op){.kind = ORACLE_RESUME, .member = i});
    shares_end(h);
    model_check(w);
    for (int i = 0; i < ORACLE_SLOTS; i++)
        if (w->slots[i].at != NULL && !is_paused(w, &w->slots[i]))
            verify_slot(h, &w->slots[i], w->slots[i].last);
    OK(w, memopt_device_sync(w->device));
    hand_close(h);
    world_close(w);
}

void oracle_run(const oracle_case *c, oracle_seen *seen)
{
    static world w;
    hand h;
    seen->step = seen->features = 0;
    seen->struck = seen->struck_ever = seen->failed = 0;
    world_open(&w, c, seen, 0);
    hand_open(&h, &w);
    for (uint64_t i = 0; i < c->count; i++) {
        seen->step = i;
        oracle_step(&h, &c->ops[i]);
        if (c->ops[i].kind != ORACLE_FAULT)
            model_check(&w);
    }
    finish(&h);
}

int oracle_run_apart(const oracle_case *c, oracle_seen *seen, unsigned seconds)
{
    int status = 0;
    oracle_seen *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        abort();
    *shared = *seen;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL)
            _exit(2);
        signal(SIGABRT, SIG_DFL);
        alarm(seconds);
        oracle_run(c, shared);
        exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        abort();
    int held = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!held && !shared->failed) {
        char op[96] = "the end";
        if (shared->step < c->count)
            oracle_print_op(&c->ops[shared->step], op, sizeof op);
        snprintf(shared->message, sizeof shared->message, "operation %llu (%s): %s %d",
                 (unsigned long long)shared->step, op,
                 WIFSIGNALED(status) ? "ended by signal" : "exit status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        shared->failed = 1;
    }
    *seen = *shared;
    munmap(shared, sizeof *shared);
    return held;
}

/* --- threads --------------------------------------------------------------------------------- */

typedef struct worker {
    hand hand;
    pthread_t thread;
    uint64_t random, count;
} worker;

static void *work(void *user)
{
    worker *me = user;
    for (uint64_t i = 0; i < me->count; i++) {
        oracle_op op;
        oracle_draw(me->hand.w->c, &me->random, &op);
        oracle_step(&me->hand, &op);
    }
    return NULL;
}

/* Nothing runs: what is in the slots is what the allocator must have. */
static void meet(worker *first)
{
    world *w = first->hand.w;
    model_check(w);
    for (int i = 0; i < ORACLE_SLOTS; i++)
        if (w->slots[i].at != NULL && !is_paused(w, &w->slots[i]))
            verify_slot(&first->hand, &w->slots[i], w->slots[i].last);
}

void oracle_run_threads(const oracle_case *c, uint32_t threads, double seconds)
{
    enum { MOST_THREADS = 16 };
    static world w;
    static oracle_seen seen;
    static worker workers[MOST_THREADS];
    uint64_t rounds = 0;
    double end = seconds_now() + seconds;
    world_open(&w, c, &seen, 1);
    for (uint32_t i = 0; i < threads; i++) {
        workers[i].random = c->seed * 1000 + i;
        workers[i].count = c->count;
        hand_open(&workers[i].hand, &w);
    }
    do {
        for (uint32_t i = 0; i < threads; i++)
            REQUIRE(&w, pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
        for (uint32_t i = 0; i < threads; i++)
            REQUIRE(&w, pthread_join(workers[i].thread, NULL) == 0);
        meet(&workers[0]);
        rounds++;
    } while (seconds_now() < end);
    for (uint32_t i = 1; i < threads; i++)
        hand_close(&workers[i].hand);
    finish(&workers[0].hand);
    printf("%llu operations of %u threads, which met %llu times\n",
           (unsigned long long)(rounds * threads * c->count), threads, (unsigned long long)rounds);
}
