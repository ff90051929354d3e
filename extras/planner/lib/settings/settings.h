/*
 * A model, a run and a card with every default filled in and checked: what the rest of the planner
 * works on.
 */
#ifndef MO_PLAN_SETTINGS_H
#define MO_PLAN_SETTINGS_H

#include "base/error.h"
#include "settings/bytes.h"
#include "settings/families.h"
#include "settings/keys.h"

enum { MO_PLAN_MAX_LAYERS = 4096, MO_PLAN_TEXT = 256 };

/* Returns what a call returns, unless it is MEMOPT_OK. Not where something has to be freed. */
/* Positions of the words of the table of keys. */
enum { MO_PLAN_DEFAULT, MO_PLAN_NO, MO_PLAN_YES }; /* of switches */
enum {
    MO_PLAN_TARGET_QUERY = 1,
    MO_PLAN_TARGET_KEY = 2,
    MO_PLAN_TARGET_VALUE = 4,
    MO_PLAN_TARGET_OUTPUT = 8,
    MO_PLAN_TARGET_GATE = 16,
    MO_PLAN_TARGET_UP = 32,
    MO_PLAN_TARGET_DOWN = 64,
    MO_PLAN_TARGET_HEAD = 128,
    MO_PLAN_TARGET_ALL_LINEAR = 256 /* all but the head; alone, those that have no name */
};
enum {
    MO_PLAN_QUANTIZE_NONE,
    MO_PLAN_QUANTIZE_NF4,
    MO_PLAN_QUANTIZE_NF4_DOUBLE,
    MO_PLAN_QUANTIZE_INT8,
    MO_PLAN_QUANTIZE_GPTQ,
    MO_PLAN_QUANTIZE_AWQ
};
enum { MO_PLAN_TOWER_TRAINED, MO_PLAN_TOWER_FROZEN };
enum {
    MO_PLAN_ADAMW,
    MO_PLAN_ADAMW_FOREACH,
    MO_PLAN_ADAMW_FUSED,
    MO_PLAN_ADAMW_8BIT,
    MO_PLAN_ADAMW_4BIT,
    MO_PLAN_ADAMW_FP8,
    MO_PLAN_ADAMW_OURS,
    MO_PLAN_LION,
    MO_PLAN_LION_8BIT,
    MO_PLAN_SGD,
    MO_PLAN_SGD_MOMENTUM,
    MO_PLAN_SGD_8BIT,
    MO_PLAN_ADAFACTOR,
    MO_PLAN_NO_OPTIMIZER
};
enum { MO_PLAN_ATTENTION_SDPA, MO_PLAN_ATTENTION_EAGER, MO_PLAN_ATTENTION_FLASH };
enum {
    MO_PLAN_CHECKPOINT_NONE,
    MO_PLAN_CHECKPOINT_FULL,
    MO_PLAN_CHECKPOINT_SELECTIVE,
    MO_PLAN_CHECKPOINT_EVERY
};
enum { MO_PLAN_OFFLOAD_ACTIVATIONS = 1, MO_PLAN_OFFLOAD_OPTIMIZER = 2 };
enum { MO_PLAN_DDP, MO_PLAN_ZERO1, MO_PLAN_ZERO2, MO_PLAN_ZERO3 };
enum { MO_PLAN_LOSS_PLAIN, MO_PLAN_LOSS_FUSED, MO_PLAN_LOSS_CHUNKED };
enum { MO_PLAN_DEVICE_DEFAULT, MO_PLAN_DEVICE_CPU, MO_PLAN_DEVICE_CUDA, MO_PLAN_DEVICE_HIP };
enum { MO_PLAN_ALLOCATOR_CLASSIC, MO_PLAN_ALLOCATOR_EXPANDABLE };

typedef struct mo_plan_settings {
    mo_plan_model model;
    mo_plan_run run;
    mo_plan_card card;
    uint64_t rows;            /* sequences of a micro-batch: with positives and negatives */
    uint64_t tokens;          /* of a sequence, tokens of images included */
    uint64_t images;          /* of a micro-batch, through the vision tower */
    uint64_t patches;         /* of an image */
    uint64_t extra_per_layer; /* weights that the shape lacks to reach model.parameters */
    uint32_t earlier;         /* 1: a micro-batch before the last, which is not reduced */
    uint32_t listing;         /* 1: the tape keeps a list of blocks */
} mo_plan_settings;

/* Fills in what is 0 and checks what depends on other settings. NULL: all defaults. */
memopt_status mo_plan_settings_fill(mo_plan_settings *s, const mo_plan_model *model,
                                    const mo_plan_run *run, const mo_plan_card *card);

/* The same of a run whose bytes are measured elsewhere: of the model there are adapters and how the
 * weights under them are stored, and a sequence of 0 is not known. */
memopt_status mo_plan_settings_fill_measured(mo_plan_settings *s, const mo_plan_model *model,
                                             const mo_plan_run *run, const mo_plan_card *card);

/* The model's part (model.c); the run's is checked after it. */
memopt_status mo_plan_model_fill(mo_plan_settings *s);
memopt_status mo_plan_model_fill_measured(mo_plan_settings *s, const mo_plan_model *model);
/* Quantised weights do not learn: there are adapters. */
memopt_status mo_plan_model_check_learns(const mo_plan_model *m);

/* Whether an optimizer is one of memopt's, which round 16-bit weights stochastically (run.c). */
int mo_plan_is_ours(uint32_t optimizer);

/* The card's part (card.c). */
void mo_plan_card_fill(mo_plan_card *c);
int mo_plan_card_is_gpu(const mo_plan_card *c);
uint64_t mo_plan_card_limit(const mo_plan_card *c);
/* Sets overhead and adds it to the total. */
void mo_plan_card_add_overhead(const mo_plan_card *c, mo_plan_bytes *b);
/* Says what overhead is made of; kernels: what they take beside tensors. */
void mo_plan_card_explain(const mo_plan_card *c, const mo_plan_bytes *b, uint64_t kernels,
                          char *text, size_t size);

#endif
