/* Version, status names, element types. */
#include "base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void version_is_the_headers(void **state)
{
    (void)state;
    assert_int_equal(memopt_version(), MEMOPT_VERSION);
    assert_string_equal(memopt_version_string(), "1.0.0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_is_the_headers),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
