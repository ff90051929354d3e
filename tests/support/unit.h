/*
 * A test stands where it is written: TEST(name) { ... }, or TEST_WITH(name, begin, end) { ... } with a
 * fixture in *state. The program runs its tests in the order of their lines; a program that has
 * something to do before them has its own main, which returns run_all_tests().
 */
#ifndef TEST_SUPPORT_UNIT_H
#define TEST_SUPPORT_UNIT_H

/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h> /* it wants those before it */
/* clang-format on */

typedef struct unit_test {
    struct CMUnitTest test;
    int line;
    struct unit_test *next;
} unit_test;

void add_test(unit_test *test);
/* begin and end: of all tests together, or NULL. Returns how many failed, or 1 where there is none. */
int run_all_tests(CMFixtureFunction begin, CMFixtureFunction end);
/* Those whose names begin so. */
int run_tests_named(const char *start, CMFixtureFunction begin, CMFixtureFunction end);

#define TEST_NAMED(told, name, begin, end, parameter)                                              \
    static void name(void **parameter);                                                            \
    __attribute__((constructor)) static void name##_is_a_test(void)                                \
    {                                                                                              \
        static unit_test test = {{told, name, begin, end, NULL}, __LINE__, NULL};                  \
        add_test(&test);                                                                           \
    }                                                                                              \
    static void name(void **parameter)
#define TEST_WITH(name, begin, end) TEST_NAMED(#name, name, begin, end, state)
#define TEST(name) TEST_NAMED(#name, name, NULL, NULL, no_fixture)

#endif
