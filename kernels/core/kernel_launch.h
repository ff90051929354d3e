/*
 * What a kernel is to the rest of the library.
 *
 * A kernel runs over `items` work items; an item is one thread block on a GPU and a few thousand
 * elements on a CPU. Items are independent: any order, any thread. The argument struct is plain
 * data (device pointers and numbers), at most MO_KERNEL_ARGS_MAX bytes, passed by value: on a GPU
 * it is the kernel's first parameter (see gpu.h), so its layout is the same on host and device
 * (fixed-width members only, 8-byte members first or padded by hand).
 *
 * A CPU form exists per instruction set. `scalar` is the specification and never NULL; the others
 * are its equals bit for bit, or NULL where the next lower one does as well. Each runs items
 * [begin, end).
 */
#ifndef MO_KERNELS_KERNEL_H
#define MO_KERNELS_KERNEL_H

#include <stdint.h>

enum { MO_KERNEL_ARGS_MAX = 4000 };

/* Threads of a kernel in which one does all the work: one warp of the widest kind. */
enum { MO_ONE_THREADS = 64 };

/* Each contains those before it. The forms of one are in the files whose names end in what follows
 * the colon; CMakeLists.txt has the compiler's flags, cpu_isa.c what a processor must have. */
typedef enum mo_isa {
    MO_ISA_SCALAR = 0,      /* what every processor of the architecture has: _ref */
    MO_ISA_AVX2 = 1,        /* with FMA, F16C and BMI2 (Haswell, Zen): _avx2 */
    MO_ISA_AVX512 = 2,      /* F, BW, DQ and VL (Skylake-X, Cascade Lake, Cooper Lake): _avx512 */
    MO_ISA_AVX512_VBMI = 3, /* (Ice Lake, Tiger Lake): _avx512vbmi */
    MO_ISA_AVX512_BF16 = 4, /* (Sapphire Rapids, Zen 4): _avx512bf16 */
    MO_ISA_COUNT = 5
} mo_isa;

/* Initialises mo_kernel.cpu: the scalar form and those for x86-64, lowest first. */
#if defined(__x86_64__)
#define MO_CPU_FORMS(scalar, ...)                                                                  \
    {                                                                                              \
        scalar, __VA_ARGS__                                                                        \
    }
#else
#define MO_CPU_FORMS(scalar, ...)                                                                  \
    {                                                                                              \
        scalar                                                                                     \
    }
#endif

typedef void (*mo_cpu_kernel)(const void *args, uint64_t begin, uint64_t end);

typedef struct mo_kernel {
    const char *name;                /* the symbol in the GPU modules */
    uint32_t args_size;              /* sizeof the argument struct */
    uint32_t threads;                /* of a GPU thread block, a multiple of 64 */
    mo_cpu_kernel cpu[MO_ISA_COUNT]; /* by instruction set */
    /* Elements that a launch works on, where items may be much smaller than a chunk: work that is
     * not worth a second thread. NULL: items are whole. */
    uint64_t (*elements)(const void *args);
} mo_kernel;

#endif
