/*
 * Reads exports into an optimizer, of all parameters or of the shards that it has: each element's
 * states come from the export that holds it. Everything is checked before anything changes. All
 * bytes go through one piece of page-locked memory.
 */
#include "optim/convert.h"
#include "optim/exported.h"

#include "base/checked.h"
#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* It holds a run of the converter. */
enum { PIECE = 1 << 20 };

typedef struct importer {
    memopt_optimizer *o;
    memopt_stream stream;
    mo_exported *sources;
    uint64_t count;
    unsigned char *piece;
    uint64_t used;
    mo_converter converter;
} importer;

/* Elements [begin, end) of parameter `index`, all of which the source has. */
typedef struct range {
    const mo_exported *source;
    uint64_t index, begin, end;
} range;

/* --- which export has what --------------------------------------------------------------------- */

/* What is to be read next of a parameter, from element `at` on: as much as one source has. Empty:
 * none has the element. */
static range next_range(const importer *im, uint64_t index, uint64_t at)
{
    const mo_parameter *p = &im->o->parameters[index];
    range best = {NULL, index, at, at};
    for (uint64_t k = 0; k < im->count; k++) {
        const mo_record *r = &im->sources[k].records[index];
        const uint64_t end = mo_min_u64(r->first + r->count, p->first + p->tensor.count);
        if (r->first <= at && end > best.end) {
            best.source = &im->sources[k];
            best.end = end;
        }
    }
    return best;
}

/* A shard begins in no block, but for the large ones of older libraries. */
static memopt_status check_begin(const range *r)
{
    const mo_record *record = &r->source->records[r->index];
    const uint32_t block = r->source->block;
    if (record->format == 0 || !mo_format_has_scales(record->format) ||
        (r->begin - record->first) % block == 0)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "%s: parameter %" PRIu64 " was exported with blocks of %" PRIu32
                   " elements, and the shard here begins at %" PRIu64
                   "; import all of it, and export that",
                   r->source->subject, r->index, block, r->begin);
}

static memopt_status check_cover(const importer *im, uint64_t index)
{
    const mo_parameter *p = &im->o->parameters[index];
    const uint64_t end = p->first + p->tensor.count;
    for (range r = {.end = p->first}; r.end < end;) {
        r = next_range(im, index, r.end);
        if (r.source == NULL)
            return mo_fail(MEMOPT_INVALID_ARGUMENT,
                           "optimizer import: element %" PRIu64 " of parameter %" PRIu64
                           " is in none of the %" PRIu64 " exports; here it has %" PRIu64
                           " to %" PRIu64 "; give the exports of all processes",
                           r.begin, index, im->count, p->first, end);
        MO_TRY(check_begin(&r));
    }
    return MEMOPT_OK;
}

/* The step count of a parameter: that of all exports which have an element of it. */
static memopt_status find_steps(const importer *im, uint64_t index, uint64_t *out_steps)
{
    const mo_record *found = NULL;
    for (uint64_t k = 0; k < im->count; k++) {
        const mo_record *r = &im->sources[k].records[index];
        if (r->count == 0)
            continue;
        if (found != NULL && found->steps != r->steps)
            return mo_fail(MEMOPT_INVALID_ARGUMENT,
                           "%s: parameter %" PRIu64 " has taken %" PRIu64
                           " steps, in an export before it %" PRIu64 "; give exports of one moment",
                           im->sources[k].subject, index, mo_steps_taken(r->steps),
                           mo_steps_taken(found->steps));
        found = r;
    }
    *out_steps = found != NULL ? found->steps : im->sources[0].records[index].steps;
    return MEMOPT_OK;
}

