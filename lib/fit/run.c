/* The memory of replays; see run.h. */
#include "fit/run.h"

#include "base/memory.h"

memopt_status mo_fit_run_open(const memopt_fit *f, mo_fit_run *run)
{
    uint64_t s = f->storage_count, p = f->pack_count, m = f->module_count;
    uint64_t words = 3 * m + (2 + MO_FIT_COPIES) * s, bytes = MO_FIT_COPIES * s + p + 2 * m;
    *run = (mo_fit_run){.f = f, .state_bytes = 4 * words + bytes};
    run->memory = mo_malloc(run->state_bytes + 8 * p + 8);
    if (run->memory == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    uint32_t *at = run->memory;
    run->of_module = at;
    run->left = run->of_module + m;
    run->outer = run->left + m;
    run->of_storage = run->outer + m;
    run->moved = run->of_storage + s;
    run->holds = run->moved + s;
    run->alive = (uint8_t *)(run->holds + MO_FIT_COPIES * s);
    run->packs = run->alive + MO_FIT_COPIES * s;
    run->done = run->packs + p;
    run->given = run->done + m;
    uint64_t state = (run->state_bytes + 3) / 4;
    run->pack_holds = at + state;
    run->pack_module = run->pack_holds + p;
    return MEMOPT_OK;
}

void mo_fit_run_close(mo_fit_run *run)
{
    mo_free(run->memory);
    run->memory = NULL;
}

void mo_fit_note_peak(mo_fit_run *r)
{
    uint32_t largest = MEMOPT_FIT_NONE;
    for (uint32_t i = 0; i < MO_FIT_COPIES * r->f->storage_count; i++)
        if (mo_fit_exists(r, i) &&
            (largest == MEMOPT_FIT_NONE || mo_fit_size(r, i) > r->f->bytes[largest]))
            largest = i / MO_FIT_COPIES;
    r->result.peak_module = r->module;
    r->result.peak_storage = largest;
    r->wanted = UINT64_MAX;
}
