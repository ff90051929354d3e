/* Blocks: sizes, best fit, splitting, joining, both kinds of segments. */
#include "support.h"

/* splitmix64 */
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Random allocations with patterns, under pressure, for both kinds of segments. */
static void random_run(const char *config, uint64_t seed)
{
    enum { SLOTS = 64, STEPS = 4000 };
    memopt_device *device = open_cpu(96 * MIB, MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_allocator *allocator = new_allocator(device, config);
    struct {
        unsigned char *at;
        uint64_t bytes;
        unsigned char pattern;
    } slots[SLOTS] = {{0}};
    uint64_t failures = 0;
    for (int step = 0; step < STEPS; step++) {
        uint64_t i = random_next(&seed) % SLOTS;
        if (slots[i].at != NULL) {
            assert_int_equal(slots[i].at[0], slots[i].pattern);
            assert_int_equal(slots[i].at[slots[i].bytes - 1], slots[i].pattern);
            OK(memopt_allocator_free(allocator, slots[i].at));
            slots[i].at = NULL;
        } else {
            uint64_t bytes = 1 + random_next(&seed) % (UINT64_C(1) << (random_next(&seed) % 24));
            void *at = NULL;
            memopt_status status =
                memopt_allocator_alloc(allocator, bytes, MEMOPT_TAG_WEIGHTS, NULL, &at);
            if (status == MEMOPT_OUT_OF_DEVICE_MEMORY) {
                failures++;
                continue;
            }
            assert_int_equal(status, MEMOPT_OK);
            slots[i].at = at;
            slots[i].bytes = bytes;
            slots[i].pattern = (unsigned char)step;
            slots[i].at[0] = slots[i].at[bytes - 1] = slots[i].pattern;
        }
        if (step % 16 == 0)
            OK(mo_allocator_check(allocator));
        if (step % 1000 == 999)
            OK(memopt_allocator_trim(allocator, NULL));
    }
    for (int i = 0; i < SLOTS; i++)
        OK(memopt_allocator_free(allocator, slots[i].at));
    (void)failures;
    OK(memopt_allocator_trim(allocator, NULL));
    assert_int_equal(stat_of(allocator, "reserved_bytes.all.current"), 0);
    finish(allocator, device);
}

static void test_random(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        random_run("", seed);
        random_run("expandable_segments:True", seed);
        random_run("max_split_size_mb:20", seed);
        random_run("garbage_collection_threshold:0.5,expandable_segments:True", seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
