/*
 * The names that GPU kernels use. A .cu file uses these and C++ without a library. It is compiled
 * by nvcc, NVRTC, clang (for both vendors, without any header of theirs), hipcc, hipRTC, and the
 * host compiler (MO_GPU_SIM, for the simulated drivers of the tests).
 *
 * A kernel is launched with one thread block per item and the number of threads of its mo_kernel, a
 * multiple of 64: whole warps in both widths. Its parameters are the argument struct and the first
 * item of the launch; item = first_item + mo_block_index().
 *
 * Lanes exchange values by mo_shuffle_xor_*, which every thread of a warp must reach. With a mask
 * below 32 a warp of 64 behaves like two of 32, so kernels whose order of additions is specified
 * use groups of MO_LANES threads whatever the width.
 */
#ifndef MO_KERNELS_CORE_GPU_COMPAT_H
#define MO_KERNELS_CORE_GPU_COMPAT_H

#if defined(MO_GPU_SIM)
/* ---------------------------------------------------------------------------------- the host -- */

#include <stdint.h>

extern "C" {
uint32_t mo_sim_thread(void);
uint32_t mo_sim_block(void);
uint32_t mo_sim_threads(void);
uint32_t mo_sim_warp_size(void);
void mo_sim_barrier(const char *file, int line);
uint64_t mo_sim_shuffle_xor(uint64_t bits, uint32_t mask, const char *file, int line);
void *mo_sim_shared(uint64_t size, const void *key);
}

/* The simulated drivers look a kernel up by this. */
typedef struct mo_sim_kernel {
    const char *name;
    uint32_t args_size;
    void (*run)(const void *args, uint64_t first_item);
} mo_sim_kernel;

#define MO_DEVICE static inline
#define MO_GLOBAL_ROOM(name, args_type, threads, blocks)                                           \
    static void name(const args_type &args, uint64_t first_item);                                  \
    static void name##_run(const void *args, uint64_t first_item)                                  \
    {                                                                                              \
        name(*(const args_type *)args, first_item);                                                \
    }                                                                                              \
    static const mo_sim_kernel name##_sim = {#name, (uint32_t)sizeof(args_type), name##_run};      \
    static void name(const args_type &args, uint64_t first_item)
#define MO_SHARED(type, name) type &name = *(type *)mo_sim_shared(sizeof(type), #name)
#define MO_UNROLL
#define MO_ROLLED

#define mo_thread_index() mo_sim_thread()
#define mo_block_index() mo_sim_block()
#define mo_block_threads() mo_sim_threads()
#define mo_warp_size() mo_sim_warp_size()
#define mo_barrier() mo_sim_barrier(__FILE__, __LINE__)
#define mo_shuffle_xor_u64(value, mask) mo_sim_shuffle_xor(value, mask, __FILE__, __LINE__)
#define mo_shuffle_xor_u32(value, mask) ((uint32_t)mo_shuffle_xor_u64(value, mask))
#define mo_shuffle_xor_f64(value, mask)                                                            \
    mo_f64_from_bits(mo_shuffle_xor_u64(mo_f64_bits(value), mask))

#elif defined(__clang__)
/* ----------------------------------------------------------------------- clang, both vendors -- */

#if !defined(__CUDACC_RTC__) && !defined(__HIPCC_RTC__)
#include <stdint.h>
#endif

/* A vendor's headers, if present, have defined these. */
#ifndef __global__
#define __global__ __attribute__((global))
#endif
#ifndef __device__
#define __device__ __attribute__((device))
#endif
#ifndef __shared__
#define __shared__ __attribute__((shared))
#endif
#ifndef __constant__
#define __constant__ __attribute__((constant))
#endif

#define MO_DEVICE __attribute__((device)) __attribute__((always_inline)) static inline
#if defined(__HIP__)
#define MO_BOUNDS(threads, blocks) __attribute__((amdgpu_flat_work_group_size(threads, threads)))
#else
/* Its order of instructions takes more registers than nvcc's: one block less, so that none spills. */
#define MO_BOUNDS(threads, blocks)                                                                 \
    __attribute__((launch_bounds(threads, (blocks) > 2 ? (blocks)-1 : (blocks))))
