/*
 * An oracle of the allocator: one language of operations, and a naive model that says after each of
 * them what must be true. Fuzzer, stress, fault sequences and the matrix of features all use it.
 *
 * A case is a device, a set of features and a list of operations. Every operation is defined in
 * every state, most often as nothing: so any part of a case is a case, which is what the shrinker
 * needs. A case reads and prints as text, one operation a line.
 */
#ifndef TEST_ORACLE_ORACLE_H
#define TEST_ORACLE_ORACLE_H

#include <stddef.h>
#include <stdint.h>

enum { ORACLE_SLOTS = 48, ORACLE_STREAMS = 4, ORACLE_OBSERVERS = 3, ORACLE_SHARES = 6 };

/* X(ENUMERATOR, name, fields that it uses: slot, member, stream, n). A field without a name is 0.
 */
#define ORACLE_OPS(X)                                                                              \
    X(ALLOC, alloc, "slot", "member", "stream", "bytes")                                           \
    X(FREE, free, "slot", "", "", "")                                                              \
    X(BAD_FREE, bad_free, "slot", "", "", "")                                                      \
    X(WRITE, write, "slot", "", "", "")                                                            \
    X(USE, use, "slot", "", "stream", "write")                                                     \
    X(VERIFY, verify, "slot", "", "stream", "")                                                    \
    X(SYNC, sync, "", "", "stream", "")                                                            \
    X(TRIM, trim, "", "member", "", "target")                                                      \
    X(LIMIT, limit, "", "member", "", "bytes")                                                     \
    X(POOL, pool, "", "member", "", "kind")                                                        \
    X(DROP, drop, "", "member", "", "free")                                                        \
    X(PAUSE, pause, "", "member", "", "keep")                                                      \
    X(RESUME, resume, "", "member", "", "")                                                        \
    X(PAUSE_TAGS, pause_tags, "how", "member", "", "tags")                                         \
    X(RESUME_TAGS, resume_tags, "", "member", "", "tags")                                          \
    X(EXPORT, export, "slot", "", "", "share")                                                     \
    X(END_EXPORT, end_export, "share", "", "", "")                                                 \
    X(IMPORT, import, "share", "", "", "write")                                                    \
    X(END_IMPORT, end_import, "share", "", "", "")                                                 \
    X(END_STREAM, end_stream, "", "", "stream", "reuse")                                           \
    X(CAPTURE, capture, "", "", "stream", "mode")                                                  \
    X(END_CAPTURE, end_capture, "", "", "", "")                                                    \
    X(REPLAY, replay, "", "", "", "")                                                              \
    X(OBSERVE, observe, "observer", "member", "", "refuse")                                        \
    X(UNOBSERVE, unobserve, "observer", "", "", "")                                                \
    X(HISTORY, history, "", "member", "", "")                                                      \
    X(STEP, step, "", "member", "", "kind")                                                        \
    X(FAULT, fault, "kind", "", "", "n")

#define ORACLE_ENUMERATOR(name, text, a, b, c, n) ORACLE_##name,
typedef enum oracle_kind { ORACLE_OPS(ORACLE_ENUMERATOR) ORACLE_KINDS } oracle_kind;
#undef ORACLE_ENUMERATOR

/* X(ENUMERATOR, name): what a case has; a pair of them must meet. */
#define ORACLE_FEATURES(X)                                                                         \
    X(EXPANDABLE, expandable)                                                                      \
    X(REMAP, remap)                                                                                \
    X(POOLS, pools)                                                                                \
    X(GRAPHS, graphs)                                                                              \
    X(PAUSES, pauses)                                                                              \
    X(PINNED, pinned)                                                                              \
    X(PROVIDER, provider)                                                                          \
    X(OBSERVERS, observers)                                                                        \
    X(HISTORY, history)                                                                            \
    X(LIMITS, limits)                                                                              \
    X(SHARING, sharing)                                                                            \
    X(STREAM_ENDS, stream_ends)                                                                    \
    X(FAULTS, faults)

#define ORACLE_ENUMERATOR(name, text) ORACLE_HAS_##name,
typedef enum oracle_feature {
    ORACLE_FEATURES(ORACLE_ENUMERATOR) ORACLE_FEATURE_COUNT
} oracle_feature;
#undef ORACLE_ENUMERATOR

/* Members: three allocators and their pools; pool 3 is that of graphs. */
enum {
    ORACLE_ROOT = 0,
    ORACLE_A_POOL = 1,
    ORACLE_GRAPH_POOL = 3,
    ORACLE_PINNED_ROOT = 4,
    ORACLE_PINNED_POOL = 5,
    ORACLE_PROVIDER_ROOT = 6,
    ORACLE_PROVIDER_POOL = 7,
    ORACLE_MEMBERS = 8
};

/* What a fault hits: the n-th device operation, host allocation, driver call (simulated drivers),
 * or call of the provider within the next operation. */
enum { ORACLE_FAULT_DEVICE, ORACLE_FAULT_HOST, ORACLE_FAULT_DRIVER, ORACLE_FAULT_PROVIDER };

typedef struct oracle_op {
    uint8_t kind, slot, member, stream;
    uint64_t n;
} oracle_op;

typedef struct oracle_case {
    const char *device;
    uint32_t features; /* bits */
    uint32_t config;   /* which configuration string */
    uint64_t seed;     /* of the order in which streams run */
    oracle_op *ops;
    uint64_t count;
} oracle_case;

/* What a run has seen, also of one that failed; it may lie in memory shared with the parent. */
typedef struct oracle_seen {
    uint64_t step;         /* the operation under way */
    uint32_t features;     /* that took effect */
    int32_t struck;        /* the last fault did */
    int32_t struck_ever;   /* any did, or an observer has refused */
    uint64_t live, paused; /* blocks and members at the end */
    uint64_t done[ORACLE_KINDS];
    int failed;
    int print_case; /* set by the caller: a failure prints the case */
    char message[800];
} oracle_seen;

/* Runs a case in this process; what does not hold ends the process (abort), with a message. */
void oracle_run(const oracle_case *c, oracle_seen *seen);
/* The same in a child; 1 if all held. `seconds`: longer is a hang. */
int oracle_run_apart(const oracle_case *c, oracle_seen *seen, unsigned seconds);
/* Threads on one world: each runs operations of its own; all meet after every `count` operations,
 * and then everything must add up. */
void oracle_run_threads(const oracle_case *c, uint32_t threads, double seconds);

/* Fills the case's operations, at most `count`. */
void oracle_generate(oracle_case *c, uint64_t seed, uint64_t count);
void oracle_draw(const oracle_case *c, uint64_t *random, oracle_op *out);
/* Operations from a fuzzer's bytes; the case's features come from the first two. */
void oracle_decode(oracle_case *c, const uint8_t *data, size_t size, uint64_t most);

/* Removes and simplifies while the case fails; the number of runs that it took. */
uint64_t oracle_shrink(oracle_case *c, oracle_seen *seen);

/* Text. The parser takes what the printer prints; 0 where it is malformed. */
void oracle_print_op(const oracle_op *op, char *out, size_t size);
void oracle_print(const oracle_case *c, void (*line)(void *user, const char *text), void *user);
int oracle_parse(const char *text, oracle_case *out); /* allocates ops */
const char *oracle_feature_name(uint32_t feature);

#endif