/* Elements of the largest parameter to convert. */
static uint64_t largest_converted(const importer *im)
{
    uint64_t largest = 0;
    for (uint64_t i = 0; i < im->o->parameter_count; i++)
        for (uint64_t k = 0; k < im->count; k++) {
            const mo_parameter *p = &im->o->parameters[i];
            const mo_parameter q =
                mo_exported_parameter(im->o, &im->sources[k], i, p->tensor.count);
            if (im->sources[k].records[i].count != 0 && !mo_same_states(p, &q))
                largest = mo_max_u64(largest, p->tensor.count);
        }
    return largest;
}

static memopt_status check_all(const importer *im, int converts)
{
    uint64_t steps;
    for (uint64_t k = 0; k < im->count; k++)
        MO_TRY(mo_exported_open(im->o, converts, im->piece, PIECE, &im->sources[k]));
    for (uint64_t i = 0; i < im->o->parameter_count; i++) {
        MO_TRY(find_steps(im, i, &steps));
        MO_TRY(check_cover(im, i));
    }
    return MEMOPT_OK;
}

/* --- sending ----------------------------------------------------------------------------------- */

/* Room in the piece, at most all of it; what was in it has arrived. */
static memopt_status place(importer *im, uint64_t bytes, unsigned char **out_at)
{
    if (bytes > PIECE - im->used) {
        MO_TRY(memopt_stream_sync(im->o->device, im->stream));
        im->used = 0;
    }
    *out_at = im->piece + im->used;
    im->used += mo_min_u64((bytes + 7) / 8 * 8, PIECE - im->used);
    return MEMOPT_OK;
}

/* Of the state tensors of p, as they are for `count` elements. */
static int parts_of(const mo_parameter *p, uint64_t count, mo_state_part parts[MO_EXPORT_PARTS])
{
    mo_parameter some = *p;
    some.tensor.count = count;
    return mo_state_parts(&some, parts);
}

/* Where the range's bytes of each state lie in its source, and how many they are. */
static int find_parts(const importer *im, const range *r, mo_state_part parts[MO_EXPORT_PARTS],
                      uint64_t at[MO_EXPORT_PARTS])
{
    const mo_record *record = &r->source->records[r->index];
    const mo_parameter q = mo_exported_parameter(im->o, r->source, r->index, record->count);
    mo_state_part all[MO_EXPORT_PARTS], before[MO_EXPORT_PARTS];
    const int count = parts_of(&q, record->count, all);
    uint64_t place = record->at;
    (void)parts_of(&q, r->begin - record->first, before);
    (void)parts_of(&q, r->end - r->begin, parts);
    for (int k = 0; k < count; place += all[k++].padded)
        at[k] = place + before[k].bytes;
    return count;
}

static memopt_status send_bytes(importer *im, const mo_exported *s, uint64_t from, uint64_t bytes,
                                uint32_t word, unsigned char *to)
{
    unsigned char *at;
    for (uint64_t done = 0, n; done < bytes; done += n) {
        n = mo_min_u64(bytes - done, PIECE);
        MO_TRY(place(im, n, &at));
        MO_TRY(mo_exported_read(s, from + done, n, at));
        mo_export_turn(at, n, word);
        MO_TRY(memopt_copy(im->o->device, to + done, at, n, im->stream));
    }
    return MEMOPT_OK;
}

