/* The public functions. */
#include "memopt/plan.h"

#include "solve/results.h"

#include <string.h>

struct memopt_plan {
    mo_plan_estimate estimate;
    mo_plan_solution solution;
    int solved; /* 1: there is a solution */
    char *json;
    mo_plan_blocks blocks; /* of the first call that asked */
};

/* The caller's function, and what is given to it. */
typedef struct caller {
    memopt_plan_measure measure;
    void *user;
} caller;

static memopt_status measure(void *context, const mo_plan_settings *settings, mo_plan_bytes *phases)
{
    const caller *c = context;
    uint64_t bytes[MEMOPT_PLAN_PHASES * MEMOPT_PLAN_CATEGORIES] = {0};
    char *text = mo_plan_measured_text(settings);
    if (text == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = c->measure(c->user, text, bytes);
    mo_free(text);
    for (int i = 0; i < MEMOPT_PLAN_PHASES; i++) {
        const uint64_t *b = &bytes[i * MEMOPT_PLAN_CATEGORIES];
        phases[i] = (mo_plan_bytes){b[0], b[1], b[2], b[3], b[4], b[5], b[6], 0};
    }
    return mo_callback_status(status, "plan: the callback measure");
}

static memopt_status estimate(mo_plan_estimate *e, const mo_plan_given *given, caller *c)
{
    mo_plan_bytes phases[MO_PLAN_PHASES];
    if (c->measure == NULL)
        return mo_plan_estimate_make(e, &given->model, &given->run, &given->card);
    MO_TRY(mo_plan_settings_fill_measured(&e->settings, &given->model, &given->run, &given->card));
    MO_TRY(measure(c, &e->settings, phases));
    return mo_plan_estimate_measured(e, phases);
}

/* The solution, and the run that its changes are counted from. */
static memopt_status solve(memopt_plan *plan, mo_plan_given *given, caller *c)
{
    mo_plan_solution *s = &plan->solution;
    MO_TRY(mo_plan_find_fit(given, c->measure ? measure : NULL, c, s));
    plan->solved = 1;
    given->run.batch = s->fit.start_batch;
    given->run.accumulation = s->fit.start_accumulation;
    return MEMOPT_OK;
}

static memopt_status make(memopt_plan *plan, const char *settings, caller *c, int solving)
{
    mo_plan_given given;
    MO_TRY(mo_plan_parse(settings, &given));
    if (solving)
        MO_TRY(solve(plan, &given, c));
    MO_TRY(estimate(&plan->estimate, &given, c));
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
    mo_free(plan->blocks.blocks);
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

/* Lists what two steps allocate; once. */
static memopt_status list(memopt_plan *plan)
{
    mo_plan_blocks blocks = {.blocks = NULL};
    if (plan->estimate.layers == NULL)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "plan: bytes by phase were measured; their blocks are not known");
    if (plan->blocks.count > 0)
        return MEMOPT_OK;
    memopt_status status = mo_plan_list_blocks(&plan->estimate.settings, &blocks);
    if (status == MEMOPT_OK)
        plan->blocks = blocks;
    else
        mo_free(blocks.blocks);
    return status;
}

memopt_status memopt_plan_get_events(memopt_plan *plan, memopt_plan_event *out_events,
                                     uint64_t room, uint64_t *out_count)
{
    if (plan == NULL || out_count == NULL || (out_events == NULL && room > 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: plan, out_events or out_count is NULL");
    MO_TRY(list(plan));
    uint64_t count = mo_min_u64(room, plan->blocks.count);
    for (uint64_t i = 0; i < count; i++) {
        const mo_plan_block *b = &plan->blocks.blocks[i];
        out_events[i] = (memopt_plan_event){b->id, b->bytes};
    }
    *out_count = plan->blocks.count;
    return MEMOPT_OK;
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
