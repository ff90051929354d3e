/*
 * The public functions of a plan. Creating one plays the step once, and once more for what is
 * compared: without checkpointing and offload, and with sequences of mean length.
 */
#include "plan/plan.h"

#include <string.h>

#include "base/options.h"

/* Plays the step that settings describe. The caller ends the play, whatever is returned. */
static memopt_status play_step(mo_play *p, const mo_settings *s, memopt_schedule *schedule)
{
    memopt_status status = mo_play_build(p, s);
    p->schedule = schedule;
    return status == MEMOPT_OK ? mo_play_step(p) : status;
}

/* With a budget: what the layers take without, and the schedule from it. */
static memopt_status find_schedule(const mo_settings *settings, memopt_schedule **out)
{
    mo_settings s = *settings;
    mo_play p;
    s.run.checkpointing = MEMOPT_PLAN_CHECKPOINT_NONE;
    s.run.use_cache = MEMOPT_PLAN_NO;
    memopt_status status = play_step(&p, &s, NULL);
    if (status == MEMOPT_OK)
        status = mo_play_schedule(&p, settings->run.checkpoint_budget, out);
    mo_play_end(&p);
    return status;
}

/* Where micro-batches before the last are not reduced: the fuller of one of them and the last, by
 * phase. */
static memopt_status add_earlier(mo_play *last, const mo_settings *settings,
                                 memopt_schedule *schedule)
{
    mo_settings s = *settings;
    mo_play p;
    if (!mo_shard_waits(last))
        return MEMOPT_OK;
    s.earlier = 1;
    memopt_status status = play_step(&p, &s, schedule);
    for (int i = MEMOPT_PLAN_PHASE_FORWARD; i <= MEMOPT_PLAN_PHASE_BACKWARD; i++)
        if (status == MEMOPT_OK && p.tape.phases[i].total > last->tape.phases[i].total)
            last->tape.phases[i] = p.tape.phases[i];
    mo_play_end(&p);
    return status;
}

/* With a budget by `schedule`, which is found where it is NULL; the caller destroys it. */
static memopt_status play(mo_play *p, const mo_settings *s, memopt_schedule **schedule)
{
    memopt_status status = MEMOPT_OK;
    memset(p, 0, sizeof *p);
    if (s->run.checkpointing == MEMOPT_PLAN_CHECKPOINT_BUDGET && *schedule == NULL)
        status = find_schedule(s, schedule);
    if (status == MEMOPT_OK)
        status = play_step(p, s, *schedule);
    return status == MEMOPT_OK ? add_earlier(p, s, *schedule) : status;
}

static memopt_status add_plain(memopt_plan *plan)
{
    mo_settings s = plan->settings;
    mo_play p;
    if (s.run.checkpointing == MEMOPT_PLAN_CHECKPOINT_NONE && s.run.offload == 0)
        return MEMOPT_OK;
    s.run.checkpointing = MEMOPT_PLAN_CHECKPOINT_NONE;
    s.run.offload = 0;
    memopt_status status = play_step(&p, &s, NULL);
    if (status == MEMOPT_OK)
        mo_plan_plain(plan, &p);
    mo_play_end(&p);
    return status;
}

/* Plays what plan->settings say, and fills the report and the layers. */
static memopt_status play_plan(memopt_plan *plan, memopt_schedule **schedule)
{
    mo_play p;
    memopt_status status = play(&p, &plan->settings, schedule);
    if (status == MEMOPT_OK)
        status = mo_plan_report(plan, &p);
    mo_play_end(&p);
    return status;
}

/* The peak of a run that differs from the plan's. */
static memopt_status peak_of(const mo_settings *settings, memopt_schedule **schedule, uint64_t *out)
{
    memopt_plan other = {.settings = *settings};
    memopt_status status = play_plan(&other, schedule);
    if (status == MEMOPT_OK)
        *out = other.report.peak.total;
    mo_free(other.layers);
    return status;
}

/* Of a batch whose sequences have the mean length. */
static memopt_status add_mean(memopt_plan *plan)
{
    mo_settings s = plan->settings;
    memopt_schedule *schedule = NULL;
    if (s.run.sequence_mean == s.run.sequence || s.model.family == MEMOPT_PLAN_VIT)
        return MEMOPT_OK;
    s.tokens -= s.run.sequence - s.run.sequence_mean;
    s.run.sequence = s.run.sequence_mean;
    memopt_status status = peak_of(&s, &schedule, &plan->report.mean_bytes);
    (void)memopt_schedule_destroy(schedule);
    return status;
}

