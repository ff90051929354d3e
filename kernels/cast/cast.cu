/* The cast kernel on a GPU: the equal of cast_ref.c bit for bit. */
#include "kernels/core/gpu_vector_io.h"

#include "kernels/cast/cast.h"

/* What a block of threads has to do. */
typedef struct mo_cast_work {
    const unsigned char *source;
    unsigned char *destination;
    uint64_t count; /* elements, at most MO_CHUNK_ELEMENTS */
    uint64_t first; /* number of the first one in its tensor */
    uint32_t from, to;
    mo_random_stream stream;
} mo_cast_work;

MO_DEVICE void mo_cast_work_of(const mo_cast_segment *segments, const mo_cast_args &args,
                               uint64_t item, mo_cast_work *work)
{
    uint32_t s = mo_chunk_segment(&segments[0].first_chunk, sizeof *segments, args.count, item);
    uint64_t chunk = item - segments[s].first_chunk;
    work->first = chunk * MO_CHUNK_ELEMENTS;
    work->count = mo_chunk_length(segments[s].count, chunk);
    work->from = segments[s].source_dtype;
    work->to = segments[s].destination_dtype;
    work->source =
        (const unsigned char *)segments[s].source + work->first * mo_element_size(work->from);
    work->destination = (unsigned char *)segments[s].destination;
    if (work->destination)
        work->destination += work->first * mo_element_size(work->to);
    if (args.stochastic)
        work->stream = mo_random_stream_of(args.seed, args.sequence, segments[s].tensor);
}

/* The codes of a pack in the destination's type, in place. */
template <int N>
MO_DEVICE void mo_cast_pack(const mo_cast_work *work, uint64_t at, int stochastic, int saturate,
                            uint32_t codes[N])
{
    float values[N];
    MO_BY_DTYPE(work->from, mo_decode_codes, codes, values);
    if (stochastic) {
        uint32_t random[4];
        mo_random_block(&work->stream, (work->first + at) / 8, random);
        MO_BY_DTYPE(work->to, mo_dither_values, values, saturate, random, (uint32_t)(at % 8),
                    codes);
    } else {
        MO_BY_DTYPE(work->to, mo_encode_values, values, saturate, codes);
    }
}

template <int N>
MO_DEVICE void mo_cast_packs(const mo_cast_work *work, int stochastic, int saturate)
{
    uint32_t from_size = mo_element_size(work->from), to_size = mo_element_size(work->to);
    int from_aligned = mo_pack_aligned<N>(work->source, work->from);
    int to_aligned = mo_pack_aligned<N>(work->destination, work->to);
    for (uint64_t at = (uint64_t)mo_thread_index() * N; at < work->count;
         at += MO_CAST_THREADS * N) {
        uint32_t rest = mo_pack_rest<N>(work->count, at);
        uint32_t codes[N];
        mo_read_pack<N>(work->source, at, rest, from_size, from_aligned, codes);
        if (work->from != work->to)
            mo_cast_pack<N>(work, at, stochastic, saturate, codes);
        mo_write_pack<N>(work->destination, at, rest, to_size, to_aligned, codes);
    }
}

MO_GLOBAL(mo_cast, mo_cast_args, MO_CAST_THREADS)
{
    MO_SHARED(mo_cast_work, shared_work);
    uint64_t item = first_item + mo_block_index();
    if (mo_thread_index() == 0) {
        if (args.table) {
            mo_cast_work_of(args.table, args, item, &shared_work);
            MO_APART;
        } else {
            mo_cast_work_of(args.segments, args, item, &shared_work);
        }
    }
    mo_barrier();
    mo_cast_work work = shared_work;
    if (work.from == work.to && work.source == work.destination)
        return;
    /* Eight elements share a block of random bits; four f32 are a vector. Beside eight bits more must
     * be on their way. */
    int narrow = mo_element_size(work.from) == 1 || mo_element_size(work.to) == 1;
    if (!args.stochastic && !narrow && (work.from == MO_DTYPE_F32 || work.to == MO_DTYPE_F32))
        mo_cast_packs<4>(&work, 0, args.saturate);
    else
        mo_cast_packs<8>(&work, args.stochastic, args.saturate);
}

