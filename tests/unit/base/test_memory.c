/* The one place that allocates: accounting, the fault point, growth. */
#include "support/unit.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

TEST(blocks_are_counted)
{
    int64_t before = mo_memory_live_blocks();
    void *a = mo_malloc(10), *b = mo_calloc(3, 7);
    char *c = mo_strdup("text");
    assert_non_null(a);
    assert_non_null(b);
    assert_string_equal(c, "text");
    assert_int_equal(mo_memory_live_blocks(), before + 3);
    a = mo_realloc(a, 1000);
    assert_non_null(a);
    assert_int_equal(mo_memory_live_blocks(), before + 3);
    mo_free(a);
    mo_free(b);
    mo_free(c);
    mo_free(NULL);
    assert_int_equal(mo_memory_live_blocks(), before);
}

TEST(calloc_is_zero)
{
    unsigned char *zero = mo_calloc(100, 3);
    for (int i = 0; i < 300; i++)
        assert_int_equal(zero[i], 0);
    mo_free(zero);
}

TEST(empty_blocks_are_blocks)
{
    void *blocks[] = {mo_malloc(0), mo_calloc(0, 8), mo_realloc(NULL, 0)};
    for (int i = 0; i < 3; i++) {
        assert_non_null(blocks[i]);
        mo_free(blocks[i]);
    }
}

TEST(what_cannot_be_is_refused)
{
    int64_t before = mo_memory_live_blocks();
    char *kept = mo_strdup("kept");
    assert_null(mo_malloc(UINT64_MAX));
    assert_null(mo_calloc(UINT64_MAX / 2, 3)); /* the product overflows to something small */
    assert_null(mo_calloc(UINT64_C(1) << 33, UINT64_C(1) << 31));
    assert_null(mo_realloc(kept, UINT64_MAX));
    assert_string_equal(kept, "kept");
    mo_free(kept);
    assert_int_equal(mo_memory_live_blocks(), before);
    memopt_error_info info = {sizeof info, 0, 0, NULL, NULL};
    memopt_last_error_info(&info);
    assert_int_equal(info.status, MEMOPT_OUT_OF_HOST_MEMORY);
    assert_non_null(strstr(info.message, "18446744073709551615 bytes"));
}

TEST(the_nth_allocation_fails_once)
{
    for (int n = 1; n <= 5; n++) {
        mo_memory_fail_at(n);
        for (int i = 1; i <= 8; i++) {
            void *block = mo_malloc(8);
            assert_int_equal(block == NULL, i == n);
            assert_int_equal(mo_memory_fault_struck(), i >= n);
            mo_free(block);
        }
    }
    mo_memory_fail_at(3);
    mo_memory_fail_at(0);
    for (int i = 0; i < 5; i++) {
        void *block = mo_malloc(8);
        assert_non_null(block);
        mo_free(block);
    }
    assert_false(mo_memory_fault_struck());
}

/* Every way to allocate is a fault point, and a refused one leaves the old block alone. */
TEST(every_kind_can_fail)
{
    int64_t before = mo_memory_live_blocks();
    char *old = mo_strdup("old");
    mo_memory_fail_at(1);
    assert_null(mo_malloc(8));
    mo_memory_fail_at(1);
    assert_null(mo_calloc(1, 8));
    mo_memory_fail_at(1);
    assert_null(mo_strdup("text"));
    mo_memory_fail_at(1);
    assert_null(mo_realloc(old, 100));
    assert_string_equal(old, "old");
    mo_free(old);
    assert_int_equal(mo_memory_live_blocks(), before);
}

typedef struct list {
    uint32_t *items;
    uint64_t count, capacity;
} list;

/* Appends `wanted` numbers, or leaves the list with what fitted. */
static memopt_status append_numbers(list *to, uint32_t wanted)
{
    for (uint32_t i = 0; i < wanted; i++) {
        if (!mo_grow((void **)&to->items, &to->capacity, to->count + 1, sizeof *to->items))
            return MEMOPT_OUT_OF_HOST_MEMORY;
        to->items[to->count++] = i;
    }
    return MEMOPT_OK;
}

TEST(a_growing_array_survives_every_fault)
{
    int64_t before = mo_memory_live_blocks();
    int64_t n = 0;
    int struck;
    do {
        list numbers = {0};
        mo_memory_fail_at(++n);
        memopt_status status = append_numbers(&numbers, 1000);
        struck = mo_memory_fault_struck();
        assert_int_equal(status, struck ? MEMOPT_OUT_OF_HOST_MEMORY : MEMOPT_OK);
        assert_true(numbers.count <= numbers.capacity);
        mo_memory_fail_at(0);
        assert_int_equal(append_numbers(&numbers, 10), MEMOPT_OK);
        for (uint64_t i = 0; i < numbers.count - 10; i++)
            assert_int_equal(numbers.items[i], i);
        mo_free(numbers.items);
        assert_int_equal(mo_memory_live_blocks(), before);
    } while (struck);
    assert_in_range(n, 5, 40); /* growth is geometric, so there are few allocations */
}

TEST(growth_beyond_64_bits_is_refused)
{
    void *array = NULL;
    uint64_t capacity = 0;
    assert_false(mo_grow(&array, &capacity, UINT64_MAX / 2, 8));
    assert_null(array);
    assert_int_equal(capacity, 0);
    assert_true(mo_grow(&array, &capacity, 0, 8)); /* nothing needed, nothing done */
    assert_null(array);
}
