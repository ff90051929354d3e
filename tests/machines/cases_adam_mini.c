/* Adam-mini's kernels: each one's result in a step of rows, of heads and of one large block. */
#include "machines/digest.h"

#include "kernels/adam_mini/adam_mini.h"

enum { ROWS = 12, COLUMNS = 5000, COUNT = ROWS * COLUMNS, SCALES = ROWS * 20 };

static float parameter[COUNT], gradient[COUNT], mean[COUNT], scales[SCALES], second[ROWS];
static float rates[ROWS];
static uint8_t codes[COUNT];
static double chunk_squares[COUNT / MO_CHUNK_ELEMENTS + 2];

static void fill(void *to, uint32_t dtype, uint64_t seed, int any)
{
    uint64_t state = seed;
    if (any)
        digest_fill_any(to, COUNT, dtype, seed);
    for (uint64_t i = 0; !any && i < COUNT; i++) {
        float value = (float)((int64_t)digest_random(&state) >> 40) * 0x1p-20f;
        value *= i / COLUMNS % 3 ? 1.0f : 0x1p-9f;
        if (dtype == MO_DTYPE_F32)
            ((float *)to)[i] = value;
        else
            ((uint16_t *)to)[i] =
                dtype == MO_DTYPE_F16 ? mo_f32_to_f16(value) : mo_f32_to_bf16(value);
    }
}

/* block_rows 0: all is one block. */
static mo_adam_mini_args arguments(uint32_t turn, uint64_t block_rows, int coded)
{
    const int any = turn >= 9;
    const uint32_t type = 1 + turn % 3, other = 1 + turn / 3 % 3;
    mo_adam_mini_args args = {
        .parameter = (unsigned char *)parameter,
        .gradient = (const unsigned char *)gradient,
        .mean = coded ? (void *)codes : (void *)mean,
        .scales = coded ? scales : NULL,
        .second = second,
        .chunk_squares = block_rows ? NULL : chunk_squares,
        .rates = block_rows ? NULL : rates,
        .rows = block_rows ? ROWS : 1,
        .columns = block_rows ? COLUMNS : COUNT,
        .block_rows = block_rows ? block_rows : 1,
        .item_rows = block_rows ? 3 : 1,
        .item_columns = block_rows ? COLUMNS : MO_CHUNK_ELEMENTS,
        .square_factor = 0x1p-14,
        .step_rate = -0.01,
        .root_factor = 3.0,
        .eps = 1e-4,
        .beta1 = 0.9f,
        .fresh1 = 0.07f,
        .beta2 = 0.99f,
        .fresh2 = 0.01f,
        .decay = -0x1p-9f,
        .parameter_dtype = type,
        .gradient_dtype = other,
    };
    fill(parameter, type, 3 + type, 0);
    fill(gradient, other, 7 + other, any);
    fill(mean, MO_DTYPE_F32, 11, 0);
    for (uint32_t i = 0; i < COUNT; i++)
        codes[i] = (uint8_t)(i * 7);
    for (uint32_t i = 0; i < SCALES; i++)
        scales[i] = 0.5f + (float)(i % 3);
    for (uint32_t i = 0; i < ROWS; i++)
        second[i] = any ? 0.0f : 0.01f * (float)(i % 5);
    return args;
}

static void add(uint64_t *digest, const float *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        digest_add_f32(digest, values[i]);
}

static void step(uint64_t *digest, const mo_adam_mini_args *args)
{
    digest_launch(args->scales ? &mo_kernel_adam_mini_step8 : &mo_kernel_adam_mini_step, args,
                  mo_adam_mini_items(args));
    digest_add(digest, parameter, COUNT, mo_element_size(args->parameter_dtype));
    add(digest, second, ROWS);
    if (args->scales)
        digest_add(digest, codes, COUNT, 1);
    add(digest, args->scales ? scales : mean, args->scales ? SCALES : COUNT);
}

void digest_adam_mini(void)
{
    uint64_t squares = DIGEST_START, of_rates = DIGEST_START;
    uint64_t steps[2] = {DIGEST_START, DIGEST_START};
    for (uint32_t turn = 0; turn < 24; turn++) {
        const int coded = turn % 2;
        mo_adam_mini_args args = arguments(turn / 2, 1, coded);
        step(&steps[coded], &args);
        args = arguments(turn / 2, 3, coded);
        step(&steps[coded], &args);
        args = arguments(turn / 2, 0, coded);
        const uint64_t chunks = mo_chunks_of(COUNT);
        digest_launch(&mo_kernel_adam_mini_squares, &args, chunks);
        for (uint64_t i = 0; i < chunks; i++)
            digest_add_f64(&squares, chunk_squares[i]);
        digest_launch(&mo_kernel_adam_mini_rates, &args, 1);
        add(&of_rates, rates, 1);
        add(&of_rates, second, 1);
        step(&steps[coded], &args);
    }
    digest_report(squares, "mo_adam_mini_squares");
    digest_report(of_rates, "mo_adam_mini_rates");
    digest_report(steps[0], "mo_adam_mini_step");
    digest_report(steps[1], "mo_adam_mini_step8");
}
