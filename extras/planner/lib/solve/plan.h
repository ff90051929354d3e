/* What a run takes: the estimate and how it comes about. */
#ifndef MO_PLAN_PLAN_H
#define MO_PLAN_PLAN_H

#include "model/play.h"

/* All bytes are those of one device. Names in the JSON: results.c. */
typedef struct mo_plan_report {
    mo_plan_bytes peak;                   /* at the moment when most is alive */
    mo_plan_bytes phases[MO_PLAN_PHASES]; /* at the fullest moment of each phase */
    uint32_t peak_phase;
    uint32_t fits;                  /* 1: the peak is within limit_bytes, or there is none */
    uint64_t limit_bytes;           /* capacity × margin; 0: no limit */
    uint64_t mean_bytes;            /* the peak of a batch of sequence_mean */
    uint64_t parameter_count;       /* weights, each once, of the whole model */
    uint64_t trainable_count;       /* of them learning */
    uint64_t buffer_bytes;          /* buffers of the model; part of parameters */
    uint64_t activation_bytes;      /* kept for backward when the forward of the layers ends */
    uint64_t activation_peak_bytes; /* the most activations at any moment of the step */
    uint64_t host_bytes;            /* on the host at the peak of it, page-locked */
    uint64_t disk_bytes;
    uint64_t link_bytes; /* copied over the host link in a step, both ways */
    uint64_t samples;    /* of a step on all devices */
    uint64_t recomputed_layers;
    double forward_flops; /* of a micro-batch on one device */
    double time_factor;   /* of a step, relative to one without recomputation and offload */
    double step_seconds;
    char peak_reason[MO_PLAN_TEXT]; /* in words */
    char time_assumption[MO_PLAN_TEXT];
    char overhead_reason[MO_PLAN_TEXT];
} mo_plan_report;

/* What one layer takes, on one device. */
typedef struct mo_plan_layer_bytes {
    char name[48]; /* "layers.3" */
    uint32_t kind; /* MO_PLAN_LAYER_… */
    uint32_t recomputed;
    uint64_t parameter_count; /* a shared weight counts where it is first used */
    uint64_t parameter_bytes, gradient_bytes, optimizer_bytes;
    uint64_t output_bytes;
    uint64_t saved_bytes;       /* kept from its forward to its backward, with its output */
    uint64_t plain_saved_bytes; /* the same without checkpointing and offload */
    uint64_t forward_bytes;     /* all alive at the fullest moment of its forward */
    uint64_t backward_bytes;    /* and of its backward */
    double forward_flops;
} mo_plan_layer_bytes;

typedef struct mo_plan_estimate {
    mo_plan_settings settings; /* with every default filled in */
    mo_plan_report report;
    mo_plan_layer_bytes *layers;
    uint64_t layer_count;
} mo_plan_estimate;

/* Plays the step of a model; once more without checkpointing and offload, and with sequences of
 * mean length, for what is compared. The caller ends the estimate, whatever is returned. */
memopt_status mo_plan_estimate_make(mo_plan_estimate *e, const mo_plan_model *model,
                                    const mo_plan_run *run, const mo_plan_card *card);
/* The same of live bytes by phase that were measured elsewhere: it has no layers (measured.c). */
memopt_status mo_plan_estimate_measured(mo_plan_estimate *e, const mo_plan_bytes *phases);
/* The time factor of such an estimate. */
double mo_plan_measured_time(const mo_plan_run *run);
void mo_plan_estimate_end(mo_plan_estimate *e);
/* The report of one play, without what is compared. */
memopt_status mo_plan_outline(const mo_plan_model *model, const mo_plan_run *run,
                              const mo_plan_card *card, mo_plan_report *out_report);

/* --- events.c --- */
/* A block begins (bytes > 0) or ends; a block that has ended may begin again. */
typedef struct mo_plan_block {
    uint64_t id, bytes;
} mo_plan_block;

typedef struct mo_plan_blocks {
    mo_plan_block *blocks;
    uint64_t count, capacity;
} mo_plan_blocks;

/* The blocks of the first two steps of settings that were filled. The caller frees `blocks`,
 * whatever is returned. */
memopt_status mo_plan_list_blocks(const mo_plan_settings *settings, mo_plan_blocks *out);

/* --- report.c --- */
const char *mo_plan_phase_name(uint32_t phase);
/* Fills report and layers from a step that was played. */
memopt_status mo_plan_fill_report(mo_plan_estimate *e, const mo_plan_play *play);
/* From report.phases, with their totals: overhead, the peak and whether it fits. */
void mo_plan_fill_moments(mo_plan_estimate *e);
/* Says why the peak is there; `where`: in which operation, or "". */
void mo_plan_fill_peak_reason(mo_plan_estimate *e, const char *where);

#endif
