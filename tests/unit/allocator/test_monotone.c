/*
 * Allocations and frees that complete in some memory complete in more: seeded programs of many
 * sizes and streams, each in every limit from what is alive at most to what is held with room. No
 * rule of the allocator proves it: places are chosen otherwise once pages must move. Exceptions
 * are known, each in one larger limit: seed 13145554 completes in 1,156 pages, 1059748 in 1,786.
 */
#include "support.h"

#include "support/sweep.h"

#include <string.h>

enum { STREAMS = 3, BLOCKS = 512, STEPS = 6000, ROUNDS = 8, MOST_PAGES = 16000, SEEDS = 160 };

#define PAGE (2 * MIB)

typedef struct step {
    uint32_t block;
    uint32_t stream;
    uint64_t bytes; /* 0: a free */
} step;

typedef struct program {
    step steps[STEPS];
    int count;
    uint64_t sizes[BLOCKS]; /* of live blocks */
    uint64_t live, peak;
} program;

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static void add(program *p, uint32_t block, uint32_t stream, uint64_t bytes)
{
    p->steps[p->count++] = (step){block, stream, bytes};
    p->live += bytes - p->sizes[block];
    p->sizes[block] = bytes;
    p->peak = p->live > p->peak ? p->live : p->peak;
}

/* A round of training: blocks that stay until they are freed in reverse, others between them, and a
 * few that stay for longer. */
static void add_round(program *p, uint64_t *state, const uint64_t *shapes, uint64_t streams)
{
    uint32_t kept = 40 + (uint32_t)(next_random(state) % 60), from = 64;
    uint64_t length = 64 + next_random(state) % 193;
    for (uint32_t i = 0; i < kept; i++) {
        uint32_t stream =
            (uint32_t)(next_random(state) % 8 == 0 ? next_random(state) % streams : 0);
        add(p, from + i, stream, 1 + shapes[i % 6] * length / 256);
        if (i % 4 == 0)
            add(p, BLOCKS - 1, stream, 1 + shapes[next_random(state) % 6] * length / 128);
        if (i % 4 == 0)
            add(p, BLOCKS - 1, 0, 0);
        if (i % 16 == 0) {
            uint32_t stays = (uint32_t)(next_random(state) % from);
            add(p, stays, 0, 0);
            add(p, stays, 0, 1 + next_random(state) % (4 * MIB));
        }
    }
    for (uint32_t i = kept; i-- > 0;) {
        add(p, BLOCKS - 2, 0, 1 + shapes[i % 6] * length / 200);
        add(p, from + i, 0, 0);
        add(p, BLOCKS - 2, 0, 0);
    }
}

static void make_program(uint64_t seed, program *p)
{
    uint64_t state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1, shapes[6];
    memset(p, 0, sizeof *p);
    for (int i = 0; i < 6; i++)
        shapes[i] = i == 0 ? 40000 : 1 + next_random(&state) % ((20 + seed % 61) * MIB);
    for (int i = 0; i < ROUNDS; i++)
        add_round(p, &state, shapes, 1 + seed % STREAMS);
}

/* Whether it completes; *out_held is what was held at most. */
static int completes(const program *p, uint64_t limit, uint64_t *out_held)
{
    memopt_device *device = eager(MOST_PAGES * PAGE);
    memopt_allocator *allocator = new_allocator(device, EXPANDABLE);
    memopt_stream streams[STREAMS] = {NULL};
    void *blocks[BLOCKS] = {NULL};
    int completed = 1;
    OK(memopt_allocator_set_limit(allocator, limit));
    for (int i = 1; i < STREAMS; i++)
        OK(memopt_stream_create(device, &streams[i]));
    for (int i = 0; i < p->count && completed; i++) {
        const step *s = &p->steps[i];
        if (s->bytes == 0) {
            OK(memopt_allocator_free(allocator, blocks[s->block]));
            blocks[s->block] = NULL;
            continue;
        }
        memopt_status status = memopt_allocator_alloc(allocator, s->bytes, MEMOPT_TAG_OTHER,
                                                      streams[s->stream], &blocks[s->block]);
        completed = status == MEMOPT_OK;
        assert_true(completed || status == MEMOPT_OUT_OF_DEVICE_MEMORY);
    }
    OK(memopt_allocator_get_stat(allocator, "reserved_bytes.all.peak", out_held));
    assert_true(*out_held <= limit);
    OK(memopt_allocator_destroy_force(allocator));
    for (int i = 1; i < STREAMS; i++)
        OK(memopt_stream_destroy(device, streams[i]));
    OK(memopt_device_close(device));
    return completed;
}

TEST(more_memory_never_fails)
{
    program *p = malloc(sizeof *p);
    uint64_t held, limits = 0, failures = 0, programs = 0, strained = 0;
    assert_non_null(p);
    FOR_SEEDS (seed, SEEDS) {
        make_program(seed, p);
        assert_true(completes(p, MOST_PAGES * PAGE, &held));
        uint64_t most = held / PAGE, first = 0, bad = 0;
        for (uint64_t pages = (p->peak + PAGE - 1) / PAGE; pages <= most + 1; pages++) {
            int completed = completes(p, pages * PAGE, &held);
            first = completed && first == 0 ? pages : first;
            limits += first != 0;
            bad += !completed && first != 0;
        }
        if (bad > 0)
            printf("seed %llu completes in %llu pages, and not in %llu larger limits\n",
                   (unsigned long long)seed, (unsigned long long)first, (unsigned long long)bad);
        failures += bad;
        strained += first < most;
        programs++;
    }
    printf("%llu programs, %llu limits, %llu failures above a limit that sufficed\n",
           (unsigned long long)programs, (unsigned long long)limits, (unsigned long long)failures);
    assert_true(strained > 0); /* limits below what is held with room sufficed */
    assert_int_equal(failures, 0);
    free(p);
}
