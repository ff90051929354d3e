/*
 * The oracle notices an allocator that is broken, and the shrinker makes what it noticed small. The
 * linker puts the broken calls below in the place of the library's (--wrap).
 */
#include "support/checks.h"

#include "allocator/allocator.h"

#include "memopt/allocator.h"
#include "oracle.h"

enum { OPERATIONS = 300, SEEDS = 40, SMALL = 10 };

static enum { NOTHING, RECORDS, TRIMS, RESUMES } broken;

memopt_status __real_memopt_allocator_record_stream(memopt_allocator *allocator, void *pointer,
                                                    memopt_stream stream);
memopt_status __wrap_memopt_allocator_record_stream(memopt_allocator *allocator, void *pointer,
                                                    memopt_stream stream);
memopt_status __real_memopt_allocator_trim_sync(memopt_allocator *allocator, uint64_t target,
                                                uint64_t *out_released);
memopt_status __wrap_memopt_allocator_trim_sync(memopt_allocator *allocator, uint64_t target,
                                                uint64_t *out_released);
memopt_status __real_memopt_pool_resume_sync(memopt_pool *pool, uint64_t tags);
memopt_status __wrap_memopt_pool_resume_sync(memopt_pool *pool, uint64_t tags);

/* Forgets which streams use a block. */
memopt_status __wrap_memopt_allocator_record_stream(memopt_allocator *allocator, void *pointer,
                                                    memopt_stream stream)
{
    void *base = NULL;
    if (broken == RECORDS &&
        memopt_allocator_get_block(allocator, pointer, &base, NULL) == MEMOPT_OK && base == pointer)
        return MEMOPT_OK;
    return __real_memopt_allocator_record_stream(allocator, pointer, stream);
}

/* Gives nothing back. */
memopt_status __wrap_memopt_allocator_trim_sync(memopt_allocator *allocator, uint64_t target,
                                                uint64_t *out_released)
{
    if (broken != TRIMS || out_released == NULL)
        return __real_memopt_allocator_trim_sync(allocator, target, out_released);
    *out_released = 0;
    return MEMOPT_OK;
}

static memopt_status find_block(void *user, const memopt_block_info *block)
{
    if (block->state == MEMOPT_BLOCK_ACTIVE_ALLOCATED)
        *(void **)user = block->address;
    return MEMOPT_OK;
}

/* One block comes back with other contents. */
memopt_status __wrap_memopt_pool_resume_sync(memopt_pool *pool, uint64_t tags)
{
    memopt_status status = __real_memopt_pool_resume_sync(pool, tags);
    void *block = NULL;
    if (broken != RESUMES || status != MEMOPT_OK ||
        memopt_allocator_snapshot(pool, find_block, &block) != MEMOPT_OK || block == NULL)
        return status;
    return memopt_fill(mo_allocator_device(pool), block, 0, 1, NULL);
}

static void print_line(void *user, const char *text)
{
    (void)user;
    print_message("  %s\n", text);
}

static void find_and_shrink(int how, uint32_t features)
{
    static oracle_op ops[OPERATIONS];
    oracle_case c = {.device = "cpu", .features = features, .ops = ops};
    oracle_seen seen;
    broken = how;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        memset(&seen, 0, sizeof seen);
        c.seed = seed;
        c.features = features;
        oracle_generate(&c, seed, OPERATIONS);
        if (oracle_run_apart(&c, &seen, 60))
            continue;
        uint64_t runs = oracle_shrink(&c, &seen);
        print_message("seed %llu, %llu runs: %s\n", (unsigned long long)seed,
                      (unsigned long long)runs, seen.message);
        oracle_print(&c, print_line, NULL);
        assert_true(seen.failed && c.count >= 1 && c.count <= SMALL);
        broken = NOTHING; /* what is printed is no failure of a sound allocator */
        assert_true(oracle_run_apart(&c, &seen, 60));
        return;
    }
    fail_msg("the oracle did not notice");
}

TEST(test_forgotten_streams)
{
    find_and_shrink(RECORDS, 1u << ORACLE_HAS_EXPANDABLE);
}

TEST(test_trims_that_do_nothing)
{
    find_and_shrink(TRIMS, 1u << ORACLE_HAS_EXPANDABLE);
}

TEST(test_contents_that_change)
{
    find_and_shrink(RESUMES, 1u << ORACLE_HAS_EXPANDABLE | 1u << ORACLE_HAS_PAUSES);
}

static void collect(void *user, const char *text)
{
    char *out = user;
    snprintf(out + strlen(out), 20000 - strlen(out), "%s\n", text);
}

/* What is printed reads as the same case. */
TEST(test_text)
{
    static oracle_op ops[OPERATIONS];
    static char text[20000];
    oracle_case c = {.device = "cpu", .features = 0xabc, .config = 3, .seed = 7, .ops = ops}, read;
    oracle_generate(&c, 5, OPERATIONS);
    oracle_print(&c, collect, text);
    assert_true(oracle_parse(text, &read));
    assert_true(read.count == c.count && read.features == c.features && read.config == c.config &&
                read.seed == c.seed && strcmp(read.device, c.device) == 0);
    for (uint64_t i = 0; i < c.count; i++)
        assert_true(read.ops[i].kind == ops[i].kind && read.ops[i].slot == ops[i].slot &&
                    read.ops[i].member == ops[i].member && read.ops[i].stream == ops[i].stream &&
                    read.ops[i].n == ops[i].n);
    free(read.ops);
    assert_int_equal(oracle_parse("case device=cpu config=0 seed=1 flying\n", &read), 0);
}
