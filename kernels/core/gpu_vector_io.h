/*
 * Packs: N (4 or 8) consecutive elements of a tensor in the registers of one GPU thread.
 *
 * A whole pack whose tensor is aligned to the pack's bytes (at most 16) travels in vectors of up to
 * 16 bytes; others by element. Pack i holds elements N * i .. N * i + N - 1 of a piece. STREAMING
 * is that of gpu_compat.h.
 */
#ifndef MO_KERNELS_CORE_GPU_VECTOR_IO_H
#define MO_KERNELS_CORE_GPU_VECTOR_IO_H

#include "kernels/core/gpu_compat.h"

#include "kernels/core/kernel_launch.h"
#include "kernels/core/numerics.h"

MO_DEVICE int mo_aligned_to(const void *data, uint32_t bytes)
{
    return ((uintptr_t)data & (bytes - 1)) == 0;
}

/* True if packs of N elements of this tensor may travel as vectors. */
template <int N> MO_DEVICE int mo_pack_aligned(const void *data, uint32_t dtype)
{
    uint32_t bytes = N * mo_element_size(dtype);
    return mo_aligned_to(data, bytes < 16 ? bytes : 16);
}

/* --- one element ----------------------------------------------------------------------------- */

template <int LEAST = 1>
MO_DEVICE uint32_t mo_read_code(const void *data, uint64_t i, uint32_t size)
{
    const unsigned char *at = (const unsigned char *)data + i * size;
    if (size == 4)
        return mo_load_as<uint32_t>(at);
    return LEAST == 2 || size == 2 ? mo_load_as<uint16_t>(at) : mo_load_as<uint8_t>(at);
}

template <int LEAST = 1>
MO_DEVICE void mo_write_code(void *data, uint64_t i, uint32_t size, uint32_t code)
{
    unsigned char *at = (unsigned char *)data + i * size;
    if (size == 4)
        mo_store_as<uint32_t>(at, code);
    else if (LEAST == 2 || size == 2)
        mo_store_as<uint16_t>(at, (uint16_t)code);
    else
        mo_store_as<uint8_t>(at, (uint8_t)code);
}

/* Elements that do not travel in vectors go through a loop: few do, and unrolled for each type they
 * are most of a kernel's code. Registers have no index, so all move on by one. */
template <int N> MO_DEVICE void mo_shift_in(uint32_t codes[N], uint32_t last)
{
    MO_UNROLL
    for (int k = 0; k + 1 < N; k++)
        codes[k] = codes[k + 1];
    codes[N - 1] = last;
}

/* --- packs of codes: the bits of the elements ------------------------------------------------ */

/* The words of a pack; a pack of more than 16 bytes is two vectors. */
template <int N, int SIZE, int STREAMING>
MO_DEVICE void mo_read_vector(const unsigned char *at, uint32_t codes[N])
{
    enum { WORDS = N * SIZE / 4, PART = WORDS < 4 ? WORDS : 4 };
    uint32_t words[WORDS];
    MO_UNROLL
    for (int w = 0; w < WORDS; w += PART) {
        mo_words<PART> raw = mo_load_words<PART, STREAMING>(at + 4 * w);
        MO_UNROLL
        for (int k = 0; k < PART; k++)
            words[w + k] = raw.of[k];
    }
    MO_UNROLL
    for (int k = 0; k < N; k++) {
        uint32_t word = words[k * SIZE / 4];
        codes[k] = SIZE == 4   ? word
                   : SIZE == 2 ? (word >> (k % 2 * 16) & 0xffffu)
                               : mo_byte_of(word, k % 4);
    }
}

