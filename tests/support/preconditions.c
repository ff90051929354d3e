/* Every test program ends at once where the library breaks a precondition of its own. */
#include "base/precondition.h"

#ifdef MEMOPT_TEST_HOOKS
#include <stdio.h>
#include <stdlib.h>

static void broken(const char *condition, const char *file, int line)
{
    fprintf(stderr, "%s:%d: broken precondition: %s\n", file, line, condition);
    abort();
}

__attribute__((constructor)) void mo_test_preconditions(void);
void mo_test_preconditions(void)
{
    mo_precondition_hook = broken;
}
#endif
