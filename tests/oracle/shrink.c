/*
 * Delta debugging: a case that fails becomes a small one that fails. Each trial runs in a child.
 * First the operations behind the failing one go, then runs of them, halved again and again; then
 * features, and numbers of what is left.
 */
#include "oracle.h"

#include <stdlib.h>
#include <string.h>

enum { SECONDS = 20 };

typedef struct shrinker {
    oracle_case *c;
    oracle_seen *seen; /* of the last failure */
    uint64_t runs;
} shrinker;

/* Takes the trial if it fails too. */
static int fails(shrinker *s, const oracle_case *trial)
{
    oracle_seen seen;
    memset(&seen, 0, sizeof seen);
    s->runs++;
    if (oracle_run_apart(trial, &seen, SECONDS))
        return 0;
    *s->seen = seen;
    if (trial->ops != s->c->ops)
        memcpy(s->c->ops, trial->ops, trial->count * sizeof *trial->ops);
    s->c->count = trial->count;
    s->c->features = trial->features;
    s->c->config = trial->config;
    s->c->seed = trial->seed;
    if (seen.step + 1 < s->c->count)
        s->c->count = seen.step + 1;
    return 1;
}

static int remove_runs(shrinker *s, uint64_t length, oracle_op *room)
{
    int removed = 0;
    for (uint64_t at = 0; at < s->c->count;) {
        oracle_case trial = *s->c;
        uint64_t gone = length < s->c->count - at ? length : s->c->count - at;
        trial.ops = room;
        trial.count -= gone;
        memcpy(room, s->c->ops, at * sizeof *room);
        memcpy(room + at, s->c->ops + at + gone, (trial.count - at) * sizeof *room);
        if (fails(s, &trial))
            removed = 1;
        else
            at += gone;
    }
    return removed;
}

static void remove_operations(shrinker *s, oracle_op *room)
{
    for (uint64_t length = (s->c->count + 1) / 2; length > 1; length /= 2)
        (void)remove_runs(s, length, room);
    while (remove_runs(s, 1, room))
        continue;
}

/* One field of one operation takes the first of some plain values with which it still fails. */
static void simplify_number(shrinker *s, uint64_t index, oracle_op *room)
{
    const uint64_t sizes[] = {0, 1, 512, 64 << 10, 1 << 20, 2 << 20};
    uint64_t n = s->c->ops[index].n;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && index < s->c->count; i++) {
        oracle_case trial = *s->c;
        if (sizes[i] >= n)
            return;
        memcpy(room, s->c->ops, s->c->count * sizeof *room);
        trial.ops = room;
        room[index].n = sizes[i];
        if (fails(s, &trial))
            return;
    }
}

static void simplify_case(shrinker *s)
{
    for (uint32_t f = 0; f < ORACLE_FEATURE_COUNT; f++) {
        oracle_case trial = *s->c;
        trial.features &= ~(1u << f);
        if (trial.features != s->c->features)
            (void)fails(s, &trial);
    }
    oracle_case trial = *s->c;
    trial.config = 0;
    if (s->c->config != 0)
        (void)fails(s, &trial);
}

uint64_t oracle_shrink(oracle_case *c, oracle_seen *seen)
{
    shrinker s = {c, seen, 0};
    oracle_op *room = malloc((c->count + 1) * sizeof *room);
    if (room == NULL)
        abort();
    if (fails(&s, c)) {
        remove_operations(&s, room);
        simplify_case(&s);
        for (uint64_t i = 0; i < c->count; i++)
            simplify_number(&s, i, room);
        remove_operations(&s, room);
        (void)fails(&s, c); /* so that `seen` is of the case as it is */
    }
    free(room);
    return s.runs;
}
