/*
 * Items whose packs are all whole and aligned, to nearest: the usual ones. A thread goes from pack
 * to pack by steps of as many bytes each, two packs at a time, for more bytes on their way. What
 * codes are is known to the compiler here. Part of blocks.cu.
 */
#ifndef MO_KERNELS_CAST_BLOCKS_WHOLE_GPU_H
#define MO_KERNELS_CAST_BLOCKS_WHOLE_GPU_H

#include "kernels/core/gpu_ahead.h"

/* Where a thread's packs lie. */
typedef struct mo_whole_walk {
    unsigned char *values, *codes, *scales;        /* of its first pack */
    uint64_t values_step, codes_step, scales_step; /* bytes to the next one */
    uint32_t packs;                                /* of the item */
} mo_whole_walk;

/* Rows of an item follow each other without a gap, unless a block has several of them. */
MO_DEVICE int mo_blocks_are_whole(const mo_blocks_work *work)
{
    const mo_blocks_segment *s = &work->segment;
    const uint32_t format = work->format;
    const mo_blocks_pack origin = {0, 0};
    mo_blocks_place place = mo_blocks_place_of(work, origin);
    if (mo_codes_are_mapped(mo_blocks_codes(format)) ||
        work->item.columns % mo_blocks_width(format) != 0 ||
        (mo_blocks_height(format) > 1 && s->columns % 16 != 0))
        return 0;
    if (format == MO_BLOCKS_NVFP4 && !mo_nvfp4_is_plain(work->tensor_scale))
        return 0;
    return mo_aligned_to(mo_blocks_values(work, &place), 16) &&
           mo_aligned_to(mo_blocks_codes_at(work, &place), 8);
}

MO_DEVICE mo_whole_walk mo_whole_walk_of(const mo_blocks_work *work)
{
    const uint32_t format = work->format, size = mo_element_size(work->dtype);
    const uint32_t thread = mo_thread_index(), scale_size = mo_blocks_scale_size(format);
    const uint32_t blocks = mo_item_has_scale(format) ? 31 : mo_blocks_width_bits(format) - 3;
    const mo_blocks_pack origin = {0, 0};
    mo_blocks_place place = mo_blocks_place_of(work, origin);
    uint64_t ahead = (uint64_t)thread * MO_BLOCKS_PACK, step = MO_BLOCKS_THREADS * MO_BLOCKS_PACK;
    mo_whole_walk walk;
    walk.packs = (uint32_t)(work->item.rows * work->item.columns / MO_BLOCKS_PACK);
    if (mo_blocks_height(format) > 1) {
        const uint32_t across = MO_BLOCKS_TILE / MO_BLOCKS_PACK;
        ahead = thread / across * work->segment.columns + thread % across * MO_BLOCKS_PACK;
        step = MO_BLOCKS_THREADS / across * work->segment.columns;
    }
    walk.values = mo_blocks_values(work, &place) + ahead * size;
    walk.codes = mo_blocks_codes_at(work, &place) + mo_blocks_code_bytes(format, ahead);
    walk.values_step = step * size;
    walk.codes_step = mo_blocks_code_bytes(format, step);
    walk.scales = (unsigned char *)work->segment.scales +
                  (mo_blocks_scale_at(work, &place) + (thread >> blocks)) * scale_size;
    walk.scales_step = (MO_BLOCKS_THREADS >> blocks) * scale_size;
    return walk;
}

/* Two packs on. */
MO_DEVICE void mo_whole_advance(mo_whole_walk *walk)
{
    walk->values += 2 * walk->values_step;
    walk->codes += 2 * walk->codes_step;
    walk->scales += 2 * walk->scales_step;
}

