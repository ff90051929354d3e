/* Random operations: by a seed, or by a fuzzer's bytes. */
#include "oracle.h"

#include "support/random.h"

#include <stdlib.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

/* How often an operation is drawn, and the feature without which it is not; features: plus 1. */
static const struct {
    uint16_t weight;
    uint8_t feature;
} mix[ORACLE_KINDS] = {
    [ORACLE_ALLOC] = {340, 0},
    [ORACLE_FREE] = {200, 0},
    [ORACLE_BAD_FREE] = {12, 0},
    [ORACLE_WRITE] = {40, 0},
    [ORACLE_USE] = {90, 0},
    [ORACLE_VERIFY] = {40, 0},
    [ORACLE_SYNC] = {10, 0},
    [ORACLE_TRIM] = {14, 0},
    [ORACLE_LIMIT] = {14, 1 + ORACLE_HAS_LIMITS},
    [ORACLE_POOL] = {30, 0},
    [ORACLE_DROP] = {14, 0},
    [ORACLE_PAUSE] = {12, 1 + ORACLE_HAS_PAUSES},
    [ORACLE_RESUME] = {24, 1 + ORACLE_HAS_PAUSES},
    [ORACLE_PAUSE_TAGS] = {14, 1 + ORACLE_HAS_PAUSES},
    [ORACLE_RESUME_TAGS] = {24, 1 + ORACLE_HAS_PAUSES},
    [ORACLE_EXPORT] = {24, 1 + ORACLE_HAS_SHARING},
    [ORACLE_END_EXPORT] = {16, 1 + ORACLE_HAS_SHARING},
    [ORACLE_IMPORT] = {24, 1 + ORACLE_HAS_SHARING},
    [ORACLE_END_IMPORT] = {16, 1 + ORACLE_HAS_SHARING},
    [ORACLE_END_STREAM] = {10, 1 + ORACLE_HAS_STREAM_ENDS},
    [ORACLE_CAPTURE] = {30, 1 + ORACLE_HAS_GRAPHS},
    [ORACLE_END_CAPTURE] = {30, 1 + ORACLE_HAS_GRAPHS},
    [ORACLE_REPLAY] = {60, 1 + ORACLE_HAS_GRAPHS},
    [ORACLE_OBSERVE] = {10, 1 + ORACLE_HAS_OBSERVERS},
    [ORACLE_UNOBSERVE] = {10, 1 + ORACLE_HAS_OBSERVERS},
    [ORACLE_HISTORY] = {10, 1 + ORACLE_HAS_HISTORY},
    [ORACLE_STEP] = {16, 0},
    [ORACLE_FAULT] = {60, 1 + ORACLE_HAS_FAULTS},
};

static int possible(const oracle_case *c, uint32_t kind)
{
    return mix[kind].feature == 0 || (c->features >> (mix[kind].feature - 1) & 1) != 0;
}

/* Mostly small, around the classes' bounds, and now and then several pages. */
static uint64_t size_by(const oracle_case *c, uint64_t a, uint64_t b)
{
    static const uint64_t bounds[] = {1,       512, 4 * KIB, 64 * KIB,
                                      MIB / 2, MIB, 2 * MIB, 64 * KIB + 512};
    int large = (c->features >> ORACLE_HAS_REMAP & 1) != 0 ? a % 3 == 0 : a % 16 == 0;
    int written = (c->features >> ORACLE_HAS_PAUSES & 1) != 0; /* all of it, and copied */
    if (large)
        return written ? MIB / 2 + b * 8 * KIB : MIB + b * 24 * KIB;
    if (a % 5 == 0)
        return bounds[b % 8] + (b >> 3) % 3 - ((b & 7) == 0 ? 0 : 1);
    return 1 + b * b * (a % 4 == 0 ? 8 : 1);
}

static uint8_t member_by(const oracle_case *c, uint64_t a)
{
    static const uint8_t members[] = {0, 1, 4, 6, 2, 5, 7, 0};
    uint8_t member = members[a % 8];
    if (member >= ORACLE_PROVIDER_ROOT && (c->features >> ORACLE_HAS_PROVIDER & 1) == 0)
        return 0;
    if (member >= ORACLE_PINNED_ROOT && member < ORACLE_PROVIDER_ROOT &&
        (c->features >> ORACLE_HAS_PINNED & 1) == 0)
        return 0;
    return member;
}

