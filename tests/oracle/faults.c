/*
 * oracle_faults DEVICE: in each of some short cases the last operation is hit by a fault at its
 * first device operation, its second, …, until none is left; so by a failing host allocation, a
 * failing call of the driver itself (simulated drivers), of the provider, and by observers that
 * refuse. The model says after it that the operation is completed or has changed nothing. Then it
 * is tried once more, and everything must be as if nothing had failed. The short form leaves some
 * numbers out.
 */
#include "oracle.h"
#include "support/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_FAULTS = 2000, MOST_OPS = 64, KINDS = 5, REFUSAL = 4 };

typedef struct scene {
    const char *name;
    int virtual_memory; /* features of its own: expandable segments */
    uint32_t least;     /* faults that strike */
    int32_t must;       /* a feature that takes effect, or -1 */
    const char *text;   /* the last operation is the one that is hit */
} scene;

#define CACHED_ELSEWHERE                                                                           \
    "alloc slot=0 member=0 stream=1 bytes=12000000\nalloc slot=1 member=0 stream=2 "               \
    "bytes=8000000\n"                                                                              \
    "free slot=0\nfree slot=1\nsync stream=1\nsync stream=2\n"
#define POOL_WITH_BLOCKS                                                                           \
    "pool member=1 kind=0\nalloc slot=0 member=1 stream=1 bytes=2500000\n"                         \
    "alloc slot=1 member=1 stream=1 bytes=2000000\nalloc slot=2 member=1 stream=2 bytes=70000\n"   \
    "alloc slot=3 member=1 stream=0 bytes=1000\nuse slot=1 stream=2 write=0\nfree slot=1\n"

/* On two streams, beside a block that stays. */
#define A_STEP                                                                                     \
    "alloc slot=0 member=0 stream=0 bytes=4000000\nalloc slot=1 member=0 stream=0 bytes=5000000\n" \
    "alloc slot=2 member=0 stream=1 bytes=2000000\nalloc slot=4 member=0 stream=0 bytes=500000\n"  \
    "free slot=0\nalloc slot=3 member=0 stream=0 bytes=3000000\n"                                  \
    "free slot=1\nfree slot=2\nfree slot=3\n"
#define STEPS A_STEP "step member=0 kind=0\n" A_STEP "step member=0 kind=1\n"
#define SHARED "export slot=0 share=0\nimport share=0 write=0\n"
#define USED(member)                                                                               \
    "alloc slot=0 member=" #member " stream=1 bytes=70000\nuse slot=0 stream=2 write=1\n"
#define TAGS "64" /* that of slot 0 */

