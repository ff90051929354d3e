/*
 * The words of GPU kernels. A .cu file uses these and C++ without a library, and is compiled by
 * nvcc, NVRTC, clang (for both vendors, without any header of theirs), hipcc, hipRTC, and the host
 * compiler (MO_GPU_SIM, for the simulated drivers of the tests).
 *
 * A kernel is launched with one thread block per item and the number of threads of its mo_kernel, a
 * multiple of 64: whole warps in both widths. Its parameters are the argument struct and the first
 * item of the launch; item = first_item + mo_block().
 *
 * Lanes exchange values by mo_shuffle_xor_*, which every thread of a warp must reach. With a mask
 * below 32 a warp of 64 behaves like two of 32, so kernels whose order of additions is specified
 * use groups of MO_LANES threads whatever the width.
 */
#ifndef MO_KERNELS_GPU_H
#define MO_KERNELS_GPU_H

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

/* What the simulated drivers look a kernel up by. */
typedef struct mo_sim_kernel {
    const char *name;
    uint32_t args_size;
    void (*run)(const void *args, uint64_t first_item);
} mo_sim_kernel;

#define MO_DEVICE static inline
#define MO_GLOBAL(name, args_type, threads)                                                        \
    static void name(const args_type &args, uint64_t first_item);                                  \
    static void name##_run(const void *args, uint64_t first_item)                                  \
    {                                                                                              \
        name(*(const args_type *)args, first_item);                                                \
    }                                                                                              \
    static const mo_sim_kernel name##_sim = {#name, (uint32_t)sizeof(args_type), name##_run};      \
    static void name(const args_type &args, uint64_t first_item)
#define MO_SHARED(type, name) type &name = *(type *)mo_sim_shared(sizeof(type), #name)
#define MO_UNROLL

#define mo_thread() mo_sim_thread()
#define mo_block() mo_sim_block()
#define mo_threads() mo_sim_threads()
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

/* A vendor's headers, where they are there, have defined these. */
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

#define MO_DEVICE __attribute__((device)) static inline
#if defined(__HIP__)
#define MO_THREADS(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#else
#define MO_THREADS(threads) __attribute__((launch_bounds(threads)))
#endif
#define MO_GLOBAL(name, args_type, threads)                                                        \
    extern "C" __attribute__((global)) MO_THREADS(threads) void name(const args_type args,         \
                                                                     uint64_t first_item)
#define MO_SHARED(type, name) __attribute__((shared)) static type name
#define MO_UNROLL _Pragma("unroll")

#if defined(__HIP__)

MO_DEVICE uint32_t mo_thread(void)
{
    return __builtin_amdgcn_workitem_id_x();
}

MO_DEVICE uint32_t mo_block(void)
{
    return __builtin_amdgcn_workgroup_id_x();
}

MO_DEVICE uint32_t mo_threads(void)
{
    return __builtin_amdgcn_workgroup_size_x();
}

MO_DEVICE uint32_t mo_warp_size(void)
{
    return __builtin_amdgcn_wavefrontsize();
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

MO_DEVICE uint32_t mo_thread(void)
{
    return (uint32_t)__nvvm_read_ptx_sreg_tid_x();
}

MO_DEVICE uint32_t mo_block(void)
{
    return (uint32_t)__nvvm_read_ptx_sreg_ctaid_x();
}

MO_DEVICE uint32_t mo_threads(void)
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

#define MO_DEVICE __device__ static inline
#define MO_GLOBAL(name, args_type, threads)                                                        \
    extern "C" __global__ void __launch_bounds__(threads)                                          \
        name(const __grid_constant__ args_type args, uint64_t first_item)
#define MO_SHARED(type, name) __shared__ type name
#define MO_UNROLL _Pragma("unroll")

MO_DEVICE uint32_t mo_thread(void)
{
    return threadIdx.x;
}

MO_DEVICE uint32_t mo_block(void)
{
    return blockIdx.x;
}

MO_DEVICE uint32_t mo_threads(void)
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

#include "kernels/portable.h"

/* Ends one of two branches that differ only in a pointer: into the parameters, or into global
 * memory. Merged by the compiler, they would need the parameters copied to the stack. */
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

/* Several threads may set a flag at once; all write the same. */
MO_DEVICE void mo_flag_raise(float *flag)
{
#if defined(MO_GPU_SIM)
    __atomic_store_n((uint32_t *)(void *)flag, 0x3f800000u, __ATOMIC_RELAXED);
#else
    *(volatile float *)flag = 1.0f;
#endif
}

#endif
