/*
 * How a run is shown while it goes on: a bar on a terminal, plain lines in a pipe, JSON on demand.
 */
#ifndef GPT_PROGRESS_H
#define GPT_PROGRESS_H

#include "train.h"

typedef enum progress_style {
    PROGRESS_NONE,
    PROGRESS_BAR,   /* one line that is written over */
    PROGRESS_LINES, /* one line now and then */
    PROGRESS_JSON   /* one object per step */
} progress_style;

typedef struct progress {
    progress_style style;
    int colour;
    uint64_t first, steps; /* where the run began and where it ends */
    double started, shown; /* seconds of seconds_now() */
    double tokens_per_second;
} progress;

/* Chooses the style from the options and from what standard output is; NO_COLOR is respected. */
void progress_begin(progress *p, const trainer *t, uint64_t steps);

/* Shows a step that was taken. */
memopt_status progress_step(progress *p, trainer *t, const step_result *r);

/* Leaves the bar's line. */
void progress_end(progress *p);

#endif
