/* Makes an estimate: plays the step, as often as it takes to compare. */
#include "solve/plan.h"

#include <string.h>

#include "parallel/parallel.h"

/* Plays the step that settings describe. The caller ends the play, whatever is returned. */
static memopt_status play_step(mo_plan_play *p, const mo_plan_settings *s)
{
    MO_TRY(mo_plan_play_build(p, s, mo_plan_engine_of(&s->run)));
    return mo_plan_play_step(p);
}

/* Where micro-batches before the last are not reduced: the fuller of one of them and the last, by
 * phase. */
static memopt_status add_earlier(mo_plan_play *last, const mo_plan_settings *settings)
{
    mo_plan_settings s = *settings;
    mo_plan_play p;
    if (last->engine != &mo_plan_engine_fsdp || !mo_plan_fsdp_waits(&s.run))
        return MEMOPT_OK;
    s.earlier = 1;
    memopt_status status = play_step(&p, &s);
    for (int i = MO_PLAN_PHASE_FORWARD; i <= MO_PLAN_PHASE_BACKWARD; i++)
        if (status == MEMOPT_OK && p.tape.phases[i].total > last->tape.phases[i].total)
            last->tape.phases[i] = p.tape.phases[i];
    mo_plan_play_end(&p);
    return status;
}

/* Plays what e->settings say, and fills the report and the layers. */
static memopt_status play(mo_plan_estimate *e)
{
    mo_plan_play p;
    memopt_status status = play_step(&p, &e->settings);
    if (status == MEMOPT_OK)
        status = add_earlier(&p, &e->settings);
    if (status == MEMOPT_OK)
        status = mo_plan_fill_report(e, &p);
    mo_plan_play_end(&p);
    return status;
}

/* What the layers keep without checkpointing and offload. */
static memopt_status add_plain(mo_plan_estimate *e)
{
    mo_plan_settings s = e->settings;
    mo_plan_play p;
    if (s.run.checkpointing == MO_PLAN_CHECKPOINT_NONE && s.run.offload == 0)
        return MEMOPT_OK;
    s.run.checkpointing = MO_PLAN_CHECKPOINT_NONE;
    s.run.offload = 0;
    memopt_status status = play_step(&p, &s);
    for (uint64_t i = 0; status == MEMOPT_OK && i < e->layer_count; i++)
        e->layers[i].plain_saved_bytes = p.info[i].saved;
    mo_plan_play_end(&p);
    return status;
}

/* Of a batch whose sequences have the mean length. */
static memopt_status add_mean(mo_plan_estimate *e)
{
    mo_plan_estimate other = {.settings = e->settings};
    mo_plan_settings *s = &other.settings;
    if (s->run.sequence_mean == s->run.sequence || mo_plan_family_of(&s->model)->images)
        return MEMOPT_OK;
    s->tokens -= s->run.sequence - s->run.sequence_mean;
    s->run.sequence = s->run.sequence_mean;
    memopt_status status = play(&other);
    if (status == MEMOPT_OK)
        e->report.mean_bytes = other.report.peak.total;
    mo_plan_estimate_end(&other);
    return status;
}

memopt_status mo_plan_estimate_make(mo_plan_estimate *e, const mo_plan_model *model,
                                    const mo_plan_run *run, const mo_plan_card *card)
{
    memset(e, 0, sizeof *e);
    MO_TRY(mo_plan_settings_fill(&e->settings, model, run, card));
    MO_TRY(play(e));
    MO_TRY(add_plain(e));
    return add_mean(e);
}

void mo_plan_estimate_end(mo_plan_estimate *e)
{
    mo_free(e->layers);
    e->layers = NULL;
}

memopt_status mo_plan_outline(const mo_plan_model *model, const mo_plan_run *run,
                              const mo_plan_card *card, mo_plan_report *out_report)
{
    mo_plan_estimate e = {.layers = NULL};
    memopt_status status = mo_plan_settings_fill(&e.settings, model, run, card);
    if (status == MEMOPT_OK)
        status = play(&e);
    if (status == MEMOPT_OK)
        *out_report = e.report;
    mo_plan_estimate_end(&e);
    return status;
}