/* --- with the largest magnitude -------------------------------------------------------------- */

/* Returns the largest code of this thread's packs. */
template <int N>
MO_DEVICE uint32_t mo_cast_packs_amax(const mo_cast_work *work, int stochastic, int saturate)
{
    uint32_t from_size = mo_element_size(work->from), to_size = mo_element_size(work->to);
    uint32_t unsign = 33 - 8 * from_size, most = 0; /* a shift: the sign goes */
    const uint32_t nan = work->from >= MO_DTYPE_F8_E4M3FNUZ ? 0x80u : ~0u; /* or an f32's */
    int from_aligned = mo_pack_aligned<N>(work->source, work->from);
    int to_aligned = mo_pack_aligned<N>(work->destination, work->to);
    for (uint64_t at = (uint64_t)mo_thread_index() * N; at < work->count;
         at += MO_CAST_THREADS * N) {
        uint32_t rest = mo_pack_rest<N>(work->count, at);
        uint32_t codes[N];
        mo_read_pack<N>(work->source, at, rest, from_size, from_aligned, codes);
        MO_UNROLL
        for (int k = 0; k < N; k++) {
            uint32_t order = codes[k] == nan ? ~0u : codes[k] << unsign;
            most = order > most ? order : most;
        }
        if (work->destination == 0)
            continue;
        if (work->from != work->to)
            mo_cast_pack<N>(work, at, stochastic, saturate, codes);
        mo_write_pack<N>(work->destination, at, rest, to_size, to_aligned, codes);
    }
    return most == ~0u && nan == 0x80u ? 0x80u : most >> unsign;
}

/* mo_code_magnitude without branches. */
MO_DEVICE uint32_t mo_magnitude_of(uint32_t dtype, uint32_t code)
{
    uint32_t half = dtype == MO_DTYPE_F8_E5M2 ? code << 8 : code;
    uint32_t bits = dtype == MO_DTYPE_F32           ? code
                    : dtype == MO_DTYPE_BF16        ? code << 16
                    : dtype == MO_DTYPE_F8_E4M3     ? mo_f32_bits(mo_e4m3_as_f32(code))
                    : dtype == MO_DTYPE_F8_E4M3FNUZ ? mo_f32_bits(mo_fnuz_as_f32<3, 8>(code))
                    : dtype == MO_DTYPE_F8_E5M2FNUZ ? mo_f32_bits(mo_fnuz_as_f32<2, 16>(code))
                                                    : mo_f32_bits(mo_half_as_f32(half));
    return bits > MO_F32_INF_BITS ? MO_F32_NAN_BITS : bits;
}

/* With more blocks clang runs out of registers. */
MO_GLOBAL_ROOM(mo_cast_amax, mo_cast_args, MO_CAST_THREADS, 3)
{
    MO_SHARED(mo_cast_work, shared_work);
    MO_SHARED(uint32_t, tensor);
    if (mo_thread_index() == 0) {
        uint64_t item = first_item + mo_block_index();
        const uint32_t stride = sizeof args.segments[0];
        mo_cast_work_of(args.segments, args, item, &shared_work);
        tensor =
            args.segments[mo_chunk_segment(&args.segments[0].first_chunk, stride, args.count, item)]
                .tensor;
    }
    mo_barrier();
    mo_cast_work work = shared_work;
    uint32_t most = mo_cast_packs_amax<4>(&work, args.stochastic, args.saturate);
    for (uint32_t distance = 1; distance < MO_LANES; distance *= 2) {
        uint32_t other = mo_shuffle_xor_u32(most, distance);
        most = other > most ? other : most;
    }
    if (mo_thread_index() % MO_LANES == 0)
        mo_cell_raise(&args.amax[tensor], mo_magnitude_of(work.from, most));
}