static const scene scenes[] = {
    {"growth", 1, 5, ORACLE_HAS_EXPANDABLE, "alloc slot=0 member=0 stream=1 bytes=5000000\n"},
    {"growth around a free page", 1, 5, ORACLE_HAS_EXPANDABLE,
     "alloc slot=0 member=0 stream=0 bytes=2097152\nalloc slot=1 member=0 stream=0 bytes=2097152\n"
     "alloc slot=2 member=0 stream=0 bytes=2097152\nfree slot=0\nfree slot=2\n"
     "trim member=0 target=0\nfree slot=1\nalloc slot=3 member=0 stream=0 bytes=6291456\n"},
    {"pages that move", 1, 9, ORACLE_HAS_REMAP,
     CACHED_ELSEWHERE "alloc slot=2 member=0 stream=0 bytes=16000000\n"},
    {"pages that move after a wait", 1, 9, ORACLE_HAS_REMAP,
     "alloc slot=0 member=0 stream=1 bytes=12000000\nalloc slot=1 member=0 stream=2 bytes=8000000\n"
     "use slot=0 stream=3 write=1\nuse slot=1 stream=3 write=1\nfree slot=0\nfree slot=1\n"
     "alloc slot=2 member=0 stream=0 bytes=16000000\n"},
    {"pages of a busy stream", 1, 5, ORACLE_HAS_EXPANDABLE,
     "alloc slot=0 member=0 stream=1 bytes=6000000\nalloc slot=1 member=0 stream=1 bytes=5000000\n"
     "alloc slot=2 member=0 stream=1 bytes=8000000\nfree slot=0\nfree slot=2\n"
     "alloc slot=3 member=0 stream=1 bytes=12000000\n"},
    {"pages of a stream that has ended", 1, 5, ORACLE_HAS_EXPANDABLE,
     "alloc slot=0 member=0 stream=1 bytes=12000000\nalloc slot=1 member=0 stream=1 bytes=3000000\n"
     "free slot=0\nend_stream stream=1 reuse=1\nalloc slot=2 member=0 stream=2 bytes=18000000\n"},
    {"a pool's cache", 1, 9, ORACLE_HAS_EXPANDABLE,
     "pool member=1 kind=0\nalloc slot=0 member=1 stream=1 bytes=12000000\n"
     "alloc slot=1 member=1 stream=0 bytes=8000000\nuse slot=1 stream=2 write=0\nfree slot=0\n"
     "free slot=1\nalloc slot=2 member=0 stream=0 bytes=18000000\n"},
    {"trim", 1, 3, ORACLE_HAS_EXPANDABLE, POOL_WITH_BLOCKS "free slot=0\ntrim member=1 target=0\n"},
    {"trim to a target", 1, 2, ORACLE_HAS_EXPANDABLE,
     CACHED_ELSEWHERE "trim member=0 target=9000000\n"},
    {"pause that discards", 1, 4, ORACLE_HAS_EXPANDABLE,
     POOL_WITH_BLOCKS "pause member=1 keep=0\n"},
    {"pause", 1, 6, ORACLE_HAS_EXPANDABLE, POOL_WITH_BLOCKS "pause member=1 keep=1\n"},
    {"resume", 1, 6, ORACLE_HAS_PAUSES,
     POOL_WITH_BLOCKS "pause member=1 keep=1\nfree slot=3\nresume member=1\n"},
    {"resume beside a cache", 1, 8, ORACLE_HAS_PAUSES,
     POOL_WITH_BLOCKS "pause member=1 keep=1\nalloc slot=4 member=0 stream=1 bytes=12000000\n"
                      "alloc slot=5 member=0 stream=2 bytes=10000000\nfree slot=4\nfree slot=5\n"
                      "resume member=1\n"},
    {"resume of a graph's pool", 1, 6, ORACLE_HAS_GRAPHS,
     "pool member=3 kind=0\ncapture stream=1 mode=0\nalloc slot=0 member=3 stream=1 bytes=900000\n"
     "alloc slot=1 member=3 stream=1 bytes=2200000\nfree slot=1\nend_capture\nreplay\n"
     "pause member=3 keep=1\nresume member=3\n"},
    {"pause of a tag that discards", 1, 4, ORACLE_HAS_EXPANDABLE,
     POOL_WITH_BLOCKS "pause_tags how=0 member=1 tags=" TAGS "\n"},
    {"pause of a tag", 1, 6, ORACLE_HAS_EXPANDABLE,
     POOL_WITH_BLOCKS "pause_tags how=1 member=1 tags=" TAGS "\n"},
    {"pause to a file", 1, 6, ORACLE_HAS_EXPANDABLE,
     POOL_WITH_BLOCKS "pause_tags how=2 member=1 tags=0\n"},
    {"resume from a file", 1, 6, ORACLE_HAS_PAUSES,
     POOL_WITH_BLOCKS "pause_tags how=2 member=1 tags=" TAGS "\npause_tags how=1 member=1 tags=0\n"
                      "resume_tags member=1 tags=0\n"},
    {"pause beside an export", 1, 6, ORACLE_HAS_SHARING,
     POOL_WITH_BLOCKS SHARED "export slot=2 share=1\npause member=1 keep=0\n"},
    {"export", 1, 2, ORACLE_HAS_EXPANDABLE, POOL_WITH_BLOCKS "export slot=0 share=0\n"},
    {"import", 1, 5, ORACLE_HAS_SHARING,
     POOL_WITH_BLOCKS "export slot=0 share=0\nimport share=0 write=1\n"},
    {"end of an import", 1, 3, ORACLE_HAS_SHARING,
     POOL_WITH_BLOCKS SHARED "free slot=0\nend_export share=0\nend_import share=0\n"},
    {"classic growth", 0, 2, -1, "alloc slot=0 member=0 stream=1 bytes=5000000\n"},
    {"classic segments that go", 0, 5, -1,
     CACHED_ELSEWHERE "alloc slot=2 member=0 stream=0 bytes=20000000\n"},
    {"page-locked growth", 0, 2, ORACLE_HAS_PINNED,
     "pool member=5 kind=0\nalloc slot=0 member=5 stream=1 bytes=5000000\n"},
    {"page-locked memory that goes", 0, 4, ORACLE_HAS_PINNED,
     "alloc slot=0 member=4 stream=1 bytes=9000000\nalloc slot=1 member=4 stream=2 bytes=5000000\n"
     "use slot=0 stream=2 write=0\nfree slot=0\nfree slot=1\n"
     "alloc slot=2 member=4 stream=0 bytes=12000000\n"},
    {"growth from a provider", 0, 2, ORACLE_HAS_PROVIDER,
     "pool member=7 kind=0\nalloc slot=0 member=7 stream=1 bytes=5000000\n"},
    {"growth during a capture", 1, 5, ORACLE_HAS_EXPANDABLE,
     "pool member=3 kind=0\ncapture stream=3 mode=0\nalloc slot=0 member=0 stream=2 "
     "bytes=5000000\n"},
    {"growth from a provider during a capture", 0, 2, ORACLE_HAS_PROVIDER,
     "pool member=3 kind=0\npool member=7 kind=0\ncapture stream=3 mode=0\n"
     "alloc slot=0 member=7 stream=2 bytes=5000000\n"},
    {"a lent hole at the limit", 1, 1, ORACLE_HAS_EXPANDABLE,
     "alloc slot=43 member=0 stream=3 bytes=1\nalloc slot=3 member=0 stream=1 bytes=1048576\n"
     "alloc slot=23 member=0 stream=0 bytes=1\nlimit member=0 bytes=1\n"
     "alloc slot=45 member=0 stream=1 bytes=1417216\n"},
    {"a plan during a capture of the parent's", 0, 0, ORACLE_HAS_PROVIDER,
     "pool member=3 kind=0\npool member=7 kind=0\nstep member=7 kind=0\n"
     "alloc slot=42 member=7 stream=2 bytes=1\ncapture stream=1 mode=0\nfree slot=42\n"
     "step member=7 kind=1\n"},
    {"provided memory that goes", 0, 4, ORACLE_HAS_PROVIDER,
     "alloc slot=0 member=6 stream=1 bytes=12000000\nalloc slot=1 member=6 stream=2 bytes=8000000\n"
     "free slot=0\nfree slot=1\nalloc slot=2 member=6 stream=0 bytes=20000000\n"},
    {"record_stream", 1, 2, -1, USED(0)},
    {"free", 1, 1, -1, USED(0) "free slot=0\n"},
    {"record_stream in classic segments", 0, 2, -1, USED(0)},
    {"free in classic segments", 0, 1, -1, USED(0) "free slot=0\n"},
    {"record_stream of page-locked memory", 0, 1, ORACLE_HAS_PINNED, USED(4)},
    {"free of page-locked memory", 0, 1, ORACLE_HAS_PINNED, USED(4) "free slot=0\n"},
    {"a plan", 1, 6, ORACLE_HAS_EXPANDABLE, STEPS},
    {"a plan of classic segments", 0, 6, -1, STEPS},
    {"a place without memory", 1, 6, ORACLE_HAS_EXPANDABLE,
     STEPS A_STEP "trim member=0 target=0\nstep member=0 kind=0\n"
                  "alloc slot=0 member=0 stream=0 bytes=4000000\n"},
    {"a pool", 1, 1, -1, "pool member=1 kind=0\n"},
    {"the end of a pool", 1, 2, -1, POOL_WITH_BLOCKS "drop member=1 free=1\n"},
    {"an observer", 1, 1, ORACLE_HAS_OBSERVERS,
     "alloc slot=0 member=0 stream=1 bytes=70000\nobserve observer=0 member=0 refuse=0\n"},
};

