/*
 * The block kernels on a GPU: the equals of blocks_ref.c bit for bit. A thread has eight elements
 * of a row, a pack. Rows are taken as if they had whole blocks of 128 columns, so that the threads
 * of a block lie side by side in a warp.
 */
#include "kernels/core/gpu_magnitudes.h"
#include "kernels/core/gpu_vector_io.h"

#include "kernels/cast/blocks.h"
#include "kernels/cast/blocks_words_gpu.h"

enum { MO_BLOCKS_PACK = 8, MO_BLOCKS_WARPS = MO_BLOCKS_THREADS / MO_LANES };

/* What a block of threads has to do. */
typedef struct mo_blocks_work {
    mo_blocks_segment segment; /* but dtype and format, which are: */
    uint32_t dtype, format;
    mo_blocks_item item;
    mo_random_stream stream;
    float tensor_scale;    /* mo_blocks_tensor_number() */
    float tensor_inverse;  /* 1 / tensor_scale */
    mo_blocks_scale whole; /* of a format of one scale */
    uint32_t packs_across; /* of a row, a multiple of 16 and of those of a block */
    int is_whole;          /* blocks_whole_gpu.h has it */
    uint32_t map[256];     /* of mapped codes */
} mo_blocks_work;

typedef struct mo_blocks_words {
    uint32_t of[MO_BLOCKS_WARPS];
} mo_blocks_words;

/* Where a thread's pack lies; rest is 0 where the matrix has no such elements. */
typedef struct mo_blocks_place {
    uint64_t row, column;
    uint32_t rest;
} mo_blocks_place;

/* A pack of an item by its row and its number there. */
typedef struct mo_blocks_pack {
    uint32_t row, across;
} mo_blocks_pack;

/* number / across, without the long code of a division of 64 bits. */
MO_DEVICE uint64_t mo_items_row(uint64_t number, uint64_t across)
{
    uint64_t row = 0, rest = 0;
    if (across == 1 || number < across)
        return across == 1 ? number : 0;
    MO_ROLLED
    for (int bit = number >> 32 ? 63 : 31; bit >= 0; bit--) {
        rest = rest << 1 | (number >> bit & 1);
        row <<= 1;
        if (rest >= across) {
            rest -= across;
            row |= 1;
        }
    }
    return row;
}

/* `pack` moved by so many. */
MO_DEVICE void mo_blocks_move(const mo_blocks_work *work, mo_blocks_pack *pack, uint32_t by)
{
    pack->across += by;
    while (pack->across >= work->packs_across) {
        pack->across -= work->packs_across;
        pack->row++;
    }
}

MO_DEVICE mo_blocks_pack mo_blocks_first(const mo_blocks_work *work)
{
    mo_blocks_pack pack = {0, 0};
    mo_blocks_move(work, &pack, mo_thread_index());
    return pack;
}

MO_DEVICE mo_blocks_place mo_blocks_place_of(const mo_blocks_work *work, mo_blocks_pack pack)
{
    uint64_t column = (uint64_t)pack.across * MO_BLOCKS_PACK;
    mo_blocks_place place;
    place.row = work->item.row + pack.row;
    place.column = work->item.column + column;
    place.rest =
        pack.row < work->item.rows ? mo_pack_rest<MO_BLOCKS_PACK>(work->item.columns, column) : 0;
    return place;
}

MO_DEVICE unsigned char *mo_blocks_values(const mo_blocks_work *work, const mo_blocks_place *place)
{
    uint64_t element = place->row * work->segment.columns + place->column;
    return (unsigned char *)work->segment.values + element * mo_element_size(work->dtype);
}

MO_DEVICE unsigned char *mo_blocks_codes_at(const mo_blocks_work *work,
                                            const mo_blocks_place *place)
{
    uint32_t format = work->format;
    return (unsigned char *)work->segment.codes +
           place->row * mo_blocks_code_bytes(format, work->segment.columns) +
           mo_blocks_code_bytes(format, place->column);
}

