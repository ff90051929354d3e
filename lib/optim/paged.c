/*
 * States in page-locked host memory: a step brings them to one of two areas on the device page by
 * page, and back.
 *
 * A page is a run of parameters whose states fit an area together, or one parameter; page n uses
 * area n % 2, so the addresses in the device's table do not change from step to step. A page of a
 * step:
 *
 *   in       waits until the area's last page is back, copies states in, marks `arrived`
 *   stream   waits for `arrived`, launches the page's step, marks `stepped`
 *   out      waits for `stepped`, copies states back, marks `left`
 *
 * So the copies of two pages overlap with a step. At first `left` is the stream's work so far,
 * which `in` does not pass. At the end the step's stream waits for `out`: work in its order sees
 * whole states.
 *
 * Failure. mo_paged_prepare() makes all that can fail on the host. A driver that fails after the
 * first launch leaves pages of two steps: `torn`, which an import ends.
 */
#include "optim/layout.h"

#include "base/checked.h"

enum { PLACE = 256 };

/* --- places */

static uint64_t place_of(uint64_t bytes)
{
    return mo_ceil_div_u64(bytes, PLACE) * PLACE;
}

static uint64_t bytes_in_area(const mo_parameter *p)
{
    mo_state_part parts[MO_EXPORT_PARTS];
    uint64_t bytes = 0;
    for (int k = 0, n = mo_state_parts(p, parts); k < n; k++)
        bytes += place_of(parts[k].bytes);
    return bytes;
}

mo_optim_tensor mo_paged_tensor(const memopt_optimizer *o, const mo_parameter *p)
{
    mo_optim_tensor t = p->device;
    if (o->options.page_bytes == 0)
        return t;
    mo_state_part parts[MO_EXPORT_PARTS];
    void *states[MO_EXPORT_PARTS];
    unsigned char *at = (unsigned char *)o->pages.areas[p->page % 2] + p->page_offset;
    for (int k = 0, n = mo_state_parts(p, parts); k < n; at += place_of(parts[k++].bytes))
        states[k] = at;
    mo_parameter_place(p, states, &t);
    return t;
}

/* Gives each parameter its page; returns the bytes of the largest one. */
static uint64_t plan(memopt_optimizer *o)
{
    uint64_t used = 0, most = 0, page = 0;
    for (uint64_t i = 0; i < o->parameter_count; i++) {
        mo_parameter *p = &o->parameters[i];
        uint64_t bytes = bytes_in_area(p), limit = o->options.page_bytes;
        if (used != 0 && (used > limit || bytes > limit - used)) {
            page++;
            used = 0;
        }
        p->page = page;
        p->page_offset = used;
        used += bytes;
        most = mo_max_u64(most, used);
    }
    o->pages.count = page + 1;
    return most;
}

/* --- what a step needs */

static memopt_status grow_areas(memopt_optimizer *o, uint64_t bytes, memopt_stream stream)
{
    mo_paged *pages = &o->pages;
    void *larger[2] = {NULL, NULL};
    memopt_status status = MEMOPT_OK;
    for (int a = 0; a < 2 && status == MEMOPT_OK; a++)
        status =
            memopt_allocator_alloc(o->allocator, bytes, MEMOPT_TAG_OPTIMIZER, stream, &larger[a]);
    if (status != MEMOPT_OK) {
        if (larger[0] != NULL)
            (void)memopt_allocator_free(o->allocator, larger[0]);
        return status;
    }
    for (int a = 0; a < 2; a++) {
        memopt_status released = mo_optimizer_release(o, pages->areas[a]);
        status = status == MEMOPT_OK ? released : status;
        pages->areas[a] = larger[a];
    }
    pages->area_bytes = bytes;
    return status;
}

memopt_status mo_paged_prepare(memopt_optimizer *o, memopt_stream stream)
{
    int32_t capturing = 0;
    memopt_status status = mo_stream_capturing(o->device, stream, &capturing);
    if (status == MEMOPT_OK && capturing)
        status = mo_fail(MEMOPT_UNSUPPORTED, "optimizer step: the stream records a graph, and a "
                                             "step of paged states cannot be captured");
    if (status == MEMOPT_OK && !o->pages.opened)
        status = mo_paged_open(o);
    if (status != MEMOPT_OK || o->pages.planned)
        return status;
    uint64_t most = plan(o);
    o->tensor_table.current = 0;
    if (most > o->pages.area_bytes)
        status = grow_areas(o, most, stream);
    o->pages.planned = status == MEMOPT_OK;
    return status;
}

/* --- one step */

static memopt_status follow(memopt_optimizer *o, memopt_event *event, memopt_stream stream,
                            memopt_stream waiter)
{
    memopt_status status = memopt_event_record(event, stream);
    return status == MEMOPT_OK ? memopt_stream_wait_event(o->device, waiter, event) : status;
}

/* Copies the states of the page's segments, which are the uploaded ones. */
static memopt_status copy_page(memopt_optimizer *o, uint64_t count, int in)
{
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0; i < count; i++) {
        const mo_parameter *p = &o->parameters[o->segments[i].number];
        mo_state_part parts[MO_EXPORT_PARTS];
        unsigned char *at = (unsigned char *)o->pages.areas[p->page % 2] + p->page_offset;
        for (int k = 0, n = mo_state_parts(p, parts); k < n; at += place_of(parts[k++].bytes)) {
            status = memopt_copy(o->device, in ? (void *)at : parts[k].data,
                                 in ? parts[k].data : (void *)at, parts[k].bytes,
                                 in ? o->pages.in : o->pages.out);
            if (status != MEMOPT_OK)
                return status;
        }
    }
    return status;
}

memopt_status mo_paged_begin(memopt_optimizer *o, memopt_stream stream)
{
    memopt_status status = MEMOPT_OK;
    for (int a = 0; a < 2 && status == MEMOPT_OK;
         a++) /* the areas are free in the stream's order */
        status = memopt_event_record(o->pages.left[a], stream);
    return status;
}

memopt_status mo_paged_bring(memopt_optimizer *o, uint64_t page, uint64_t count,
                             memopt_stream stream)
{
    mo_paged *pages = &o->pages;
    memopt_status status = memopt_stream_wait_event(o->device, pages->in, pages->left[page % 2]);
    if (status == MEMOPT_OK)
        status = copy_page(o, count, 1);
    return status == MEMOPT_OK ? follow(o, pages->arrived[page % 2], pages->in, stream) : status;
}

memopt_status mo_paged_return(memopt_optimizer *o, uint64_t page, uint64_t count,
                              memopt_stream stream)
{
    mo_paged *pages = &o->pages;
    memopt_status status = follow(o, pages->stepped[page % 2], stream, pages->out);
    if (status == MEMOPT_OK)
        status = copy_page(o, count, 0);
    return status == MEMOPT_OK ? memopt_event_record(pages->left[page % 2], pages->out) : status;
}

memopt_status mo_paged_end(memopt_optimizer *o, memopt_stream stream)
{
    memopt_status status = MEMOPT_OK;
    for (int a = 0; a < 2 && status == MEMOPT_OK; a++)
        status = memopt_stream_wait_event(o->device, stream, o->pages.left[a]);
    return status;
}
