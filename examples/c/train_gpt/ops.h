/*
 * The kernels of the model on fp32 arrays in row-major order, forward and backward side by side.
 *
 * Every reduction has a fixed order and every kernel writes the same bits for the same input, so a
 * layer that is recomputed gives the gradients that it would have given the first time.
 */
#ifndef GPT_OPS_H
#define GPT_OPS_H

#include <stddef.h>
#include <stdint.h>

/* --- random numbers ------------------------------------------------------------------------ */

/* A counter-based generator: draw number n of a seed is a hash of (seed, n), so its whole state is
 * these 16 bytes. A checkpointed region saves and restores them (layer.c), a resume file stores
 * them, and no mask is ever kept in memory. */
typedef struct random_state {
    uint64_t seed;
    uint64_t draws;
} random_state;

/* The next draw: 64 random bits. */
uint64_t random_next(random_state *random);

/* Draw number `draw` of a seed. */
uint64_t random_draw(uint64_t seed, uint64_t draw);

/* Fills values with a normal-like distribution of this standard deviation. */
void random_normal(uint64_t key, float deviation, float *values, size_t count);

/* Sets each value to 0 with this probability and scales the others by 1 / (1 - probability). The
 * mask is a function of key, so the backward pass is the same call on the gradient. */
void dropout(uint64_t key, double probability, float *values, size_t count);

/* --- products ------------------------------------------------------------------------------ */

/* out[rows, columns] = in[rows, inner] · weight[inner, columns] + bias[columns]. */
void linear_forward(const float *in, const float *weight, const float *bias, float *out,
                    size_t rows, size_t inner, size_t columns);

/* d_in = d_out · weightᵀ; d_weight += inᵀ · d_out; d_bias += sum of d_out over rows. */
void linear_backward(const float *in, const float *weight, const float *d_out, float *d_in,
                     float *d_weight, float *d_bias, size_t rows, size_t inner, size_t columns);

/* The head: logits[rows, classes] = in[rows, width] · weight[classes, width]ᵀ. */
void head_forward(const float *in, const float *weight, float *logits, size_t rows, size_t width,
                  size_t classes);

/* d_in = d_logits · weight; d_weight += d_logitsᵀ · in. */
void head_backward(const float *in, const float *weight, const float *d_logits, float *d_in,
                   float *d_weight, size_t rows, size_t width, size_t classes);

/* --- element-wise and by rows -------------------------------------------------------------- */

/* out = in + branch. */
void add(const float *in, const float *branch, float *out, size_t count);

/* Layer normalisation of each row; stats[2 * row] is its mean, stats[2 * row + 1] the inverse of
 * its standard deviation. */
void norm_forward(const float *in, const float *gain, const float *bias, float *out, float *stats,
                  size_t rows, size_t width);

/* Adds the gradient of `in` to d_in; d_gain and d_bias are accumulated. scratch: 2 * width. */
void norm_backward(const float *in, const float *stats, const float *gain, const float *d_out,
                   float *d_in, float *d_gain, float *d_bias, float *scratch, size_t rows,
                   size_t width);

/* GELU in its sigmoid form of the tanh approximation (Hendrycks & Gimpel 2016). */
void gelu_forward(const float *in, float *out, size_t count);

/* d := d * gelu'(in), in place. */
void gelu_backward(const float *in, float *d, size_t count);

/* Row `row` of a causal attention matrix: softmax over its first row + 1 values, 0 behind them. */
void causal_softmax(float *scores, size_t length);

/* d_scores (in place of d) from probabilities and their gradient, as causal_softmax() masks. */
void causal_softmax_backward(const float *probabilities, float *d, size_t length);

#endif