/* Of a program that holds the outputs. The layers, and so their schedule, take the same beside
 * them. */
static memopt_status add_held(memopt_plan *plan, memopt_schedule **schedule)
{
    mo_settings s = plan->settings;
    if (s.run.keep_outputs == MEMOPT_PLAN_YES)
        return MEMOPT_OK;
    s.run.keep_outputs = MEMOPT_PLAN_YES;
    return peak_of(&s, schedule, &plan->report.held_bytes);
}

static memopt_status estimate(memopt_plan *plan)
{
    memopt_schedule *schedule = NULL;
    memopt_status status = play_plan(plan, &schedule);
    if (status == MEMOPT_OK)
        status = add_plain(plan);
    if (status == MEMOPT_OK)
        status = add_mean(plan);
    if (status == MEMOPT_OK)
        status = add_held(plan, &schedule);
    (void)memopt_schedule_destroy(schedule);
    return status;
}

memopt_status mo_plan_outline(const memopt_plan_model *model, const memopt_plan_run *run,
                              const memopt_plan_card *card, memopt_plan_report *out_report)
{
    memopt_plan plan = {.layers = NULL};
    memopt_schedule *schedule = NULL;
    memopt_status status = mo_settings_read(&plan.settings, model, run, card);
    if (status == MEMOPT_OK)
        status = play_plan(&plan, &schedule);
    (void)memopt_schedule_destroy(schedule);
    if (status == MEMOPT_OK)
        *out_report = plan.report;
    mo_free(plan.layers);
    return status;
}

memopt_status memopt_plan_create(const memopt_plan_model *model, const memopt_plan_run *run,
                                 const memopt_plan_card *card, memopt_plan **out_plan)
{
    if (out_plan == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: the result pointer is NULL");
    memopt_plan *plan = mo_calloc(1, sizeof *plan);
    if (plan == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = mo_settings_read(&plan->settings, model, run, card);
    if (status == MEMOPT_OK)
        status = estimate(plan);
    if (status != MEMOPT_OK) {
        (void)memopt_plan_destroy(plan);
        return status;
    }
    *out_plan = plan;
    return MEMOPT_OK;
}

memopt_status memopt_plan_destroy(memopt_plan *plan)
{
    if (plan != NULL)
        mo_free(plan->layers);
    mo_free(plan);
    return MEMOPT_OK;
}

memopt_status memopt_plan_get_report(const memopt_plan *plan, memopt_plan_report *out_report)
{
    if (plan == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: the plan is NULL");
    return mo_result_write(out_report, &plan->report, sizeof plan->report, "memopt_plan_report");
}

memopt_status memopt_plan_get_layer(const memopt_plan *plan, uint64_t index,
                                    memopt_plan_layer *out_layer)
{
    if (plan == NULL || out_layer == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: a pointer is NULL");
    if (index >= plan->layer_count)
        return mo_fail(MEMOPT_NOT_FOUND, "plan: there is no layer %llu of %llu",
                       (unsigned long long)index, (unsigned long long)plan->layer_count);
    return mo_result_write(out_layer, &plan->layers[index], sizeof *out_layer, "memopt_plan_layer");
}

memopt_status memopt_plan_get_settings(const memopt_plan *plan, memopt_plan_model *out_model,
                                       memopt_plan_run *out_run, memopt_plan_card *out_card)
{
    memopt_status status = MEMOPT_OK;
    if (plan == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: the plan is NULL");
    const mo_settings *s = &plan->settings;
    if (out_model != NULL)
        status = mo_result_write(out_model, &s->model, sizeof s->model, "memopt_plan_model");
    if (status == MEMOPT_OK && out_run != NULL)
        status = mo_result_write(out_run, &s->run, sizeof s->run, "memopt_plan_run");
    if (status == MEMOPT_OK && out_card != NULL)
        status = mo_result_write(out_card, &s->card, sizeof s->card, "memopt_plan_card");
    return status;
}

const char *memopt_plan_phase_name(uint32_t phase)
{
    static const char *const names[MEMOPT_PLAN_PHASES] = {"load", "forward", "loss", "backward",
                                                          "step"};
    return phase < MEMOPT_PLAN_PHASES ? names[phase] : "invalid";
}
