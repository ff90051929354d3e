/* The integer types for compilers that run without any header (NVRTC, hipRTC). Only the text for
 * them begins with this. Macros, since hipRTC has types of these names that may differ. */
#if defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__)
typedef unsigned char mo_rtc_uint8;
typedef unsigned short mo_rtc_uint16;
typedef unsigned int mo_rtc_uint32;
typedef unsigned long long mo_rtc_uint64;
typedef int mo_rtc_int32;
#define uint8_t mo_rtc_uint8
#define uint16_t mo_rtc_uint16
#define uint32_t mo_rtc_uint32
#define uint64_t mo_rtc_uint64
#define uintptr_t mo_rtc_uint64
#define int32_t mo_rtc_int32
#define UINT64_MAX 0xffffffffffffffffull
/* The keyword is new in CUDA 11.7 and refused below compute capability 7.0; it only saves
 * copies. */
#if !defined(__clang__) && defined(__CUDA_ARCH__) &&                                               \
    (__CUDA_ARCH__ < 700 || __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1107)
#undef __grid_constant__
#define __grid_constant__
#endif
#else
#include <stdint.h>
#endif
