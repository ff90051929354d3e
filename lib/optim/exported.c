#include "optim/exported.h"

#include "optim/crc32.h"

#include "base/checked.h"
#include "base/memory.h"

#include <inttypes.h>
#include <string.h>

/* Of the sizes of blocks that an export may have. New ones have their format's own. */
enum { BLOCK_LEAST = 32, BLOCK_MOST = MO_EXPORT_BLOCK_MOST };

memopt_status mo_exported_read(const mo_exported *s, uint64_t at, uint64_t bytes, void *out)
{
    return mo_callback_status(s->from.reader(s->from.user, at, bytes, out), "%s: the reader",
                              s->subject);
}

/* --- the frame ------------------------------------------------------------------------------- */

static memopt_status check_sum(const mo_exported *s, unsigned char *piece, uint64_t room)
{
    uint32_t crc = 0;
    for (uint64_t at = 0, n; at < s->length - MO_EXPORT_END; at += n) {
        n = mo_min_u64(room, s->length - MO_EXPORT_END - at);
        MO_TRY(mo_exported_read(s, at, n, piece));
        crc = mo_crc32(crc, piece, n);
    }
    MO_TRY(mo_exported_read(s, s->length - MO_EXPORT_END, MO_EXPORT_END, piece));
    if (crc != mo_get_u32(piece) || mo_get_u32(piece + 4) != 0)
        return mo_fail(MEMOPT_CORRUPT,
                       "%s: the checksum is %08" PRIx32 ", %08" PRIx32
                       " was written; the export is damaged",
                       s->subject, crc, mo_get_u32(piece));
    return MEMOPT_OK;
}

/* header: MO_EXPORT_HEADER bytes. */
static memopt_status check_frame(mo_exported *s, const unsigned char *header)
{
    const uint32_t version = mo_get_u32(header + 8);
    if (memcmp(header, mo_export_magic, sizeof mo_export_magic) != 0)
        return mo_fail(MEMOPT_CORRUPT, "%s: %" PRIu64 " bytes that are not an export", s->subject,
                       s->from.bytes);
    if (version > MO_EXPORT_VERSION)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "%s: version %" PRIu32
                       " of the format; this library knows up to %d; update libmemopt",
                       s->subject, version, MO_EXPORT_VERSION);
    s->length = mo_get_u64(header + 16);
    if (version == 0 || mo_get_u32(header + 12) != MO_EXPORT_HEADER || s->length > s->from.bytes ||
        s->length < MO_EXPORT_HEADER + MO_EXPORT_END)
        return mo_fail(MEMOPT_CORRUPT,
                       "%s: the header says %" PRIu64 " bytes, there are %" PRIu64
                       "; the export is cut short or damaged",
                       s->subject, s->length, s->from.bytes);
    s->is_cut = version == MO_EXPORT_VERSION;
    s->version = s->is_cut ? mo_get_u32(header + 48) : version;
    s->block = mo_get_u32(header + 28);
    return MEMOPT_OK;
}

/* --- the same optimizer? ----------------------------------------------------------------------- */

/* The bytes of a residual that a version has. AdEMAMix's version does not say. */
static uint32_t split_of(uint32_t version)
{
    return version == 3 ? 1 : version == 5 ? 2 : 0;
}

static memopt_status check_version(const memopt_optimizer *o, const mo_exported *s)
{
    const uint32_t version = s->version;
    int slow = mo_rule_has_slow(o->options.kind);
    int factored = o->options.kind == MEMOPT_OPTIMIZER_ADAFACTOR;
    if ((version == 4) != slow || (version == 6) != factored || version == 0 ||
        version >= MO_EXPORT_VERSION || (version == 1 && o->options.kind != MEMOPT_OPTIMIZER_ADAMW))
        return mo_fail(MEMOPT_CORRUPT,
                       "%s: version %" PRIu32 " of the format; kind %" PRIu32 " is not written so",
                       s->subject, version, o->options.kind);
    if (!slow && split_of(version) != o->options.split_weights)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: split_weights %" PRIu32
                       " was exported; this optimizer has split_weights %" PRIu32,
                       s->subject, split_of(version), o->options.split_weights);
    return MEMOPT_OK;
}

