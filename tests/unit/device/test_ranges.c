/* The set of ranges against a naive model: one owner per unit. */
#include "support.h"

#include "base/precondition.h"
#include "device/front/ranges.h"
#include "support/random.h"

enum { UNITS = 256, STEPS = 200000 };

static uint64_t random_state = 1;

static void check(const mo_ranges *set, const int *owner)
{
    uint64_t covered = 0, expected = 0, count = 0, end = 0;
    for (int u = 0; u < UNITS; u++)
        expected += owner[u] != 0;
    for (const mo_range *r = mo_ranges_after(set, 0); r != NULL; r = mo_ranges_after(set, end)) {
        assert_true(r->size > 0 && r->start >= end);
        end = r->start + r->size;
        count++;
        for (uint64_t u = r->start; u < r->start + r->size; u++)
            assert_true(owner[u] == (int)(intptr_t)r->value);
        covered += r->size;
    }
    assert_int_equal(covered, expected);
    assert_int_equal(count, set->count);
}

static unsigned depth(const mo_ranges *set, uint32_t at)
{
    if (at == 0)
        return 0;
    unsigned lower = depth(set, set->nodes[at].lower), upper = depth(set, set->nodes[at].upper);
    return 1 + (lower > upper ? lower : upper);
}

/* Pages of one size that come and go in order: no path grows with their number (a balanced tree
 * of these has 16 levels), and room for `reserve` ranges is not exceeded. */
TEST(pages_in_order)
{
    enum { PAGES = 1 << 16, PAGE = 4096, DEEPEST = 48 };
    mo_ranges set;
    assert_true(mo_ranges_init(&set));
    assert_true(mo_ranges_reserve(&set, PAGES));
    const mo_range_node *nodes = set.nodes;
    for (int round = 0; round < 3; round++) {
        for (uintptr_t i = 1; i <= PAGES; i++)
            assert_true(
                mo_ranges_insert(&set, (round == 1 ? PAGES + 1 - i : i) * PAGE, PAGE, NULL));
        assert_true(depth(&set, set.root) <= DEEPEST);
        for (uintptr_t i = 1; i <= PAGES; i++) {
            if (i == PAGES / 2)
                assert_true(depth(&set, set.root) <= DEEPEST);
            mo_ranges_remove(&set, mo_ranges_find(&set, (round == 2 ? PAGES + 1 - i : i) * PAGE));
        }
        assert_true(set.count == 0 && set.nodes == nodes);
    }
    mo_ranges_fini(&set);
}

static uint64_t count_owned(const int *owner, uint64_t start, uint64_t size)
{
    uint64_t owned = 0;
    for (uint64_t u = start; u < start + size; u++)
        owned += owner[u] != 0;
    return owned;
}

#ifdef MEMOPT_TEST_HOOKS
static int broken;

static void count_broken(const char *condition, const char *file, int line)
{
    broken++;
}

/* A precondition is checked where tests are built: an overlapping insert is caught. */
TEST(overlap_is_caught)
{
    mo_ranges set;
    void (*kept)(const char *condition, const char *file, int line) = mo_precondition_hook;
    assert_non_null(kept);
    assert_true(mo_ranges_init(&set));
    mo_precondition_hook = count_broken;
    (void)mo_ranges_insert(&set, 10, 10, NULL);
    assert_int_equal(broken, 0);
    (void)mo_ranges_insert(&set, 19, 5, NULL);
    assert_int_equal(broken, 1);
    mo_precondition_hook = kept;
    mo_ranges_fini(&set);
}
#endif

TEST(against_a_naive_model)
{
    mo_ranges set;
    int owner[UNITS] = {0}, next = 1;
    assert_true(mo_ranges_init(&set));
    for (int step = 0; step < STEPS; step++) {
        uint64_t start = random_below(&random_state, UNITS - 1),
                 size = 1 + random_below(&random_state, UNITS - start < 20 ? UNITS - start : 20);
        uint64_t owned = count_owned(owner, start, size);
        mo_range *overlap = mo_ranges_overlapping(&set, start, size);
        assert_true((overlap != NULL) == (owned != 0));
        assert_true(mo_ranges_cover(&set, start, size) == (owned == size));
        mo_range *found = mo_ranges_find(&set, start);
        int starts = owner[start] != 0 && (start == 0 || owner[start - 1] != owner[start]);
        assert_true((found != NULL) == starts);
        if (random_below(&random_state, 2) && owned == 0) {
            assert_true(mo_ranges_insert(&set, start, size, (void *)(intptr_t)next));
            for (uint64_t u = start; u < start + size; u++)
                owner[u] = next;
            next++;
        } else if (random_below(&random_state, 2) && found != NULL) {
            uint64_t end = found->start + found->size;
            mo_ranges_remove(&set, found);
            for (uint64_t u = start; u < end; u++)
                owner[u] = 0;
        } else if (random_below(&random_state, 2)) {
            mo_ranges_subtract(&set, start, size);
            for (uint64_t u = start; u < start + size; u++)
                owner[u] = 0;
            /* The upper part of a split range is a range of its own from now on. */
            int value = start + size < UNITS ? owner[start + size] : 0;
            if (value != 0 && start > 0 && owner[start - 1] == value) {
                mo_range *upper = mo_ranges_find(&set, start + size);
                assert_non_null(upper);
                upper->value = (void *)(intptr_t)next;
                for (uint64_t u = upper->start; u < upper->start + upper->size; u++)
                    owner[u] = next;
                next++;
            }
        }
        if (step % 16 == 0)
            check(&set, owner);
    }
    mo_ranges_fini(&set);
}