/* A run of one moment. codes, scales: where they are in the source; scales 0: none. */
static memopt_status convert_run(importer *im, const range *r, uint32_t k, uint64_t codes,
                                 uint64_t scales)
{
    const uint32_t kind = im->o->options.kind;
    const mo_parameter *p = &im->o->parameters[r->index];
    const uint64_t n = r->end - r->begin;
    const mo_parameter q = mo_exported_parameter(im->o, r->source, r->index, n);
    mo_state_part from[MO_EXPORT_PARTS], to[MO_EXPORT_PARTS], before[MO_EXPORT_PARTS];
    unsigned char *at;
    mo_parameter target = *p;
    target.tensor.count = n;
    (void)parts_of(&q, n, from);
    (void)parts_of(p, p->tensor.count, to);
    (void)parts_of(p, r->begin - p->first, before);
    const uint64_t coded = from[k].padded;
    const uint64_t scaled = scales != 0 ? from[q.moments + k].bytes : 0;
    MO_TRY(place(im, coded + scaled, &at));
    MO_TRY(mo_exported_read(r->source, codes, from[k].bytes, at));
    mo_export_turn(at, from[k].bytes, from[k].word);
    if (scaled != 0) {
        MO_TRY(mo_exported_read(r->source, scales, scaled, at + coded));
        mo_export_turn(at + coded, scaled, 4);
    }
    mo_moment moment = {.codes = at,
                        .scales = scaled != 0 ? at + coded : NULL,
                        .out_codes = (unsigned char *)to[k].data + before[k].bytes};
    if (mo_format_has_scales(p->format))
        moment.out_scales = (unsigned char *)to[p->moments + k].data + before[p->moments + k].bytes;
    moment.is_signed =
        k == p->moments - 1 && mo_rule_has_second(kind) ? 0 : k != 0 || mo_rule_first_signed(kind);
    return mo_convert(&im->converter, &q, &target, &moment);
}

static memopt_status convert_moments(importer *im, const range *whole)
{
    const mo_parameter *p = &im->o->parameters[whole->index];
    for (uint64_t at = whole->begin, n; at < whole->end; at += n) {
        n = mo_min_u64(im->converter.run, whole->end - at);
        const range run = {whole->source, whole->index, at, at + n};
        mo_state_part parts[MO_EXPORT_PARTS];
        uint64_t places[MO_EXPORT_PARTS];
        const mo_parameter q = mo_exported_parameter(im->o, run.source, run.index, n);
        (void)find_parts(im, &run, parts, places);
        for (uint32_t k = 0; k < p->moments; k++)
            MO_TRY(convert_run(im, &run, k, places[k],
                               mo_format_has_scales(q.format) ? places[q.moments + k] : 0));
    }
    return MEMOPT_OK;
}

static memopt_status send_range(importer *im, const range *r)
{
    const mo_parameter *p = &im->o->parameters[r->index];
    const mo_parameter q = mo_exported_parameter(im->o, r->source, r->index, p->tensor.count);
    mo_state_part from[MO_EXPORT_PARTS], to[MO_EXPORT_PARTS], before[MO_EXPORT_PARTS];
    uint64_t at[MO_EXPORT_PARTS];
    const int count = find_parts(im, r, from, at), more = parts_of(p, p->tensor.count, to) - count;
    int k = 0;
    (void)parts_of(p, r->begin - p->first, before);
    if (!mo_same_states(p, &q)) {
        MO_TRY(convert_moments(im, r));
        k = p->split ? count - 1 : count; /* the residual is as it is */
    }
    for (; k < count; k++)
        MO_TRY(send_bytes(im, r->source, at[k], from[k].bytes, from[k].word,
                          (unsigned char *)to[k + more].data + before[k + more].bytes));
    return MEMOPT_OK;
}

static memopt_status send_parameter(importer *im, uint64_t index)
{
    const mo_parameter *p = &im->o->parameters[index];
    unsigned char *at;
    uint64_t steps;
    MO_TRY(find_steps(im, index, &steps));
    MO_TRY(place(im, sizeof steps, &at));
    memcpy(at, &steps, sizeof steps);
    MO_TRY(memopt_copy(im->o->device, p->device.steps, at, sizeof steps, im->stream));
    for (range r = {.end = p->first}; r.end < p->first + p->tensor.count;) {
        r = next_range(im, index, r.end);
        MO_TRY(send_range(im, &r));
    }
    return MEMOPT_OK;
}

/* Everything that can be refused has been. */
static memopt_status send_all(importer *im)
{
    memopt_status status = MEMOPT_OK;
    MO_TRY(mo_converter_begin(im->o, largest_converted(im), im->stream, &im->converter));
    for (uint64_t i = 0; i < im->o->parameter_count && status == MEMOPT_OK; i++)
        status = send_parameter(im, i);
    mo_keep_first(&status, memopt_stream_sync(im->o->device, im->stream));
    mo_keep_first(&status, mo_converter_end(&im->converter));
    return status;
}