template <int N, int SIZE, int STREAMING>
MO_DEVICE void mo_write_vector(unsigned char *at, const uint32_t codes[N])
{
    enum { WORDS = N * SIZE / 4, PART = WORDS < 4 ? WORDS : 4 };
    MO_UNROLL
    for (int w = 0; w < WORDS; w += PART) {
        mo_words<PART> raw;
        MO_UNROLL
        for (int k = 0; k < PART; k++) {
            const uint32_t *c = &codes[(w + k) * 4 / SIZE];
            raw.of[k] = SIZE == 4   ? c[0]
                        : SIZE == 2 ? (c[0] | c[1] << 16)
                                    : (c[0] | c[1] << 8 | c[2] << 16 | c[3] << 24);
        }
        mo_store_words<PART, STREAMING>(at + 4 * w, raw);
    }
}

/* MO_APART: some compilers merge these with the elements' loads and stores and so split the
 * vectors. */

/* Reads the pack that starts at element `first`; `rest` elements (at most N) exist, the others
 * become 0. LEAST: the smallest size that may occur, for there is code for each. */
template <int N, int STREAMING = 0, int LEAST = 1, class INDEX>
MO_DEVICE void mo_read_pack(const void *data, INDEX first, uint32_t rest, uint32_t size,
                            int aligned, uint32_t codes[N])
{
    const unsigned char *at = (const unsigned char *)data + (uint64_t)first * size;
    if (aligned && rest == N) {
        if (size == 4)
            mo_read_vector<N, 4, STREAMING>(at, codes);
        else if (LEAST == 2 || size == 2)
            mo_read_vector<N, 2, STREAMING>(at, codes);
        else
            mo_read_vector<N, 1, STREAMING>(at, codes);
        MO_APART;
        return;
    }
    MO_UNROLL
    for (int k = 0; k < N; k++)
        codes[k] = 0;
    MO_ROLLED
    for (uint32_t i = 0; i < N; i++)
        mo_shift_in<N>(codes, i < rest ? mo_read_code<LEAST>(at, i, size) : 0);
}

template <int N, int STREAMING = 0, int LEAST = 1, class INDEX>
MO_DEVICE void mo_write_pack(void *data, INDEX first, uint32_t rest, uint32_t size, int aligned,
                             const uint32_t codes[N])
{
    unsigned char *at = (unsigned char *)data + (uint64_t)first * size;
    if (aligned && rest == N) {
        if (size == 4)
            mo_write_vector<N, 4, STREAMING>(at, codes);
        else if (LEAST == 2 || size == 2)
            mo_write_vector<N, 2, STREAMING>(at, codes);
        else
            mo_write_vector<N, 1, STREAMING>(at, codes);
        MO_APART;
        return;
    }
    uint32_t left[N];
    MO_UNROLL
    for (int k = 0; k < N; k++)
        left[k] = codes[k];
    MO_ROLLED
    for (uint32_t i = 0; i < rest; i++) {
        mo_write_code<LEAST>(at, i, size, left[0]);
        mo_shift_in<N>(left, 0);
    }
}

/* --- codes of a type to f32 and back --------------------------------------------------------- */

/* The same as numerics.h's conversions, without branches: threads of a warp take one path whatever
 * their values are. */

/* A small float's code at the lower end of an f32's exponent, times a power of two: exact,
 * subnormals included. `shift` brings its mantissa to the f32's. */
template <uint32_t BIAS> MO_DEVICE uint32_t mo_widen(uint32_t magnitude, uint32_t shift)
{
    const uint32_t power = (127 + 127 - BIAS) << 23;
    return mo_f32_bits(mo_f32_from_bits(magnitude << shift) * mo_f32_from_bits(power));
}

MO_DEVICE float mo_half_as_f32(uint32_t code)
{
    uint32_t magnitude = code & 0x7fffu, bits = mo_widen<15>(magnitude, 13);
    bits |= magnitude >= 0x7c00u ? MO_F32_INF_BITS : 0;
    bits |= magnitude > 0x7c00u ? MO_F32_QUIET_BIT : 0;
    return mo_f32_from_bits(bits | (code & 0x8000u) << 16);
}

MO_DEVICE float mo_e4m3_as_f32(uint32_t code)
{
    uint32_t magnitude = code & 0x7fu, bits = mo_widen<7>(magnitude, 20);
    bits = magnitude == 0x7fu ? MO_F32_NAN_BITS : bits;
    return mo_f32_from_bits(bits | (code & 0x80u) << 24);
}

