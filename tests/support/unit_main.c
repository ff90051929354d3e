#include "support/unit.h"

/* Of programs without one: the linker takes it where nothing else is called so. */
int main(void)
{
    return run_all_tests(NULL, NULL);
}