#endif
#define MO_GLOBAL_ROOM(name, args_type, threads, blocks)                                           \
    MO_LINKAGE(name)                                                                               \
    __attribute__((global)) MO_BOUNDS(threads, blocks) void name(const args_type args,             \
                                                                 uint64_t first_item)
#define MO_SHARED(type, name) __attribute__((shared)) static type name
#define MO_UNROLL _Pragma("unroll")
#define MO_ROLLED _Pragma("unroll 1")

#if defined(__HIP__)

MO_DEVICE uint32_t mo_thread_index(void)
{
    return __builtin_amdgcn_workitem_id_x();
}

MO_DEVICE uint32_t mo_block_index(void)
{
    return __builtin_amdgcn_workgroup_id_x();
}

MO_DEVICE uint32_t mo_block_threads(void)
{
    return __builtin_amdgcn_workgroup_size_x();
}

MO_DEVICE uint32_t mo_warp_size(void)
{
#if defined(__GFX9__)
    return 64; /* all that these have; as a constant it takes no scalar register */
#elif __has_builtin(__builtin_amdgcn_wavefrontsize)
    return __builtin_amdgcn_wavefrontsize();
#else /* clang 15 and 16: ROCm before 5.7 */
    return __AMDGCN_WAVEFRONT_SIZE;
#endif
}