/* What an export does not have stays. */
static void set_groups(memopt_optimizer *o, const memopt_optimizer_group *groups)
{
    for (uint64_t i = 0; i < o->group_count; i++) {
        const memopt_optimizer_group before = o->groups[i];
        o->groups[i] = groups[i];
        o->groups[i].device_lr = before.device_lr;
        o->groups[i].average = before.average;
        o->groups[i].min_8bit_size = before.min_8bit_size;
        o->groups[i].max_ratio = before.max_ratio;
        o->groups[i].trust_clip = before.trust_clip;
        o->groups[i].uncorrected = before.uncorrected;
    }
    o->group_table.current = 0;
}

static memopt_status import_into(importer *im, int converts)
{
    MO_TRY(check_all(im, converts));
    MO_TRY(mo_optimizer_use_stream(im->o, im->stream));
    MO_TRY(mo_paged_settle(im->o));
    MO_TRY(send_all(im));
    set_groups(im->o, im->sources[0].groups);
    im->o->pages.torn = 0;
    return MEMOPT_OK;
}

static memopt_status import_any(memopt_optimizer *o, const memopt_export_source *sources,
                                uint64_t count, uint32_t converts, memopt_stream stream)
{
    importer im = {.o = o, .stream = stream, .count = count};
    void *piece = NULL;
    if (converts > 1)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer import: converts is %" PRIu32 ", must be 0 or 1", converts);
    im.sources = mo_calloc(count, sizeof *im.sources);
    if (im.sources == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = memopt_host_alloc(o->device, PIECE, &piece);
    im.piece = piece;
    for (uint64_t k = 0; k < count; k++) {
        im.sources[k].from = sources[k];
        snprintf(im.sources[k].subject, sizeof im.sources[k].subject,
                 count == 1 ? "optimizer import" : "optimizer import: export %" PRIu64, k);
    }
    if (status == MEMOPT_OK)
        status = import_into(&im, (int)converts);
    for (uint64_t k = 0; k < count; k++)
        mo_exported_close(&im.sources[k]);
    mo_free(im.sources);
    mo_keep_first(&status, memopt_host_free(o->device, piece));
    return status;
}

memopt_status memopt_optimizer_import_pieces_sync(memopt_optimizer *o,
                                                  const memopt_export_source *sources,
                                                  uint64_t count, uint32_t converts,
                                                  memopt_stream stream)
{
    if (o == NULL || sources == NULL || count == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer import: %s is %s",
                       o == NULL         ? "the handle"
                       : sources == NULL ? "sources"
                                         : "count",
                       o == NULL || sources == NULL ? "NULL" : "0");
    if (mo_device_inherited(o->device))
        return mo_fail_inherited("optimizer import");
    for (uint64_t k = 0; k < count; k++)
        if (sources[k].reader == NULL)
            return mo_fail(MEMOPT_INVALID_ARGUMENT,
                           "optimizer import: the reader of export %" PRIu64 " is NULL", k);
    return import_any(o, sources, count, converts, stream);
}

/* The reader of a buffer. */
static memopt_status read_memory(void *user, uint64_t offset, uint64_t bytes, void *out)
{
    memcpy(out, (const unsigned char *)user + offset, (size_t)bytes);
    return MEMOPT_OK;
}

memopt_status memopt_optimizer_import_sync(memopt_optimizer *o, const void *buffer, uint64_t bytes,
                                           uint32_t converts, memopt_stream stream)
{
    const memopt_export_source source = {read_memory, (void *)(uintptr_t)buffer, bytes};
    if (o != NULL && buffer == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer import: buffer is NULL");
    return memopt_optimizer_import_pieces_sync(o, &source, 1, converts, stream);
}
