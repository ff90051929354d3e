/*
 * A plan: settings, the report and the layers, all made by memopt_plan_create and only read after.
 */
#ifndef MO_PLAN_PLAN_H
#define MO_PLAN_PLAN_H

#include "plan/play.h"

struct memopt_plan {
    mo_settings settings;
    memopt_plan_report report;
    memopt_plan_layer *layers;
    uint64_t layer_count;
};

/* Fills report and layers from a step that was played (report.c). */
memopt_status mo_plan_report(memopt_plan *plan, const mo_play *play);
/* From report.phases, with their totals: overhead, the peak and whether it fits. */
void mo_plan_moments(memopt_plan *plan);
/* Says why the peak is there; `where`: in which operation, or "". */
void mo_plan_tell_peak(memopt_plan *plan, const char *where);
/* Fills the report from live bytes by phase that were measured elsewhere (measured.c). */
memopt_status mo_plan_measured(memopt_plan *plan, const memopt_plan_bytes *phases);
/* The report without what is compared in it (mean_bytes, held_bytes): one play (plan.c). */
memopt_status mo_plan_outline(const memopt_plan_model *model, const memopt_plan_run *run,
                              const memopt_plan_card *card, memopt_plan_report *out_report);
/* What the step saves per layer when it is played without checkpointing and offload. */
void mo_plan_plain(memopt_plan *plan, const mo_play *play);

#endif
