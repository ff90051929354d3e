/*
 * Random programs against a naive judge: every operation, wait and event is a node of a graph, order
 * is a path in it, and memory is looked at byte by byte. What the judge must see is reported; what
 * is reported is a race by the graph.
 */
#include "support.h"

#include "support/random.h"
#include "support/sweep.h"

#include <time.h>

enum {
    STREAMS = 3,
    ACTORS = STREAMS + 1,
    OPS = 48,
    NODES = 8 * OPS,
    PLACES = 4,
    PLACE = 24,
    EVENTS = 3
};
enum { BASE = 0x4000, APART = 64, NOBODY = -1 };

typedef struct access {
    int op, place, life; /* of the place's block, or of what is between blocks */
    int write;
    unsigned bytes; /* a bit for each of the place */
} access;

typedef struct freed {
    int stream, place, life, covered[ACTORS], waiting;
    int last[PLACE][ACTORS + 1]; /* as byte_uses */
} freed;

typedef struct judge {
    memopt_race *race;
    uint64_t random;
    int orderly;               /* waits before most of what it does */
    int nodes, from[NODES][3]; /* what a node comes after directly */
    int last[ACTORS];          /* node */
    int event_node[EVENTS];
    uint64_t event[EVENTS];
    int ops, op_node[OPS + 1], op_actor[OPS + 1];
    access accesses[4 * OPS];
    int access_count;
    int life[PLACES], live[PLACES], owner[PLACES], covered[PLACES][ACTORS];
    int uses[PLACES][PLACE][ACTORS + 1]; /* the op of each actor's last read, and of the write */
    freed frees[OPS];
    int free_count;
    unsigned char needed[5][OPS + 1][OPS + 1];
} judge;

static uint64_t below(judge *j, uint64_t limit)
{
    return random_below(&j->random, limit);
}

static int node(judge *j, int a, int b, int c)
{
    int *from = j->from[j->nodes];
    from[0] = a, from[1] = b, from[2] = c;
    return j->nodes++;
}

static int is_before(const judge *j, int a, int b, char *seen)
{
    if (b == NOBODY || seen[b])
        return 0;
    seen[b] = 1;
    if (a == b)
        return 1;
    return is_before(j, a, j->from[b][0], seen) || is_before(j, a, j->from[b][1], seen) ||
           is_before(j, a, j->from[b][2], seen);
}

static int ordered(const judge *j, int first_op, int second)
{
    char seen[NODES] = {0};
    return is_before(j, j->op_node[first_op], second, seen);
}

static void need(judge *j, int kind, int first, int second, int at)
{
    if (first != 0 && j->op_actor[first] != j->op_actor[second] && !ordered(j, first, at))
        j->needed[kind][first][second] = 1;
}

static void wait_for(judge *j, uint32_t actor, uint32_t other)
{
    j->last[actor] = node(j, j->last[actor], j->last[other], j->last[HOST]);
    OK(memopt_race_wait(j->race, actor, other));
}

static void wait_for_all(judge *j, uint32_t actor)
{
    for (uint32_t other = 1; other < ACTORS && j->orderly; other++)
        if (below(j, 32) != 0)
            wait_for(j, actor, other);
}

/* --- accesses */

static void judge_access(judge *j, int op, int place, int write, unsigned bytes)
{
    int actor = j->op_actor[op], at = j->op_node[op];
    for (int b = 0; b < PLACE; b++) {
        int *uses = j->uses[place][b];
        if ((bytes >> b & 1) == 0)
            continue;
        need(j, write ? MEMOPT_RACE_WRITE_AFTER_WRITE : MEMOPT_RACE_READ_AFTER_WRITE, uses[ACTORS],
             op, at);
        for (int a = 1; a < ACTORS && write; a++)
            need(j, MEMOPT_RACE_WRITE_AFTER_READ, uses[a], op, at);
        if (actor == HOST)
            continue;
        if (write)
            memset(uses, 0, sizeof j->uses[0][0]);
        uses[write ? ACTORS : actor] = op;
    }
    j->accesses[j->access_count++] = (access){op, place, j->life[place], write, bytes};
}

/* One or two accesses, some with strides. */
static void operate(judge *j, uint32_t actor)
{
    memopt_race_access accesses[2];
    int64_t shape[2], strides[2];
    int op = ++j->ops;
    uint32_t count = 1 + (uint32_t)below(j, 2);
    wait_for_all(j, actor);
    j->op_actor[op] = (int)actor;
    j->op_node[op] = j->last[actor] = node(j, j->last[actor], j->last[HOST], NOBODY);
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
        judge_access(j, op, place, write, bytes);
    }
    OK(memopt_race_run(j->race, actor, (uint64_t)op, accesses, count));
}

/* --- blocks */

static void forget(judge *j, int place)
{
    memset(j->uses[place], 0, sizeof j->uses[place]);
    memset(j->covered[place], 0, sizeof j->covered[place]);
    j->life[place]++;
}

static void allocate(judge *j, int place, int stream)
{
    int op = ++j->ops;
    wait_for_all(j, (uint32_t)stream);
    j->op_actor[op] = stream;
    j->op_node[op] = j->last[stream] = node(j, j->last[stream], j->last[HOST], NOBODY);
    for (int f = 0; f < j->free_count; f++) {
        freed *block = &j->frees[f];
        if (!block->waiting || block->stream != stream)
            continue;
        block->waiting = 0;
        for (int b = 0; b < PLACE; b++)
            for (int a = 1; a <= ACTORS; a++)
                if (!block->covered[j->op_actor[block->last[b][a]]])
                    need(j, MEMOPT_RACE_FREED_IN_USE, block->last[b][a], op, j->op_node[op]);
    }
    forget(j, place);
    j->live[place] = 1;
    j->owner[place] = stream;
    OK(memopt_race_allocate(j->race, BASE + APART * (uint64_t)place, PLACE, MEMOPT_RACE_DEVICE,
                            (uint32_t)stream, (uint64_t)op));
}

