/* Over a grid of models, runs and cards: of the plans that differ from a printed one by one change
 * (one less, one more, one in the place of another), none is better. The printed change is found
 * by its words, and each other plan is played anew, so nothing here depends on the search. */
#include "solve_support.h"

#include <string.h>

#define LLAMA8B                                                                                    \
    "model.family=llama;model.layers=32;model.hidden=4096;model.heads=32;model.kv_heads=8;"        \
    "model.ffn=14336;model.vocabulary=128256;"

static const char *const models[] = {
    LLAMA8B "run.weight_dtype=bf16;",
    "model.family=llama;model.layers=22;model.hidden=2048;model.heads=32;model.kv_heads=4;"
    "model.ffn=5632;model.vocabulary=32000;",
    "model.family=gpt2;model.layers=24;model.hidden=1024;model.heads=16;model.vocabulary=50257;"
    "model.positions=8192;run.attention=eager;",
    "model.family=mixtral;model.layers=8;model.hidden=1024;model.heads=16;model.kv_heads=4;"
    "model.experts=8;model.ffn=3584;model.vocabulary=32000;run.weight_dtype=bf16;",
};

static const char *const runs[] = {
    "run.sequence=512;run.batch=8;",
    "run.sequence=2048;run.batch=1;",
    "run.sequence=4096;run.batch=2;target.keep_batch=yes;",
    "run.sequence=2048;target.effective_batch=16;run.world_size=4;",
};

static const char *const cards[] = {"4GiB", "6GiB", "8GiB", "12GiB", "16GiB", "24GiB", "40GiB"};

/* A run with the changes of a set, each made of the case before it in the order of the table. */
typedef struct offer {
    uint64_t sequence;
    int tiers[MO_PLAN_TIERS]; /* changes of each */
    int count;
    int fits;
    double time; /* of a step */
} offer;

/* What is asked, and the micro-batch and accumulation that the plan has. */
typedef struct asked {
    mo_plan_case start;
    mo_plan_target options;
} asked;

/* 0: the changes do not go together. The caller takes the cost. */
static int make(const asked *a, uint32_t set, mo_plan_case *c, offer *o)
{
    *c = a->start;
    *o = (offer){.time = 1};
    for (int i = 0; i < MO_PLAN_CHANGES; i++) {
        mo_plan_case changed;
        mo_plan_change change;
        if (!(set >> i & 1))
            continue;
        if (!mo_plan_change_make(i, c, &a->options, &changed, &change))
            return 0;
        o->tiers[mo_plan_change_tier(i)]++;
        o->count++;
        o->time *= change.time_factor;
        *c = changed;
    }
    o->sequence = c->run.sequence;
    return 1;
}

static int play(const mo_plan_case *c, offer *o)
{
    mo_plan_cost cost;
    memopt_status status = mo_plan_case_cost(c, &cost);
    if (status == MEMOPT_INVALID_ARGUMENT || status == MEMOPT_UNSUPPORTED)
        return 0;
    OK(status);
    o->fits = mo_plan_cost_fits(&cost);
    o->time *= cost.time;
    return 1;
}

/* 1: q takes less of a kind of change than p, -1: more; the dearest kind decides. */
static int takes_less(const offer *q, const offer *p, int dearest, int cheapest)
{
    for (int tier = dearest; tier >= cheapest; tier--)
        if (tier != MO_PLAN_TIER_TIME && q->tiers[tier] != p->tiers[tier])
            return q->tiers[tier] < p->tiers[tier] ? 1 : -1;
    return 0;
}

/* Without a look at the time: q is not better if it trains something less like what was asked for,
 * or rounds more. 1: it trains something more like it. */
static int kind(const offer *q, const offer *p)
{
    if (q->sequence != p->sequence)
        return q->sequence > p->sequence ? 1 : -1;
    int training = takes_less(q, p, MO_PLAN_TIERS - 1, MO_PLAN_TIER_WEIGHTS);
    if (training != 0)
        return training;
    return takes_less(q, p, MO_PLAN_TIER_STATES, MO_PLAN_TIER_STATES) < 0 ? -1 : 0;
}

static int dominates(const offer *q, const offer *p)
{
    if (!q->fits || kind(q, p) != 0)
        return q->fits && kind(q, p) > 0;
    if (q->time < p->time * (1 - 1e-6))
        return 1;
    return q->time <= p->time &&
           (takes_less(q, p, MO_PLAN_TIER_STATES, MO_PLAN_TIER_STATES) > 0 || q->count < p->count);
}

