/*
 * Random programs against a naive judge: of each operation it has the set of those that come before it, and of
 * memory a log of all accesses, which it looks at byte by byte. What the judge must see is reported; what is
 * reported is a race by the sets.
 */
#include "support.h"

#include "support/random.h"
#include "support/sweep.h"

enum { STREAMS = 3, ACTORS = STREAMS + 1, OPS = 48, PLACES = 4, PLACE = 24, EVENTS = 3 };
enum { BASE = 0x4000, APART = 64 };
enum { LIVES, FREED, TAKEN };

/* Of the bytes of a place: a block's, or between two blocks. */
typedef struct life {
    int stream; /* 0: between blocks */
    int state;
    unsigned recorded; /* a bit for each stream */
} life;

typedef struct access {
    int op, life, write;
    unsigned bytes; /* a bit for each of the place */
} access;

typedef struct judge {
    memopt_race *race;
    uint64_t random;
    int orderly;             /* waits before most of what it does */
    uint64_t before[ACTORS]; /* the operations, as bits, that come before an actor's next one */
    uint64_t before_event[EVENTS], event[EVENTS];
    int ops, actor[OPS + 1];
    uint64_t past[OPS + 1]; /* the operations before this one */
    access accesses[2 * OPS];
    life lives[PLACES + 2 * OPS];
    int access_count, life_count, now[PLACES]; /* now: each place's life */
    unsigned char needed[5][OPS + 1][OPS + 1];
} judge;

static uint64_t below(judge *j, uint64_t limit)
{
    return random_below(&j->random, limit);
}

/* --- order */

static void come_after(judge *j, uint32_t actor, uint64_t operations)
{
    j->before[actor] |= operations | j->before[HOST];
}

static void wait_for(judge *j, uint32_t actor, uint32_t other)
{
    come_after(j, actor, j->before[other]);
    OK(memopt_race_wait(j->race, actor, other));
}

static int new_op(judge *j, uint32_t actor)
{
    int op = ++j->ops;
    for (uint32_t other = 1; other < ACTORS && j->orderly; other++)
        if (below(j, 32) != 0)
            wait_for(j, actor, other);
    come_after(j, actor, 0);
    j->actor[op] = (int)actor;
    j->past[op] = j->before[actor];
    j->before[actor] |= (uint64_t)1 << op;
    return op;
}

static int ordered(const judge *j, int first, int second)
{
    return (int)(j->past[second] >> first & 1);
}

/* --- what must be reported */

/* What must be ordered before an operation that uses a byte of a life, or gets its block: the last write, and the
 * last read of each actor since. of_read 0: reads do not matter. */
static void need(judge *j, memopt_race_kind of_write, memopt_race_kind of_read, int in, int byte,
                 int op)
{
    unsigned seen = 0, recorded = of_write == MEMOPT_RACE_FREED_IN_USE ? j->lives[in].recorded : 0;
    for (int i = j->access_count; i-- > 0;) {
        const access *a = &j->accesses[i];
        int actor = j->actor[a->op], kind = (int)(a->write ? of_write : of_read);
        unsigned known = a->write ? recorded : recorded | seen;
        if (a->life != in || (a->bytes >> byte & 1) == 0 || actor == HOST)
            continue;
        if ((known >> actor & 1) == 0 && actor != j->actor[op] && !ordered(j, a->op, op))
            j->needed[kind][a->op][op] = 1;
        if (a->write)
            return;
        seen |= 1u << actor;
    }
}

static void judge_access(judge *j, access a)
{
    for (int byte = 0; byte < PLACE; byte++)
        if (a.bytes >> byte & 1)
            need(j, a.write ? MEMOPT_RACE_WRITE_AFTER_WRITE : MEMOPT_RACE_READ_AFTER_WRITE,
                 a.write ? MEMOPT_RACE_WRITE_AFTER_READ : 0, a.life, byte, a.op);
    j->accesses[j->access_count++] = a;
}

/* One or two accesses, some with strides. */
static void operate(judge *j, uint32_t actor)
{
    memopt_race_access accesses[2];
    int64_t shape[2], strides[2];
    int op = new_op(j, actor);
    uint32_t count = 1 + (uint32_t)below(j, 2);
    for (uint32_t i = 0; i < count; i++) {
        int place = (int)below(j, PLACES), write = (int)below(j, 2), strided = below(j, 3) == 0;
        uint64_t size = 1 + below(j, strided ? 3 : PLACE), at = below(j, PLACE - size + 1);
        unsigned bytes = 0;
        memopt_race_access *a = &accesses[i];
        *a = (memopt_race_access){.bytes = size,
                                  .mode = write ? WRITE : READ,
                                  .shape = &shape[i],
                                  .strides = &strides[i]};
        int64_t runs = 1, step = 1 + (int64_t)below(j, 7);
        if (strided) {
            runs += (int64_t)below(j, 1 + (PLACE - at - size) / (uint64_t)step);
            shape[i] = runs;
            strides[i] = step;
            a->dims = 1;
        }
        for (int64_t r = 0; r < runs; r++)
            bytes |= ((1u << size) - 1) << ((int64_t)at + r * step);
        a->address = BASE + APART * (uint64_t)place + at;
        if (strided && below(j, 2) == 0) { /* the same from its other end */
            a->address += (uint64_t)((runs - 1) * step);
            strides[i] = -step;
        }
        judge_access(j, (access){op, j->now[place], write, bytes});
    }
    OK(memopt_race_run(j->race, actor, (uint64_t)op, accesses, count));
}

/* --- blocks */