MO_DEVICE float mo_e2m1_as_f32(uint32_t code)
{
    return mo_f32_from_bits(mo_widen<1>(code & 0x7u, 22) | (code & 0x8u) << 28);
}

/* mo_round_nearest: below the smallest normal, adding a number whose unit in the last place is the
 * quantum rounds to it. `a` may be any magnitude. */
template <uint32_t MANTISSA, uint32_t BIAS> MO_DEVICE uint32_t mo_narrow(uint32_t a)
{
    const uint32_t shift = 23 - MANTISSA, magic = (151 - BIAS - MANTISSA) << 23;
    uint32_t normal = a - ((127 - BIAS) << 23) + ((1u << (shift - 1)) - 1) + (a >> shift & 1);
    uint32_t small = mo_f32_bits(mo_f32_from_bits(a) + mo_f32_from_bits(magic)) - magic;
    return a >= (128 - BIAS) << 23 ? normal >> shift : small;
}

MO_DEVICE uint32_t mo_f32_as_half(float value)
{
    uint32_t u = mo_f32_bits(value), a = u & 0x7fffffffu, code = mo_narrow<10, 15>(a);
    code = code < 0x7c00u ? code : 0x7c00u;
    code = a > MO_F32_INF_BITS ? 0x7e00u | (a >> 13 & 0x3ffu) : code;
    return code | (u >> 16 & 0x8000u);
}

/* The formats of 8 bits: `top` is what overflow becomes, 0x7f stands for NaN. */
template <uint32_t MANTISSA, uint32_t BIAS>
MO_DEVICE uint32_t mo_f32_as_eight(float value, uint32_t top)
{
    uint32_t u = mo_f32_bits(value), a = u & 0x7fffffffu, code = mo_narrow<MANTISSA, BIAS>(a);
    code = code < top ? code : top;
    code = a > MO_F32_INF_BITS ? 0x7fu : code;
    return code | (u >> 24 & 0x80u);
}

template <uint32_t MANTISSA, uint32_t BIAS> MO_DEVICE float mo_fnuz_as_f32(uint32_t code)
{
    uint32_t bits = mo_widen<BIAS>(code & 0x7fu, 23 - MANTISSA) | (code & 0x80u) << 24;
    return mo_f32_from_bits(code == 0x80u ? MO_F32_NAN_BITS : bits);
}

template <uint32_t MANTISSA, uint32_t BIAS>
MO_DEVICE uint32_t mo_f32_as_fnuz(float value, int saturate)
{
    uint32_t u = mo_f32_bits(value), a = u & 0x7fffffffu, code = mo_narrow<MANTISSA, BIAS>(a);
    uint32_t signed_code = code == 0 ? 0 : code | (u >> 24 & 0x80u);
    uint32_t beyond = saturate ? 0x7fu | (u >> 24 & 0x80u) : 0x80u;
    code = code > 0x7fu ? beyond : signed_code;
    return a > MO_F32_INF_BITS ? 0x80u : code;
}

template <uint32_t DTYPE> MO_DEVICE float mo_decode_as(uint32_t code)
{
    return DTYPE == MO_DTYPE_F32           ? mo_f32_from_bits(code)
           : DTYPE == MO_DTYPE_F16         ? mo_half_as_f32(code)
           : DTYPE == MO_DTYPE_BF16        ? mo_bf16_to_f32((uint16_t)code)
           : DTYPE == MO_DTYPE_F8_E4M3     ? mo_e4m3_as_f32(code)
           : DTYPE == MO_DTYPE_F8_E4M3FNUZ ? mo_fnuz_as_f32<3, 8>(code)
           : DTYPE == MO_DTYPE_F8_E5M2FNUZ ? mo_fnuz_as_f32<2, 16>(code)
                                           : mo_half_as_f32(code << 8);
}