/* Counts and sizes, so that the sections can be found. */
static memopt_status check_shape(const memopt_optimizer *o, const mo_exported *s,
                                 const unsigned char *header)
{
    const uint32_t kind = mo_get_u32(header + 24);
    const uint64_t groups = mo_get_u64(header + 32), parameters = mo_get_u64(header + 40);
    if (kind != o->options.kind)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: kind %" PRIu32 " was exported; this optimizer has kind %" PRIu32,
                       s->subject, kind, o->options.kind);
    MO_TRY(check_version(o, s));
    if (s->block < BLOCK_LEAST || s->block > BLOCK_MOST || (s->block & (s->block - 1)) != 0 ||
        (s->is_cut && s->block > MEMOPT_SHARD_ALIGNMENT))
        return mo_fail(MEMOPT_CORRUPT, "%s: blocks of %" PRIu32 " elements", s->subject, s->block);
    if (groups != o->group_count || parameters != o->parameter_count)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: %" PRIu64 " groups and %" PRIu64
                       " parameters were exported; this optimizer has %" PRIu64 " and %" PRIu64,
                       s->subject, groups, parameters, o->group_count, o->parameter_count);
    uint64_t least = MO_EXPORT_HEADER + MO_EXPORT_END + groups * mo_export_group_bytes(s->version) +
                     parameters * mo_export_record_bytes(s->is_cut);
    if (s->length < least)
        return mo_fail(MEMOPT_CORRUPT, "%s: %" PRIu64 " bytes; an export has at least %" PRIu64,
                       s->subject, s->length, least);
    return MEMOPT_OK;
}

/* --- groups ------------------------------------------------------------------------------------ */

static memopt_optimizer_group get_group(uint32_t version, const unsigned char *at)
{
    memopt_optimizer_group g = MEMOPT_OPTIMIZER_GROUP_INIT;
    g.lr = mo_get_f64(at);
    g.beta1 = mo_get_f64(at + 8);
    g.beta2 = mo_get_f64(at + 16);
    g.eps = mo_get_f64(at + 24);
    g.weight_decay = mo_get_f64(at + 32);
    g.maximize = mo_get_u32(at + 40);
    if (version == 1)
        return g;
    g.momentum = mo_get_f64(at + 48);
    g.dampening = mo_get_f64(at + 56);
    g.nesterov = mo_get_u32(at + 64);
    if (version == 6) {
        g.beta2_decay = mo_get_f64(at + 72);
        g.eps2 = mo_get_f64(at + 80);
        g.d = mo_get_f64(at + 88);
    }
    if (version != 4)
        return g;
    g.beta3 = mo_get_f64(at + 72);
    g.alpha = mo_get_f64(at + 80);
    g.t_alpha = mo_get_f64(at + 88);
    g.t_beta3 = mo_get_f64(at + 96);
    return g;
}