static void begin_life(judge *j, int place, int stream)
{
    j->lives[j->life_count] = (life){.stream = stream};
    j->now[place] = j->life_count++;
}

static void allocate(judge *j, int place, int stream)
{
    int op = new_op(j, (uint32_t)stream);
    for (int i = 0; i < j->life_count; i++) {
        if (j->lives[i].state != FREED || j->lives[i].stream != stream)
            continue;
        j->lives[i].state = TAKEN;
        for (int byte = 0; byte < PLACE; byte++)
            need(j, MEMOPT_RACE_FREED_IN_USE, MEMOPT_RACE_FREED_IN_USE, i, byte, op);
    }
    begin_life(j, place, stream);
    OK(memopt_race_allocate(j->race, BASE + APART * (uint64_t)place, PLACE, MEMOPT_RACE_DEVICE,
                            (uint32_t)stream, (uint64_t)op));
}

static void end_block(judge *j, int place)
{
    j->lives[j->now[place]].state = FREED;
    begin_life(j, place, 0);
    OK(memopt_race_free(j->race, BASE + APART * (uint64_t)place, 0));
}

/* --- programs */

static void step(judge *j)
{
    uint32_t actor = (uint32_t)below(j, ACTORS), other = 1 + (uint32_t)below(j, STREAMS);
    uint64_t e = below(j, EVENTS);
    int place = (int)below(j, PLACES);
    life *now = &j->lives[j->now[place]];
    switch (below(j, 12)) {
    case 0:
        wait_for(j, actor, other);
        break;
    case 1:
        j->before_event[e] = j->before[other];
        OK(memopt_race_record(j->race, other, &j->event[e]));
        break;
    case 2:
        if (j->event[e] == 0)
            break;
        come_after(j, actor, j->before_event[e]);
        OK(memopt_race_wait_event(j->race, actor, j->event[e]));
        if (below(j, 4) == 0) {
            OK(memopt_race_drop_event(j->race, j->event[e]));
            j->event[e] = 0;
        }
        break;
    case 3:
    case 4:
        if (now->stream != 0)
            end_block(j, place);
        else
            allocate(j, place, (int)other);
        break;
    case 5:
        now->recorded |= 1u << other;
        OK(memopt_race_record_stream(j->race, BASE + APART * (uint64_t)place, other));
        break;
    default:
        operate(j, below(j, 8) == 0 ? HOST : other);
    }
}

/* Whether a report is a race: accesses of the two operations to a byte, in one life of its place, one of them a
 * write, and neither operation before the other. */
static int is_race(const judge *j, const memopt_race_report *r)
{
    int first = (int)r->first.tag, second = (int)r->second.tag;
    for (int i = 0; i < j->access_count && !ordered(j, first, second); i++) {
        const access *a = &j->accesses[i];
        const life *of = &j->lives[a->life];
        if (a->op != first || a->write != (int)r->first.write)
            continue;
        if (r->kind == MEMOPT_RACE_FREED_IN_USE) {
            if (of->state == TAKEN && of->stream == (int)r->waiter &&
                (of->recorded >> r->first.actor & 1) == 0)
                return 1;
            continue;
        }
        for (int k = i + 1; k < j->access_count; k++) {
            const access *b = &j->accesses[k];
            if (b->op == second && b->write == (int)r->second.write && a->life == b->life &&
                (a->bytes & b->bytes) != 0 && (a->write || b->write))
                return 1;
        }
    }
    return 0;
}

/* Of a block freed in use a report names the last use of each stream. */
static int is_told(const judge *j, int kind, int first, int second, uint64_t reports)
{
    for (uint64_t i = 0; i < reports; i++) {
        memopt_race_report r = report_of(j->race, i);
        if ((int)r.kind == kind && (int)r.second.tag == second &&
            ((int)r.first.tag == first ||
             (kind == MEMOPT_RACE_FREED_IN_USE && (int)r.first.actor == j->actor[first])))
            return 1;
    }
    return 0;
}

static uint64_t run(uint64_t seed, int *out_found)
{
    static judge j;
    j = (judge){.race = new_race(0, STREAMS), .random = seed, .orderly = seed % 4 == 0};
    for (int place = 0; place < PLACES; place++)
        begin_life(&j, place, 0);
    while (j.ops < OPS)
        step(&j);
    memopt_race_stats stats = stats_of(j.race);
    assert_int_equal(stats.forgotten, 0);
    for (uint64_t i = 0; i < stats.reports; i++) {
        memopt_race_report r = report_of(j.race, i);
        if (!is_race(&j, &r))
            fail_msg("seed %d: report %d, of kind %u, %d then %d, is no race", (int)seed, (int)i,
                     r.kind, (int)r.first.tag, (int)r.second.tag);
        out_found[r.kind]++;
    }
    for (int kind = 1; kind <= 4; kind++)
        for (int a = 1; a <= OPS; a++)
            for (int b = 1; b <= OPS; b++)
                if (j.needed[kind][a][b] && !is_told(&j, kind, a, b, stats.reports))
                    fail_msg("seed %d: kind %d, %d then %d, is not reported", (int)seed, kind, a,
                             b);
    OK(memopt_race_destroy(j.race));
    return stats.reports;
}

TEST(against_the_judge)
{
    int found[5] = {0};
    uint64_t programs = 0, clean = 0;
    FOR_SEEDS (seed, 32000) {
        clean += run(seed, found) == 0;
        programs++;
    }
    for (int kind = 1; kind <= 4; kind++)
        assert_true((uint64_t)found[kind] > programs / 2);
    assert_true(clean > 0 && clean < programs);
}