MO_DEVICE uint64_t mo_blocks_scale_at(const mo_blocks_work *work, const mo_blocks_place *place)
{
    uint32_t format = work->format, bits = mo_blocks_width_bits(format);
    if (mo_blocks_is_tensor(format))
        return 0;
    return (place->row >> mo_blocks_height_bits(format)) *
               mo_blocks_of(work->segment.columns, bits) +
           (place->column >> bits);
}

MO_DEVICE float mo_blocks_put_scale(const mo_blocks_work *work, const mo_blocks_place *place,
                                    uint32_t amax, int power_of_two, int write)
{
    uint32_t format = work->format;
    mo_blocks_scale scale;
    if (mo_blocks_is_tensor(format)) {
        scale = work->whole;
        write = write && place->row == 0 && place->column == 0;
    } else {
        scale = mo_blocks_scale_of(format, amax, work->tensor_scale, power_of_two);
    }
    if (write)
        mo_write_code(work->segment.scales, mo_blocks_scale_at(work, place),
                      mo_blocks_scale_size(format), scale.code);
    return scale.factor;
}

/* The largest of all threads, to all. */
MO_DEVICE uint32_t mo_threads_largest(uint32_t most, mo_blocks_words *words)
{
    most = mo_group_largest<MO_LANES>(most);
    if (mo_thread_index() % MO_LANES == 0)
        words->of[mo_thread_index() / MO_LANES] = most;
    mo_barrier();
    for (uint32_t w = 0; w < MO_BLOCKS_WARPS; w++)
        most = words->of[w] > most ? words->of[w] : most;
    return most;
}

/* Formats of which an item has one scale. */
MO_DEVICE int mo_item_has_scale(uint32_t format)
{
    return mo_blocks_is_tensor(format) || mo_blocks_is_item(format);
}

/* The scale of such an item. */
MO_DEVICE float mo_put_item_scale(const mo_blocks_work *work, uint32_t amax, int power_of_two)
{
    const mo_blocks_pack origin = {0, 0};
    mo_blocks_place place = mo_blocks_place_of(work, origin);
    return mo_blocks_put_scale(work, &place, amax, power_of_two, mo_thread_index() == 0);
}

MO_DEVICE void mo_blocks_load(const mo_blocks_work *work, const mo_blocks_place *place,
                              float values[MO_BLOCKS_PACK])
{
    const unsigned char *at = mo_blocks_values(work, place);
    uint32_t dtype = work->dtype;
    mo_load_pack<MO_BLOCKS_PACK>(at, 0u, place->rest, dtype,
                                 mo_pack_aligned<MO_BLOCKS_PACK>(at, dtype), values);
}

#include "kernels/cast/blocks_whole_gpu.h"

MO_DEVICE void mo_blocks_begin(const mo_blocks_args &args, uint64_t item, mo_blocks_work *work)
{
    const uint32_t stride = sizeof args.segments[0];
    uint32_t index = mo_chunk_segment(&args.segments[0].first_item, stride, args.count, item);
    const mo_blocks_segment *from = &args.segments[index];
    mo_blocks_segment *s = &work->segment;
    s->values = from->values;
    s->codes = from->codes;
    s->scales = from->scales;
    s->tensor_amax = from->tensor_amax;
    s->amax = from->amax;
    s->rows = from->rows;
    s->columns = from->columns;
    s->items_across = from->items_across;
    s->item_rows = from->item_rows;
    s->item_columns = from->item_columns;
    work->dtype = from->dtype;
    work->format = from->format;
    uint64_t number = item - from->first_item;
    work->item = mo_blocks_item_at(s, number, mo_items_row(number, s->items_across));
    work->tensor_scale = mo_blocks_tensor_number(work->format, s->tensor_amax);
    work->tensor_inverse = 1.0f / work->tensor_scale;
    work->whole = mo_blocks_whole_scale(work->format, s->tensor_amax, args.power_of_two);
    uint32_t pitch = mo_blocks_width_bits(work->format);
    pitch = pitch > MO_BLOCKS_PITCH_BITS ? pitch : (uint32_t)MO_BLOCKS_PITCH_BITS;
    work->packs_across = (uint32_t)mo_blocks_of(work->item.columns, pitch) << (pitch - 3);
    work->is_whole = !args.stochastic && mo_blocks_are_whole(work);
    if (args.stochastic)
        work->stream = mo_random_stream_of(args.seed, args.sequence, from->tensor);
}

