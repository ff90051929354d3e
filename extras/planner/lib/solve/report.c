/*
 * From a step that was played to the report: moments by category, overhead, layers, time.
 */
#include <stdio.h>
#include <string.h>

#include "solve/plan.h"

static mo_plan_bytes bytes_of(const mo_plan_moment *m)
{
    return (mo_plan_bytes){m->bytes[MO_PLAN_PARAMETERS],
                           m->bytes[MO_PLAN_GRADIENTS],
                           m->bytes[MO_PLAN_OPTIMIZER],
                           m->bytes[MO_PLAN_ACTIVATIONS],
                           m->bytes[MO_PLAN_LOGITS],
                           m->bytes[MO_PLAN_BATCH],
                           0,
                           m->total};
}

const char *mo_plan_phase_name(uint32_t phase)
{
    static const char *const names[MO_PLAN_PHASES] = {"load", "forward", "loss", "backward",
                                                      "step"};
    return names[phase];
}

static uint64_t sum(uint64_t a, uint64_t b)
{
    uint64_t all;
    return mo_add_u64(a, b, &all) ? all : UINT64_MAX;
}

/* The same for every phase: what the allocator holds in between does not go with a tensor, and what
 * kernels take beside tensors counts as far as the step needs more because of it. Returns that. */
static uint64_t add_overhead(mo_plan_estimate *e)
{
    mo_plan_report *r = &e->report;
    uint64_t most = 0, live = 0, full = 0;
    for (uint32_t i = 0; i < MO_PLAN_PHASES; i++) {
        mo_plan_bytes phase = r->phases[i];
        live = mo_max_u64(live, phase.total);
        full = mo_max_u64(full, sum(phase.total, phase.overhead));
        mo_plan_card_add_overhead(&e->settings.card, &phase);
        most = mo_max_u64(most, phase.overhead);
    }
    most = sum(most, full - live);
    for (uint32_t i = 0; i < MO_PLAN_PHASES; i++) {
        r->phases[i].overhead = most;
        r->phases[i].total = sum(r->phases[i].total, most);
    }
    return full - live;
}

/* The layer's name as the list of layers has it. */
static void name_layer(const mo_plan_play *p, uint64_t index, char *name, size_t size)
{
    switch (p->info[index].kind) {
    case MO_PLAN_LAYER_EMBEDDING:
        (void)snprintf(name, size, "embeddings");
        break;
    case MO_PLAN_LAYER_HEAD:
        (void)snprintf(name, size, "head");
        break;
    case MO_PLAN_LAYER_VISION:
        (void)snprintf(name, size, "vision.%llu", (unsigned long long)(index - 1));
        break;
    default:
        (void)snprintf(name, size, "layers.%llu",
                       (unsigned long long)(index - 1 - p->vision.layer_count));
    }
}

void mo_plan_fill_peak_reason(mo_plan_estimate *e, const char *where)
{
    const mo_plan_bytes *b = &e->report.peak;
    const struct {
        const char *name;
        uint64_t bytes;
    } all[] = {{"parameters", b->parameters},
               {"gradients", b->gradients},
               {"optimizer", b->optimizer},
               {"activations", b->activations},
               {"logits", b->logits}};
    size_t first = 0, second = 1;
    for (size_t i = 1; i < sizeof all / sizeof *all; i++) {
        if (all[i].bytes > all[first].bytes) {
            second = first;
            first = i;
        } else if (i != first && (second == first || all[i].bytes > all[second].bytes)) {
            second = i;
        }
    }
    (void)snprintf(e->report.peak_reason, sizeof e->report.peak_reason,
                   "%s%s: most of it is %s (%s) and %s (%s)",
                   mo_plan_phase_name(e->report.peak_phase), where, all[first].name,
                   MO_SIZE(all[first].bytes), all[second].name, MO_SIZE(all[second].bytes));
}

void mo_plan_fill_moments(mo_plan_estimate *e)
{
    const mo_plan_card *c = &e->settings.card;
    mo_plan_report *r = &e->report;
    uint32_t at = 0;
    for (uint32_t i = 0; i < MO_PLAN_PHASES; i++)
        if (r->phases[i].total > r->phases[at].total)
            at = i;
    uint64_t kernels = add_overhead(e);
    r->peak = r->phases[at];
    r->peak_phase = at;
    mo_plan_card_explain(c, &r->peak, kernels, r->overhead_reason, sizeof r->overhead_reason);
    r->limit_bytes = mo_plan_card_limit(c);
    r->fits = c->capacity == 0 || r->peak.total <= r->limit_bytes;
}