template <uint32_t DTYPE> MO_DEVICE uint32_t mo_encode_as(float value, int saturate)
{
    return DTYPE == MO_DTYPE_F32           ? mo_f32_bits(value)
           : DTYPE == MO_DTYPE_F16         ? mo_f32_as_half(value)
           : DTYPE == MO_DTYPE_BF16        ? mo_f32_to_bf16(value)
           : DTYPE == MO_DTYPE_F8_E4M3     ? mo_f32_as_eight<3, 7>(value, saturate ? 0x7eu : 0x7fu)
           : DTYPE == MO_DTYPE_F8_E4M3FNUZ ? mo_f32_as_fnuz<3, 8>(value, saturate)
           : DTYPE == MO_DTYPE_F8_E5M2FNUZ
               ? mo_f32_as_fnuz<2, 16>(value, saturate)
               : mo_f32_as_eight<2, 15>(value, saturate ? 0x7bu : 0x7cu);
}

/* f32 is not rounded, so it takes no random bits. */
template <uint32_t DTYPE>
MO_DEVICE uint32_t mo_dither_as(float value, int saturate, uint32_t random)
{
    return DTYPE == MO_DTYPE_F32           ? mo_f32_bits(value)
           : DTYPE == MO_DTYPE_F16         ? mo_f32_to_f16_stochastic(value, random)
           : DTYPE == MO_DTYPE_BF16        ? mo_f32_to_bf16_stochastic(value, random)
           : DTYPE == MO_DTYPE_F8_E4M3     ? mo_f32_to_e4m3_stochastic(value, saturate, random)
           : DTYPE == MO_DTYPE_F8_E4M3FNUZ ? mo_f32_to_e4m3fnuz_stochastic(value, saturate, random)
           : DTYPE == MO_DTYPE_F8_E5M2FNUZ ? mo_f32_to_e5m2fnuz_stochastic(value, saturate, random)
                                           : mo_f32_to_e5m2_stochastic(value, saturate, random);
}

/* Calls function<N, type>(...) for the type that a launch finds in its segment: one branch for a
 * pack, not one for an element. */
#define MO_BY_FLOAT(dtype, function, ...)                                                          \
    do {                                                                                           \
        if ((dtype) == MO_DTYPE_F32)                                                               \
            function<N, MO_DTYPE_F32>(__VA_ARGS__);                                                \
        else if ((dtype) == MO_DTYPE_BF16)                                                         \
            function<N, MO_DTYPE_BF16>(__VA_ARGS__);                                               \
        else                                                                                       \
            function<N, MO_DTYPE_F16>(__VA_ARGS__);                                                \
    } while (0)

#define MO_BY_DTYPE(dtype, function, ...)                                                          \
    do {                                                                                           \
        if ((dtype) == MO_DTYPE_F8_E4M3)                                                           \
            function<N, MO_DTYPE_F8_E4M3>(__VA_ARGS__);                                            \
        else if ((dtype) == MO_DTYPE_F8_E5M2)                                                      \
            function<N, MO_DTYPE_F8_E5M2>(__VA_ARGS__);                                            \
        else if ((dtype) == MO_DTYPE_F8_E4M3FNUZ)                                                  \
            function<N, MO_DTYPE_F8_E4M3FNUZ>(__VA_ARGS__);                                        \
        else if ((dtype) == MO_DTYPE_F8_E5M2FNUZ)                                                  \
            function<N, MO_DTYPE_F8_E5M2FNUZ>(__VA_ARGS__);                                        \
        else                                                                                       \
            MO_BY_FLOAT(dtype, function, __VA_ARGS__);                                             \
    } while (0)

/* NaN's bits take a separate path: one test for a pack, and the processor's conversions if it has
 * them. (Opposite infinities look like NaN here and take that path too.) */
template <int N> MO_DEVICE int mo_any_nan(const float values[N])
{
    float sum = values[0];
    MO_UNROLL
    for (int k = 1; k < N; k++)
        sum += values[k];
    return mo_f32_is_nan(sum);
}

