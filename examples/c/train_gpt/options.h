/*
 * What a run is: the model, the training and which memory savers are on.
 */
#ifndef GPT_OPTIONS_H
#define GPT_OPTIONS_H

#include <memopt/memopt.h>
#include <stdint.h>

typedef struct options {
    /* the model */
    uint32_t layers, width, heads, context;
    uint32_t tied; /* 1: the head uses the token embedding */
    double dropout;

    /* the training */
    uint32_t batch, accumulation;
    uint64_t steps, warmup;
    double lr, weight_decay, clip;
    uint64_t seed;
    const char *text; /* a file or a folder; NULL: the repository, else the current folder */

    /* memory */
    memopt_dtype dtype;  /* of weights, gradients and activations */
    uint32_t master;     /* 1: fp32 master weights beside narrower ones */
    uint32_t adamw8bit;  /* 1: 8-bit optimizer states */
    uint32_t checkpoint; /* 1: layers are recomputed in backward */
    uint32_t offload;    /* 1: values kept for backward go to host memory */
    uint64_t budget;     /* most live bytes of the device, by a plan of the run's own; 0: none */
    uint32_t stream;     /* 1: the layers' weights are on the host and stream through the device */
    uint32_t check;      /* a memopt_region_check_mode */
    const char *allocator; /* configuration string */
    uint64_t capacity;     /* of the device; 0: the machine's memory */
    uint32_t unified;      /* 1: the device's memory is the host's own */
    uint64_t host_limit;   /* most page-locked host bytes; 0: no limit */
    double init_scale;     /* first loss scale (fp16); 0: the library's default */
    uint32_t scale_growth; /* clean steps before the loss scale grows; 0: the default */

    /* the run */
    uint32_t threads;     /* 0: the libraries' own defaults */
    uint32_t ranks, rank; /* processes of the run, 0: no --ranks; and which one this is */
    uint32_t adversarial; /* 1: the device runs asynchronous work as late as it may */
    const char *resume, *save;
    uint64_t save_every; /* steps; 0: at the end only */
    uint32_t json, demo, quiet;
} options;

/* The defaults of a plain run. */
options options_default(void);

typedef enum options_result {
    OPTIONS_RUN,   /* go on */
    OPTIONS_HELP,  /* --help was printed */
    OPTIONS_WRONG, /* a usage error was printed */
} options_result;

/* Reads the command line into o, which holds the defaults. */
options_result options_parse(options *o, int argc, char **argv);

#endif
