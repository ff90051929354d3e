/* Cross-entropy: each form against the formula in long double and against the scalar form, bit for bit; cuts
 * into pieces; special values; bad input. */
#include "support.h"

#include "kernels/core/element_io.h"
#include "kernels/loss/loss.h"
#include "memopt/loss.h"
#include "support/forms.h"

enum { ROWS = 5, MOST = 5000, STRIDE = MOST + 3 };

static const memopt_dtype types[] = {MEMOPT_DTYPE_F32, MEMOPT_DTYPE_F16, MEMOPT_DTYPE_BF16};

static void fill(void *data, memopt_dtype dtype, float size, uint64_t *seed)
{
    for (uint64_t i = 0; i < ROWS * STRIDE; i++)
        mo_store_element(data, i, (int32_t)dtype, size * next_float(seed));
}

static const float never[] = {INFINITY, NAN};

/* Losses and gradients of the rows by the definition. */
static void check_row(const void *logits, const void *gradient, memopt_dtype dtype, uint64_t row,
                      uint32_t columns, int32_t target, float scale, float loss)
{
    long double sum = 0, top = -INFINITY,
                unit = dtype == MEMOPT_DTYPE_F32    ? 0x1p-22L
                       : dtype == MEMOPT_DTYPE_BF16 ? 0x1p-8L
                                                    : 0x1p-11L;
    for (uint32_t i = 0; i < columns; i++)
        top = fmaxl(top, mo_load_element(logits, row * STRIDE + i, (int32_t)dtype));
    for (uint32_t i = 0; i < columns; i++)
        sum += expl(mo_load_element(logits, row * STRIDE + i, (int32_t)dtype) - top);
    for (uint32_t i = 0; i < columns; i++) {
        long double x = mo_load_element(logits, row * STRIDE + i, (int32_t)dtype);
        long double p = expl(x - top) / sum,
                    d = target < 0 ? 0 : scale * (p - (target == (int32_t)i));
        long double got = mo_load_element(gradient, row * STRIDE + i, (int32_t)dtype);
        assert_true(fabsl(got - d) <=
                    scale * (p * 0x1p-20L + 0x1p-24L) + fabsl(d) * unit + 0x1p-25L);
    }
    if (target < 0)
        assert_true(loss == 0.0f);
    else {
        long double x = mo_load_element(logits, row * STRIDE + (uint32_t)target, (int32_t)dtype);
        long double wanted = logl(sum) + (top - x);
        assert_true(fabsl(loss - wanted) <= 0x1p-20L * (1 + wanted));
    }
}

TEST(each_form)
{
    static float logits[ROWS * STRIDE], gradient[2][ROWS * STRIDE];
    static const uint32_t widths[] = {1, 2, 31, 33, 1000, 1024, 1025, 4096, MOST};
    static const float sizes[] = {0.5f, 8.0f, 200.0f};
    uint64_t seed = 7;
    for (int round = 0; round < 9 * 3 * 3; round++) {
        uint32_t columns = widths[round % 9];
        memopt_dtype dtype = types[round / 9 % 3];
        mo_loss_row rows[2][ROWS];
        float losses[ROWS], scale = 1.0f / ROWS;
        int32_t targets[ROWS] = {-100, 0, (int32_t)columns - 1, (int32_t)columns / 2, 0};
        fill(logits, dtype, sizes[round / 27], &seed);
        if (round % 2) /* one row has a value that is not finite, one is -infinity here and there */
            mo_store_element(logits, 4 * STRIDE + columns / 3, (int32_t)dtype,
                             never[round / 2 % 2]);
        mo_store_element(logits, 3 * STRIDE, (int32_t)dtype, columns > 2 ? -INFINITY : 0.25f);
        FOR_EACH_FORM (isa, &mo_kernel_logits_add) {
            int at = isa != MO_ISA_SCALAR;
            mo_logits_args args = {
                (unsigned char *)logits, targets, rows[at], STRIDE, ROWS, columns, 0,
                (uint32_t)dtype,         scale};
            mo_losses_args of = {rows[at], targets, losses, ROWS};
            memset(rows[at], 0, sizeof rows[at]);
            mo_kernel_logits_add.cpu[isa](&args, 0, ROWS);
            memcpy(gradient[at], logits, sizeof logits);
            args.logits = (unsigned char *)gradient[at];
            mo_kernel_logits_gradient.cpu[isa](&args, 0, ROWS);
            mo_kernel_losses.cpu[0](&of, 0, 1);
            if (at) {
                assert_memory_equal(rows[1], rows[0], sizeof rows[0]);
                assert_memory_equal(gradient[1], gradient[0], sizeof gradient[0]);
            }
        }
        for (uint64_t r = 0; r < ROWS; r++)
            if (r < 4 || round % 2 == 0)
                check_row(logits, gradient[0], dtype, r, columns, targets[r], scale, losses[r]);
            else
                assert_true(isnan(losses[r]));
    }
}

/* From -87 on, at most 1.01 units off. */
TEST(exponentials)
{
    for (uint32_t bits = 0x80000000u; bits <= mo_f32_bits(-87.0f); bits += 997) {
        float z = mo_f32_from_bits(bits);
        long double wanted = expl(z);
        assert_true(fabsl(mo_exp_down(z) - wanted) <= 1.01L * ldexpl(1, ilogbl(wanted) - 23));
    }
    assert_true(mo_exp_down(0.0f) == 1.0f && mo_exp_down(-87.5f) == 0.0f);
    assert_true(mo_exp_down(-INFINITY) == 0.0f && isnan(mo_exp_down(NAN)));
    for (int k = 0; k < 2000; k++) {
        double x = exp2(k / 37.0 - 20);
        assert_true(fabs(mo_log_positive(x) - log(x)) <= 1e-13 * (1 + fabs(log(x))));
    }
}

