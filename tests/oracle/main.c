/*
 * oracle DEVICE [--operations N] [--seed N]: the matrix of features. Random cases, in which each
 * pair of features must take effect at least once; one that fails is shrunk and printed. oracle
 * --replay FILE: runs a case as it was printed. oracle DEVICE --bytes FILE: shrinks an input of the
 * fuzzer.
 */
#define _GNU_SOURCE
#include "oracle.h"
#include "support/random.h"
#include "support/sweep.h"

#include "memopt/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SHORT = 3000, LONG = 1000000, OPERATIONS = 300, BATCH = 15, SECONDS = 60 };

/* Features that must meet in pairs; the rest come beside them. */
enum { PAIRED = ORACLE_HAS_STREAM_ENDS };

typedef struct results {
    uint64_t number; /* of the case under way */
    uint64_t enabled[ORACLE_FEATURE_COUNT];
    uint64_t pairs[ORACLE_FEATURE_COUNT][ORACLE_FEATURE_COUNT];
    oracle_seen seen;
} results;

static void print_line(void *user, const char *text)
{
    fprintf(user, "%s\n", text);
}

static int report(oracle_case *c, const char *what)
{
    oracle_seen seen;
    memset(&seen, 0, sizeof seen);
    uint64_t before = c->count, runs = oracle_shrink(c, &seen);
    if (!seen.failed) {
        printf("%s failed, but not by itself\n", what);
        return 1;
    }
    printf("%s failed; in %llu runs its %llu operations became these:\n", what,
           (unsigned long long)runs, (unsigned long long)before);
    oracle_print(c, print_line, stdout);
    printf("%s\n", seen.message);
    return 1;
}

/* The number-th case: a pair of features in turn, and others by chance. */
static void make_case(oracle_case *c, uint64_t seed, uint64_t number)
{
    uint64_t random = seed * 1000003 + number, pair = number % (PAIRED * (PAIRED - 1) / 2);
    uint32_t a = 0, b = 1;
    for (; pair > 0; pair--)
        if (++b == PAIRED) {
            a++;
            b = a + 1;
        }
    c->seed = seed + number;
    c->config = (uint32_t)(next_random(&random) % 4);
    c->features = (uint32_t)next_random(&random) & ((1u << ORACLE_FEATURE_COUNT) - 1);
    c->features |= 1u << a | 1u << b;
    if ((c->features &
         (1u << ORACLE_HAS_REMAP | 1u << ORACLE_HAS_PAUSES | 1u << ORACLE_HAS_SHARING)) != 0)
        c->features |= 1u << ORACLE_HAS_EXPANDABLE;
    oracle_generate(c, random, OPERATIONS);
}

static void run_batch(oracle_case *c, uint64_t seed, uint64_t end, results *all)
{
    for (; all->number < end; all->number++) {
        make_case(c, seed, all->number);
        oracle_run(c, &all->seen);
        for (int a = 0; a < ORACLE_FEATURE_COUNT; a++)
            all->enabled[a] += c->features >> a & 1;
        for (int a = 0; a < ORACLE_FEATURE_COUNT; a++)
            for (int b = 0; b < ORACLE_FEATURE_COUNT; b++)
                all->pairs[a][b] += (all->seen.features >> a & 1) & (all->seen.features >> b & 1);
    }
}

/* 0 if it failed: all->number says where. Addresses of a simulated driver are used up with time. */
static int run_batch_apart(oracle_case *c, uint64_t seed, uint64_t end, results *all)
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(SECONDS * BATCH);
        run_batch(c, seed, end, all);
        exit(0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0 && all->number == end;
}

static int pairs_are_met(const results *all)
{
    int missing = 0;
    for (uint32_t a = 0; a < PAIRED; a++)
        for (uint32_t b = 0; b < a; b++)
            if (all->pairs[a][b] == 0) {
                printf("%s and %s never took effect together\n", oracle_feature_name(b),
                       oracle_feature_name(a));
                missing++;
            }
    return missing == 0;
}

static int run_matrix(oracle_case *c, uint64_t seed, uint64_t operations)
{
    results *all =
        mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t cases = (operations + OPERATIONS - 1) / OPERATIONS, least = UINT64_MAX;
    if (all == MAP_FAILED)
        return 2;
    while (all->number < cases) {
        uint64_t end = all->number + BATCH < cases ? all->number + BATCH : cases;
        if (!run_batch_apart(c, seed, end, all)) {
            char what[64];
            snprintf(what, sizeof what, "seed %llu, case %llu", (unsigned long long)seed,
                     (unsigned long long)all->number);
            printf("%s: %s\n", what, all->seen.message);
            make_case(c, seed, all->number);
            return report(c, what);
        }
    }
    for (uint32_t a = 0; a < PAIRED; a++)
        for (uint32_t b = 0; b < a; b++)
            least = all->pairs[a][b] < least ? all->pairs[a][b] : least;
    printf("%s: %llu operations, each pair of %d features at least %llu times;", c->device,
           (unsigned long long)(cases * OPERATIONS), (int)PAIRED, (unsigned long long)least);
    for (uint32_t f = 0; f < ORACLE_FEATURE_COUNT; f++)
        printf(" %s %llu/%llu", oracle_feature_name(f), (unsigned long long)all->pairs[f][f],
               (unsigned long long)all->enabled[f]);
    printf("\n");
    return is_long() && !pairs_are_met(all);
}

static char *read_all(const char *path, size_t *out_size)
{
    enum { MOST = 1 << 20 };
    char *text = calloc(1, MOST + 1);
    FILE *file = fopen(path, "rb");
    if (file == NULL || text == NULL) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(2);
    }
    *out_size = fread(text, 1, MOST, file);
    fclose(file);
    return text;
}

static int usage(void)
{
    fprintf(stderr, "oracle DEVICE [--operations N] [--seed N] [--bytes FILE] | --replay FILE\n");
    return 2;
}

int main(int count, char **words)
{
    static oracle_op ops[1 << 14];
    oracle_case c = {.device = count > 1 ? words[1] : "cpu", .ops = ops};
    uint64_t seed = first_seed(), operations = is_long() ? LONG : SHORT;
    oracle_seen seen;
    size_t size = 0;
    memset(&seen, 0, sizeof seen);
    if (count == 3 && strcmp(words[1], "--replay") == 0) {
        if (!oracle_parse(read_all(words[2], &size), &c))
            return 2;
        oracle_run(&c, &seen);
        return 0;
    }
    for (int i = 2; i < count; i += 2) {
        if (i + 1 == count)
            return usage();
        if (strcmp(words[i], "--operations") == 0)
            operations = strtoull(words[i + 1], NULL, 10);
        else if (strcmp(words[i], "--seed") == 0)
            seed = strtoull(words[i + 1], NULL, 10);
        else if (strcmp(words[i], "--bytes") == 0) {
            const char *bytes = read_all(words[i + 1], &size);
            oracle_decode(&c, (const uint8_t *)bytes, size, sizeof ops / sizeof ops[0]);
            return report(&c, words[i + 1]);
        } else
            return usage();
    }
    return run_matrix(&c, seed, operations);
}