/* Zeros where a pack is not `here`. */
template <int N, uint32_t DTYPE>
MO_DEVICE void mo_whole_load(const mo_whole_walk *walk, const uint32_t here[2], float values[2][N])
{
    enum { WORDS = DTYPE == MO_DTYPE_F32 ? N : N / 2 };
    uint32_t words[2][WORDS] = {};
    MO_UNROLL
    for (int j = 0; j < 2; j++)
        mo_read_ahead<WORDS, 0>(here[j], walk->values + j * walk->values_step, words[j]);
    MO_UNROLL
    for (int j = 0; j < 2; j++) {
        uint32_t codes[N];
        MO_UNROLL
        for (int k = 0; k < N; k++)
            codes[k] = WORDS == N ? words[j][k] : words[j][k / 2] >> k % 2 * 16 & 0xffffu;
        mo_decode_codes<N, DTYPE>(codes, values[j]);
    }
}

template <int N, uint32_t DTYPE>
MO_DEVICE void mo_whole_store(const mo_whole_walk *walk, const uint32_t here[2],
                              const int any_nan[2], const float values[2][N])
{
    enum { WORDS = DTYPE == MO_DTYPE_F32 ? N : N / 2 };
    MO_UNROLL
    for (int j = 0; j < 2; j++) {
        uint32_t words[WORDS];
        mo_pack_words<N, DTYPE>(values[j], any_nan[j], words);
        mo_write_ahead<WORDS, 0>(here[j], walk->values + j * walk->values_step, words);
    }
}

/* --- quantising ------------------------------------------------------------------------------ */

template <uint32_t CODES>
MO_DEVICE mo_blocks_scale mo_whole_scale(uint32_t format, uint32_t amax, float tensor_scale,
                                         float inverse, int power_of_two)
{
    if (CODES == MO_CODES_E2M1 && format == MO_BLOCKS_NVFP4)
        return mo_nvfp4_scale_near(amax, tensor_scale, inverse);
    if (CODES == MO_CODES_E4M3 && format != MO_BLOCKS_MXFP8_E4M3)
        return mo_f32_scale(amax, 448.0f, power_of_two);
    return mo_e8m0_scale(amax, CODES == MO_CODES_E2M1 ? 2 : CODES == MO_CODES_E4M3 ? 8 : 15);
}

/* The largest magnitudes of blocks, in place of their packs'. */
template <uint32_t CODES> MO_DEVICE void mo_blocks_largest(uint32_t amax[2], uint32_t lanes)
{
    MO_UNROLL
    for (uint32_t distance = 1; distance < (CODES == MO_CODES_E2M1 ? 4 : 16); distance *= 2)
        for (int j = 0; j < 2 && distance < lanes; j++) {
            uint32_t other = mo_shuffle_xor_u32(amax[j], distance);
            amax[j] = other > amax[j] ? other : amax[j];
        }
}