static memopt_status read_groups(const memopt_optimizer *o, mo_exported *s)
{
    const uint64_t size = mo_export_group_bytes(s->version);
    unsigned char bytes[128];
    s->groups = mo_calloc(mo_max_u64(o->group_count, 1), sizeof *s->groups);
    if (s->groups == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    for (uint64_t i = 0; i < o->group_count; i++) {
        MO_TRY(mo_exported_read(s, MO_EXPORT_HEADER + i * size, size, bytes));
        s->groups[i] = get_group(s->version, bytes);
        if (mo_optimizer_group_check(&s->groups[i]) != MEMOPT_OK)
            return mo_fail(MEMOPT_CORRUPT, "%s: a value of group %" PRIu64 " is out of range",
                           s->subject, i);
    }
    return MEMOPT_OK;
}

/* --- parameters -------------------------------------------------------------------------------- */

mo_parameter mo_exported_parameter(const memopt_optimizer *o, const mo_exported *s, uint64_t index,
                                   uint64_t count)
{
    const uint32_t format = s->records[index].format;
    mo_parameter p = o->parameters[index];
    p.tensor.count = count;
    p.format = format == 0 ? (uint32_t)MEMOPT_STATE_F32 : format;
    p.block = s->block;
    if (o->options.kind == MEMOPT_OPTIMIZER_SGD)
        p.moments = format != 0;
    return p;
}

int mo_same_states(const mo_parameter *a, const mo_parameter *b)
{
    return a->format == b->format && (!mo_format_has_scales(a->format) || a->block == b->block);
}

static memopt_status fail_format(const mo_exported *s, const mo_parameter *p, const mo_parameter *q,
                                 uint64_t i)
{
    static const char hint[] = "import it with `converts` 1";
    if (p->format == q->format)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: parameter %" PRIu64 " was exported with blocks of %" PRIu32
                       "; here it has blocks of %" PRIu32 "; %s",
                       s->subject, i, q->block, p->block, hint);
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "%s: parameter %" PRIu64 " was exported with %s states (%" PRIu32
                   "); here it has %s ones (%" PRIu32 "); %s",
                   s->subject, i, mo_format_name(q->format), q->format, mo_format_name(p->format),
                   p->format, hint);
}

/* States that may be converted, or need not be. */
static memopt_status check_states(const memopt_optimizer *o, const mo_exported *s, uint64_t i,
                                  int converts)
{
    const mo_record *r = &s->records[i];
    const mo_parameter *p = &o->parameters[i];
    const mo_parameter q = mo_exported_parameter(o, s, i, r->count);
    int old = mo_format_is_old(r->format) && o->options.kind == MEMOPT_OPTIMIZER_ADAMW;
    if (r->format != 0 && !old && mo_optimizer_kernel(o->options.kind, r->format) == NULL)
        return mo_fail(MEMOPT_CORRUPT,
                       "%s: parameter %" PRIu64 " has state format %" PRIu32 ", which kind %" PRIu32
                       " does not have",
                       s->subject, i, r->format, o->options.kind);
    if (r->count == 0 || p->tensor.count == 0)
        return MEMOPT_OK;
    if ((r->format == 0) != (p->moments == 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: parameter %" PRIu64 " was exported with %s states (%" PRIu32
                       "); here it has %s (%" PRIu32 "); SGD without momentum has none",
                       s->subject, i, mo_format_name(r->format), r->format,
                       mo_format_name(mo_export_format(p)), mo_export_format(p));
    return converts || mo_same_states(p, &q) ? MEMOPT_OK : fail_format(s, p, &q, i);
}

static memopt_status check_record(const memopt_optimizer *o, const mo_exported *s, uint64_t i,
                                  int converts)
{
    const mo_parameter *p = &o->parameters[i];
    const mo_record *r = &s->records[i];
    if (r->whole != p->whole || r->group != p->group)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: parameter %" PRIu64 " was exported with %" PRIu64
                       " elements in group %" PRIu32 "; here it has %" PRIu64 " in group %" PRIu32,
                       s->subject, i, r->whole, r->group, p->whole, p->group);
    if (!mo_shard_is_right(r->first, r->count, r->whole) ||
        (r->count != 0 && r->count != r->whole && p->columns != 0))
        return mo_fail(MEMOPT_CORRUPT,
                       "%s: parameter %" PRIu64 " is a shard of %" PRIu64 " elements from %" PRIu64
                       " on, of %" PRIu64 " in all",
                       s->subject, i, r->count, r->first, r->whole);
    if (r->rows != p->rows || r->columns != p->columns)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: parameter %" PRIu64 " was exported with matrices of %" PRIu32
                       " x %" PRIu32 "; here they are of %" PRIu32 " x %" PRIu32,
                       s->subject, i, r->rows, r->columns, p->rows, p->columns);
    if (mo_steps_taken(r->steps) >= MO_STEPS_LIMIT)
        return mo_fail(MEMOPT_CORRUPT,
                       "%s: parameter %" PRIu64 " has taken %" PRIu64
                       " steps; the count must be below 2^53",
                       s->subject, i, r->steps);
    return check_states(o, s, i, converts);
}