/* Every NaN becomes the one that is stored. */
template <int N> MO_DEVICE void mo_one_nan(float values[N])
{
    MO_UNROLL
    for (int k = 0; k < N; k++)
        values[k] = mo_f32_one_nan(values[k]);
}

/* What is rare goes through a loop, as do elements without vectors. */
template <int N, uint32_t DTYPE>
MO_DEVICE void mo_decode_rolled(const uint32_t codes[N], float values[N])
{
    uint32_t bits[N];
    MO_UNROLL
    for (int k = 0; k < N; k++)
        bits[k] = codes[k];
    MO_ROLLED
    for (int i = 0; i < N; i++)
        mo_shift_in<N>(bits, mo_f32_bits(mo_decode_as<DTYPE>(bits[0])));
    MO_UNROLL
    for (int k = 0; k < N; k++)
        values[k] = mo_f32_from_bits(bits[k]);
}

template <int N, uint32_t DTYPE>
MO_DEVICE void mo_encode_rolled(const float values[N], uint32_t codes[N])
{
    MO_UNROLL
    for (int k = 0; k < N; k++)
        codes[k] = mo_f32_bits(values[k]);
    MO_ROLLED
    for (int i = 0; i < N; i++)
        mo_shift_in<N>(codes, mo_encode_as<DTYPE>(mo_f32_from_bits(codes[0]), 0));
}

template <int N, uint32_t DTYPE>
MO_DEVICE void mo_decode_codes(const uint32_t codes[N], float values[N])
{
#if MO_NVCC_DEVICE
    if constexpr (DTYPE == MO_DTYPE_F16) {
        MO_UNROLL
        for (int k = 0; k < N; k++)
            asm("{.reg .b16 half; cvt.u16.u32 half, %1; cvt.f32.f16 %0, half;}"
                : "=f"(values[k])
                : "r"(codes[k]));
        if (MO_RARE(mo_any_nan<N>(values)))
            mo_decode_rolled<N, DTYPE>(codes, values);
    } else
#endif
    {
        MO_UNROLL
        for (int k = 0; k < N; k++)
            values[k] = mo_decode_as<DTYPE>(codes[k]);
    }
}