static void fill_moments(mo_plan_estimate *e, const mo_plan_play *p)
{
    char layer[48], where[MO_PLAN_TEXT];
    for (uint32_t i = 0; i < MO_PLAN_PHASES; i++)
        e->report.phases[i] = bytes_of(&p->tape.phases[i]);
    mo_plan_fill_moments(e);
    const mo_plan_moment *m = &p->tape.phases[e->report.peak_phase];
    if (m->layer < p->tape.layer_count)
        name_layer(p, m->layer, layer, sizeof layer);
    else
        (void)snprintf(layer, sizeof layer, "all weights");
    (void)snprintf(where, sizeof where, ", at %s of %s", m->label, layer);
    mo_plan_fill_peak_reason(e, where);
}

/* Forward F, backward 2 F; what is run again comes on top, and of copies what the link cannot hide
 * behind compute. */
static void fill_time(mo_plan_estimate *e, const mo_plan_play *p)
{
    const mo_plan_settings *s = &e->settings;
    const mo_plan_card *c = &s->card;
    mo_plan_report *r = &e->report;
    double plain = 3 * p->tape.flops, micro = (double)s->run.accumulation;
    double compute = (plain + p->again_flops) / c->flops_per_second;
    double copies = (double)r->link_bytes / c->link_bytes_per_second +
                    2 * (double)r->disk_bytes / c->disk_bytes_per_second;
    double late = copies > compute ? copies - compute : 0;
    double states = 0;
    if (s->run.offload & MO_PLAN_OFFLOAD_OPTIMIZER)
        states = (double)(r->phases[0].parameters + r->peak.gradients) / c->link_bytes_per_second;
    double base = plain / c->flops_per_second * micro;
    r->forward_flops = p->tape.flops;
    double again = plain > 0 ? (plain + p->again_flops) / plain : 1;
    double copied = base > 0 ? 1 + (late * micro + states) / base : 1;
    r->time_factor = again + copied - 1;
    r->step_seconds = base * r->time_factor;
    (void)snprintf(r->time_assumption, sizeof r->time_assumption,
                   "backward takes twice forward; %.3g TFLOP/s; copies at %.3g GB/s hide behind "
                   "compute as far as it lasts",
                   c->flops_per_second / 1e12, c->link_bytes_per_second / 1e9);
}

static void fill_host(mo_plan_estimate *e, const mo_plan_play *p)
{
    const mo_plan_run *run = &e->settings.run;
    mo_plan_report *r = &e->report;
    uint64_t host = p->tape.host_peak;
    r->link_bytes = p->tape.link;
    r->disk_bytes = run->host_limit > 0 && host > run->host_limit ? host - run->host_limit : 0;
    r->host_bytes = host - r->disk_bytes;
}

static void fill_counts(mo_plan_estimate *e, const mo_plan_play *p)
{
    const mo_plan_run *run = &e->settings.run;
    mo_plan_report *r = &e->report;
    for (uint64_t i = 0; i < p->weight_count; i++) {
        r->parameter_count += p->weights[i].count;
        r->trainable_count += p->weights[i].learns ? p->weights[i].count : 0;
    }
    r->buffer_bytes = p->buffer_bytes;
    r->activation_bytes = p->saved;
    r->samples = run->batch * run->accumulation * run->world_size;
    for (uint32_t i = 0; i < p->tape.layer_count; i++)
        r->recomputed_layers += p->info[i].recomputed;
}

static void fill_layers(mo_plan_estimate *e, const mo_plan_play *p)
{
    const mo_plan_run *run = &e->settings.run;
    mo_plan_tape unused = {.gpu = p->tape.gpu};
    for (uint64_t i = 0; i < e->layer_count; i++) {
        mo_plan_layer_bytes *l = &e->layers[i];
        const mo_plan_layer_info *info = &p->info[i];
        name_layer(p, i, l->name, sizeof l->name);
        l->kind = info->kind;
        l->recomputed = info->recomputed;
        l->output_bytes = info->output;
        l->saved_bytes = l->plain_saved_bytes = info->saved;
        l->forward_bytes = p->tape.layers[i].forward;
        l->backward_bytes = p->tape.layers[i].backward;
        l->forward_flops = info->flops;
    }
    for (uint64_t i = 0; i < p->weight_count; i++) {
        const mo_plan_weight *w = &p->weights[i];
        mo_plan_layer_bytes *l = &e->layers[w->layer];
        l->parameter_count += w->count;
        l->parameter_bytes += w->count * mo_plan_weight_width(run, w);
        l->gradient_bytes += w->learns ? w->count * mo_plan_gradient_width(run, w) : 0;
        l->optimizer_bytes += mo_plan_optimizer_state_bytes(&unused, run, w);
    }
}

memopt_status mo_plan_fill_report(mo_plan_estimate *e, const mo_plan_play *p)
{
    e->layer_count = p->tape.layer_count;
    e->layers = mo_calloc(e->layer_count, sizeof *e->layers);
    if (e->layers == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    fill_moments(e, p);
    fill_host(e, p);
    fill_counts(e, p);
    fill_time(e, p);
    fill_layers(e, p);
    e->report.activation_peak_bytes = p->tape.most_activations;
    e->report.mean_bytes = e->report.peak.total;
    return MEMOPT_OK;
}