/* All threads go round equally often. Returns the largest magnitude of this thread's packs. */
template <uint32_t CODES>
MO_DEVICE uint32_t mo_quantize_whole(const mo_blocks_work *work, mo_blocks_words *shared,
                                     int power_of_two)
{
    enum { N = MO_BLOCKS_PACK, WORDS = CODES == MO_CODES_E2M1 ? 1 : 2 };
    const uint32_t dtype = work->dtype, format = work->format;
    const uint32_t scale_size = CODES == MO_CODES_E2M1 ? 1 : mo_blocks_scale_size(format);
    const uint32_t lanes = mo_blocks_width(format) / N;
    const int one_scale = CODES != MO_CODES_E2M1 && mo_item_has_scale(format);
    const int tall = CODES == MO_CODES_E4M3 && mo_blocks_height(format) > 1;
    const float tensor_scale = work->tensor_scale, inverse = work->tensor_inverse;
    float item_factor = one_scale && !tall ? mo_put_item_scale(work, 0, power_of_two) : 0.0f;
    uint32_t most = 0;
    MO_ROLLED
    for (int measure = tall; measure >= 0; measure--) {
        mo_whole_walk walk = mo_whole_walk_of(work);
        uint32_t pack = mo_thread_index();
        for (uint32_t first = 0; first < walk.packs; first += 2 * MO_BLOCKS_THREADS) {
            float values[2][N], factor[2] = {item_factor, item_factor};
            uint32_t amax[2], own[2];
            const uint32_t here[2] = {pack < walk.packs, pack + MO_BLOCKS_THREADS < walk.packs};
            MO_BY_FLOAT(dtype, mo_whole_load, &walk, here, values);
            MO_UNROLL
            for (int j = 0; j < 2; j++) {
                own[j] = amax[j] = mo_largest<N>(values[j]);
                most = own[j] > most ? own[j] : most;
            }
            if (!one_scale) {
                mo_blocks_largest<CODES>(amax, lanes);
                MO_UNROLL
                for (int j = 0; j < 2; j++) {
                    mo_blocks_scale scale =
                        mo_whole_scale<CODES>(format, amax[j], tensor_scale, inverse, power_of_two);
                    factor[j] = scale.factor;
                    if (here[j] && (pack & (lanes - 1)) == 0)
                        mo_write_code(walk.scales + j * walk.scales_step, 0, scale_size,
                                      scale.code);
                }
            }
            MO_UNROLL
            for (int j = 0; j < 2; j++) {
                uint32_t words[WORDS];
                if (CODES == MO_CODES_E2M1)
                    words[0] = mo_e2m1_word(values[j], factor[j]);
                else
                    mo_eight_words<CODES>(values[j], factor[j], own[j] < MO_F32_INF_BITS, words);
                mo_write_ahead<WORDS, 0>(here[j] & (measure ^ 1), walk.codes + j * walk.codes_step,
                                         words);
            }
            mo_whole_advance(&walk);
            pack += 2 * MO_BLOCKS_THREADS;
        }
        if (measure)
            item_factor = mo_put_item_scale(work, mo_threads_largest(most, shared), power_of_two);
    }
    return most;
}

/* --- and back -------------------------------------------------------------------------------- */

template <uint32_t CODES>
MO_DEVICE float mo_whole_factor(uint32_t format, uint32_t code, float tensor_scale)
{
    if (CODES == MO_CODES_E2M1 && format == MO_BLOCKS_NVFP4)
        return tensor_scale * mo_e4m3_as_f32(code);
    return CODES == MO_CODES_E2M1 || format <= MO_BLOCKS_MXFP4 ? mo_e8m0_to_f32((uint8_t)code)
                                                               : mo_f32_from_bits(code);
}

template <uint32_t CODES> MO_DEVICE void mo_dequantize_whole(const mo_blocks_work *work)
{
    enum { N = MO_BLOCKS_PACK, WORDS = CODES == MO_CODES_E2M1 ? 1 : 2 };
    const uint32_t dtype = work->dtype, format = work->format;
    const uint32_t scale_size = CODES == MO_CODES_E2M1 ? 1 : mo_blocks_scale_size(format);
    const float tensor_scale = work->tensor_scale;
    mo_whole_walk walk = mo_whole_walk_of(work);
    for (uint32_t pack = mo_thread_index(); pack < walk.packs; pack += 2 * MO_BLOCKS_THREADS) {
        const uint32_t here[2] = {1, pack + MO_BLOCKS_THREADS < walk.packs};
        uint32_t words[2][WORDS] = {}, scale[2] = {};
        MO_UNROLL
        for (int j = 0; j < 2; j++) {
            mo_read_ahead<WORDS, 0>(here[j], walk.codes + j * walk.codes_step, words[j]);
            if (here[j])
                scale[j] = mo_read_code(walk.scales + j * walk.scales_step, 0, scale_size);
        }
        float values[2][N];
        int any_nan[2];
        MO_UNROLL
        for (int j = 0; j < 2; j++) {
            float factor = mo_whole_factor<CODES>(format, scale[j], tensor_scale);
            any_nan[j] = mo_code_values<CODES>(words[j], factor, values[j]);
            if (MO_RARE(any_nan[j]))
                mo_one_nan<N>(values[j]);
        }
        MO_BY_FLOAT(dtype, mo_whole_store, &walk, here, any_nan, values);
        mo_whole_advance(&walk);
    }
}

#endif
