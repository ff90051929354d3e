/*
 * Matrices and their transposes on a GPU: the equal of blocks_transpose.c bit for bit. A block of
 * threads has a tile. It quantises the rows as mo_blocks_quantize does; then columns pass through
 * shared memory, some at a time, so that a pack is eight elements of a column. The tile's values
 * are read from memory once and from the first cache once more.
 */

/* One column lies behind the other. With this pitch, and a word more for each 32, the threads of a
 * warp write to all banks, and read from all but a few. */
enum { MO_TURN_WIDTH = 32, MO_TURN_PITCH = 133, MO_TILE_PACKS = MO_BLOCKS_TILE / MO_BLOCKS_PACK };

typedef struct mo_turned {
    float of[MO_TURN_WIDTH * MO_TURN_PITCH];
} mo_turned;

MO_DEVICE uint32_t mo_turned_at(uint32_t column, uint32_t row)
{
    return column * MO_TURN_PITCH + row + (row >> 5);
}

/* The item of the transpose. */
MO_DEVICE void mo_blocks_turn(const mo_blocks_work *from, mo_blocks_work *to)
{
    *to = *from;
    to->segment.codes = from->segment.turned_codes;
    to->segment.scales = from->segment.turned_scales;
    to->segment.rows = from->segment.columns;
    to->segment.columns = from->segment.rows;
    to->item.row = from->item.column;
    to->item.column = from->item.row;
    to->item.rows = from->item.columns;
    to->item.columns = from->item.rows;
    to->packs_across = MO_TILE_PACKS;
}

/* Columns from `first` on of an item; 0 where the matrix has no such elements. */
MO_DEVICE void mo_turn_columns(const mo_blocks_work *work, uint32_t first, mo_turned *turned)
{
    enum { PACKS = MO_TURN_WIDTH / MO_BLOCKS_PACK };
    for (uint32_t p = mo_thread_index(); p < MO_BLOCKS_TILE * PACKS; p += MO_BLOCKS_THREADS) {
        const uint32_t row = p / PACKS, column = p % PACKS * MO_BLOCKS_PACK;
        const mo_blocks_pack pack = {row, (first + column) / MO_BLOCKS_PACK};
        float values[MO_BLOCKS_PACK];
        mo_blocks_place place = mo_blocks_place_of(work, pack);
        mo_blocks_load(work, &place, values);
        MO_UNROLL
        for (uint32_t k = 0; k < MO_BLOCKS_PACK; k++)
            turned->of[mo_turned_at(column + k, row)] = values[k];
    }
}

/* Those columns as rows of the transpose, which `work` is of. factor: of a tile that is one block.
 * Returns the largest magnitude seen. */
MO_DEVICE uint32_t mo_quantize_turned(const mo_blocks_work *work, uint32_t first,
                                      const mo_turned *turned, float factor, int stochastic,
                                      int power_of_two)
{
    const uint32_t width = mo_blocks_width(work->format);
    uint32_t most = 0;
    for (uint32_t p = mo_thread_index(); p < MO_TURN_WIDTH * MO_TILE_PACKS;
         p += MO_BLOCKS_THREADS) {
        const uint32_t column = p / MO_TILE_PACKS, row = p % MO_TILE_PACKS * MO_BLOCKS_PACK;
        const mo_blocks_pack pack = {first + column, p % MO_TILE_PACKS};
        float values[MO_BLOCKS_PACK];
        mo_blocks_place place = mo_blocks_place_of(work, pack);
        MO_UNROLL
        for (uint32_t k = 0; k < MO_BLOCKS_PACK; k++)
            values[k] = turned->of[mo_turned_at(column, row + k)];
        uint32_t amax = mo_lanes_largest(mo_pack_amax(values), width / MO_BLOCKS_PACK);
        most = amax > most ? amax : most;
        if (place.rest == 0)
            continue;
        if (mo_blocks_height(work->format) == 1)
            factor = mo_blocks_put_scale(work, &place, amax, power_of_two,
                                         (place.column & (width - 1)) == 0);
        mo_blocks_encode(work, &place, values, factor, stochastic);
    }
    return most;
}

MO_GLOBAL(mo_blocks_transpose, mo_blocks_args, MO_BLOCKS_THREADS)
{
    MO_SHARED(mo_blocks_work, work);
    MO_SHARED(mo_blocks_work, across);
    MO_SHARED(mo_blocks_words, words);
    MO_SHARED(mo_turned, turned);
    if (mo_thread_index() == 0) {
        mo_blocks_begin(args, first_item + mo_block_index(), &work);
        mo_blocks_turn(&work, &across);
    }
    mo_barrier();
    uint32_t most = 0;
    float factor = 0.0f;
    if (mo_blocks_height(work.format) != 1) {
        most = mo_item_amax(&work, &words);
        factor = mo_put_item_scale(&across, most, args.power_of_two);
        if (work.segment.codes != 0)
            mo_encode_item(&work, mo_put_item_scale(&work, most, args.power_of_two),
                           args.stochastic);
    } else if (work.segment.codes != 0) {
        most = mo_quantize_rows(&work, args.stochastic, args.power_of_two);
    }
    for (uint32_t first = 0; first < work.item.columns; first += MO_TURN_WIDTH) {
        mo_barrier();
        mo_turn_columns(&work, first, &turned);
        mo_barrier();
        uint32_t seen =
            mo_quantize_turned(&across, first, &turned, factor, args.stochastic, args.power_of_two);
        most = seen > most ? seen : most;
    }
    mo_raise_amax(&work, most);
}