MO_DEVICE void mo_barrier(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

MO_DEVICE uint32_t mo_shuffle_xor_u32(uint32_t value, uint32_t mask)
{
    uint32_t lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
    return (uint32_t)__builtin_amdgcn_ds_bpermute((int)((lane ^ mask) * 4), (int)value);
}

#else /* CUDA */

extern "C" __attribute__((device)) void mo_bar_sync(void) __asm__("llvm.nvvm.barrier0");

MO_DEVICE uint32_t mo_thread_index(void)
{
    return (uint32_t)__nvvm_read_ptx_sreg_tid_x();
}

MO_DEVICE uint32_t mo_block_index(void)
{
    return (uint32_t)__nvvm_read_ptx_sreg_ctaid_x();
}

MO_DEVICE uint32_t mo_block_threads(void)
{
    return (uint32_t)__nvvm_read_ptx_sreg_ntid_x();
}

MO_DEVICE uint32_t mo_warp_size(void)
{
    return 32;
}

MO_DEVICE void mo_barrier(void)
{
    mo_bar_sync();
}

MO_DEVICE uint32_t mo_shuffle_xor_u32(uint32_t value, uint32_t mask)
{
    return (uint32_t)__nvvm_shfl_sync_bfly_i32(0xffffffffu, (int)value, (int)mask, 0x1f);
}

#endif

MO_DEVICE uint64_t mo_shuffle_xor_u64(uint64_t value, uint32_t mask)
{
    uint32_t low = mo_shuffle_xor_u32((uint32_t)value, mask);
    uint32_t high = mo_shuffle_xor_u32((uint32_t)(value >> 32), mask);
    return (uint64_t)high << 32 | low;
}

#else
/* ---------------------------------------------------------------------------- nvcc and NVRTC -- */

#if !defined(__CUDACC_RTC__)
#include <stdint.h>
#endif

#define MO_DEVICE __device__ __attribute__((always_inline)) static inline
#define MO_GLOBAL_ROOM(name, args_type, threads, blocks)                                           \
    MO_LINKAGE(name)                                                                               \
    __global__ void __launch_bounds__(threads, blocks)                                             \
        name(const __grid_constant__ args_type args, uint64_t first_item)
#define MO_SHARED(type, name) __shared__ type name
#define MO_UNROLL _Pragma("unroll")
#define MO_ROLLED _Pragma("unroll 1")

MO_DEVICE uint32_t mo_thread_index(void)
{
    return threadIdx.x;
}

MO_DEVICE uint32_t mo_block_index(void)
{
    return blockIdx.x;
}

MO_DEVICE uint32_t mo_block_threads(void)
{
    return blockDim.x;
}

MO_DEVICE uint32_t mo_warp_size(void)
{
    return 32;
}

MO_DEVICE void mo_barrier(void)
{
    __syncthreads();
}

MO_DEVICE uint32_t mo_shuffle_xor_u32(uint32_t value, uint32_t mask)
{
    return __shfl_xor_sync(0xffffffffu, value, (int)mask);
}

MO_DEVICE uint64_t mo_shuffle_xor_u64(uint64_t value, uint32_t mask)
{
    return __shfl_xor_sync(0xffffffffu, (unsigned long long)value, (int)mask);
}

#endif

#include "kernels/core/host_device.h"

/* A value that all threads of a warp have and ask for: compilers keep it in a register that they share. */
MO_DEVICE uint32_t mo_shared_value(uint32_t value)
{
#if MO_NVCC_DEVICE
    return __shfl_sync(0xffffffffu, value, 0);
#elif defined(__HIP__)
    return (uint32_t)__builtin_amdgcn_readfirstlane((int)value);
#else
    return value;
#endif
}

/* The number of a thread's warp. */
MO_DEVICE uint32_t mo_warp_index(void)
{
    return mo_shared_value(mo_thread_index() / mo_warp_size());
}

/* With MO_ONLY, only the kernel `name` with MO_ONLY_name is compiled: one of these takes a compiler
 * seconds, all of them a minute. The others become templates, which nothing instantiates. */
#if defined(MO_ONLY)
#define MO_COMMA_1 ,
#define MO_THIRD(a, b, third, ...) third
#define MO_PICK(comma) MO_THIRD(comma, extern "C", template <int>, )
#define MO_IS_ONE(value) MO_PICK(MO_COMMA_##value)
#define MO_LINKAGE_OF(value) MO_IS_ONE(value)
#define MO_LINKAGE(name) MO_LINKAGE_OF(MO_ONLY_##name)
#else
#define MO_LINKAGE(name) extern "C"
#endif

/* A kernel. The compiler may use as many registers as leave room for `blocks` blocks on one of
 * NVIDIA's multiprocessors. By default it spills before it uses more than 64. */
#define MO_GLOBAL(name, args_type, threads)                                                        \
    MO_GLOBAL_ROOM(name, args_type, threads, 1024 / (threads))

/* Ends one of two branches that the compiler must not merge: that differ only in a pointer, into
 * the parameters or into global memory (merged, they would need the parameters copied to the
 * stack), or in how a pack travels. */
#if defined(MO_GPU_SIM)
#define MO_APART (void)0
#else
#define MO_APART asm volatile("")
#endif

#if !defined(MO_GPU_SIM)
MO_DEVICE double mo_shuffle_xor_f64(double value, uint32_t mask)
{
    return mo_f64_from_bits(mo_shuffle_xor_u64(mo_f64_bits(value), mask));
}
#endif

enum { MO_LANES = 32 };

/* Whether a condition holds in all threads of a group, which must all ask. */
MO_DEVICE uint32_t mo_group_all(uint32_t condition)
{
#if defined(MO_GPU_SIM)
    for (uint32_t mask = MO_LANES / 2; mask > 0; mask /= 2)
        condition &= mo_shuffle_xor_u32(condition, mask);
    return condition;
#elif MO_NVCC_DEVICE
    return (uint32_t)__all_sync(0xffffffffu, (int)condition);
#elif defined(__HIP__)
    uint64_t others = __builtin_amdgcn_uicmp(condition, 0u, 32); /* a bit for each that has 0 */
    uint32_t second = mo_thread_index() % mo_warp_size() / MO_LANES;
    return (second ? (uint32_t)(others >> 32) : (uint32_t)others) == 0;
#else
    return (uint32_t)__nvvm_vote_all_sync(0xffffffffu, condition != 0);
#endif
}

/* A condition that is rarely true: its branch is moved away. */
#define MO_RARE(condition) __builtin_expect(!!(condition), 0)

/* --- what compilers must not rearrange
 * ------------------------------------------------------------
 *
 * They would distribute a product over the sum or xor before it, compare the parts of a word for
 * the word, and merge shifts and masks with the shift of an address: all of it more instructions.
 */

MO_DEVICE uint32_t mo_kept(uint32_t value)
{
#if defined(__CUDA_ARCH__)
    asm("" : "+r"(value));
#elif defined(__HIP_DEVICE_COMPILE__)
    asm("" : "+v"(value));
#endif
    return value;
}

MO_DEVICE int32_t mo_shift_right(int32_t value, int by)
{
#if defined(__CUDA_ARCH__)
    int32_t result;
    asm("shr.s32 %0, %1, %2;" : "=r"(result) : "r"(value), "r"(by));
    return result;
#else
    return value >> by;
#endif
}

/* A byte, counted from the lowest. */
MO_DEVICE uint32_t mo_byte_of(uint32_t word, int byte)
{
#if defined(__CUDA_ARCH__)
    uint32_t result;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(result) : "r"(word), "r"(0x4440 + byte));
    return result;
#else
    return word >> 8 * byte & 0xffu;
#endif
}