static void check_other(const asked *a, uint32_t set, uint32_t other, const offer *p,
                        const char *text)
{
    mo_plan_case c;
    offer q;
    if (!make(a, other, &c, &q) || kind(&q, p) < 0 || !play(&c, &q) || !dominates(&q, p))
        return;
    fail_msg("%s: changes %x take %.4f of its time and %d tokens; %x: %.4f and %d", text, set,
             p->time, (int)p->sequence, other, q.time, (int)q.sequence);
}

static void check_others(const asked *a, uint32_t set, const offer *p, const char *text)
{
    for (int i = -1; i < MO_PLAN_CHANGES; i++) {
        uint32_t less = i < 0 ? set : set & ~(1u << i);
        if (i >= 0 && less == set)
            continue; /* there is no such change to leave out or to replace */
        if (less != set)
            check_other(a, set, less, p, text);
        for (int j = 0; j < MO_PLAN_CHANGES; j++)
            if (!(set >> j & 1))
                check_other(a, set, less | 1u << j, p, text);
    }
}

/* The changes that are printed, by their words. */
static uint32_t printed(const mo_plan_solution *s)
{
    mo_plan_case at = s->given;
    uint32_t set = 0;
    for (uint64_t k = 0; k < s->found.count && s->found.changes[k].applied; k++) {
        const mo_plan_change *said = &s->found.changes[k];
        int found = said->kind == MO_PLAN_CHANGE_MICRO_BATCH;
        if (found) {
            at.run.batch = s->chosen.run.batch;
            at.run.accumulation = s->chosen.run.accumulation;
        }
        for (int i = 0; i < MO_PLAN_CHANGES && !found; i++) {
            mo_plan_case changed;
            mo_plan_change change;
            found = mo_plan_change_make(i, &at, &s->target, &changed, &change) &&
                    strcmp(change.change, said->change) == 0;
            if (found) {
                set |= 1u << i;
                at = changed;
            }
        }
        assert_true(found);
    }
    return set;
}

static mo_plan_solution solution_of(const char *text)
{
    mo_plan_given given;
    mo_plan_solution solution;
    OK(mo_plan_parse(text, &given));
    OK(mo_plan_find_fit(&given, NULL, NULL, &solution));
    return solution;
}

/* 1: there was a plan with changes to check. */
static int check(const char *text)
{
    mo_plan_solution s = solution_of(text);
    mo_plan_source source = {.measure = NULL};
    asked a = {.start = s.given, .options = s.target};
    mo_plan_cost before;
    mo_plan_case c;
    offer p;
    if (s.fit.fits || !s.fit.fits_after)
        return 0;
    a.start.source = &source;
    OK(mo_plan_case_cost(&a.start, &before));
    a.start.run.batch = s.chosen.run.batch;
    a.start.run.accumulation = s.chosen.run.accumulation;
    a.options.keep_batch = 1;
    uint32_t set = printed(&s);
    assert_true(make(&a, set, &c, &p) && play(&c, &p) && p.fits);
    assert_int_equal(peak_of(&c), s.fit.peak_bytes);
    if (p.sequence == s.given.run.sequence) { /* its time is what the step takes */
        double time = p.time / before.time;
        assert_true(s.fit.time_factor > time * 0.999999 && s.fit.time_factor < time * 1.000001);
    }
    check_others(&a, set, &p, text);
    mo_plan_source_end(&source);
    return 1;
}

TEST(no_printed_plan_is_dominated)
{
    char text[768];
    int changed = 0, all = 0;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (size_t r = 0; r < sizeof runs / sizeof *runs; r++)
            for (size_t k = 0; k < sizeof cards / sizeof *cards; k++, all++) {
                (void)snprintf(text, sizeof text,
                               "%s%scard.device=cuda;card.margin=0.85;card.capacity=%s", models[m],
                               runs[r], cards[k]);
                changed += check(text);
            }
    assert_true(changed > all / 3);
}

/* Half of what stands in the way of 2,048 tokens shows only once the weights are small. */
TEST(samples_are_shortened_last)
{
    mo_plan_solution s =
        solution_of(LLAMA8B "run.weight_dtype=bf16;run.sequence=2048;run.batch=1;"
                            "card.device=cuda;card.margin=0.85;card.capacity=8GiB");
    assert_true(s.fit.fits_after);
    assert_int_equal(s.chosen.run.sequence, 2048);
    assert_true(s.fit.time_factor < 1.3 * 1.31); /* nf4 is taken to cost 30 % */
}
