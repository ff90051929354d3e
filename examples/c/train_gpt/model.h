/*
 * The model: embeddings, the chain of layers, the head with its loss, and one forward and backward
 * over a micro-batch, with layer inputs kept, recomputed from or sent to the host as the options
 * say.
 */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include "layer.h"
#include "shards.h"

typedef struct model {
    memory *memory;
    const options *options;
    random_state *random;
    parameter_set parameters;
    layer *layers;
    saved *inputs;    /* of layer i; the last is what the head reads */
    fit_figures plan; /* of --budget */
    shards *shards;   /* where gradients go; NULL without --ranks */
    int replaces;     /* 1: they are the first of a step */
} model;

/* One micro-batch in host memory: batch * context bytes each. */
typedef struct batch {
    const uint8_t *inputs, *targets;
} batch;

/* Makes the parameters. o, device and random must outlive the model. On failure model_destroy() cleans
 * up. */
memopt_status model_create(model *m, memory *device, const options *o, random_state *random);

/* Makes the layers, once all is allocated that lives all the time: with --budget it plans first what
 * each of them does. */
memopt_status model_create_layers(model *m);

memopt_status model_destroy(model *m);

/* Forward and backward: gradients of the mean loss times `scale` are added to the parameters'.
 * *out_loss is the (unscaled) mean loss. After a failure nothing of the micro-batch is left but
 * gradients and draws of the generator. */
memopt_status model_learn(model *m, const batch *b, float scale, double *out_loss);

/* Forward alone, without dropout. */
memopt_status model_evaluate(model *m, const batch *b, double *out_loss);

#endif
