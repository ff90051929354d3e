/* The public functions. */
#include "memopt/plan.h"

#include "plan/solve/results.h"

#include <string.h>

struct memopt_plan {
    mo_plan_estimate estimate;
    mo_plan_solution solution;
    int solved; /* 1: there is a solution */
    char *json;
};

/* The caller's function, and what is given to it. */
typedef struct caller {
    memopt_plan_measure measure;
    void *user;
} caller;

static memopt_status measure(void *context, const mo_plan_run *run, mo_plan_bytes *phases)
{
    const caller *c = context;
    uint64_t bytes[MEMOPT_PLAN_PHASES * MEMOPT_PLAN_CATEGORIES] = {0};
    char *text = mo_plan_run_text(run);
    if (text == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = c->measure(c->user, text, bytes);
    mo_free(text);
    for (int i = 0; i < MEMOPT_PLAN_PHASES; i++) {
        const uint64_t *b = &bytes[i * MEMOPT_PLAN_CATEGORIES];
        phases[i] = (mo_plan_bytes){b[0], b[1], b[2], b[3], b[4], b[5], 0, 0};
    }
    return status;
}

static memopt_status estimate(mo_plan_estimate *e, const mo_plan_given *given, caller *c)
{
    mo_plan_bytes phases[MO_PLAN_PHASES];
    if (c->measure == NULL)
        return mo_plan_estimate_make(e, &given->model, &given->run, &given->card);
    MO_PLAN_TRY(mo_plan_settings_fill_measured(&e->settings, &given->run, &given->card));
    MO_PLAN_TRY(measure(c, &e->settings.run, phases));
    return mo_plan_estimate_measured(e, phases);
}

/* The solution, and the run that its changes are counted from. */
static memopt_status solve(memopt_plan *plan, mo_plan_given *given, caller *c)
{
    mo_plan_solution *s = &plan->solution;
    MO_PLAN_TRY(mo_plan_find_fit(given, c->measure ? measure : NULL, c, s));
    plan->solved = 1;
    given->run.batch = s->fit.start_batch;
    given->run.accumulation = s->fit.start_accumulation;
    return MEMOPT_OK;
}

static memopt_status make(memopt_plan *plan, const char *settings, caller *c, int solving)
{
    mo_plan_given given;
    MO_PLAN_TRY(mo_plan_parse(settings, &given));
    if (solving)
        MO_PLAN_TRY(solve(plan, &given, c));
    MO_PLAN_TRY(estimate(&plan->estimate, &given, c));
    plan->json = mo_plan_json(&plan->estimate, solving ? &plan->solution : NULL);
    return plan->json != NULL ? MEMOPT_OK : MEMOPT_OUT_OF_HOST_MEMORY;
}

static memopt_status create(const char *settings, caller c, int solving, memopt_plan **out_plan)
{
    if (out_plan == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: out_plan is NULL");
    memopt_plan *plan = mo_calloc(1, sizeof *plan);
    if (plan == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = make(plan, settings, &c, solving);
    if (status == MEMOPT_OK)
        *out_plan = plan;
    else
        (void)memopt_plan_destroy(plan);
    return status;
}

memopt_status memopt_plan_create(const char *settings, memopt_plan_measure measured, void *user,
                                 memopt_plan **out_plan)
{
    return create(settings, (caller){measured, user}, 0, out_plan);
}

memopt_status memopt_plan_solve(const char *settings, memopt_plan_measure measured, void *user,
                                memopt_plan **out_plan)
{
    return create(settings, (caller){measured, user}, 1, out_plan);
}

memopt_status memopt_plan_destroy(memopt_plan *plan)
{
    if (plan == NULL)
        return MEMOPT_OK;
    mo_plan_estimate_end(&plan->estimate);
    mo_free(plan->json);
    mo_free(plan);
    return MEMOPT_OK;
}

const char *memopt_plan_get_json(const memopt_plan *plan)
{
    return plan == NULL ? NULL : plan->json;
}

memopt_status memopt_plan_get_value(const memopt_plan *plan, const char *name, double *out_value)
{
    if (plan == NULL || name == NULL || out_value == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: plan, name or out_value is NULL");
    return mo_plan_number(&plan->estimate, plan->solved ? &plan->solution : NULL, name, out_value);
}

memopt_status memopt_plan_get_key(uint64_t index, const char **out_name, const char **out_kind,
                                  const char **out_accepts, const char **out_help)
{
    if (out_name == NULL || out_kind == NULL || out_accepts == NULL || out_help == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: out_name, out_kind, out_accepts or out_help is NULL");
    const mo_plan_key *key = mo_plan_key_at(index);
    if (key == NULL)
        return mo_fail(MEMOPT_NOT_FOUND, "plan: key %llu is past the last one",
                       (unsigned long long)index);
    *out_name = key->name;
    *out_kind = mo_plan_key_kind(key);
    *out_accepts = key->accepts;
    *out_help = key->help;
    return MEMOPT_OK;
}