/* The fields of an operation from four numbers. Where graphs are recorded, they get their share. */
static void fill_fields(const oracle_case *c, oracle_op *op, uint64_t a, uint64_t b, uint64_t m,
                        uint64_t s)
{
    int graphs = (c->features >> ORACLE_HAS_GRAPHS & 1) != 0;
    int pools = (c->features >> ORACLE_HAS_POOLS & 1) != 0;
    op->slot = (uint8_t)(a % ORACLE_SLOTS);
    op->member = member_by(c, m);
    if (graphs && m % 5 == 4)
        op->member = ORACLE_GRAPH_POOL;
    if (!pools && op->member < ORACLE_GRAPH_POOL)
        op->member = ORACLE_ROOT;
    op->stream = (uint8_t)(s % ORACLE_STREAMS);
    op->n = 0;
    if (op->kind == ORACLE_ALLOC)
        op->n = size_by(c, a, b);
    else if (op->kind == ORACLE_TRIM)
        op->n = b % 3 == 0 ? 0 : b * 80 * KIB;
    else if (op->kind == ORACLE_LIMIT)
        op->n = b % 4 == 0 ? 0 : b * 64 * KIB;
    else if (op->kind == ORACLE_POOL)
        op->n = b % 8;
    else if (op->kind == ORACLE_CAPTURE || op->kind == ORACLE_STEP)
        op->n = b % 3;
    else if (op->kind == ORACLE_OBSERVE)
        op->n = b % 3 == 0 ? 1 + b / 8 : 0;
    else if (op->kind == ORACLE_FAULT)
        op->n = 1 + (b % 4 == 0 ? b / 4 : b % 9);
    else if (op->kind == ORACLE_PAUSE_TAGS)
        op->n = b % 4 == 0 ? 0 : b % 128;
    else if (op->kind == ORACLE_RESUME_TAGS)
        op->n = b % 3 == 0 ? 0 : UINT64_C(1) << b % 7;
    else if (op->kind == ORACLE_EXPORT)
        op->n = b % ORACLE_SHARES;
    else if (op->kind == ORACLE_IMPORT)
        op->n = b % 2;
    else if (op->kind == ORACLE_USE || op->kind == ORACLE_DROP || op->kind == ORACLE_PAUSE ||
             op->kind == ORACLE_END_STREAM)
        op->n = b % 3 != 0;
    if (op->kind == ORACLE_FAULT)
        op->slot %= 4;
    if (op->kind == ORACLE_PAUSE_TAGS)
        op->slot %= 3;
    if (op->kind == ORACLE_END_EXPORT || op->kind == ORACLE_IMPORT || op->kind == ORACLE_END_IMPORT)
        op->slot %= ORACLE_SHARES;
    if (op->kind == ORACLE_OBSERVE || op->kind == ORACLE_UNOBSERVE)
        op->slot %= ORACLE_OBSERVERS;
}

/* Fields that the operation has not are 0, so that its text is all of it. */
static void clear_rest(oracle_op *op)
{
#define USES(name, text, a, b, c, n) {sizeof(a) > 1, sizeof(b) > 1, sizeof(c) > 1, sizeof(n) > 1},
    static const uint8_t uses[ORACLE_KINDS][4] = {ORACLE_OPS(USES)};
    op->slot = uses[op->kind][0] ? op->slot : 0;
    op->member = uses[op->kind][1] ? op->member : 0;
    op->stream = uses[op->kind][2] ? op->stream : 0;
    op->n = uses[op->kind][3] ? op->n : 0;
}

void oracle_draw(const oracle_case *c, uint64_t *random, oracle_op *out)
{
    uint64_t total = 0, at;
    for (uint32_t kind = 0; kind < ORACLE_KINDS; kind++)
        total += possible(c, kind) ? mix[kind].weight : 0;
    at = random_below(random, total);
    out->kind = 0;
    while (!possible(c, out->kind) || at >= mix[out->kind].weight) {
        at -= possible(c, out->kind) ? mix[out->kind].weight : 0;
        out->kind++;
    }
    fill_fields(c, out, random_below(random, 240), random_below(random, 256),
                random_below(random, 240), random_below(random, 240));
    clear_rest(out);
}

