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
/* row_squares, column_squares, row_factor, column_factor, row_moment, column_moment */
enum { ROW = STACK * ACROSS * ROWS, COLUMN = STACK * DOWN * COLUMNS };
enum { FACTORS = ROW + COLUMN, MOMENTS = FACTORS + STACK * (ROWS + COLUMNS) };
static float floats[MOMENTS + STACK * (ROWS + COLUMNS)], rate;
static double row_totals[STACK], tile_squares[COUNT / MO_TILE_COLUMNS + 1];
static double chunk_squares[COUNT / MO_CHUNK_ELEMENTS + 1], levels[8];
static uint64_t steps;
static mo_optim_tensor tensor;
static mo_tensor_segment segment;
static mo_rule_group group;
static mo_rule_coef coef;
static mo_optim_control control;
static mo_adafactor_plan plan;

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

static mo_adafactor_args arguments(uint32_t type, uint32_t gradient_type, int any, int vector)
{
    tensor = (mo_optim_tensor){.parameter = parameter,
                               .m = vector ? column_var : row_var,
                               .v = vector ? NULL : column_var,
                               .steps = &steps,
                               .parameter_dtype = (int32_t)type};
    segment = (mo_tensor_segment){gradient, COUNT, 0, gradient_type, 0};
    group = (mo_rule_group){.lr = 0.03, .eps2 = 1e-3, .d = 1.0};
    coef = (mo_rule_coef){.one_minus_beta2 = any ? 1.0f : 0.3f,
                          .eps = 0x1p-12f,
                          .factor = 0.75f,
                          .decay = 0.999f,
                          .step = 2};
    plan = (mo_adafactor_plan){.rows = vector ? 1 : ROWS, .columns = vector ? COUNT : COLUMNS};
    const mo_adafactor_args args = {.tensors = &tensor,
                                    .gradients = &segment,
                                    .groups = &group,
                                    .coefs = &coef,
                                    .control = &control,
                                    .plans = &plan,
                                    .chunk_squares = chunk_squares,
                                    .tile_squares = tile_squares,
                                    .row_totals = row_totals,
                                    .levels = levels,
                                    .floats = floats,
                                    .rates = &rate,
                                    .elements = COUNT,
                                    .count = 1};
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

static void move(const mo_adafactor_args *args, uint64_t tiles, uint64_t *of_rate,
                 uint64_t *of_apply)
{
    for (uint64_t i = 0; i < sizeof chunk_squares / sizeof *chunk_squares; i++)
        chunk_squares[i] = 123.0 / (double)(i + 1);
    digest_launch(&mo_kernel_adafactor_rate, args, 1);
    digest_add_f32(of_rate, rate);
    rate = 0.01f; /* a number, also where the update is not */
    digest_launch(&mo_kernel_step_adafactor, args, tiles);
    digest_add(of_apply, parameter, COUNT, mo_element_size((uint32_t)tensor.parameter_dtype));
    add(of_apply, row_var, STACK * ROWS);
    add(of_apply, column_var, COUNT);
}

void digest_adafactor(void)
{
    uint64_t of[6];
    for (int i = 0; i < 6; i++)
        of[i] = DIGEST_START;
    for (uint32_t turn = 0; turn < 12; turn++) {
        uint32_t type = 1 + turn % 3, other = 1 + turn / 3 % 3;
        mo_adafactor_args args = arguments(type, other, turn >= 9, 0);
        digest_launch(&mo_kernel_adafactor_squares, &args, TILES);
        add(&of[0], floats, ROW + COLUMN);
        digest_launch(&mo_kernel_adafactor_rows, &args, STACK);
        add(&of[1], floats + MOMENTS, STACK * ROWS);
        add(&of[1], floats + FACTORS, STACK * ROWS);
        digest_launch(&mo_kernel_adafactor_columns, &args, STACK * ACROSS);
        add(&of[2], floats + MOMENTS + STACK * ROWS, STACK * COLUMNS);
        add(&of[2], floats + FACTORS + STACK * ROWS, STACK * COLUMNS);
        digest_launch(&mo_kernel_adafactor_update, &args, TILES);
        for (int i = 0; i < TILES; i++)
            digest_add_f64(&of[3], tile_squares[i]);
        move(&args, TILES, &of[4], &of[5]);
        args = arguments(type, other, turn >= 9, 1);
        uint64_t tiles = mo_tiles_of(COUNT, MO_TILE_COLUMNS);
        digest_launch(&mo_kernel_adafactor_update, &args, tiles);
        for (uint64_t i = 0; i < tiles; i++)
            digest_add_f64(&of[3], tile_squares[i]);
        move(&args, tiles, &of[4], &of[5]);
    }
    static const char *const names[] = {"squares", "rows", "columns", "update", "rate", "apply"};
    for (int i = 0; i < 6; i++)
        digest_report(of[i], "mo_adafactor_%s", names[i]);
}