/* Every thread of the block calls it, when the work is known. */
MO_DEVICE void mo_blocks_load_map(mo_blocks_work *work)
{
    const uint32_t kind = mo_blocks_codes(work->format);
    if (!mo_codes_are_mapped(kind))
        return;
    const uint32_t *map = kind == MO_CODES_NF4 ? mo_map_nf4 : mo_map_signed;
    const uint32_t count = kind == MO_CODES_NF4 ? 16 : 256;
    if (mo_thread_index() < count)
        work->map[mo_thread_index()] = map[mo_thread_index()];
    mo_barrier();
}

/* --- quantising ------------------------------------------------------------------------------ */

/* The largest among `lanes` neighbours; every thread of the warp calls it. */
MO_DEVICE uint32_t mo_lanes_largest(uint32_t value, uint32_t lanes)
{
    for (uint32_t distance = 1; distance < lanes; distance *= 2) {
        uint32_t other = mo_shuffle_xor_u32(value, distance);
        value = other > value ? other : value;
    }
    return value;
}

/* A word with the halves of its bytes swapped. */
MO_DEVICE uint32_t mo_swap_pairs(uint32_t word)
{
    return (word & 0x0f0f0f0fu) << 4 | (word >> 4 & 0x0f0f0f0fu);
}

/* Two codes of 4 bits a byte. */
MO_DEVICE void mo_write_pairs(unsigned char *at, uint32_t rest, uint32_t kind, uint32_t word)
{
    if (rest < MO_BLOCKS_PACK)
        word = (word & ((1u << 4 * rest) - 1)) |
               (kind == MO_CODES_NF4 ? 0x11111111u * MO_NF4_ZERO << 4 * rest : 0);
    word = kind == MO_CODES_NF4 ? mo_swap_pairs(word) : word;
    if (rest == MO_BLOCKS_PACK && mo_aligned_to(at, 4)) {
        mo_store_as<uint32_t>(at, word);
        MO_APART;
        return;
    }
    MO_UNROLL
    for (uint32_t k = 0; k < MO_BLOCKS_PACK / 2; k++)
        if (2 * k < rest)
            mo_store_as<uint8_t>(at + k, (uint8_t)(word >> 8 * k));
}

MO_DEVICE void mo_blocks_encode(const mo_blocks_work *work, const mo_blocks_place *place,
                                const float values[MO_BLOCKS_PACK], float factor, int stochastic)
{
    uint32_t kind = mo_blocks_codes(work->format), codes[MO_BLOCKS_PACK], word = 0;
    unsigned char *at = mo_blocks_codes_at(work, place);
    if (mo_codes_are_mapped(kind)) {
        MO_UNROLL
        for (int k = 0; k < MO_BLOCKS_PACK; k++) {
            codes[k] = mo_map_code(work->map, kind == MO_CODES_NF4 ? 4 : 8, values[k] * factor);
            word |= codes[k] << 4 * k; /* of 4 bits */
        }
    } else if (stochastic) {
        uint32_t random[4];
        uint64_t number = mo_blocks_number(place->row, place->column, work->segment.columns);
        mo_random_block(&work->stream, number / 8, random);
        MO_UNROLL
        for (uint32_t k = 0; k < MO_BLOCKS_PACK; k++) {
            codes[k] =
                mo_drawn_code(kind, values[k], factor, random[k / 2] >> (k % 2 * 16) & 0xffffu);
            word |= codes[k] << 4 * k; /* of 4 bits */
        }
    } else if (kind == MO_CODES_E2M1) {
        word = mo_e2m1_word(values, factor);
    } else {
        MO_UNROLL
        for (uint32_t k = 0; k < MO_BLOCKS_PACK; k++)
            codes[k] = mo_eight_code(kind, values[k], factor);
    }
    if (mo_codes_are_pairs(kind))
        mo_write_pairs(at, place->rest, kind, word);
    else
        mo_write_pack<MO_BLOCKS_PACK>(at, 0u, place->rest, 1, mo_aligned_to(at, 8), codes);
}