static const char *const kind_names[KINDS] = {"device operation", "host allocation", "driver call",
                                              "call of the provider", "event"};

/* The case with its last operation twice, and what strikes before it. n = 0: nothing does. */
static int make(const scene *s, const char *device, uint32_t kind, uint64_t n, oracle_case *out)
{
    char text[2048];
    snprintf(text, sizeof text,
             "case device=%s config=0 seed=4 remap pools graphs pauses pinned provider observers "
             "sharing history%s\n%s",
             device, s->virtual_memory ? " expandable" : "", s->text);
    if (!oracle_parse(text, out))
        return 0;
    out->ops = realloc(out->ops, MOST_OPS * sizeof *out->ops);
    if (out->ops == NULL || out->count + 4 > MOST_OPS)
        return 0;
    oracle_op last = out->ops[out->count - 1];
    oracle_op fault = {.kind = kind == REFUSAL ? ORACLE_OBSERVE : ORACLE_FAULT, .n = n};
    fault.slot = (uint8_t)(kind == REFUSAL ? 1 : kind);
    if (n > 0)
        out->ops[out->count - 1] = fault, out->ops[out->count++] = last;
    if (kind == REFUSAL && n > 0)
        out->ops[out->count++] = (oracle_op){.kind = ORACLE_UNOBSERVE, .slot = 1};
    out->ops[out->count++] = last;
    out->ops[out->count++] = (oracle_op){.kind = ORACLE_REPLAY};
    return 1;
}

