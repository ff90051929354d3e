/*
 * A training run: the model with its optimizer, loss scaler, text and position in it.
 */
#ifndef GPT_TRAIN_H
#define GPT_TRAIN_H

#include "model.h"
#include "text.h"

typedef struct trainer {
    options options;
    const corpus *text;
    memory memory;
    random_state random; /* of dropout */
    model model;
    memopt_optimizer *optimizer;
    memopt_scaler *scaler;     /* fp16 only, else NULL */
    memopt_tensor norm;        /* one fp32 that each step writes the gradients' norm to */
    memopt_tensor *gradients;  /* by parameter, as the optimizer wants them */
    uint8_t *inputs, *targets; /* one micro-batch */
    uint64_t step;             /* steps taken */
    ranks ranks;               /* with --ranks; else its count is 0 */
    shards shards;             /* with --ranks */
    double *losses;            /* of a step's micro-batches, those of rank 0 first */
    uint64_t saved_step;       /* of the last set of files (resume.c); 0: none, as the next */
    uint32_t saved_ranks;
} trainer;

/* What one step came to. */
typedef struct step_result {
    double loss;                   /* mean over the micro-batches */
    double norm;                   /* of the gradients, before clipping */
    double lr;                     /* that was used */
    double scale;                  /* loss scale that was used; 1 without a scaler */
    int skipped;                   /* 1: a gradient was not finite, and nothing was updated */
    double seconds;                /* wall time */
    uint64_t copies, copied_bytes; /* of layers whose weights stream */
} step_result;

/* Opens a device and makes everything on it; o is copied. On failure nothing is left behind. */
memopt_status trainer_create(trainer *t, const options *o, const corpus *text);

memopt_status trainer_destroy(trainer *t);

/* The two halves of a step: the gradients of all micro-batches, and the update from them. */
memopt_status trainer_gradients(trainer *t, step_result *result);
memopt_status trainer_update(trainer *t, step_result *result);

/* Both, timed. After a failure all but the gradients is as before, and the step may be tried again. */
memopt_status trainer_step(trainer *t, step_result *out_result);

/* The mean loss over `batches` batches of held-out text: the same ones in every run. */
memopt_status trainer_evaluate(trainer *t, uint32_t batches, double *out_loss);

/* Seconds of a clock that only goes forward. */
double seconds_now(void);

#endif