static void append(oracle_case *c, uint64_t most, oracle_op op)
{
    clear_rest(&op);
    if (c->count < most)
        c->ops[c->count++] = op;
}

/* A fault before what calls the driver most. */
static void append_fault(oracle_case *c, uint64_t most, oracle_op op, uint64_t *random)
{
    static const uint8_t kinds[] = {
        ORACLE_ALLOC,  ORACLE_ALLOC,  ORACLE_TRIM,      ORACLE_PAUSE,      ORACLE_ALLOC,
        ORACLE_RESUME, ORACLE_USE,    ORACLE_FREE,      ORACLE_PAUSE_TAGS, ORACLE_RESUME_TAGS,
        ORACLE_EXPORT, ORACLE_IMPORT, ORACLE_END_IMPORT};
    oracle_op next = {.kind = kinds[random_below(random, sizeof kinds)]};
    append(c, most, op);
    fill_fields(c, &next, 15 * random_below(random, 16), random_below(random, 256),
                random_below(random, 240), random_below(random, 240));
    append(c, most, next);
}

static void append_capture(oracle_case *c, uint64_t most, oracle_op op, uint64_t *random)
{
    op.stream = (uint8_t)(1 + op.stream % (ORACLE_STREAMS - 1));
    append(c, most, op);
    for (uint8_t i = 0; i < 3; i++)
        append(c, most,
               (oracle_op){ORACLE_ALLOC, (uint8_t)random_below(random, ORACLE_SLOTS),
                           ORACLE_GRAPH_POOL, op.stream,
                           size_by(c, random_below(random, 240), random_below(random, 256))});
}

/* Something is exported, and mostly imported soon. */
static void append_export(oracle_case *c, uint64_t most, oracle_op op, uint64_t *random)
{
    oracle_op block = {.kind = ORACLE_ALLOC};
    fill_fields(c, &block, random_below(random, 240), random_below(random, 256),
                random_below(random, 240), random_below(random, 240));
    op.slot = block.slot;
    append(c, most, block);
    append(c, most, op);
    if (random_below(random, 4) != 0)
        append(c, most, (oracle_op){ORACLE_IMPORT, (uint8_t)op.n, 0, 0, random_below(random, 2)});
}

/* Pools are there from the beginning. In a graph's recording blocks of its stream come from its
 * pool, and only there. */
void oracle_generate(oracle_case *c, uint64_t seed, uint64_t count)
{
    uint64_t random = seed;
    oracle_op op;
    uint8_t recorded = 0;
    c->count = 0;
    for (uint8_t i = 0; i < ORACLE_MEMBERS; i++)
        append(c, count, (oracle_op){ORACLE_POOL, 0, i, 0, random_below(&random, 3) == 0 ? 7 : 0});
    while (c->count < count) {
        oracle_draw(c, &random, &op);
        if (op.kind == ORACLE_FAULT) {
            append_fault(c, count, op, &random);
        } else if (op.kind == ORACLE_EXPORT) {
            append_export(c, count, op, &random);
        } else if (op.kind == ORACLE_CAPTURE && recorded == 0) {
            append_capture(c, count, op, &random);
            recorded = c->ops[c->count - 1].stream;
        } else if (op.kind == ORACLE_END_CAPTURE) {
            recorded = 0;
            append(c, count, op);
            append(c, count, (oracle_op){.kind = ORACLE_REPLAY});
        } else {
            if (op.kind == ORACLE_ALLOC && recorded != 0 && random_below(&random, 2) == 0) {
                op.member = ORACLE_GRAPH_POOL;
                op.stream = recorded;
            }
            append(c, count, op);
        }
    }
}

void oracle_decode(oracle_case *c, const uint8_t *data, size_t size, uint64_t most)
{
    enum { BYTES = 5 }; /* of an operation: the kind, and four fields */
    c->features = size > 0 ? data[0] : 0;
    c->config = size > 1 ? data[1] % 4 : 0;
    c->features |= size > 1 ? (uint32_t)(data[1] >> 3) << 8 : 0;
    c->count = 0;
    for (size_t at = 2; at + BYTES <= size && c->count < most; at += BYTES) {
        oracle_op *op = &c->ops[c->count];
        op->kind = data[at] % ORACLE_KINDS;
        fill_fields(c, op, data[at + 1], data[at + 2], data[at + 3], data[at + 4]);
        clear_rest(op);
        c->count++;
    }
}