/* The codes of two numbers that are not NaN as f16 or bf16, the first one lower. */
template <uint32_t DTYPE> MO_DEVICE uint32_t mo_pair_word(float low, float high)
{
#if MO_NVCC_DEVICE && __CUDA_ARCH__ >= 800
    uint32_t both;
    if (DTYPE == MO_DTYPE_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    if (DTYPE == MO_DTYPE_BF16) {
        uint32_t a = mo_f32_bits(low), b = mo_f32_bits(high);
        return (a + 0x7fffu + (a >> 16 & 1)) >> 16 | ((b + 0x7fffu + (b >> 16 & 1)) & 0xffff0000u);
    }
    return mo_f32_as_half(low) | mo_f32_as_half(high) << 16;
#endif
}

/* Bits are set if a bf16 of these words is not from 2^-63 to below 2^65 in magnitude: 64 more in
 * the exponent sets its top bit from the one to the other. What carries out of a lower half, which
 * is beyond, does no harm. */
template <int WORDS> MO_DEVICE uint32_t mo_odd_bf16(const uint32_t words[WORDS])
{
    uint32_t all = ~0u;
    MO_UNROLL
    for (int w = 0; w < WORDS; w++)
        all &= words[w] + 0x20002000u;
    return ~all & 0x40004000u;
}

/* Words of a pack of f32, f16 or bf16, of which mo_any_nan is known. */
template <int N, uint32_t DTYPE>
MO_DEVICE void mo_pack_words(const float values[N], int any_nan, uint32_t *words)
{
    if (DTYPE == MO_DTYPE_F32) {
        MO_UNROLL
        for (int k = 0; k < N; k++)
            words[k] = mo_f32_bits(values[k]);
    } else if (MO_RARE(any_nan)) {
        uint32_t codes[N];
        mo_encode_rolled<N, DTYPE>(values, codes);
        MO_UNROLL
        for (int k = 0; k < N; k += 2)
            words[k / 2] = codes[k] | codes[k + 1] << 16;
    } else {
        MO_UNROLL
        for (int k = 0; k < N; k += 2)
            words[k / 2] = mo_pair_word<DTYPE>(values[k], values[k + 1]);
    }
}

/* The same, as codes. */
template <int N, uint32_t DTYPE>
MO_DEVICE void mo_encode_known(const float values[N], int any_nan, uint32_t codes[N])
{
    uint32_t words[N];
    mo_pack_words<N, DTYPE>(values, any_nan, words);
    MO_UNROLL
    for (int k = 0; k < N; k++)
        codes[k] = DTYPE == MO_DTYPE_F32 ? words[k] : words[k / 2] >> k % 2 * 16 & 0xffffu;
}

template <int N, uint32_t DTYPE>
MO_DEVICE void mo_encode_values(const float values[N], int saturate, uint32_t codes[N])
{
    if (DTYPE == MO_DTYPE_BF16 || DTYPE == MO_DTYPE_F16) {
        mo_encode_known<N, DTYPE>(values, mo_any_nan<N>(values), codes);
    } else {
        MO_UNROLL
        for (int k = 0; k < N; k++)
            codes[k] = mo_encode_as<DTYPE>(values[k], saturate);
    }
}

/* slot: which element of its eight the first one is; block: their random bits. */
template <int N, uint32_t DTYPE>
MO_DEVICE void mo_dither_values(const float values[N], int saturate, const uint32_t block[4],
                                uint32_t slot, uint32_t codes[N])
{
    uint32_t upper = slot == 0 ? 0u : ~0u, random[N];
    (void)upper;
    MO_UNROLL
    for (uint32_t k = 0; k < N; k++) {
        uint32_t word = block[k / 2];
        if (N == 4) /* by a mask: a compiler would turn it into an index and an array in memory */
            word = (word & ~upper) | (block[2 + k / 2] & upper);
        random[k] = word >> (k % 2 * 16) & 0xffffu;
        codes[k] = DTYPE == MO_DTYPE_F16 ? mo_f32_bits(values[k])
                                         : mo_dither_as<DTYPE>(values[k], saturate, random[k]);
    }
    if (DTYPE == MO_DTYPE_F16) { /* much code for what few ask for */
        MO_ROLLED
        for (int i = 0; i < N; i++) {
            float value = mo_f32_from_bits(codes[0]);
            mo_shift_in<N>(codes, mo_dither_as<DTYPE>(value, saturate, random[0]));
            mo_shift_in<N>(random, 0);
        }
    }
}

/* --- packs of f32, f16 and bf16 as values ---------------------------------------------------- */

template <int N, int STREAMING = 0, class INDEX>
MO_DEVICE void mo_load_pack(const void *data, INDEX first, uint32_t rest, uint32_t dtype,
                            int aligned, float values[N])
{
    uint32_t codes[N];
    mo_read_pack<N, STREAMING, 2>(data, first, rest, mo_element_size(dtype), aligned, codes);
    MO_BY_FLOAT(dtype, mo_decode_codes, codes, values);
}

template <int N, int STREAMING = 0, class INDEX>
MO_DEVICE void mo_store_pack(void *data, INDEX first, uint32_t rest, uint32_t dtype, int aligned,
                             const float values[N])
{
    uint32_t codes[N];
    MO_BY_FLOAT(dtype, mo_encode_values, values, 0, codes);
    mo_write_pack<N, STREAMING, 2>(data, first, rest, mo_element_size(dtype), aligned, codes);
}

/* How many of the elements from `first` on exist among `count`: N, fewer at the end, 0 beyond. */
template <int N> MO_DEVICE uint32_t mo_pack_rest(uint64_t count, uint64_t first)
{
    return first >= count ? 0 : count - first < N ? (uint32_t)(count - first) : (uint32_t)N;
}

#endif
