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
#else
#include <stdint.h>
#endif
