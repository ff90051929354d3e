/*
 * Vectors that a thread reads and writes on a condition, without a branch on NVIDIA: before a branch
 * a compiler does not move loads up, and what only a branch needs it computes there.
 */
#ifndef MO_KERNELS_CORE_GPU_AHEAD_H
#define MO_KERNELS_CORE_GPU_AHEAD_H

#include "kernels/core/gpu_compat.h"

/* `bytes` further in each half of a warp of 64. */
MO_DEVICE uint32_t mo_ahead(uint32_t bytes)
{
    return bytes * (mo_warp_size() / MO_LANES);
}

/* Reads what lies so many bytes ahead, if there is `more`. As a branch, the loads would move down to
 * where they are needed. */
template <int WORDS, int BYTES>
MO_DEVICE void mo_read_ahead(uint32_t more, const unsigned char *at, uint32_t *to)
{
    enum { PART = WORDS < 4 ? WORDS : 4 };
    MO_UNROLL
    for (int w = 0; w < WORDS; w += PART) {
#if MO_NVCC_DEVICE
        uint32_t *part = to + w;
        if (PART == 1)
            asm volatile("{.reg .pred %%more; setp.ne.u32 %%more, %2, 0; "
                         "@%%more ld.global.u32 %0, [%1+%3];}"
                         : "+r"(part[0])
                         : "l"(at), "r"(more), "n"(BYTES));
        else if (PART == 2)
            asm volatile("{.reg .pred %%more; setp.ne.u32 %%more, %3, 0; "
                         "@%%more ld.global.v2.u32 {%0, %1}, [%2+%4];}"
                         : "+r"(part[0]), "+r"(part[PART / 2])
                         : "l"(at), "r"(more), "n"(BYTES));
        else
            asm volatile("{.reg .pred %%more; setp.ne.u32 %%more, %5, 0; "
                         "@%%more ld.global.v4.u32 {%0, %1, %2, %3}, [%4+%6];}"
                         : "+r"(part[0]), "+r"(part[PART / 4]), "+r"(part[PART / 2]),
                           "+r"(part[PART - 1])
                         : "l"(at + 4 * w), "r"(more), "n"(BYTES));
#else
        if (more) {
            mo_words<PART> raw = mo_load_words<PART, 0>(at + mo_ahead(BYTES) + 4 * w);
            MO_UNROLL
            for (int k = 0; k < PART; k++)
                to[w + k] = raw.of[k];
        }
#endif
    }
}

/* Writes there, if there is `more`. In these words too, for else a compiler moves two pointers, of
 * which one is known to be global. */
template <int WORDS, int BYTES>
MO_DEVICE void mo_write_ahead(uint32_t more, unsigned char *at, const uint32_t *from)
{
    enum { PART = WORDS < 4 ? WORDS : 4 };
    MO_UNROLL
    for (int w = 0; w < WORDS; w += PART) {
        const uint32_t *part = from + w;
#if MO_NVCC_DEVICE
        if (PART == 1)
            asm volatile("{.reg .pred %%more; setp.ne.u32 %%more, %3, 0; "
                         "@%%more st.global.u32 [%0+%1], %2;}" ::"l"(at),
                         "n"(BYTES), "r"(part[0]), "r"(more)
                         : "memory");
        else if (PART == 2)
            asm volatile("{.reg .pred %%more; setp.ne.u32 %%more, %4, 0; "
                         "@%%more st.global.v2.u32 [%0+%1], {%2, %3};}" ::"l"(at),
                         "n"(BYTES), "r"(part[0]), "r"(part[PART / 2]), "r"(more)
                         : "memory");
        else
            asm volatile("{.reg .pred %%more; setp.ne.u32 %%more, %6, 0; "
                         "@%%more st.global.v4.u32 [%0+%1], {%2, %3, %4, %5};}" ::"l"(at + 4 * w),
                         "n"(BYTES), "r"(part[0]), "r"(part[PART / 4]), "r"(part[PART / 2]),
                         "r"(part[PART - 1]), "r"(more)
                         : "memory");
#else
        if (more) {
            mo_words<PART> raw;
            MO_UNROLL
            for (int k = 0; k < PART; k++)
                raw.of[k] = part[k];
            mo_store_words<PART, 0>(at + mo_ahead(BYTES) + 4 * w, raw);
        }
#endif
    }
}

#endif