static void end_block(judge *j, int place)
{
    freed *block = &j->frees[j->free_count++];
    *block =
        (freed){.stream = j->owner[place], .place = place, .life = j->life[place], .waiting = 1};
    memcpy(block->covered, j->covered[place], sizeof block->covered);
    memcpy(block->last, j->uses[place], sizeof block->last);
    forget(j, place);
    j->live[place] = 0;
    OK(memopt_race_free(j->race, BASE + APART * (uint64_t)place, 0));
}

/* --- programs */

static void step(judge *j)
{
    uint32_t actor = (uint32_t)below(j, ACTORS), other = 1 + (uint32_t)below(j, STREAMS);
    uint64_t e = below(j, EVENTS);
    int place = (int)below(j, PLACES);
    switch (below(j, 12)) {
    case 0:
        wait_for(j, actor, other);
        break;
    case 1:
        j->event_node[e] = j->last[other];
        OK(memopt_race_record(j->race, other, &j->event[e]));
        break;
    case 2:
        if (j->event[e] == 0)
            break;
        j->last[actor] = node(j, j->last[actor], j->event_node[e], j->last[HOST]);
        OK(memopt_race_wait_event(j->race, actor, j->event[e]));
        if (below(j, 4) == 0) {
            OK(memopt_race_drop_event(j->race, j->event[e]));
            j->event[e] = 0;
        }
        break;
    case 3:
    case 4:
        if (j->live[place])
            end_block(j, place);
        else
            allocate(j, place, (int)other);
        break;
    case 5:
        if (j->live[place])
            j->covered[place][other] = 1;
        OK(memopt_race_record_stream(j->race, BASE + APART * (uint64_t)place, other));
        break;
    default:
        operate(j, below(j, 8) == 0 ? HOST : other);
    }
}

/* Whether a report is a race: accesses of the two operations to a byte, in one life of its place,
 * one of them a write, and no path between them. */
static int is_race(const judge *j, const memopt_race_report *r)
{
    int first = (int)r->first.tag, second = (int)r->second.tag;
    int freed_in_use = r->kind == MEMOPT_RACE_FREED_IN_USE;
    if (ordered(j, first, j->op_node[second]))
        return 0;
    for (int i = 0; i < j->access_count; i++) {
        const access *a = &j->accesses[i];
        if (a->op != first || a->write != (int)r->first.write)
            continue;
        for (int f = 0; f < j->free_count && freed_in_use; f++)
            if (j->frees[f].place == a->place && j->frees[f].life == a->life &&
                j->frees[f].stream == (int)r->waiter && !j->frees[f].covered[r->first.actor])
                return 1;
        for (int k = i + 1; k < j->access_count && !freed_in_use; k++) {
            const access *b = &j->accesses[k];
            if (b->op == second && b->write == (int)r->second.write && a->place == b->place &&
                a->life == b->life && (a->bytes & b->bytes) != 0 && (a->write || b->write))
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
             (kind == MEMOPT_RACE_FREED_IN_USE && (int)r.first.actor == j->op_actor[first])))
            return 1;
    }
    return 0;
}

static uint64_t run(uint64_t seed, int *out_found)
{
    judge *j = calloc(1, sizeof *j);
    j->race = new_race(0, STREAMS);
    j->random = seed;
    j->orderly = seed % 4 == 0;
    for (int a = 0; a < ACTORS; a++)
        j->last[a] = NOBODY;
    j->op_node[0] = NOBODY;
    while (j->ops < OPS)
        step(j);
    memopt_race_stats stats = stats_of(j->race);
    assert_int_equal(stats.forgotten, 0);
    for (uint64_t i = 0; i < stats.reports; i++) {
        memopt_race_report r = report_of(j->race, i);
        if (!is_race(j, &r))
            fail_msg("seed %llu: report %llu, of kind %u, %d then %d, is no race",
                     (unsigned long long)seed, (unsigned long long)i, r.kind, (int)r.first.tag,
                     (int)r.second.tag);
        out_found[r.kind]++;
    }
    for (int kind = 1; kind <= 4; kind++)
        for (int a = 1; a <= OPS; a++)
            for (int b = 1; b <= OPS; b++)
                if (j->needed[kind][a][b] && !is_told(j, kind, a, b, stats.reports))
                    fail_msg("seed %llu: kind %d, %d then %d, is not reported",
                             (unsigned long long)seed, kind, a, b);
    OK(memopt_race_destroy(j->race));
    free(j);
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

/* A block of many ranges: each is found again, and one write replaces them all. */
TEST(many_ranges)
{
    enum { RANGES = 10000, ROUNDS = 20 };
    memopt_race *race = new_race((uint64_t)1 << 30, 2);
    OK(memopt_race_allocate(race, BASE, 16 * RANGES, MEMOPT_RACE_DEVICE, 1, 1));
    for (int round = 0; round < ROUNDS; round++)
        for (uint64_t i = 0; i < RANGES; i++)
            touch(race, 1, i, WRITE, BASE + 16 * (i * 7919 % RANGES), 16);
    assert_int_equal(stats_of(race).ranges, RANGES);
    touch(race, 1, 1, WRITE, BASE, 16 * RANGES);
    assert_int_equal(stats_of(race).ranges, 1);
    OK(memopt_race_destroy(race));
}
