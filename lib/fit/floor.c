/*
 * Choices of least bytes, whatever times are. It begins with all outermost modules and the values beside
 * them. Then each choice in turn is changed, and the set repaired to be lower than the best.
 */
#include "fit/search.h"

#include <string.h>

/* Whether no other module with a choice is around a choice's module. */
static int is_outermost(const memopt_fit *f, uint32_t choice)
{
    for (uint32_t i = 0; i < f->choice_count; i++)
        if (f->choices[i].kind == MEMOPT_FIT_RECOMPUTE &&
            mo_fit_within(f, f->modules[f->choices[choice].module].enter, f->choices[i].module))
            return 0;
    return 1;
}

static int is_free(const mo_fit_search *s, const uint8_t *set, uint32_t choice)
{
    for (uint32_t i = 0; i < s->f->choice_count; i++)
        if (set[i] && mo_fit_excludes(s->f, choice, i))
            return 0;
    return 1;
}

/* Those of a kind that are free, as long as host or disk have room for all at once. */
static void add_all(mo_fit_search *s, uint8_t *set, uint32_t kind)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < s->f->choice_count; i++) {
        if (s->f->choices[i].kind != kind || s->moved[i] > mo_fit_limit(s, i) - used ||
            !is_free(s, set, i) || (kind == MEMOPT_FIT_RECOMPUTE && !is_outermost(s->f, i)))
            continue;
        set[i] = 1;
        used += s->moved[i];
    }
}

void mo_fit_floor(mo_fit_search *s, uint64_t enough, uint8_t *set, uint8_t *work)
{
    uint32_t n = s->f->choice_count;
    uint64_t asked = s->budget;
    uint8_t *other = work, *fixed = work + n;
    s->bytes_alone = 1;
    memset(set, 0, n);
    for (uint32_t kind = MEMOPT_FIT_RECOMPUTE; kind <= MEMOPT_FIT_DISK; kind++)
        add_all(s, set, kind);
    (void)mo_fit_take(s, set);
    uint64_t peak = s->run.result.peak_bytes;
    for (uint32_t i = 0, tried = 0; peak > enough && tried < 2 * n && s->work < s->most_work;
         i = (i + 1) % (2 * n), tried++) {
        s->budget = peak - 1;
        memcpy(other, set, n);
        memset(fixed, 0, n);
        fixed[i % n] = 1;
        if (!mo_fit_move(s, other, i) || !mo_fit_repair(s, other, fixed))
            continue;
        peak = s->run.result.peak_bytes;
        memcpy(set, other, n);
        tried = 0;
    }
    s->bytes_alone = 0;
    s->budget = asked;
}
