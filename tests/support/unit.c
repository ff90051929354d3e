#include "support/unit.h"

static unit_test *first;

void add_test(unit_test *test)
{
    unit_test **at = &first;
    while (*at != NULL && (*at)->line < test->line)
        at = &(*at)->next;
    test->next = *at;
    *at = test;
}

int run_all_tests(CMFixtureFunction begin, CMFixtureFunction end)
{
    struct CMUnitTest tests[64];
    size_t count = 0;
    for (const unit_test *at = first; at != NULL && count < 64; at = at->next)
        tests[count++] = at->test;
    return _cmocka_run_group_tests("tests", tests, count, begin, end);
}
