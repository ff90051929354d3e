/*
 * Causal self-attention of several heads on fp32 arrays.
 *
 * qkv holds, for each token, its query, key and value, each as wide as the model and split between
 * the heads. The probabilities of all heads are kept for backward: they are what makes long
 * contexts expensive, and what checkpointing saves first.
 */
#ifndef GPT_ATTENTION_H
#define GPT_ATTENTION_H

#include <stddef.h>

typedef struct attention_shape {
    size_t batch, context, width, heads;
} attention_shape;

/* probabilities[batch, heads, context, context] and out[batch * context, width] from
 * qkv[batch * context, 3 * width]. */
void attention_forward(attention_shape shape, const float *qkv, float *probabilities, float *out);

/* d_qkv from d_out; scratch holds context * context values. */
void attention_backward(attention_shape shape, const float *qkv, const float *probabilities,
                        const float *d_out, float *d_qkv, float *scratch);

#endif
