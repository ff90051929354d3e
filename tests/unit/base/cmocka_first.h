/* cmocka.h wants these four before it. */
#ifndef MO_TESTS_BASE_CMOCKA_FIRST_H
#define MO_TESTS_BASE_CMOCKA_FIRST_H

/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#endif
