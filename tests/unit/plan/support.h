/* What the tests of plans share. */
#ifndef TEST_PLAN_SUPPORT_H
#define TEST_PLAN_SUPPORT_H

#include "support/checks.h"

#include "base/memory.h"
#include "memopt/plan.h"

/* A report of a run; the plan is gone again. */
static inline memopt_plan_report report_of(const memopt_plan_model *model,
                                           const memopt_plan_run *run, const memopt_plan_card *card)
{
    memopt_plan_report report = {.struct_size = sizeof report};
    memopt_plan *plan = NULL;
    OK(memopt_plan_create(model, run, card, &plan));
    OK(memopt_plan_get_report(plan, &report));
    OK(memopt_plan_destroy(plan));
    return report;
}

/* A Llama of some size; a test changes what it needs. */
static inline memopt_plan_model small_model(void)
{
    memopt_plan_model m = MEMOPT_PLAN_MODEL_INIT;
    m.hidden = 256;
    m.layers = 4;
    m.heads = 8;
    m.ffn = 1024;
    m.vocabulary = 1000;
    return m;
}

static inline memopt_plan_run small_run(void)
{
    memopt_plan_run r = MEMOPT_PLAN_RUN_INIT;
    r.batch = 4;
    r.sequence = 128;
    return r;
}

static inline const memopt_plan_bytes *phase(const memopt_plan_report *report, uint32_t which)
{
    return &report->phases[which];
}

#endif
