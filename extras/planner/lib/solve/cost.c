/* What a case takes: played, or measured by the caller's function; and what was asked for before.
 */
#include "solve/solve.h"

#include <string.h>

struct mo_plan_known {
    mo_plan_case of;
    mo_plan_cost cost;
};

struct mo_plan_measured_run {
    mo_plan_model model;
    mo_plan_run run;
    mo_plan_bytes phases[MO_PLAN_PHASES];
};

static memopt_status played(const mo_plan_case *c, mo_plan_cost *cost)
{
    mo_plan_report report;
    MO_TRY(mo_plan_outline(&c->model, &c->run, &c->card, &report));
    *cost = (mo_plan_cost){report.peak.total, report.limit_bytes, report.step_seconds};
    return MEMOPT_OK;
}

/* What the caller's function says of a run; it is asked once, whatever the card. */
static memopt_status ask(mo_plan_source *s, const mo_plan_settings *of, mo_plan_bytes *phases)
{
    for (uint64_t i = 0; i < s->run_count; i++)
        if (memcmp(&s->runs[i].run, &of->run, sizeof of->run) == 0 &&
            memcmp(&s->runs[i].model, &of->model, sizeof of->model) == 0) {
            memcpy(phases, s->runs[i].phases, sizeof s->runs[i].phases);
            return MEMOPT_OK;
        }
    memset(phases, 0, MO_PLAN_PHASES * sizeof *phases);
    memopt_status status = s->measure(s->user, of, phases);
    if (status == MEMOPT_UNSUPPORTED)
        return mo_fail(status, "plan: the measure function does not know such a run");
    if (status != MEMOPT_OK)
        return status;
    if (!mo_grow((void **)&s->runs, &s->run_capacity, s->run_count + 1, sizeof *s->runs))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    mo_plan_measured_run *m = &s->runs[s->run_count++];
    m->model = of->model;
    m->run = of->run;
    memcpy(m->phases, phases, sizeof m->phases);
    return MEMOPT_OK;
}

/* Of the time, factors alone are known. */
static memopt_status measured(const mo_plan_case *c, mo_plan_cost *cost)
{
    mo_plan_estimate e = {.layers = NULL};
    mo_plan_bytes phases[MO_PLAN_PHASES];
    MO_TRY(mo_plan_settings_fill_measured(&e.settings, &c->model, &c->run, &c->card));
    MO_TRY(ask(c->source, &e.settings, phases));
    MO_TRY(mo_plan_estimate_measured(&e, phases));
    *cost = (mo_plan_cost){e.report.peak.total, e.report.limit_bytes, e.report.time_factor};
    return MEMOPT_OK;
}

int mo_plan_case_is_measured(const mo_plan_case *c)
{
    return c->source != NULL && c->source->measure != NULL;
}

double mo_plan_case_least_time(const mo_plan_case *c)
{
    return mo_plan_case_is_measured(c) ? mo_plan_measured_time(&c->run) : 0;
}

static memopt_status remember(mo_plan_source *s, const mo_plan_case *c, const mo_plan_cost *cost)
{
    if (!mo_grow((void **)&s->known, &s->known_capacity, s->known_count + 1, sizeof *s->known))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    s->known[s->known_count++] = (mo_plan_known){*c, *cost};
    return MEMOPT_OK;
}

memopt_status mo_plan_case_cost(const mo_plan_case *c, mo_plan_cost *cost)
{
    mo_plan_source *s = c->source;
    /* Padding may differ between equal cases: then one is counted twice, and nothing is wrong. */
    for (uint64_t i = 0; s != NULL && i < s->known_count; i++)
        if (memcmp(&s->known[i].of, c, sizeof *c) == 0) {
            *cost = s->known[i].cost;
            return MEMOPT_OK;
        }
    MO_TRY(mo_plan_case_is_measured(c) ? measured(c, cost) : played(c, cost));
    return s != NULL ? remember(s, c, cost) : MEMOPT_OK;
}

void mo_plan_source_end(mo_plan_source *s)
{
    mo_free(s->known);
    mo_free(s->runs);
    *s = (mo_plan_source){.measure = NULL};
}

int mo_plan_cost_fits(const mo_plan_cost *cost)
{
    return cost->peak <= cost->limit;
}
