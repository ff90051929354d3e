#ifndef TEST_SUPPORT_FLUSH_H
#define TEST_SUPPORT_FLUSH_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* The caller flushes subnormals to zero, as a framework may: that must change nothing. */
static inline void flush_subnormals(void)
{
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr | (uint64_t)1 << 24));
#endif
}

#endif
