/*
 * Causal self-attention: for each sequence and head two products and a softmax (attention.h).
 */
#include "attention.h"

#include "ops.h"

#include <cblas.h>
#include <math.h>

/* One head of one sequence: where its parts begin, and the lengths of their rows. */
typedef struct head {
    size_t first_token; /* of the sequence */
    size_t column;      /* of the head in a row of `width` */
    size_t square;      /* of its probabilities */
} head;

static head head_at(attention_shape s, size_t sequence, size_t number)
{
    return (head){sequence * s.context, number * (s.width / s.heads),
                  (sequence * s.heads + number) * s.context * s.context};
}

/* C[context, inner_c] = alpha * op(A) · B, with A a packed square of context * context. */
static void square_product(attention_shape s, CBLAS_TRANSPOSE form, float alpha,
                           const float *square, const float *b, size_t b_row, float *c,
                           size_t c_row)
{
    int n = (int)s.context;
    cblas_sgemm(CblasRowMajor, form, CblasNoTrans, n, (int)(s.width / s.heads), n, alpha, square, n,
                b, (int)b_row, 0.0F, c, (int)c_row);
}

/* square[context, context] = alpha * A · Bᵀ over the columns of one head. */
static void head_product(attention_shape s, float alpha, const float *a, size_t a_row,
                         const float *b, size_t b_row, float *square)
{
    int n = (int)s.context;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, (int)(s.width / s.heads), alpha, a,
                (int)a_row, b, (int)b_row, 0.0F, square, n);
}

static float score_scale(attention_shape s)
{
    return 1.0F / sqrtf((float)(s.width / s.heads));
}

void attention_forward(attention_shape s, const float *qkv, float *probabilities, float *out)
{
    size_t row = 3 * s.width;
    for (size_t i = 0; i < s.batch * s.heads; i++) {
        head h = head_at(s, i / s.heads, i % s.heads);
        const float *query = qkv + h.first_token * row + h.column;
        float *p = probabilities + h.square;
        head_product(s, score_scale(s), query, row, query + s.width, row, p);
        causal_softmax(p, s.context);
        square_product(s, CblasNoTrans, 1.0F, p, query + 2 * s.width, row,
                       out + h.first_token * s.width + h.column, s.width);
    }
}

void attention_backward(attention_shape s, const float *qkv, const float *probabilities,
                        const float *d_out, float *d_qkv, float *scratch)
{
    size_t row = 3 * s.width;
    for (size_t i = 0; i < s.batch * s.heads; i++) {
        head h = head_at(s, i / s.heads, i % s.heads);
        const float *query = qkv + h.first_token * row + h.column;
        const float *p = probabilities + h.square;
        const float *d = d_out + h.first_token * s.width + h.column;
        float *d_query = d_qkv + h.first_token * row + h.column;
        square_product(s, CblasTrans, 1.0F, p, d, s.width, d_query + 2 * s.width, row);
        head_product(s, 1.0F, d, s.width, query + 2 * s.width, row, scratch);
        causal_softmax_backward(p, scratch, s.context);
        square_product(s, CblasNoTrans, score_scale(s), scratch, query + s.width, row, d_query,
                       row);
        square_product(s, CblasTrans, score_scale(s), scratch, query, row, d_query + s.width, row);
    }
}
