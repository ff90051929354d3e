/*
 * The parameters of the model: weights as the layers read them, fp32 masters where there are any,
 * and gradients. All of it is device memory under the tags `weights` and `gradients`.
 *
 * With --stream-weights the weights and masters of the layers are page-locked host memory instead,
 * and the optimizer updates them there. A layer's weights are one value of the store, each at a
 * multiple of 256 bytes, as on the device: parameters_to_device() only moves the pointers.
 */
#ifndef GPT_PARAMETERS_H
#define GPT_PARAMETERS_H

#include "memory.h"

typedef struct parameter {
    char name[48];
    memopt_tensor weight;   /* in the run's dtype */
    memopt_tensor master;   /* fp32, of the shard; no memory where weight is all there is */
    memopt_tensor gradient; /* in the run's dtype */
    uint64_t first, own;    /* the shard: elements from `first` on; without --ranks all */
    memopt_tensor sum;      /* with --ranks: of the shard's gradients, fp32 */
    void *host; /* a layer's first: where its weights are while they are on the device, else NULL */
    uint32_t decays; /* 1: a matrix, subject to weight decay */
} parameter;

/* The parameters of one layer, in order. A bias follows its weight. */
enum {
    NORM1_GAIN,
    NORM1_BIAS,
    QKV_WEIGHT,
    QKV_BIAS,
    PROJECT_WEIGHT,
    PROJECT_BIAS,
    NORM2_GAIN,
    NORM2_BIAS,
    UP_WEIGHT,
    UP_BIAS,
    DOWN_WEIGHT,
    DOWN_BIAS,
    LAYER_PARAMETERS
};

/* Those outside the layers; the layers' follow behind HEAD_OR_LAYERS (HEAD only where untied). */
enum { TOKEN_EMBEDDING, POSITION_EMBEDDING, FINAL_GAIN, FINAL_BIAS, HEAD_OR_LAYERS };

typedef struct parameter_set {
    parameter *list; /* host memory */
    uint64_t count;
    uint64_t elements;     /* of all of them */
    parameter *head;       /* the token embedding where tied */
    parameter *layers;     /* layer i begins at layers + i * LAYER_PARAMETERS */
    memopt_ticket *stored; /* of layer i's weights; NULL where none stream */
    uint32_t stored_count;
} parameter_set;

#define CLASSES 256 /* one per byte */

/* Allocates and initialises all of them. On failure parameters_free() frees what there is. */
memopt_status parameters_create(parameter_set *p, memory *m, const options *o);

memopt_status parameters_free(parameter_set *p, memory *m);

/* Around the work of layer `number` (its parameters): the weights are on the device between them. Both
 * do nothing where the weights do not stream. */
memopt_status parameters_to_device(parameter *layer, memory *m, uint32_t number);
memopt_status parameters_to_host(parameter *layer, memory *m, uint32_t number);

/* Around what changes weights: the host memory of the layers is the caller's between them. */
memopt_status parameters_write(parameter_set *p, memory *m);
memopt_status parameters_written(parameter_set *p, memory *m);

/* Sets all gradients to zero. */
memopt_status parameters_zero_gradients(parameter_set *p, memory *m);

#endif