/* Its byte times a unit below 256: a place in a table. */
MO_DEVICE uint32_t mo_byte_times(uint32_t word, int byte, uint32_t unit)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 610
    uint32_t result;
    asm("dp4a.u32.u32 %0, %1, %2, 0;" : "=r"(result) : "r"(word), "r"(unit << 8 * byte));
    return result;
#else
    return mo_byte_of(word, byte) * unit;
#endif
}

/* The same of its lower half and its upper one, plus `from`. */
MO_DEVICE uint32_t mo_half_times(uint32_t word, int half, uint32_t unit, uint32_t from)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 610
    uint32_t result;
    asm("dp2a.lo.u32.u32 %0, %1, %2, %3;"
        : "=r"(result)
        : "r"(word), "r"(unit << 8 * half), "r"(from));
    return result;
#else
    return (word >> 16 * half & 0xffffu) * unit + from;
#endif
}

/* The upper halves of two words, the first one lower. */
MO_DEVICE uint32_t mo_upper_halves(uint32_t low, uint32_t high)
{
#if defined(__CUDA_ARCH__)
    uint32_t result;
    asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(result) : "r"(low), "r"(high));
    return result;
#else
    return low >> 16 | (high & 0xffff0000u);
#endif
}

/* --- approximations
 * --------------------------------------------------------------------------------
 *
 * At most 2^-22 of the result off, where it and the operand are normal numbers. Each processor has
 * its own, so no bit of what is stored may depend on which it is. */
MO_DEVICE float mo_reciprocal_near(float value)
{
#if defined(MO_GPU_SIM)
    return 1.0f / value;
#elif defined(__HIP__)
    return __builtin_amdgcn_rcpf(value);
#else
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
#endif
}

MO_DEVICE float mo_sqrtf_near(float value)
{
#if defined(MO_GPU_SIM)
    return value < 0x1p-126f ? 0.0f : mo_sqrtf(value); /* not normal: 0, as some processors do */
#elif defined(__HIP__)
    return __builtin_amdgcn_sqrtf(value);
#else
    float result;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
#endif
}

/* 1 / sqrt(value). */
MO_DEVICE float mo_root_reciprocal_near(float value)
{
#if MO_NVCC_DEVICE
    float result;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
#else
    return 1.0f / mo_sqrtf(value);
#endif
}

/* 1 / value, correctly rounded, from 2^-100 to 2^100: two corrections of an approximation that may
 * be several steps off. One significand, of ones only, ends half way between two numbers, of which
 * the upper one is right.
 * tests/kernels_build/test_step_codes.cc tries every significand. */
MO_DEVICE float mo_reciprocal_from(float value, float near)
{
    float error = mo_fmaf(-value, near, 1.0f);
    near = mo_fmaf(near, error, near);
    error = mo_fmaf(-value, near, 1.0f);
    float exact = mo_fmaf(near, error, near);
    return error < 0x1p-24f ? exact : mo_f32_from_bits(mo_f32_bits(near) + 1);
}