/* Whether the fault struck, by itself or as a refusal. */
static void run_one(const scene *s, const char *device, uint32_t kind, uint64_t n,
                    oracle_seen *seen)
{
    oracle_case c;
    if (!make(s, device, kind, n, &c))
        exit(2);
    seen->print_case = 1;
    oracle_run(&c, seen);
    free(c.ops);
}

/* To the next number of a fault. */
static uint64_t step_at(const char *device, uint64_t n)
{
    if (is_long())
        return 1;
    return strcmp(device, "cpu") == 0 ? 1 + n / 8 : 2 + n / 3;
}

/* Ends the child with a message where it is not right. */
static void run_scene(const scene *s, const char *device, uint32_t kind, uint64_t *out_struck)
{
    oracle_seen plain, seen;
    memset(&plain, 0, sizeof plain);
    run_one(s, device, kind, 0, &plain);
    if (s->must >= 0 && (plain.features >> s->must & 1) == 0) {
        fprintf(stderr, "%s: %s takes no effect\n", s->name,
                oracle_feature_name((uint32_t)s->must));
        exit(1);
    }
    for (uint64_t n = 1; n < MOST_FAULTS; n += step_at(device, n)) {
        memset(&seen, 0, sizeof seen);
        run_one(s, device, kind, n, &seen);
        if (seen.live != plain.live || seen.paused != plain.paused) {
            fprintf(stderr,
                    "%s: with %s %llu failing, %llu blocks are alive and %llu members are "
                    "paused at the end, else %llu and %llu\n",
                    s->name, kind_names[kind], (unsigned long long)n, (unsigned long long)seen.live,
                    (unsigned long long)seen.paused, (unsigned long long)plain.live,
                    (unsigned long long)plain.paused);
            exit(1);
        }
        if (!seen.struck_ever)
            return;
        ++*out_struck;
    }
    fprintf(stderr, "%s: faults go on\n", s->name);
    exit(1);
}

/* The cpu device has no driver. On others the calls of the driver are what is new. */
static int is_wanted(const char *device, uint32_t kind)
{
    if (strcmp(device, "cpu") == 0)
        return kind != ORACLE_FAULT_DRIVER;
    return is_long() || kind == ORACLE_FAULT_DRIVER;
}

int main(int count, char **words)
{
    const char *device = count > 1 ? words[1] : "cpu";
    uint64_t *struck = mmap(NULL, KINDS * sizeof *struck, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int failed = 0;
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0]; i++) {
        uint64_t all = 0;
        memset(struck, 0, KINDS * sizeof *struck);
        for (uint32_t kind = 0; kind < KINDS; kind++) {
            int status = 0;
            if (!is_wanted(device, kind))
                continue;
            fflush(NULL);
            pid_t child = fork(); /* the addresses of a simulated driver are used up with time */
            if (child == 0) {
                run_scene(&scenes[i], device, kind, &struck[kind]);
                exit(0);
            }
            if (waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
                WEXITSTATUS(status) != 0)
                failed = 1;
            all += struck[kind];
        }
        printf("%s:", scenes[i].name);
        for (uint32_t kind = 0; kind < KINDS; kind++)
            printf(" %llu %ss%s", (unsigned long long)struck[kind], kind_names[kind],
                   kind + 1 < KINDS ? "," : "\n");
        if (strcmp(device, "cpu") == 0 && all < scenes[i].least) {
            printf("  fewer than %u\n", scenes[i].least);
            failed = 1;
        }
    }
    return failed;
}
