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
/* What the step saves per layer when it is played without checkpointing and offload. */
void mo_plan_plain(memopt_plan *plan, const mo_play *play);

#endif
