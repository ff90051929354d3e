#include "support/unit.h"

#include <string.h>

static unit_test *first;

void add_test(unit_test *test)
{
    unit_test **at = &first;
    while (*at != NULL && (*at)->line < test->line)
        at = &(*at)->next;
    test->next = *at;
    *at = test;
}

int run_tests_named(const char *start, CMFixtureFunction begin, CMFixtureFunction end)
{
    enum { MOST = 64 };
    struct CMUnitTest tests[MOST];
    size_t count = 0;
    for (const unit_test *at = first; at != NULL; at = at->next) {
        if (strncmp(at->test.name, start, strlen(start)) != 0)
            continue;
        if (count == MOST)
            return 1;
        tests[count++] = at->test;
    }
    return count == 0 ? 1 : _cmocka_run_group_tests("tests", tests, count, begin, end);
}

int run_all_tests(CMFixtureFunction begin, CMFixtureFunction end)
{
    return run_tests_named("", begin, end);
}
