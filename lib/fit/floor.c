/*
 * Choices of least bytes. The search starts from every level of the modules' tree, with and without
 * values, and goes down by single changes at the highest moment. At last each choice in turn is
 * changed, and the set repaired to be lower than the best.
 */
#include "fit/search.h"

#include <string.h>

enum { NO_VALUES, REMAKE_FIRST, MOVE_FIRST, WAYS, MOST_TRIES = 12, MOST_LEVELS = 16 };

/* How low a set is: its peak, then how much lies near the peak. */
typedef struct height {
    uint64_t peak, near;
} height;

static int lower(height a, height b)
{
    return a.peak != b.peak ? a.peak < b.peak : a.near < b.near;
}

/* Of the set replayed last. A set beyond the limits of host and disk is as high as can be. */
static height measure(const mo_fit_search *s, const uint64_t *curve)
{
    height h = {s->run.result.peak_bytes, 0};
    uint64_t border = h.peak - h.peak / 32;
    if (!mo_fit_has_room(s))
        return (height){UINT64_MAX, UINT64_MAX};
    for (uint64_t t = 0; t < s->moments; t++)
        h.near += curve[t] > border ? (curve[t] - border) / s->moments + 1 : 0;
    return h;
}

/* How many modules with a choice a module is in; and whether it has such within. */
static uint32_t depth_of(const memopt_fit *f, uint32_t choice, int *out_leaf)
{
    const mo_fit_module *m = &f->modules[f->choices[choice].module];
    uint32_t depth = 0;
    *out_leaf = 1;
    for (uint32_t i = 0; i < f->choice_count; i++) {
        if (i == choice || f->choices[i].kind != MEMOPT_FIT_RECOMPUTE)
            continue;
        depth += mo_fit_within(f, m->enter, f->choices[i].module) ? 1 : 0;
        *out_leaf &=
            !mo_fit_within(f, f->modules[f->choices[i].module].enter, f->choices[choice].module);
    }
    return depth;
}

static int is_free(const mo_fit_search *s, const uint8_t *set, uint32_t choice)
{
    for (uint32_t i = 0; i < s->f->choice_count; i++)
        if (set[i] && mo_fit_excludes(s->f, choice, i))
            return 0;
    return 1;
}

/* Those of a kind that are free, as long as host or disk have room for all at once. */
static void add_values(mo_fit_search *s, uint8_t *set, uint32_t kind)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < s->f->choice_count; i++) {
        if (s->f->choices[i].kind != kind || s->moved[i] > mo_fit_limit(s, i) - used ||
            !is_free(s, set, i))
            continue;
        set[i] = 1;
        used += s->moved[i];
    }
}

static void start(mo_fit_search *s, uint8_t *set, uint32_t level, int way)
{
    memset(set, 0, s->f->choice_count);
    for (uint32_t i = 0; i < s->f->choice_count; i++) {
        int leaf;
        if (s->f->choices[i].kind != MEMOPT_FIT_RECOMPUTE)
            continue;
        uint32_t depth = depth_of(s->f, i, &leaf);
        if ((depth == level || (depth < level && leaf)) && is_free(s, set, i))
            set[i] = 1;
    }
    if (way == NO_VALUES)
        return;
    if (way == REMAKE_FIRST)
        add_values(s, set, MEMOPT_FIT_REMAKE);
    add_values(s, set, MEMOPT_FIT_OFFLOAD);
    add_values(s, set, MEMOPT_FIT_DISK);
    if (way == MOVE_FIRST)
        add_values(s, set, MEMOPT_FIT_REMAKE);
}

/* The untried move that lowers a moment most, by the curves; twice choice_count: none. */
static uint32_t most_lowering(const mo_fit_search *s, const uint8_t *set, const uint8_t *tried,
                              uint64_t moment)
{
    uint32_t best = 2 * s->f->choice_count;
    int64_t best_gain = 0;
    for (uint32_t i = 0; i < 2 * s->f->choice_count; i++) {
        double seconds;
        int64_t gain = tried[i] ? 0 : mo_fit_gain(s, set, i, moment, &seconds);
        if (gain > best_gain) {
            best_gain = gain;
            best = i;
        }
    }
    return best;
}

/* One change that makes the set lower; 0 if there is none. `other` is memory for a set, `tried` for two. */
static int descend(mo_fit_search *s, uint8_t *set, uint8_t *other, uint8_t *tried, height *h)
{
    uint32_t n = s->f->choice_count;
    uint64_t moment = mo_fit_highest(s);
    memset(tried, 0, 2 * n);
    for (int k = 0; k < MOST_TRIES; k++) {
        uint32_t i = most_lowering(s, set, tried, moment);
        if (i == 2 * n)
            return 0;
        tried[i] = 1;
        memcpy(other, set, n);
        (void)mo_fit_move(s, other, i);
        (void)mo_fit_try(s, other);
        height now = measure(s, s->trial);
        if (lower(now, *h)) {
            memcpy(set, other, n);
            (void)mo_fit_take(s, set);
            *h = now;
            return 1;
        }
    }
    return 0;
}

static void descend_from_levels(mo_fit_search *s, uint64_t enough, uint8_t *set, uint8_t *work)
{
    uint32_t n = s->f->choice_count;
    height best = {UINT64_MAX, UINT64_MAX};
    for (uint32_t level = 0; level < MOST_LEVELS; level++) {
        for (int way = 0; way < WAYS; way++) {
            uint8_t *one = work, *other = work + n, *tried = work + 2 * (uint64_t)n;
            start(s, one, level, way);
            (void)mo_fit_take(s, one);
            height h = measure(s, s->curve);
            for (uint32_t turn = 0; turn < 2 * n && s->work < s->most_work / 2; turn++)
                if (h.peak <= enough || !descend(s, one, other, tried, &h))
                    break;
            if (lower(h, best)) {
                best = h;
                memcpy(set, one, n);
            }
            if (best.peak <= enough)
                return;
        }
        if (level > 0 && s->work > s->most_work / 4)
            break;
    }
}

void mo_fit_floor(mo_fit_search *s, uint64_t enough, uint8_t *set, uint8_t *work)
{
    uint32_t n = s->f->choice_count;
    uint64_t asked = s->budget;
    uint8_t *one = work, *fixed = work + n;
    s->bytes_alone = 1;
    memset(set, 0, n);
    descend_from_levels(s, enough, set, work);
    (void)mo_fit_take(s, set);
    uint64_t peak = s->run.result.peak_bytes;
    for (uint32_t i = 0, tried = 0; peak > enough && tried < 2 * n && s->work < s->most_work;
         i = (i + 1) % (2 * n), tried++) {
        s->budget = peak - 1;
        memcpy(one, set, n);
        memset(fixed, 0, n);
        fixed[i % n] = 1;
        if (!mo_fit_move(s, one, i) || !mo_fit_repair(s, one, fixed))
            continue;
        peak = s->run.result.peak_bytes;
        memcpy(set, one, n);
        tried = 0;
    }
    s->bytes_alone = 0;
    s->budget = asked;
}
