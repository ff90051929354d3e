/* The scalar forms of the reductions, the walk over chunks that all CPU forms share, and the
 * kernels. */
#include "kernels/reduce/reduce_cpu.h"

#include <string.h>

static inline float element(const unsigned char *data, uint64_t i, uint32_t dtype)
{
    if (dtype == MO_DTYPE_F32) {
        float value;
        memcpy(&value, data + 4 * i, sizeof value);
        return value;
    }
    uint16_t code;
    memcpy(&code, data + 2 * i, sizeof code);
    return dtype == MO_DTYPE_F16 ? mo_f16_to_f32(code) : mo_bf16_to_f32(code);
}

/* --- sum of squares -------------------------------------------------------------------------- */

void mo_square_tail(const unsigned char *data, uint64_t count, uint32_t dtype,
                    double lanes[MO_STRIPE_LANES])
{
    for (uint64_t i = 0; i < count; i++) {
        double value = (double)element(data, i, dtype);
        lanes[i] += value * value;
    }
}

static double square_stripe(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    double lanes[MO_STRIPE_LANES] = {0};
    uint32_t size = mo_element_size(dtype);
    for (uint64_t i = 0; i < count; i += MO_STRIPE_LANES) {
        uint64_t rest = count - i < MO_STRIPE_LANES ? count - i : MO_STRIPE_LANES;
        mo_square_tail(data + i * size, rest, dtype, lanes);
    }
    return mo_stripe_tree(lanes);
}

static double square_scalar(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i += MO_STRIPE_ELEMENTS) {
        uint64_t rest = count - i < MO_STRIPE_ELEMENTS ? count - i : MO_STRIPE_ELEMENTS;
        sum += square_stripe(data + i * mo_element_size(dtype), rest, dtype);
    }
    return sum;
}

int mo_check_scalar(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    int found = 0;
    for (uint64_t i = 0; i < count; i++)
        found |= !mo_f32_is_finite(element(data, i, dtype));
    return found;
}

/* --- the walk over chunks -------------------------------------------------------------------- */

/* A chunk of a launch: where it lies and how long it is. */
typedef struct piece {
    unsigned char *data;
    uint64_t count;
    uint32_t dtype;
} piece;

static piece piece_of(const mo_segment *segments, uint32_t count, uint64_t item)
{
    uint32_t s = mo_chunk_segment(&segments[0].first_chunk, sizeof *segments, count, item);
    uint64_t chunk = item - segments[s].first_chunk;
    piece at = {(unsigned char *)segments[s].data +
                    chunk * MO_CHUNK_ELEMENTS * mo_element_size(segments[s].dtype),
                mo_chunk_length(segments[s].count, chunk), segments[s].dtype};
    return at;
}

/* Several chunks may set the flag at once; all write the same. */
static void raise_flag(float *flag)
{
    uint32_t one = mo_f32_bits(1.0f);
    __atomic_store((uint32_t *)(void *)flag, &one, __ATOMIC_RELAXED);
}

void mo_square_sum_run(const void *args, uint64_t begin, uint64_t end, mo_square_function square)
{
    const mo_reduce_args *a = args;
    const mo_segment *segments = a->table ? a->table : a->segments;
    for (uint64_t item = begin; item < end; item++) {
        piece at = piece_of(segments, a->count, item);
        a->partials[item] = square(at.data, at.count, at.dtype);
    }
}

void mo_check_run(const void *args, uint64_t begin, uint64_t end, mo_check_function check)
{
    const mo_reduce_args *a = args;
    const mo_segment *segments = a->table ? a->table : a->segments;
    int found = 0;
    for (uint64_t item = begin; item < end && !found; item++) {
        piece at = piece_of(segments, a->count, item);
        found = check(at.data, at.count, at.dtype);
    }
    if (found)
        raise_flag(a->found_inf);
}

void mo_scale_run(const void *args, uint64_t begin, uint64_t end, mo_scale_function scale)
{
    const mo_scale_args *a = args;
    const mo_segment *segments = a->table ? a->table : a->segments;
    float factor = a->scale ? mo_inverse_scale(*a->scale) : *a->factor;
    int found = 0;
    if (!a->scale && factor == 1.0f && !a->found_inf)
        return;
    for (uint64_t item = begin; item < end; item++) {
        piece at = piece_of(segments, a->count, item);
        found |= scale(at.data, at.count, at.dtype, factor);
    }
    if (found && a->found_inf)
        raise_flag(a->found_inf);
}

/* --- the kernels ----------------------------------------------------------------------------- */

void mo_square_sum_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_square_sum_run(args, begin, end, square_scalar);
}

void mo_check_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_check_run(args, begin, end, mo_check_scalar);
}

/* Compilers vectorise the rows of a stripe without changing the order of any lane's additions. */
static void sum_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_sum_args *a = args;
    for (uint64_t item = begin; item < end; item++) {
        const double *values = a->values + item * MO_STRIPE_ELEMENTS;
        uint64_t rest = a->count - item * MO_STRIPE_ELEMENTS, i = 0;
        double lanes[MO_STRIPE_LANES] = {0};
        if (rest > MO_STRIPE_ELEMENTS)
            rest = MO_STRIPE_ELEMENTS;
        for (; i + MO_STRIPE_LANES <= rest; i += MO_STRIPE_LANES)
            for (uint32_t lane = 0; lane < MO_STRIPE_LANES; lane++)
                lanes[lane] += values[i + lane];
        for (uint32_t lane = 0; i + lane < rest; lane++)
            lanes[lane] += values[i + lane];
        a->destination[item] = mo_stripe_tree(lanes);
    }
}

_Static_assert(sizeof(mo_segment) == 32, "layout shared with the GPU");
_Static_assert(sizeof(mo_reduce_args) <= MO_KERNEL_ARGS_MAX, "arguments too large");

static uint64_t elements(const void *args)
{
    const mo_reduce_args *a = args;
    return mo_segments_elements(a->table ? a->table : a->segments, a->count);
}

const mo_kernel mo_kernel_square_sum = {
    .name = "mo_square_sum",
    .args_size = sizeof(mo_reduce_args),
    .threads = MO_SQUARE_SUM_THREADS,
    .cpu = MO_CPU_FORMS(mo_square_sum_ref, mo_square_sum_avx2, mo_square_sum_avx512),
    .elements = elements,
};

const mo_kernel mo_kernel_check = {
    .name = "mo_check",
    .args_size = sizeof(mo_reduce_args),
    .threads = MO_CHECK_THREADS,
    .cpu = MO_CPU_FORMS(mo_check_ref, mo_check_avx2, mo_check_avx512),
    .elements = elements,
};

const mo_kernel mo_kernel_sum = {
    .name = "mo_sum",
    .args_size = sizeof(mo_sum_args),
    .threads = MO_SUM_THREADS,
    .cpu = {sum_ref},
};