/* NVIDIA's approximation is so near that one correction does, as in its own rcp.rn. */
MO_DEVICE float mo_reciprocal(float value)
{
    float near = mo_reciprocal_near(value);
#if MO_NVCC_DEVICE
    return mo_fmaf(near, mo_fmaf(-value, near, 1.0f), near);
#else
    return mo_reciprocal_from(value, near);
#endif
}

/* --- two numbers at once, in one instruction where a processor has it ------------------------ */

typedef struct mo_two {
    float of[2];
} mo_two;

MO_DEVICE mo_two mo_both(float value)
{
    mo_two two = {{value, value}};
    return two;
}

MO_DEVICE mo_two mo_two_of(const float values[2])
{
    mo_two two = {{values[0], values[1]}};
    return two;
}

/* a * b + c, rounded once. */
MO_DEVICE mo_two mo_fma2(mo_two a, mo_two b, mo_two c)
{
    mo_two d;
#if MO_NVCC_DEVICE && __CUDA_ARCH__ >= 1000
    asm("{.reg .b64 a, b, c; mov.b64 a, {%2, %3}; mov.b64 b, {%4, %5}; mov.b64 c, {%6, %7}; "
        "fma.rn.f32x2 a, a, b, c; mov.b64 {%0, %1}, a;}"
        : "=f"(d.of[0]), "=f"(d.of[1])
        : "f"(a.of[0]), "f"(a.of[1]), "f"(b.of[0]), "f"(b.of[1]), "f"(c.of[0]), "f"(c.of[1]));
#else
    MO_UNROLL
    for (int k = 0; k < 2; k++)
        d.of[k] = mo_fmaf(a.of[k], b.of[k], c.of[k]);
#endif
    return d;
}

MO_DEVICE mo_two mo_mul2(mo_two a, mo_two b)
{
    mo_two d;
#if MO_NVCC_DEVICE && __CUDA_ARCH__ >= 1000
    asm("{.reg .b64 a, b; mov.b64 a, {%2, %3}; mov.b64 b, {%4, %5}; mul.rn.f32x2 a, a, b; "
        "mov.b64 {%0, %1}, a;}"
        : "=f"(d.of[0]), "=f"(d.of[1])
        : "f"(a.of[0]), "f"(a.of[1]), "f"(b.of[0]), "f"(b.of[1]));
#else
    MO_UNROLL
    for (int k = 0; k < 2; k++)
        d.of[k] = a.of[k] * b.of[k];
#endif
    return d;
}

/* Eight numbers times one. */
MO_DEVICE void mo_mul8(const float values[8], float by, float products[8])
{
    MO_UNROLL
    for (int k = 0; k < 8; k += 2) {
        mo_two two = mo_mul2(mo_two_of(values + k), mo_both(by));
        products[k] = two.of[0];
        products[k + 1] = two.of[1];
    }
}

/* --- global memory -------------------------------------------------------------------------------
 *
 * mo_load_words and mo_store_words move 1, 2 or 4 words (the address is a multiple of their bytes)
 * in one instruction, mo_load_as and mo_store_as one number. Data in tensors and tables is accessed
 * by these or MO_AT. Streaming ones are for data that is not used again soon; they do not fill the
 * caches. */

template <int WORDS> struct alignas(WORDS * 4) mo_words {
    uint32_t of[WORDS];
};

template <class T> MO_DEVICE T mo_load_as(const void *at)
{
    return MO_AT(const T, at);
}

template <class T> MO_DEVICE void mo_store_as(void *at, T value)
{
    MO_AT(T, at) = value;
}

#if defined(MO_GPU_SIM)

template <int WORDS, int STREAMING> MO_DEVICE mo_words<WORDS> mo_load_words(const void *at)
{
    return *(const mo_words<WORDS> *)at;
}

template <int WORDS, int STREAMING> MO_DEVICE void mo_store_words(void *at, mo_words<WORDS> words)
{
    *(mo_words<WORDS> *)at = words;
}

#elif defined(__clang__)

