/* The content hash on a GPU: 128 threads a granule. The sum may be formed in any order. */
#include "kernels/core/gpu_vector_io.h"

#include "kernels/hash/hash.h"

/* One word for every warp of a block; blocks of 32-wide warps have the most. */
typedef struct mo_hash_partials {
    uint64_t of[MO_HASH_COMPARE_THREADS / 32];
} mo_hash_partials;

/* The word that starts `offset` bytes into a granule of `count` bytes, padded with zeros. */
MO_DEVICE uint64_t mo_hash_word(const unsigned char *granule, uint64_t offset, uint64_t count,
                                int aligned)
{
    if (aligned && offset + 8 <= count)
        return mo_load_as<uint64_t>(granule + offset);
    uint64_t word = 0;
    MO_ROLLED
    for (uint32_t k = 0; k < 8 && offset + k < count; k++)
        word |= (uint64_t)mo_load_as<uint8_t>(granule + offset + k) << (8 * k);
    return word;
}

/* Pair number `pair` of the words of a granule that lies at a multiple of 16 bytes. */
MO_DEVICE uint64_t mo_hash_pair(const unsigned char *granule, uint32_t pair)
{
    mo_words<4> raw = mo_load_words<4, 1>(granule + pair * 16);
    return mo_hash_term(raw.of[0] | (uint64_t)raw.of[1] << 32, 2 * pair) +
           mo_hash_term(raw.of[2] | (uint64_t)raw.of[3] << 32, 2 * pair + 1);
}

/* The thread's share of a whole granule at such an address. */
MO_DEVICE uint64_t mo_hash_share_whole(const unsigned char *granule)
{
    uint64_t sum = 0;
    MO_UNROLL
    for (uint32_t i = 0; i < MO_HASH_GRANULE / 16 / MO_HASH_THREADS; i++)
        sum += mo_hash_pair(granule, mo_thread_index() + i * MO_HASH_THREADS);
    return sum;
}

MO_DEVICE uint64_t mo_hash_share(const unsigned char *granule, uint64_t count)
{
    int aligned = mo_aligned_to(granule, 8);
    uint64_t sum = 0;
    MO_ROLLED
    for (uint64_t word = mo_thread_index(); word * 8 < count; word += MO_HASH_THREADS)
        sum += mo_hash_term(mo_hash_word(granule, word * 8, count, aligned), word);
    return sum;
}

MO_GLOBAL(mo_hash_granules, mo_hash_granules_args, MO_HASH_THREADS)
{
    MO_SHARED(mo_hash_partials, partials);
    uint64_t item = first_item + mo_block_index(), rest = args.bytes - item * MO_HASH_GRANULE;
    const unsigned char *granule = (const unsigned char *)args.data + item * MO_HASH_GRANULE;
    uint64_t count = rest < MO_HASH_GRANULE ? rest : (uint64_t)MO_HASH_GRANULE;
    uint64_t sum = count == MO_HASH_GRANULE && mo_aligned_to(granule, 16)
                       ? mo_hash_share_whole(granule)
                       : mo_hash_share(granule, count);
    for (uint32_t mask = mo_warp_size() / 2; mask > 0; mask /= 2)
        sum += mo_shuffle_xor_u64(sum, mask);
    if (mo_thread_index() % mo_warp_size() == 0)
        partials.of[mo_thread_index() / mo_warp_size()] = sum;
    mo_barrier();
    if (mo_thread_index() != 0)
        return;
    for (uint32_t w = 1; w < MO_HASH_THREADS / mo_warp_size(); w++)
        sum += partials.of[w];
    args.hashes[item] = mo_hash_finish(sum, count);
}

MO_GLOBAL(mo_hash_compare, mo_hash_compare_args, MO_HASH_COMPARE_THREADS)
{
    MO_SHARED(mo_hash_partials, places);
    (void)first_item;
    uint64_t place = UINT64_MAX;
    for (uint64_t i = mo_thread_index(); i < args.count && place == UINT64_MAX;
         i += MO_HASH_COMPARE_THREADS)
        if (args.first[i] != args.second[i])
            place = i;
    for (uint32_t mask = mo_warp_size() / 2; mask > 0; mask /= 2) {
        uint64_t other = mo_shuffle_xor_u64(place, mask);
        place = other < place ? other : place;
    }
    if (mo_thread_index() % mo_warp_size() == 0)
        places.of[mo_thread_index() / mo_warp_size()] = place;
    mo_barrier();
    if (mo_thread_index() != 0)
        return;
    for (uint32_t w = 1; w < MO_HASH_COMPARE_THREADS / mo_warp_size(); w++)
        place = places.of[w] < place ? places.of[w] : place;
    if (place != UINT64_MAX && args.result[0] == UINT64_MAX) {
        args.result[0] = args.label;
        args.result[1] = place;
    }
}
