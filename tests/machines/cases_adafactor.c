/* Adafactor's kernels: each one's result in a step of a stack of matrices, and of vectors. */
#include "machines/digest.h"

#include "kernels/adafactor/adafactor.h"

enum {
    STACK = 2,
    ROWS = MO_TILE_ROWS + 5,
    COLUMNS = MO_TILE_COLUMNS + 43,
    COUNT = STACK * ROWS * COLUMNS,
    DOWN = 2,
    ACROSS = 2,
    TILES = STACK * DOWN * ACROSS
};

/* The gradient's numbers must not lie at the end of what squares hold, or all is infinite. */
static float parameter[COUNT], gradient[COUNT], row_var[STACK * ROWS], column_var[COUNT];
static float row_squares[STACK * ACROSS * ROWS], column_squares[STACK * DOWN * COLUMNS];
static float row_factor[STACK * ROWS], column_factor[STACK * COLUMNS], rate;
static double row_totals[STACK], tile_squares[COUNT / MO_TILE_COLUMNS + 1], squares[2];

static void fill(void *to, uint32_t dtype, uint64_t seed, int any)
{
    uint64_t state = seed;
    if (any)
        digest_fill_any(to, COUNT, dtype, seed);
    for (uint64_t i = 0; !any && i < COUNT; i++) {
        int64_t random = (int64_t)next_random(&state);
        float value = (float)(random >> 40) * 0x1p-20f * (i % 5 ? 1.0f : 0x1p-9f);
        uint16_t half = dtype == MO_DTYPE_F16 ? mo_f32_to_f16(value) : mo_f32_to_bf16(value);
        if (dtype == MO_DTYPE_F32)
            ((float *)to)[i] = value;
        else
            ((uint16_t *)to)[i] = half;
    }
}

static mo_adafactor_args arguments(uint32_t type, uint32_t gradient_type, int any)
{
    mo_adafactor_args args = {
        .parameter = (unsigned char *)parameter,
        .gradient = (const unsigned char *)gradient,
        .row_var = row_var,
        .column_var = column_var,
        .parameter_squares = &squares[0],
        .update_squares = &squares[1],
        .row_totals = row_totals,
        .tile_squares = tile_squares,
        .row_squares = row_squares,
        .column_squares = column_squares,
        .row_factor = row_factor,
        .column_factor = column_factor,
        .rate = &rate,
        .stack = STACK,
        .rows = ROWS,
        .columns = COLUMNS,
        .step_rate = 0.03,
        .least_size = 1e-3,
        .longest = 1.0,
        .least = 0x1p-12f,
        .cap = 0x1p12f,
        .fresh = any ? 1.0f : 0.3f,
        .scale = 0.75f,
        .keep = 0.999f,
        .parameter_dtype = type,
        .gradient_dtype = gradient_type,
    };
    fill(parameter, type, 3 + type, 0);
    fill(gradient, gradient_type, 7 + gradient_type, any);
    for (uint32_t i = 0; i < STACK * ROWS; i++)
        row_var[i] = any ? 0.0f : 0.01f * (float)(i % 17);
    for (uint32_t i = 0; i < COUNT; i++)
        column_var[i] = any ? 0.0f : 0.02f * (float)(i % 13);
    return args;
}

static void add(uint64_t *digest, const float *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        digest_add_f32(digest, values[i]);
}

static void move(mo_adafactor_args *args, uint64_t tiles, uint64_t *of_rate, uint64_t *of_apply)
{
    squares[0] = 123.0;
    squares[1] = tile_squares[0];
    digest_launch(&mo_kernel_adafactor_rate, args, 1);
    digest_add_f32(of_rate, rate);
    rate = 0.01f; /* a number, also where the update is not */
    digest_launch(&mo_kernel_adafactor_apply, args, tiles);
    digest_add(of_apply, parameter, COUNT, mo_element_size(args->parameter_dtype));
}

void digest_adafactor(void)
{
    uint64_t of[7];
    for (int i = 0; i < 7; i++)
        of[i] = DIGEST_START;
    for (uint32_t turn = 0; turn < 12; turn++) {
        uint32_t type = 1 + turn % 3, other = 1 + turn / 3 % 3;
        mo_adafactor_args args = arguments(type, other, turn >= 9);
        digest_launch(&mo_kernel_adafactor_squares, &args, TILES);
        add(&of[0], row_squares, STACK * ACROSS * ROWS);
        add(&of[0], column_squares, STACK * DOWN * COLUMNS);
        digest_launch(&mo_kernel_adafactor_rows, &args, STACK);
        add(&of[1], row_var, STACK * ROWS);
        add(&of[1], row_factor, STACK * ROWS);
        digest_launch(&mo_kernel_adafactor_columns, &args, STACK * ACROSS);
        add(&of[2], column_var, STACK * COLUMNS);
        add(&of[2], column_factor, STACK * COLUMNS);
        digest_launch(&mo_kernel_adafactor_update, &args, TILES);
        for (int i = 0; i < TILES; i++)
            digest_add_f64(&of[3], tile_squares[i]);
        move(&args, TILES, &of[5], &of[6]);
        args = arguments(type, other, turn >= 9);
        args.row_var = NULL;
        args.rows = args.stack = 1;
        args.columns = COUNT;
        uint64_t tiles = mo_tiles_of(COUNT, MO_TILE_COLUMNS);
        digest_launch(&mo_kernel_adafactor_vector, &args, tiles);
        add(&of[4], column_var, COUNT);
        for (uint64_t i = 0; i < tiles; i++)
            digest_add_f64(&of[4], tile_squares[i]);
        move(&args, tiles, &of[5], &of[6]);
    }
    static const char *const names[] = {"squares", "rows", "columns", "update",
                                        "vector",  "rate", "apply"};
    for (int i = 0; i < 7; i++)
        digest_report(of[i], "mo_adafactor_%s", names[i]);
}