static mo_record get_record(const mo_exported *s, const unsigned char *at)
{
    const mo_record r = {.count = mo_get_u64(at),
                         .first = s->is_cut ? mo_get_u64(at + 32) : 0,
                         .whole = s->is_cut ? mo_get_u64(at + 40) : mo_get_u64(at),
                         .steps = mo_get_u64(at + 16),
                         .format = mo_get_u32(at + 8),
                         .group = mo_get_u32(at + 12),
                         .rows = mo_get_u32(at + 24),
                         .columns = mo_get_u32(at + 28)};
    return r;
}

/* Reads records from `first` on, as many as the piece holds; *at is where states go on. */
static memopt_status read_records(const memopt_optimizer *o, int converts, unsigned char *piece,
                                  uint64_t room, mo_exported *s, uint64_t first, uint64_t *at)
{
    const uint64_t size = mo_export_record_bytes(s->is_cut);
    const uint64_t n = mo_min_u64(room / size, o->parameter_count - first);
    const uint64_t start = MO_EXPORT_HEADER + o->group_count * mo_export_group_bytes(s->version);
    MO_TRY(mo_exported_read(s, start + first * size, n * size, piece));
    for (uint64_t i = first; i < first + n; i++) {
        s->records[i] = get_record(s, piece + (i - first) * size);
        s->records[i].at = *at;
        MO_TRY(check_record(o, s, i, converts));
        const mo_parameter q = mo_exported_parameter(o, s, i, s->records[i].count);
        *at += mo_parts_bytes(&q);
        if (*at > s->length)
            break; /* the bytes are compared below */
    }
    return MEMOPT_OK;
}

static memopt_status read_parameters(const memopt_optimizer *o, int converts, unsigned char *piece,
                                     uint64_t room, mo_exported *s)
{
    const uint64_t size = mo_export_record_bytes(s->is_cut), batch = room / size;
    uint64_t at = MO_EXPORT_HEADER + o->group_count * mo_export_group_bytes(s->version) +
                  o->parameter_count * size;
    s->records = mo_calloc(mo_max_u64(o->parameter_count, 1), sizeof *s->records);
    if (s->records == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    for (uint64_t i = 0; i < o->parameter_count && at <= s->length; i += batch)
        MO_TRY(read_records(o, converts, piece, room, s, i, &at));
    if (s->length != at + MO_EXPORT_END)
        return mo_fail(MEMOPT_CORRUPT, "%s: %" PRIu64 " bytes for parameters that take %" PRIu64,
                       s->subject, s->length, at + MO_EXPORT_END);
    return MEMOPT_OK;
}

/* --- all of it --------------------------------------------------------------------------------- */

memopt_status mo_exported_open(const memopt_optimizer *o, int converts, unsigned char *piece,
                               uint64_t room, mo_exported *s)
{
    unsigned char header[MO_EXPORT_HEADER];
    if (s->from.bytes < MO_EXPORT_HEADER + MO_EXPORT_END)
        return mo_fail(MEMOPT_CORRUPT, "%s: %" PRIu64 " bytes that are not an export", s->subject,
                       s->from.bytes);
    MO_TRY(mo_exported_read(s, 0, sizeof header, header));
    MO_TRY(check_frame(s, header));
    MO_TRY(check_sum(s, piece, room));
    MO_TRY(check_shape(o, s, header));
    MO_TRY(read_groups(o, s));
    return read_parameters(o, converts, piece, room, s);
}

void mo_exported_close(mo_exported *s)
{
    mo_free(s->groups);
    mo_free(s->records);
}
