/* What a case takes: played, or told by the caller's function; and what was asked for before. */
#include "plan/solve.h"

#include "plan/plan.h"

#include <string.h>

struct mo_known {
    memopt_plan_model model;
    memopt_plan_run run;
    memopt_plan_card card;
    mo_cost cost;
};

struct mo_told {
    memopt_plan_run run;
    memopt_plan_bytes phases[MEMOPT_PLAN_PHASES];
};

static memopt_status played(const mo_case *c, mo_cost *cost)
{
    memopt_plan_report report;
    memopt_status status = mo_plan_outline(&c->model, &c->run, &c->card, &report);
    if (status == MEMOPT_OK)
        *cost = (mo_cost){report.peak.total, report.limit_bytes, report.step_seconds};
    return status;
}

/* What the caller's function says of a run; it is asked once, whatever the card. */
static memopt_status ask(mo_source *s, const memopt_plan_run *run, memopt_plan_bytes *phases)
{
    for (uint64_t i = 0; i < s->told_count; i++)
        if (memcmp(&s->told[i].run, run, sizeof *run) == 0) {
            memcpy(phases, s->told[i].phases, sizeof s->told[i].phases);
            return MEMOPT_OK;
        }
    memset(phases, 0, MEMOPT_PLAN_PHASES * sizeof *phases);
    memopt_status status = s->measure(s->user, run, phases);
    if (status == MEMOPT_UNSUPPORTED)
        return mo_fail(status, "plan: nothing is known of what such a run takes");
    if (status != MEMOPT_OK)
        return status;
    if (!mo_grow((void **)&s->told, &s->told_capacity, s->told_count + 1, sizeof *s->told))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    mo_told *t = &s->told[s->told_count++];
    t->run = *run;
    memcpy(t->phases, phases, sizeof t->phases);
    return MEMOPT_OK;
}

/* Nothing is known of the time but the factors of changes: every step takes the same. */
static memopt_status measured(const mo_case *c, mo_cost *cost)
{
    memopt_plan plan = {.layers = NULL};
    memopt_plan_bytes phases[MEMOPT_PLAN_PHASES];
    memopt_status status = mo_settings_measured(&plan.settings, &c->run, &c->card);
    if (status == MEMOPT_OK)
        status = ask(c->source, &plan.settings.run, phases);
    if (status == MEMOPT_OK)
        status = mo_plan_measured(&plan, phases);
    if (status == MEMOPT_OK)
        *cost = (mo_cost){plan.report.peak.total, plan.report.limit_bytes, 1};
    return status;
}

int mo_case_is_measured(const mo_case *c)
{
    return c->source != NULL && c->source->measure != NULL;
}

memopt_status mo_case_cost_now(const mo_case *c, mo_cost *cost)
{
    return mo_case_is_measured(c) ? measured(c, cost) : played(c, cost);
}

/* Padding may differ between equal cases: then one is counted twice, and nothing is wrong. */
static int is_same(const mo_known *k, const mo_case *c)
{
    return memcmp(&k->run, &c->run, sizeof k->run) == 0 &&
           memcmp(&k->card, &c->card, sizeof k->card) == 0 &&
           memcmp(&k->model, &c->model, sizeof k->model) == 0;
}

static memopt_status remember(mo_source *s, const mo_case *c, const mo_cost *cost)
{
    if (!mo_grow((void **)&s->known, &s->known_capacity, s->known_count + 1, sizeof *s->known))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    mo_known *k = &s->known[s->known_count++];
    k->model = c->model;
    k->run = c->run;
    k->card = c->card;
    k->cost = *cost;
    return MEMOPT_OK;
}

memopt_status mo_case_cost(const mo_case *c, mo_cost *cost)
{
    mo_source *s = c->source;
    for (uint64_t i = 0; s != NULL && i < s->known_count; i++)
        if (is_same(&s->known[i], c)) {
            *cost = s->known[i].cost;
            return MEMOPT_OK;
        }
    memopt_status status = mo_case_cost_now(c, cost);
    if (status == MEMOPT_LIMIT_REACHED && !mo_case_is_measured(c)) {
        *cost = (mo_cost){UINT64_MAX, 0, 1}; /* no schedule within the budget for checkpointing */
        status = MEMOPT_OK;
    }
    return status == MEMOPT_OK && s != NULL ? remember(s, c, cost) : status;
}

void mo_source_end(mo_source *s)
{
    mo_free(s->known);
    mo_free(s->told);
    *s = (mo_source){.measure = NULL};
}

int mo_cost_fits(const mo_cost *cost)
{
    return cost->peak <= cost->limit;
}
