/*
 * What a kernel is to the rest of the library, and how one launch runs over many tensors.
 *
 * A kernel runs over `items` work items; an item is one thread block on a GPU and a few thousand
 * elements on a CPU. Items are independent: any order, any thread. The argument struct is plain
 * data (device pointers and numbers), at most MO_KERNEL_ARGS_MAX bytes, passed by value: on a GPU
 * it is the kernel's first parameter (gpu_compat.h), so its layout is the same on host and device
 * (fixed-width members only, 8-byte members first or padded by hand).
 *
 * A CPU form exists per instruction set. `scalar` is the specification and never NULL; the others
 * are its equals bit for bit, or NULL if the next lower one is as fast. Each runs items [begin,
 * end).
 */
#ifndef MO_KERNELS_CORE_KERNEL_LAUNCH_H
#define MO_KERNELS_CORE_KERNEL_LAUNCH_H

#include "kernels/core/numerics.h"

enum { MO_KERNEL_ARGS_MAX = 4000 };

/* Threads of a kernel in which one does all the work: one warp of the widest kind. */
enum { MO_ONE_THREADS = 64 };

/* Each contains those before it. The forms of one are in the files whose names end in what follows
 * the colon; CMakeLists.txt has the compiler's flags, lib/device/cpu/isa.c what a processor needs.
 */
typedef enum mo_isa {
    MO_ISA_SCALAR = 0, /* plain C: _ref */
#if defined(__aarch64__)
    MO_ISA_NEON = 1, /* what every AArch64 processor has: _neon */
    MO_ISA_COUNT = 2
#else
    MO_ISA_AVX2 = 1,        /* with FMA, F16C and BMI2 (Haswell, Zen): _avx2 */
    MO_ISA_AVX512 = 2,      /* F, BW, DQ and VL (Skylake-X, Cascade Lake, Cooper Lake): _avx512 */
    MO_ISA_AVX512_VBMI = 3, /* (Ice Lake, Tiger Lake): _avx512vbmi */
    MO_ISA_AVX512_BF16 = 4, /* (Sapphire Rapids, Zen 4): _avx512bf16 */
    MO_ISA_COUNT = 5
#endif
} mo_isa;

/* Initialises mo_kernel.cpu: the scalar form, NEON's, and those for x86-64, lowest first, as far as
 * the build has them (MEMOPT_CPU_FORMS). */
#define MO_FIRST(avx2, ...) avx2
#if defined(MO_CPU_FORMS_NONE)
#define MO_CPU_FORMS(scalar, neon, ...)                                                            \
    {                                                                                              \
        scalar                                                                                     \
    }
#elif defined(__x86_64__) && defined(MO_CPU_FORMS_FEW)
#define MO_CPU_FORMS(scalar, neon, ...)                                                            \
    {                                                                                              \
        scalar, MO_FIRST(__VA_ARGS__, 0)                                                           \
    }
#elif defined(__x86_64__)
#define MO_CPU_FORMS(scalar, neon, ...)                                                            \
    {                                                                                              \
        scalar, __VA_ARGS__                                                                        \
    }
#elif defined(__aarch64__)
#define MO_CPU_FORMS(scalar, neon, ...)                                                            \
    {                                                                                              \
        scalar, neon                                                                               \
    }
#else
#define MO_CPU_FORMS(scalar, neon, ...)                                                            \
    {                                                                                              \
        scalar                                                                                     \
    }
#endif

/* A form that a lower one stands for where compiling must be quick (tools/single_file). */
#if defined(MO_CPU_FORMS_MOST)
#define MO_MORE(form) NULL
#else
#define MO_MORE(form) form
#endif

typedef void (*mo_cpu_kernel)(const void *args, uint64_t begin, uint64_t end);

