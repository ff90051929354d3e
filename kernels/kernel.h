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
 * are its equals bit for bit, or NULL where they would not pay. Each runs items [begin, end).
 */
#ifndef MO_KERNELS_KERNEL_H
#define MO_KERNELS_KERNEL_H

#include <stdint.h>

enum { MO_KERNEL_ARGS_MAX = 4000 };

/* Threads of a kernel in which one does all the work: one warp of the widest kind. */
enum { MO_ONE_THREADS = 64 };

typedef enum mo_isa {
    MO_ISA_SCALAR = 0,
    MO_ISA_AVX2 = 1,
    MO_ISA_AVX512 = 2,
    MO_ISA_COUNT = 3
} mo_isa;

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