/* Where an item has several scales, its rows' blocks have 2 to 32 threads. All threads go round
 * equally often. Returns the largest magnitude of this thread's packs. */
MO_DEVICE uint32_t mo_quantize_rows(const mo_blocks_work *work, mo_blocks_words *words,
                                    int stochastic, int power_of_two)
{
    const uint32_t format = work->format, width = mo_blocks_width(format);
    const uint32_t packs = (uint32_t)work->item.rows * work->packs_across;
    const int one_scale = mo_item_has_scale(format), tall = mo_blocks_is_item(format);
    float factor = one_scale && !tall ? mo_put_item_scale(work, 0, power_of_two) : 0.0f;
    uint32_t most = 0;
    MO_ROLLED
    for (int measure = tall; measure >= 0; measure--) {
        mo_blocks_pack pack = mo_blocks_first(work);
        for (uint32_t first = 0; first < packs; first += MO_BLOCKS_THREADS) {
            float values[MO_BLOCKS_PACK];
            mo_blocks_place place = mo_blocks_place_of(work, pack);
            mo_blocks_load(work, &place, values);
            uint32_t amax = mo_largest<MO_BLOCKS_PACK>(values);
            most = amax > most ? amax : most;
            if (!one_scale)
                amax = mo_lanes_largest(amax, width / MO_BLOCKS_PACK);
            if (place.rest != 0 && !measure) {
                if (!one_scale)
                    factor = mo_blocks_put_scale(work, &place, amax, power_of_two,
                                                 (place.column & (width - 1)) == 0);
                mo_blocks_encode(work, &place, values, factor, stochastic);
            }
            mo_blocks_move(work, &pack, MO_BLOCKS_THREADS);
        }
        if (measure)
            factor = mo_put_item_scale(work, mo_threads_largest(most, words), power_of_two);
    }
    return most;
}

MO_DEVICE void mo_raise_amax(const mo_blocks_work *work, uint32_t most)
{
    if (work->segment.amax == 0)
        return;
    most = mo_group_largest<MO_LANES>(most);
    if (mo_thread_index() % MO_LANES == 0)
        mo_cell_raise(work->segment.amax, most > MO_F32_INF_BITS ? MO_F32_NAN_BITS : most);
}

MO_DEVICE uint32_t mo_quantize_item(const mo_blocks_work *work, mo_blocks_words *words,
                                    int stochastic, int power_of_two)
{
    const uint32_t kind = mo_blocks_codes(work->format);
    if (!work->is_whole)
        return mo_quantize_rows(work, words, stochastic, power_of_two);
    return kind == MO_CODES_E2M1   ? mo_quantize_whole<MO_CODES_E2M1>(work, words, power_of_two)
           : kind == MO_CODES_E4M3 ? mo_quantize_whole<MO_CODES_E4M3>(work, words, power_of_two)
                                   : mo_quantize_whole<MO_CODES_E5M2>(work, words, power_of_two);
}

MO_GLOBAL_ROOM(mo_blocks_quantize, mo_blocks_args, MO_BLOCKS_THREADS, 3)
{
    MO_SHARED(mo_blocks_work, work);
    MO_SHARED(mo_blocks_words, words);
    if (mo_thread_index() == 0)
        mo_blocks_begin(args, first_item + mo_block_index(), &work);
    mo_barrier();
    mo_blocks_load_map(&work);
    mo_raise_amax(&work, mo_quantize_item(&work, &words, args.stochastic, args.power_of_two));
}

