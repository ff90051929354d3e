/*
 * One transformer layer as a checkpoint region.
 *
 *     middle = input  + dropout(attention(norm1(input)) · project)
 *     output = middle + dropout(gelu(norm2(middle) · up) · down)
 *
 * The region's callback is layer_run(); what backward needs is leased from the region, which keeps
 * the leases or drops and recomputes them as --checkpoint or the plan of --budget says. Where a value
 * goes to the host, the values are blocks of the layer's own, which can be given to the offloader.
 */
#ifndef GPT_LAYER_H
#define GPT_LAYER_H

#include "ops.h"
#include "parameters.h"
#include "saved.h"

/* What a layer's backward needs beside its input. */
enum {
    NORM1_OUT,
    NORM1_STATS,
    QKV,
    PROBABILITIES,
    ATTENDED,
    MIDDLE,
    NORM2_OUT,
    NORM2_STATS,
    UP,
    ACTIVE,
    LAYER_VALUES
};

typedef struct layer {
    memory *memory;
    const options *options;
    parameter *parameters; /* LAYER_PARAMETERS of them */
    random_state *random;  /* the run's generator */
    memopt_region *region;
    double dropout;             /* 0 in evaluation */
    uint32_t recomputed;        /* 1: the region drops the values */
    uint32_t own_values;        /* 1: values are blocks of the layer's own */
    saved values[LAYER_VALUES]; /* valid between forward (or recompute) and release */
    uint64_t mask_keys[2];      /* of the two dropouts */
    memopt_tensor input;        /* set before forward and before backward */
    memopt_tensor output;       /* set before forward */
} layer;

/* A layer that can be rehearsed. */
void layer_prepare(layer *l, memory *m, const options *o, parameter *parameters,
                   random_state *random);

/* Makes its region, once `recomputed` and the values that go away are known. */
memopt_status layer_create(layer *l, uint32_t number);

memopt_status layer_destroy(layer *l);

/* What layer_forward() costs: operations of matrix products. */
double layer_operations(const layer *l);

/* output from input. */
memopt_status layer_forward(layer *l);

/* Makes the values live again where they were dropped or sent away. */
memopt_status layer_restore(layer *l);

/* d: the gradient of the output becomes that of the input. Parameter gradients are added to. */
memopt_status layer_backward(layer *l, float *d);

/* Ends the values. */
memopt_status layer_release(layer *l);

/* Save-on-CPU of values that are the layer's own; each does nothing otherwise. */
memopt_status layer_send(layer *l);
memopt_status layer_wait_sent(layer *l);
memopt_status layer_prefetch(layer *l);

#endif
