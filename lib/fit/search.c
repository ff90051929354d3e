/* Curves of single choices, and the moves of a search; see search.h. */
#include "fit/search.h"

#include "base/checked.h"
#include "base/memory.h"

#include <math.h>
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
        s->moved[i] = s->run.result.host_bytes + s->run.result.disk_bytes;
        for (uint64_t t = 0; t < s->moments; t++)
            row[t] = (int64_t)(s->trial[t] - s->curve[t]);
    }
    sort_by_seconds(s);
    s->work = 0;
}

memopt_status mo_fit_search_open(const memopt_fit *f, const memopt_fit_options *limits,
                                 mo_fit_search *s)
{
    uint64_t n = f->choice_count, most = (uint64_t)1 << 61;
    *s = (mo_fit_search){.f = f, .most_work = 25000000};
    while (f->event_count >> s->shift >= MOST_MOMENTS)
        s->shift++;
    uint64_t moments = ((uint64_t)f->event_count >> s->shift) + 1;
    s->moments = moments;
    s->budget = limits->budget == 0 ? most : mo_min_u64(limits->budget, most);
    s->host_limit = limits->host_limit == 0 ? UINT64_MAX : limits->host_limit;
    s->disk_limit = limits->disk_limit == 0 ? UINT64_MAX : limits->disk_limit;
    MO_TRY(mo_fit_run_open(f, &s->run));
    s->memory = mo_calloc((n + 2) * moments + 3 * n + 1, 8);
    if (s->memory == NULL) {
        mo_fit_run_close(&s->run);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    s->deltas = s->memory;
    s->curve = (uint64_t *)(s->deltas + n * moments);
    s->trial = s->curve + moments;
    s->moved = s->trial + moments;
    s->seconds = (double *)(s->moved + n);
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

int mo_fit_has_room(const mo_fit_search *s)
{
    return s->run.result.host_bytes <= s->host_limit && s->run.result.disk_bytes <= s->disk_limit;
}

int mo_fit_try(mo_fit_search *s, const uint8_t *set)
{
    s->work += s->f->event_count;
    mo_fit_run_replay(&s->run, set, s->trial, s->shift);
    return s->run.result.peak_bytes <= s->budget && mo_fit_has_room(s);
}

int mo_fit_take(mo_fit_search *s, const uint8_t *set)
{
    int holds = mo_fit_try(s, set);
    uint64_t *curve = s->trial;
    s->trial = s->curve;
    s->curve = curve;
    return holds;
}

/* The moment of the highest point of s->curve. */
static uint64_t highest(const mo_fit_search *s)
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

/* Whether a choice may be added beside the modules of the set that are around it or within it. */
static int may_nest(const mo_fit_search *s, const uint8_t *set, uint32_t choice)
{
    const memopt_fit *f = s->f;
    uint32_t n = f->choice_count, found = 0;
    if (set[choice] || f->choices[choice].kind != MEMOPT_FIT_RECOMPUTE)
        return 0;
    for (uint32_t i = next_excluded(s, set, choice, 0); i < n;
         i = next_excluded(s, set, choice, i + 1)) {
        if (!mo_fit_nest(f, choice, i))
            continue;
        found++;
        if (mo_fit_within(f, f->modules[f->choices[i].module].enter, f->choices[choice].module) &&
            mo_fit_depth(f, set, i) + 1 >= MO_FIT_DEPTH)
            return 0;
    }
    return found != 0 && mo_fit_depth(f, set, choice) < MO_FIT_DEPTH;
}

int mo_fit_move(const mo_fit_search *s, uint8_t *set, uint32_t move)
{
    uint32_t n = s->f->choice_count, choice = move % n;
    if (move < n && set[choice]) {
        set[choice] = 0;
    } else if (move < n) {
        mo_fit_add(s, set, choice);
    } else {
        if (!may_nest(s, set, choice))
            return 0;
        for (uint32_t i = next_excluded(s, set, choice, 0); i < n;
             i = next_excluded(s, set, choice, i + 1))
            set[i] = (uint8_t)mo_fit_nest(s->f, choice, i);
        set[choice] = 1;
    }
    return 1;
}

/* Bytes by which a move lowers a moment, by the curves, and the seconds that it costs. */
static int64_t gain_of(const mo_fit_search *s, const uint8_t *set, uint32_t move, uint64_t moment,
                       double *out_seconds)
{
    uint32_t n = s->f->choice_count, choice = move % n;
    int64_t gain = -mo_fit_delta(s, choice)[moment];
    double seconds = s->seconds[choice];
    *out_seconds = seconds;
    if (move < n && set[choice]) {
        *out_seconds = -seconds;
        return -gain;
    }
    if (move >= n && !may_nest(s, set, choice))
        return 0;
    for (uint32_t i = next_excluded(s, set, choice, 0); i < n;
         i = next_excluded(s, set, choice, i + 1)) {
        int64_t delta = mo_fit_delta(s, i)[moment];
        int stays = move >= n && mo_fit_nest(s->f, choice, i);
        gain +=
            stays && delta > 0 ? 0 : delta; /* a module that has not run again yet keeps nothing */
        seconds -= stays ? 0 : s->seconds[i];
    }
    *out_seconds = seconds;
    return gain;
}

static int may_move(const mo_fit_search *s, uint32_t choice)
{
    const memopt_fit_result *r = &s->run.result;
    uint64_t used = s->f->choices[choice].kind == MEMOPT_FIT_DISK ? r->disk_bytes : r->host_bytes;
    uint64_t limit = mo_fit_limit(s, choice);
    return s->moved[choice] == 0 || (used <= limit && s->moved[choice] <= limit - used);
}

/* The move at a moment that is `over` bytes too high; twice choice_count: none. */
static uint32_t best_move(const mo_fit_search *s, const uint8_t *set, const uint8_t *tabu,
                          uint64_t moment, uint64_t over)
{
    uint32_t n = s->f->choice_count, best = 2 * n;
    double best_rate = 0;
    for (uint32_t move = 0; move < 2 * n; move++) {
        double seconds, bytes;
        uint32_t i = move % n;
        if (tabu[i] || (!set[i] && (mo_fit_delta(s, i)[moment] >= 0 || !may_move(s, i))))
            continue;
        bytes = (double)gain_of(s, set, move, moment, &seconds);
        bytes = bytes < (double)over ? bytes : (double)over;
        double rate = s->bytes_alone ? bytes : bytes / fmax(seconds, least_seconds);
        if (rate > best_rate) {
            best_rate = rate;
            best = move;
        }
    }
    return best;
}

/* The largest value of a set where the host, or else the disk, has too many; twice choice_count: none. */
static uint32_t largest_moved(const mo_fit_search *s, const uint8_t *set)
{
    uint32_t n = s->f->choice_count, best = 2 * n;
    uint32_t kind = s->run.result.host_bytes > s->host_limit ? MEMOPT_FIT_OFFLOAD : MEMOPT_FIT_DISK;
    for (uint32_t i = 0; i < n; i++)
        if (set[i] && s->f->choices[i].kind == kind &&
            (best == 2 * n || s->moved[i] > s->moved[best]))
            best = i;
    return best;
}

int mo_fit_repair(mo_fit_search *s, uint8_t *set, const uint8_t *fixed)
{
    uint32_t n = s->f->choice_count;
    uint8_t *tabu = s->scratch;
    memcpy(tabu, fixed, n);
    for (uint32_t turn = 0; turn <= 2 * n; turn++) {
        uint32_t move;
        if (mo_fit_take(s, set))
            return 1;
        if (s->run.result.peak_bytes <= s->budget) {
            move = largest_moved(s, set);
        } else {
            uint64_t over = s->run.result.peak_bytes - s->budget;
            move = best_move(s, set, tabu, highest(s), over);
        }
        if (move == 2 * n)
            return 0;
        tabu[move % n] = 1; /* at most once each, so that no two replace each other for ever */
        (void)mo_fit_move(s, set, move);
    }
    return 0;
}

double mo_fit_prune(mo_fit_search *s, uint8_t *set)
{
    (void)mo_fit_take(s, set);
    double seconds = s->run.result.seconds;
    for (uint32_t k = 0; k < s->f->choice_count; k++) {
        uint32_t i = s->order[k];
        if (!set[i])
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