typedef struct mo_kernel {
    const char *name;                /* the symbol in the GPU modules */
    uint32_t args_size;              /* sizeof the argument struct */
    uint32_t threads;                /* of a GPU thread block, a multiple of 64 */
    mo_cpu_kernel cpu[MO_ISA_COUNT]; /* by instruction set */
    /* The elements of a launch whose items may be much smaller than a chunk, so that small work
     * uses one thread. NULL: items are whole. */
    uint64_t (*elements)(const void *args);
    /* The same kernel for tensors of a class of types alone (mo_step_types from 1 on), MO_TYPED of
     * them, or NULL. A run-time compiler makes it of less text, by the option `types`; images have
     * the one for all types, which it then is. */
    const struct mo_kernel *typed;
    const char *types;
} mo_kernel;

enum { MO_TYPED = 3 };

/* --- many tensors in one launch ------------------------------------------------------------------
 *
 * Each tensor (a tensor segment) is cut into chunks of MO_CHUNK_ELEMENTS, the last one shorter; a
 * work item is a chunk. Items are numbered through all tensors: `first_chunk` of a segment is the
 * sum of the chunks of those before it, so a large tensor costs one entry like a small one. The
 * item finds its segment by bisection. Segments lie in the argument struct, or in a table in device
 * memory that is made once and used by many launches. The caller leaves out tensors of no elements.
 */

enum { MO_CHUNK_ELEMENTS = 16384 };

MO_HD static inline uint64_t mo_chunks_of(uint64_t elements)
{
    return elements / MO_CHUNK_ELEMENTS + (elements % MO_CHUNK_ELEMENTS != 0);
}

/* The index of the segment that chunk `item` belongs to. `first_chunks` points at the member of
 * segment 0; the others follow at `stride` bytes. count > 0. */
MO_HD static inline uint32_t mo_chunk_segment(const uint64_t *first_chunks, uint32_t stride,
                                              uint32_t count, uint64_t item)
{
    const unsigned char *base = (const unsigned char *)(const void *)first_chunks;
    uint32_t low = 0, high = count; /* the segment is in [low, high) */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        const void *at = base + (uint64_t)middle * stride;
        if (*(const uint64_t *)at <= item)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Elements of chunk number `chunk` of a segment of `count` elements. */
MO_HD static inline uint64_t mo_chunk_length(uint64_t count, uint64_t chunk)
{
    uint64_t rest = count - chunk * MO_CHUNK_ELEMENTS;
    return rest < MO_CHUNK_ELEMENTS ? rest : (uint64_t)MO_CHUNK_ELEMENTS;
}

/* A tensor of f32, f16 or bf16. */
typedef struct mo_tensor_segment {
    void *data; /* const for reductions */
    uint64_t count;
    uint64_t first_chunk;
    uint32_t dtype;
    uint32_t number; /* of the tensor, to kernels that have more to know about it */
} mo_tensor_segment;

/* What mo_kernel's `elements` tells of segments. */
MO_HD static inline uint64_t mo_tensor_segments_elements(const mo_tensor_segment *segments,
                                                         uint32_t count)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < count; i++)
        elements += segments[i].count;
    return elements;
}

/* What one item works on. */
typedef struct mo_tensor_chunk {
    unsigned char *data;
    uint64_t count; /* elements, at most MO_CHUNK_ELEMENTS */
    uint32_t dtype;
} mo_tensor_chunk;

MO_HD static inline void mo_tensor_chunk_of(const mo_tensor_segment *segments, uint32_t count,
                                            uint64_t item, mo_tensor_chunk *out)
{
    uint32_t s = mo_chunk_segment(&segments[0].first_chunk, sizeof *segments, count, item);
    uint64_t chunk = item - segments[s].first_chunk;
    uint32_t dtype = segments[s].dtype;
    out->data =
        (unsigned char *)segments[s].data + chunk * MO_CHUNK_ELEMENTS * mo_element_size(dtype);
    out->count = mo_chunk_length(segments[s].count, chunk);
    out->dtype = dtype;
}

#endif