typedef struct on_device {
    memopt_device *device;
    float *logits;
    int32_t *targets;
    memopt_cross_entropy_row *rows;
    float *losses;
} on_device;

static on_device made_on(memopt_device *device)
{
    on_device d = {device, device_memory(device, sizeof(float) * ROWS * STRIDE),
                   device_memory(device, 64), device_memory(device, sizeof(mo_loss_row) * ROWS),
                   device_memory(device, 64)};
    uint64_t seed = 3;
    fill(d.logits, MEMOPT_DTYPE_F32, 6.0f, &seed);
    for (int r = 0; r < ROWS; r++)
        d.targets[r] = 1500 * r;
    memset(d.rows, 0, sizeof(mo_loss_row) * ROWS);
    return d;
}

static void ended(on_device *d)
{
    OK(mo_mem_free(d->device, d->logits, sizeof(float) * ROWS * STRIDE));
    OK(mo_mem_free(d->device, d->targets, 64));
    OK(mo_mem_free(d->device, d->rows, sizeof(mo_loss_row) * ROWS));
    OK(mo_mem_free(d->device, d->losses, 64));
}

static memopt_logits piece_of(on_device *d, uint64_t first, uint64_t columns)
{
    memopt_logits l = MEMOPT_LOGITS_INIT;
    l.data = d->logits + first;
    l.rows = ROWS;
    l.columns = columns;
    l.stride = STRIDE;
    l.first_class = first;
    return l;
}

/* Pieces of 1024, of 2048 and the whole: equal losses, rows and gradients. */
DEVICE_TEST(pieces, device, open_cpu(2))
{
    static float whole[ROWS * STRIDE], before[ROWS * STRIDE];
    float losses[ROWS];
    on_device d = made_on(device);
    memcpy(before, d.logits, sizeof before);
    for (uint64_t most = MOST; most >= 1024; most = most == MOST ? 2048 : most / 2) {
        memcpy(d.logits, before, sizeof before);
        memset(d.rows, 0, sizeof(mo_loss_row) * ROWS);
        for (uint64_t at = 0; at < MOST; at += most) {
            memopt_logits l = piece_of(&d, at, at + most < MOST ? most : MOST - at);
            OK(memopt_cross_entropy_add(device, &l, d.targets, d.rows, NULL));
        }
        OK(memopt_cross_entropy_losses(device, d.rows, d.targets, ROWS, d.losses, NULL));
        for (uint64_t at = 0; at < MOST; at += most) {
            memopt_logits l = piece_of(&d, at, at + most < MOST ? most : MOST - at);
            OK(memopt_cross_entropy_gradient(device, &l, d.targets, d.rows, 0.125f, NULL));
        }
        OK(memopt_device_sync(device));
        if (most == MOST) {
            memcpy(whole, d.logits, sizeof whole);
            memcpy(losses, d.losses, sizeof losses);
        }
        assert_memory_equal(d.logits, whole, sizeof whole);
        assert_memory_equal(d.losses, losses, sizeof losses);
    }
    assert_true(isnan(d.losses[ROWS - 1])); /* class 6000 was in no piece */
    assert_true(d.losses[0] > 0 && d.losses[0] < 30);
    ended(&d);
}

DEVICE_TEST(bad_input, device, open_cpu(1))
{
    on_device d = made_on(device);
    memopt_logits good = piece_of(&d, 1024, 1000), l = good;
    float first = d.logits[1024];
#define ADD memopt_cross_entropy_add(device, &l, d.targets, d.rows, NULL)
    REFUSED_SAYING("device is NULL", memopt_cross_entropy_add(NULL, &l, d.targets, d.rows, NULL));
    REFUSED_SAYING("targets is NULL", memopt_cross_entropy_add(device, &l, NULL, d.rows, NULL));
    REFUSED_SAYING(
        "rows is at",
        memopt_cross_entropy_add(device, &l, d.targets,
                                 (memopt_cross_entropy_row *)(void *)((char *)d.rows + 4), NULL));
    l.columns = 0;
    REFUSED_SAYING("columns is 0", ADD);
    l = good, l.first_class = 1000;
    REFUSED_SAYING("first_class is 1000, not a multiple of 1024", ADD);
    l = good, l.stride = 999;
    REFUSED_SAYING("stride is 999, less than the 1000 columns", ADD);
    l = good, l.rows = (uint64_t)1 << 60;
    REFUSED_SAYING("do not fit the address space", ADD);
    l = good, l.first_class = (uint64_t)INT32_MAX + 1;
    REFUSED_SAYING("2^31 - 1 classes", ADD);
    l = good, l.dtype = MEMOPT_DTYPE_F8_E4M3;
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "f8_e4m3", ADD);
    l = good, l.data = d.rows;
    REFUSED_SAYING("overlap", ADD);
    l = good;
    REFUSED_SAYING("scale is inf",
                   memopt_cross_entropy_gradient(device, &l, d.targets, d.rows, INFINITY, NULL));
    REFUSED_SAYING("losses is NULL",
                   memopt_cross_entropy_losses(device, d.rows, d.targets, ROWS, NULL, NULL));
    REFUSED_SAYING("overlap", memopt_cross_entropy_losses(device, d.rows, d.targets, ROWS,
                                                          (float *)(void *)d.targets, NULL));
    l.rows = 0, l.data = NULL;
    OK(ADD);
    assert_true(d.logits[1024] == first && d.rows[0].found == 0 && d.rows[0].sum == 0.0);
    ended(&d);
}
