/*
 * The kernels of the model (ops.h): plain loops that a compiler vectorises, and OpenBLAS.
 */
#include "ops.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

/* Partial sums of a reduction: enough lanes for the widest vectors, added in a fixed order. */
#define LANES 16

/* --- random numbers ------------------------------------------------------------------------ */

/* The finaliser of SplitMix64 (Steele, Lea & Flood 2014): a bijection that mixes all bits. */
static uint64_t mix64(uint64_t x)
{
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* 32 bits for element i of a draw: two multiplications, cheap enough for every activation. */
static uint32_t mix32(uint32_t i, uint32_t key)
{
    uint32_t x = i ^ key;
    x = (x ^ (x >> 16)) * UINT32_C(0x7FEB352D);
    x = (x ^ (x >> 15)) * UINT32_C(0x846CA68B);
    return x ^ (x >> 16);
}

uint64_t random_draw(uint64_t seed, uint64_t draw)
{
    return mix64(mix64(seed) ^ mix64(~draw));
}

uint64_t random_next(random_state *random)
{
    return random_draw(random->seed, random->draws++);
}

void random_normal(uint64_t key, float deviation, float *values, size_t count)
{
    /* The sum of four uniform numbers: close to normal, bounded, and the same on every machine. */
    float scale = deviation * 1.7320508F / 65536.0F;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = mix64(key + i);
        int32_t sum = (int32_t)(bits & 0xFFFF) + (int32_t)(bits >> 16 & 0xFFFF) +
                      (int32_t)(bits >> 32 & 0xFFFF) + (int32_t)(bits >> 48);
        values[i] = (float)(sum - 131070) * scale;
    }
}

void dropout(uint64_t key, double probability, float *values, size_t count)
{
    if (probability <= 0)
        return;
    uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
    uint32_t threshold = (uint32_t)(probability * 4294967296.0);
    float keep = (float)(1.0 / (1.0 - probability));
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = mix32((uint32_t)i + high, low);
        values[i] *= bits < threshold ? 0.0F : keep;
    }
}

/* --- products ------------------------------------------------------------------------------ */

/* C = alpha * op(A) · op(B) + beta * C with all matrices packed row by row. */
static void product(CBLAS_TRANSPOSE a_form, CBLAS_TRANSPOSE b_form, size_t m, size_t n, size_t k,
                    const float *a, const float *b, float beta, float *c)
{
    cblas_sgemm(CblasRowMajor, a_form, b_form, (int)m, (int)n, (int)k, 1.0F, a,
                (int)(a_form == CblasNoTrans ? k : m), b, (int)(b_form == CblasNoTrans ? n : k),
                beta, c, (int)n);
}

void linear_forward(const float *in, const float *weight, const float *bias, float *out,
                    size_t rows, size_t inner, size_t columns)
{
    for (size_t row = 0; row < rows; row++)
        memcpy(out + row * columns, bias, columns * sizeof *out);
    product(CblasNoTrans, CblasNoTrans, rows, columns, inner, in, weight, 1.0F, out);
}

static void add_columns(const float *d_out, float *d_bias, size_t rows, size_t columns)
{
    for (size_t row = 0; row < rows; row++)
        for (size_t column = 0; column < columns; column++)
            d_bias[column] += d_out[row * columns + column];
}

void linear_backward(const float *in, const float *weight, const float *d_out, float *d_in,
                     float *d_weight, float *d_bias, size_t rows, size_t inner, size_t columns)
{
    product(CblasNoTrans, CblasTrans, rows, inner, columns, d_out, weight, 0.0F, d_in);
    product(CblasTrans, CblasNoTrans, inner, columns, rows, in, d_out, 1.0F, d_weight);
    add_columns(d_out, d_bias, rows, columns);
}

void head_forward(const float *in, const float *weight, float *logits, size_t rows, size_t width,
                  size_t classes)
{
    product(CblasNoTrans, CblasTrans, rows, classes, width, in, weight, 0.0F, logits);
}

void head_backward(const float *in, const float *weight, const float *d_logits, float *d_in,
                   float *d_weight, size_t rows, size_t width, size_t classes)
{
    product(CblasNoTrans, CblasNoTrans, rows, width, classes, d_logits, weight, 0.0F, d_in);
    product(CblasTrans, CblasNoTrans, classes, width, rows, d_logits, in, 1.0F, d_weight);
}

/* --- element-wise and by rows -------------------------------------------------------------- */

/* e^x for x in [-87, 88] to about 2e-7, without a branch so that loops over it vectorise: 2^n by
 * the exponent's bits, the rest by a polynomial of degree 6. */