template <int WORDS> struct mo_register;
template <> struct mo_register<1> {
    typedef uint32_t type;
};
template <> struct mo_register<2> {
    typedef uint32_t type __attribute__((ext_vector_type(2)));
};
template <> struct mo_register<4> {
    typedef uint32_t type __attribute__((ext_vector_type(4)));
};

template <int WORDS, int STREAMING> MO_DEVICE mo_words<WORDS> mo_load_words(const void *at)
{
    typedef typename mo_register<WORDS>::type reg;
    const MO_IN_GLOBAL reg *from = (const MO_IN_GLOBAL reg *)at;
    reg value = STREAMING ? __builtin_nontemporal_load(from) : *from;
    mo_words<WORDS> words;
    __builtin_memcpy(&words, &value, sizeof words);
    return words;
}

template <int WORDS, int STREAMING> MO_DEVICE void mo_store_words(void *at, mo_words<WORDS> words)
{
    typedef typename mo_register<WORDS>::type reg;
    MO_IN_GLOBAL reg *to = (MO_IN_GLOBAL reg *)at;
    reg value;
    __builtin_memcpy(&value, &words, sizeof value);
    if (STREAMING)
        __builtin_nontemporal_store(value, to);
    else
        *to = value;
}

#else /* nvcc and NVRTC */

MO_DEVICE void mo_stream_in(const void *at, mo_words<1> *words)
{
    words->of[0] = __ldcs((const unsigned int *)at);
}

MO_DEVICE void mo_stream_in(const void *at, mo_words<2> *words)
{
    uint2 value = __ldcs((const uint2 *)at);
    words->of[0] = value.x;
    words->of[1] = value.y;
}

MO_DEVICE void mo_stream_in(const void *at, mo_words<4> *words)
{
    uint4 value = __ldcs((const uint4 *)at);
    words->of[0] = value.x;
    words->of[1] = value.y;
    words->of[2] = value.z;
    words->of[3] = value.w;
}

MO_DEVICE void mo_stream_out(void *at, const mo_words<1> *words)
{
    __stcs((unsigned int *)at, words->of[0]);
}

MO_DEVICE void mo_stream_out(void *at, const mo_words<2> *words)
{
    __stcs((uint2 *)at, make_uint2(words->of[0], words->of[1]));
}

MO_DEVICE void mo_stream_out(void *at, const mo_words<4> *words)
{
    __stcs((uint4 *)at, make_uint4(words->of[0], words->of[1], words->of[2], words->of[3]));
}

template <int WORDS, int STREAMING> MO_DEVICE mo_words<WORDS> mo_load_words(const void *at)
{
    mo_words<WORDS> words;
    if (STREAMING)
        mo_stream_in(at, &words);
    else
        words = MO_AT(const mo_words<WORDS>, at);
    return words;
}

template <int WORDS, int STREAMING> MO_DEVICE void mo_store_words(void *at, mo_words<WORDS> words)
{
    if (STREAMING)
        mo_stream_out(at, &words);
    else
        MO_AT(mo_words<WORDS>, at) = words;
}

#endif

/* Several threads may set a flag at once; all write the same. */
MO_DEVICE void mo_flag_raise(float *flag)
{
#if defined(MO_GPU_SIM)
    __atomic_store_n((uint32_t *)(void *)flag, 0x3f800000u, __ATOMIC_RELAXED);
#else
    MO_AT(volatile float, flag) = 1.0f;
#endif
}

/* Raises a word in global memory that other threads raise too. */
MO_DEVICE void mo_cell_raise(uint32_t *cell, uint32_t value)
{
#if defined(__CUDA_ARCH__)
    asm volatile("red.global.max.u32 [%0], %1;" ::"l"(cell), "r"(value) : "memory");
#else
#if defined(MO_GPU_SIM)
    uint32_t *at = cell;
#else
    MO_IN_GLOBAL uint32_t *at = (MO_IN_GLOBAL uint32_t *)cell;
#endif
    uint32_t seen = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (seen < value &&
           !__atomic_compare_exchange_n(at, &seen, value, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
#endif
}

#endif
