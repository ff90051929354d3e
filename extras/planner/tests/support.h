/* What the tests of plans share. */
#ifndef TEST_PLAN_SUPPORT_H
#define TEST_PLAN_SUPPORT_H

#include "support/checks.h"

#include "base/memory.h"
#include "solve/plan.h"

/* A report of a run; the plan is gone again. */
static inline mo_plan_report report_of(const mo_plan_model *model, const mo_plan_run *run,
                                       const mo_plan_card *card)
{
    mo_plan_estimate e;
    OK(mo_plan_estimate_make(&e, model, run, card));
    mo_plan_estimate_end(&e);
    return e.report;
}

/* A Llama of some size; a test changes what it needs. */
static inline mo_plan_model small_model(void)
{
    return (mo_plan_model){.hidden = 256, .layers = 4, .heads = 8, .ffn = 1024, .vocabulary = 1000};
}

static inline const mo_plan_bytes *phase(const mo_plan_report *report, uint32_t which)
{
    return &report->phases[which];
}

#endif
