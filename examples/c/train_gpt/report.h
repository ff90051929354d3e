/*
 * Figures of finished runs: the summary of one, and the demo's table of many.
 */
#ifndef GPT_REPORT_H
#define GPT_REPORT_H

#include "train.h"

/* One row of the table. */
typedef struct report_row {
    const char *name;
    memory_figures memory;
    double step_seconds; /* the best of the measured steps */
} report_row;

/* What a run came to, as text or JSON on standard output. */
void report_summary(const trainer *t, const memory_figures *f, const step_result *last,
                    double held_out);

/* The table, a line at a time: peaks by tag, memory held from the device, page-locked host memory,
 * time. */
void report_heading(void);
void report_line(const report_row *row);

#endif