static inline float exp_fast(float x)
{
    x = x > -87.0F ? x : -87.0F;
    x = x < 88.0F ? x : 88.0F;
    float shifted = x * 1.44269504F + 12582912.0F; /* 1.5 * 2^23: rounds to an integer */
    float n = shifted - 12582912.0F;
    float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
    float p = 1.0F / 720;
    p = p * r + 1.0F / 120;
    p = p * r + 1.0F / 24;
    p = p * r + 1.0F / 6;
    p = p * r + 0.5F;
    p = p * r + 1.0F;
    p = p * r + 1.0F;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static float add_lanes(const float *lanes)
{
    float sum = 0;
    for (size_t lane = 0; lane < LANES; lane++)
        sum += lanes[lane];
    return sum;
}

static float row_sum(const float *x, size_t count)
{
    float lanes[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            lanes[lane] += x[i + lane];
    for (; i < count; i++)
        lanes[0] += x[i];
    return add_lanes(lanes);
}

static float row_dot(const float *x, const float *y, size_t count)
{
    float lanes[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            lanes[lane] += x[i + lane] * y[i + lane];
    for (; i < count; i++)
        lanes[0] += x[i] * y[i];
    return add_lanes(lanes);
}

static float row_max(const float *x, size_t count)
{
    float lanes[LANES];
    for (size_t lane = 0; lane < LANES; lane++)
        lanes[lane] = x[0];
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    for (; i < count; i++)
        lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
    float most = lanes[0];
    for (size_t lane = 1; lane < LANES; lane++)
        most = lanes[lane] > most ? lanes[lane] : most;
    return most;
}

/* Turns x into e^(x - max) and returns their sum. */
static float row_exp(float *x, size_t count)
{
    float most = row_max(x, count);
    for (size_t i = 0; i < count; i++)
        x[i] = exp_fast(x[i] - most);
    return row_sum(x, count);
}

void add(const float *in, const float *branch, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = in[i] + branch[i];
}

void norm_forward(const float *in, const float *gain, const float *bias, float *out, float *stats,
                  size_t rows, size_t width)
{
    for (size_t row = 0; row < rows; row++) {
        const float *x = in + row * width;
        float *y = out + row * width;
        float mean = row_sum(x, width) / (float)width;
        for (size_t i = 0; i < width; i++)
            y[i] = x[i] - mean;
        float inverse = 1.0F / sqrtf(row_dot(y, y, width) / (float)width + 1e-5F);
        for (size_t i = 0; i < width; i++)
            y[i] = y[i] * inverse * gain[i] + bias[i];
        stats[2 * row] = mean;
        stats[2 * row + 1] = inverse;
    }
}

/* One row: with z = (x - mean) * inverse and g = d_out * gain,
 * d_in += inverse * (g - mean(g) - z * mean(g * z)). scratch holds z and g. */
static void norm_backward_row(const float *restrict x, float mean, float inverse,
                              const float *restrict gain, const float *restrict d_out,
                              float *restrict d_in, float *restrict d_gain, float *restrict d_bias,
                              float *restrict z, float *restrict g, size_t width)
{
    for (size_t i = 0; i < width; i++) {
        z[i] = (x[i] - mean) * inverse;
        g[i] = d_out[i] * gain[i];
        d_gain[i] += d_out[i] * z[i];
        d_bias[i] += d_out[i];
    }
    float g_mean = row_sum(g, width) / (float)width;
    float gz_mean = row_dot(g, z, width) / (float)width;
    for (size_t i = 0; i < width; i++)
        d_in[i] += inverse * (g[i] - g_mean - z[i] * gz_mean);
}

void norm_backward(const float *in, const float *stats, const float *gain, const float *d_out,
                   float *d_in, float *d_gain, float *d_bias, float *scratch, size_t rows,
                   size_t width)
{
    for (size_t row = 0; row < rows; row++)
        norm_backward_row(in + row * width, stats[2 * row], stats[2 * row + 1], gain,
                          d_out + row * width, d_in + row * width, d_gain, d_bias, scratch,
                          scratch + width, width);
}

/* gelu(x) = x * s(x), s(x) = 1 / (1 + e^(-2u)), u = sqrt(2/pi) * (x + 0.044715 x^3). */
static inline float gelu_sigmoid(float x)
{
    float u2 = 1.59576912F * (x + 0.044715F * x * x * x);
    return 1.0F / (1.0F + exp_fast(-u2));
}

void gelu_forward(const float *in, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = in[i] * gelu_sigmoid(in[i]);
}

void gelu_backward(const float *in, float *d, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float x = in[i];
        float s = gelu_sigmoid(x);
        float slope = 1.59576912F * (1.0F + 3 * 0.044715F * x * x);
        d[i] *= s + x * s * (1.0F - s) * slope;
    }
}

void causal_softmax(float *scores, size_t length)
{
    for (size_t row = 0; row < length; row++) {
        float *x = scores + row * length;
        float inverse = 1.0F / row_exp(x, row + 1);
        for (size_t i = 0; i <= row; i++)
            x[i] *= inverse;
        memset(x + row + 1, 0, (length - row - 1) * sizeof *x);
    }
}

void causal_softmax_backward(const float *probabilities, float *d, size_t length)
{
    for (size_t row = 0; row < length; row++) {
        const float *p = probabilities + row * length;
        float *g = d + row * length;
        float mean = row_dot(p, g, row + 1);
        for (size_t i = 0; i <= row; i++)
            g[i] = p[i] * (g[i] - mean);
        memset(g + row + 1, 0, (length - row - 1) * sizeof *g);
    }
}
