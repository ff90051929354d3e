/*
 * A model, a run and a card with every default filled in and checked: what the rest of the folder
 * works on.
 */
#ifndef MO_PLAN_SETTINGS_H
#define MO_PLAN_SETTINGS_H

#include "base/error.h"
#include "memopt/plan.h"

enum { MO_PLAN_MAX_LAYERS = 4096, MO_PLAN_TEXT = 256 };

typedef struct mo_settings {
    memopt_plan_model model;
    memopt_plan_run run;
    memopt_plan_card card;
    uint64_t rows;            /* sequences of a micro-batch: with positives and negatives */
    uint64_t tokens;          /* of a sequence, tokens of images included */
    uint64_t images;          /* of a micro-batch, through the vision tower */
    uint64_t patches;         /* of an image */
    uint64_t extra_per_layer; /* weights that the shape lacks to reach model.parameters */
    uint32_t earlier;         /* 1: a micro-batch before the last, which is not reduced */
} mo_settings;

/* Reads the caller's structs (NULL: defaults), checks every field and fills in what is 0. */
memopt_status mo_settings_read(mo_settings *s, const memopt_plan_model *model,
                               const memopt_plan_run *run, const memopt_plan_card *card);

/* The same of a run whose bytes are measured elsewhere: there is no model, and a sequence of 0 is
 * one that is not known. */
memopt_status mo_settings_measured(mo_settings *s, const memopt_plan_run *run,
                                   const memopt_plan_card *card);

/* The model's part (settings_model.c); the run's is checked after it. */
memopt_status mo_settings_model(mo_settings *s);

/* What DeepSpeed's ZeRO asks of a run (settings_deepspeed.c), if it is that: what it has not, or is
 * not told of here; then its types, and its counts. */
memopt_status mo_settings_deepspeed(const memopt_plan_run *r);
void mo_settings_deepspeed_dtypes(memopt_plan_run *r);
void mo_settings_deepspeed_counts(memopt_plan_run *r);

/* The card's part (card.c): NULL is the defaults. */
memopt_status mo_card_read(memopt_plan_card *c, const memopt_plan_card *given);
uint64_t mo_card_limit(const memopt_plan_card *c);
/* Sets overhead, adds it to the total, and says what it is made of. */
void mo_card_add_overhead(const memopt_plan_card *c, memopt_plan_bytes *b);
void mo_card_tell_overhead(const memopt_plan_card *c, const memopt_plan_bytes *b, char *text,
                           size_t size);

/* INVALID_ARGUMENT with the numbers unless low ≤ value ≤ high. */
memopt_status mo_settings_range(const char *name, uint64_t value, uint64_t low, uint64_t high);

#endif
