/* Curves of single choices, and the moves of a search; see search.h. */
#include "fit/search.h"

#include "base/memory.h"

#include <string.h>

enum { MOST_MOMENTS = 2048 };
static const double least_seconds = 1e-12;

static void sort_by_seconds(mo_fit_search *s)
{
    for (uint32_t i = 0; i < s->f->choice_count; i++) {
        uint32_t at = i;
        for (; at > 0 && s->seconds[s->order[at - 1]] < s->seconds[i]; at--)
            s->order[at] = s->order[at - 1];
        s->order[at] = i;
    }
}

static void find_curves(mo_fit_search *s)
{
    uint8_t *set = s->scratch;
    mo_fit_take(s, set);
    for (uint32_t i = 0; i < s->f->choice_count; i++) {
        int64_t *row = s->deltas + i * s->moments;
        set[i] = 1;
        (void)mo_fit_try(s, set);
        set[i] = 0;
        s->seconds[i] = s->run.result.seconds;
        s->host[i] = s->run.result.host_bytes;
        for (uint64_t t = 0; t < s->moments; t++)
            row[t] = (int64_t)(s->trial[t] - s->curve[t]);
    }
    sort_by_seconds(s);
    s->work = 0;
}

memopt_status mo_fit_search_open(const memopt_fit *f, uint64_t budget, uint64_t host_limit,
                                 mo_fit_search *s)
{
    uint64_t n = f->choice_count;
    *s = (mo_fit_search){.f = f, .most_work = 25000000};
    while (f->event_count >> s->shift >= MOST_MOMENTS)
        s->shift++;
    uint64_t moments = ((uint64_t)f->event_count >> s->shift) + 1;
    s->moments = moments;
    s->budget = budget;
    s->host_limit = host_limit == 0 ? UINT64_MAX : host_limit;
    MO_TRY(mo_fit_run_open(f, &s->run));
    s->memory = mo_calloc((n + 2) * moments + 3 * n + 1, 8);
    if (s->memory == NULL) {
        mo_fit_run_close(&s->run);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    s->deltas = s->memory;
    s->curve = (uint64_t *)(s->deltas + n * moments);
    s->trial = s->curve + moments;
    s->host = s->trial + moments;
    s->seconds = (double *)(s->host + n);
    s->order = (uint32_t *)(s->seconds + n);
    s->scratch = (uint8_t *)(s->order + n);
    find_curves(s);
    return MEMOPT_OK;
}

void mo_fit_search_close(mo_fit_search *s)
{
    mo_fit_run_close(&s->run);
    mo_free(s->memory);
}

int mo_fit_try(mo_fit_search *s, const uint8_t *set)
{
    s->work += s->f->event_count;
    mo_fit_run_replay(&s->run, set, s->trial, s->shift);
    return s->run.result.peak_bytes <= s->budget && s->run.result.host_bytes <= s->host_limit;
}

int mo_fit_take(mo_fit_search *s, const uint8_t *set)
{
    int holds = mo_fit_try(s, set);
    uint64_t *curve = s->trial;
    s->trial = s->curve;
    s->curve = curve;
    return holds;
}

uint64_t mo_fit_highest(const mo_fit_search *s)
{
    uint64_t best = 0;
    for (uint64_t t = 1; t < s->moments; t++)
        if (s->curve[t] > s->curve[best])
            best = t;
    return best;
}

/* The next choice after `from` in the set that a choice excludes; choice_count: none. */
static uint32_t next_excluded(const mo_fit_search *s, const uint8_t *set, uint32_t choice,
                              uint32_t from)
{
    const uint64_t *row = s->f->excludes + choice * s->f->words;
    for (uint32_t i = from; i < s->f->choice_count; i++) {
        if (row[i / 64] >> (i % 64) == 0) {
            i |= 63;
            continue;
        }
        if (set[i] && (row[i / 64] >> (i % 64) & 1))
            return i;
    }
    return s->f->choice_count;
}

void mo_fit_add(const mo_fit_search *s, uint8_t *set, uint32_t choice)
{
    uint32_t n = s->f->choice_count;
    for (uint32_t i = next_excluded(s, set, choice, 0); i < n;
         i = next_excluded(s, set, choice, i + 1))
        set[i] = 0;
    set[choice] = 1;
}

int64_t mo_fit_gain(const mo_fit_search *s, const uint8_t *set, uint32_t choice, uint64_t moment,
                    double *out_seconds)
{
    uint32_t n = s->f->choice_count;
    int64_t gain = -mo_fit_delta(s, choice)[moment];
    double seconds = s->seconds[choice];
    if (set[choice]) {
        *out_seconds = -seconds;
        return -gain;
    }
    for (uint32_t i = next_excluded(s, set, choice, 0); i < n;
         i = next_excluded(s, set, choice, i + 1)) {
        gain += mo_fit_delta(s, i)[moment];
        seconds -= s->seconds[i];
    }
    *out_seconds = seconds;
    return gain;
}

static int host_has_room(const mo_fit_search *s, uint32_t choice)
{
    uint64_t used = s->run.result.host_bytes;
    return s->host[choice] == 0 ||
           (used <= s->host_limit && s->host[choice] <= s->host_limit - used);
}

/* The choice to change at a moment that is `over` bytes too high; choice_count: none. */
static uint32_t best_change(const mo_fit_search *s, const uint8_t *set, const uint8_t *tabu,
                            uint64_t moment, uint64_t over)
{
    uint32_t n = s->f->choice_count, best = n;
    double best_rate = 0;
    for (uint32_t i = 0; i < n; i++) {
        double seconds, bytes;
        if (tabu[i] || (!set[i] && (mo_fit_delta(s, i)[moment] >= 0 || !host_has_room(s, i))))
            continue;
        bytes = (double)mo_fit_gain(s, set, i, moment, &seconds);
        bytes = bytes < (double)over ? bytes : (double)over;
        double rate = bytes / (seconds > least_seconds ? seconds : least_seconds);
        if (rate > best_rate) {
            best_rate = rate;
            best = i;
        }
    }
    return best;
}

/* The offload of the most bytes in a set; choice_count: none. */
static uint32_t largest_on_host(const mo_fit_search *s, const uint8_t *set)
{
    uint32_t n = s->f->choice_count, best = n;
    for (uint32_t i = 0; i < n; i++)
        if (set[i] && s->host[i] != 0 && (best == n || s->host[i] > s->host[best]))
            best = i;
    return best;
}

int mo_fit_repair(mo_fit_search *s, uint8_t *set, const uint8_t *fixed)
{
    uint32_t n = s->f->choice_count;
    uint8_t *tabu = s->scratch;
    memcpy(tabu, fixed, n);
    for (uint32_t turn = 0; turn <= 2 * n; turn++) {
        uint32_t i;
        if (mo_fit_take(s, set))
            return 1;
        if (s->run.result.peak_bytes <= s->budget) {
            i = largest_on_host(s, set);
        } else {
            uint64_t over = s->run.result.peak_bytes - s->budget;
            i = best_change(s, set, tabu, mo_fit_highest(s), over);
        }
        if (i == n)
            return 0;
        tabu[i] = 1; /* at most once each, so that no two replace each other for ever */
        if (set[i])
            set[i] = 0;
        else
            mo_fit_add(s, set, i);
    }
    return 0;
}

/* Whether the curves leave hope that a set holds without one of its choices. */
static int may_leave(const mo_fit_search *s, uint32_t choice)
{
    const int64_t *row = mo_fit_delta(s, choice);
    int64_t most = (int64_t)(s->budget + s->budget / 32);
    for (uint64_t t = 0; t < s->moments; t++)
        if ((int64_t)s->curve[t] - row[t] > most)
            return 0;
    return 1;
}

double mo_fit_prune(mo_fit_search *s, uint8_t *set)
{
    (void)mo_fit_take(s, set);
    double seconds = s->run.result.seconds;
    for (uint32_t k = 0; k < s->f->choice_count; k++) {
        uint32_t i = s->order[k];
        if (!set[i] || !may_leave(s, i))
            continue;
        set[i] = 0;
        if (mo_fit_try(s, set)) {
            uint64_t *curve = s->trial;
            s->trial = s->curve;
            s->curve = curve;
            seconds = s->run.result.seconds;
        } else {
            set[i] = 1;
        }
    }
    return seconds;
}
