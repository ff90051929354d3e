/*
 * MO_PRE(condition), at the head of a function whose comment says "Pre:".
 *
 * Builds with MEMOPT_TEST_HOOKS check the condition and pass a failure to the hook, which
 * tests/support sets to fail the test. Other builds compile to nothing.
 */
#ifndef MO_BASE_PRECONDITION_H
#define MO_BASE_PRECONDITION_H

#ifdef MEMOPT_TEST_HOOKS
/* NULL: failures are ignored. */
extern void (*mo_precondition_hook)(const char *condition, const char *file, int line);
#define MO_PRE(condition)                                                                          \
    ((condition) || mo_precondition_hook == NULL                                                   \
         ? (void)0                                                                                 \
         : mo_precondition_hook(#condition, __FILE__, __LINE__))
#else
#define MO_PRE(condition) ((void)sizeof(!(condition)))
#endif

#endif