/* --- and back -------------------------------------------------------------------------------- */

MO_DEVICE void mo_read_pairs(const unsigned char *at, uint32_t rest, uint32_t kind,
                             uint32_t codes[MO_BLOCKS_PACK])
{
    uint32_t word = 0;
    if (rest == MO_BLOCKS_PACK && mo_aligned_to(at, 4)) {
        word = mo_load_as<uint32_t>(at);
        MO_APART;
    } else {
        MO_UNROLL
        for (uint32_t k = 0; k < MO_BLOCKS_PACK / 2; k++)
            word |= 2 * k < rest ? (uint32_t)mo_load_as<uint8_t>(at + k) << 8 * k : 0;
    }
    word = kind == MO_CODES_NF4 ? mo_swap_pairs(word) : word;
    MO_UNROLL
    for (uint32_t k = 0; k < MO_BLOCKS_PACK; k++)
        codes[k] = word >> 4 * k & 0xfu;
}

MO_DEVICE void mo_blocks_decode(const mo_blocks_work *work, const mo_blocks_place *place)
{
    uint32_t format = work->format, kind = mo_blocks_codes(format), codes[MO_BLOCKS_PACK];
    uint32_t scale = mo_read_code(work->segment.scales, mo_blocks_scale_at(work, place),
                                  mo_blocks_scale_size(format));
    float factor = mo_blocks_factor(format, scale, work->tensor_scale), values[MO_BLOCKS_PACK];
    const unsigned char *from = mo_blocks_codes_at(work, place);
    if (mo_codes_are_pairs(kind))
        mo_read_pairs(from, place->rest, kind, codes);
    else
        mo_read_pack<MO_BLOCKS_PACK>(from, 0u, place->rest, 1, mo_aligned_to(from, 8), codes);
    MO_UNROLL
    for (int k = 0; k < MO_BLOCKS_PACK; k++) {
        float value = mo_codes_are_mapped(kind) ? mo_f32_from_bits(work->map[codes[k]])
                                                : mo_code_value(kind, codes[k]);
        values[k] = value * factor;
    }
    if (MO_RARE(mo_any_nan<MO_BLOCKS_PACK>(values)))
        mo_one_nan<MO_BLOCKS_PACK>(values);
    unsigned char *to = mo_blocks_values(work, place);
    uint32_t dtype = work->dtype;
    mo_store_pack<MO_BLOCKS_PACK>(to, 0u, place->rest, dtype,
                                  mo_pack_aligned<MO_BLOCKS_PACK>(to, dtype), values);
}

MO_GLOBAL(mo_blocks_dequantize, mo_blocks_args, MO_BLOCKS_THREADS)
{
    MO_SHARED(mo_blocks_work, work);
    if (mo_thread_index() == 0)
        mo_blocks_begin(args, first_item + mo_block_index(), &work);
    mo_barrier();
    if (work.is_whole) {
        uint32_t kind = mo_blocks_codes(work.format);
        if (kind == MO_CODES_E2M1)
            mo_dequantize_whole<MO_CODES_E2M1>(&work);
        else if (kind == MO_CODES_E4M3)
            mo_dequantize_whole<MO_CODES_E4M3>(&work);
        else
            mo_dequantize_whole<MO_CODES_E5M2>(&work);
        return;
    }
    mo_blocks_load_map(&work);
    mo_blocks_pack pack = mo_blocks_first(&work);
    while (pack.row < work.item.rows) {
        mo_blocks_place place = mo_blocks_place_of(&work, pack);
        if (place.rest != 0)
            mo_blocks_decode(&work, &place);
        mo_blocks_move(&work, &pack, MO_BLOCKS_THREADS);
    }
}
