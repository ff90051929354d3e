/*
 * Writes an optimizer's groups, step counts and states; layout.h has the format. All of it goes
 * through one piece of page-locked memory to a writer: the caller's, or one that fills a buffer.
 */
#include "optim/crc32.h"
#include "optim/layout.h"

#include "base/checked.h"

#include <inttypes.h>
#include <string.h>

/* Multiples of 8. Other sizes only change how often the writer is called. */
enum { PIECE = 1 << 20, LEAST_PIECE = 4096 };

typedef struct sink {
    memopt_optimizer *o;
    memopt_stream stream;
    memopt_export_writer write;
    void *user;
    unsigned char *piece; /* host memory */
    uint64_t room, used;
    uint32_t crc; /* of what was written */
} sink;

/* Hands the piece to the writer. */
static memopt_status flush(sink *s)
{
    uint64_t bytes = s->used;
    s->used = 0;
    s->crc = mo_crc32(s->crc, s->piece, bytes);
    return bytes == 0 ? MEMOPT_OK
                      : mo_callback_status(s->write(s->user, s->piece, bytes),
                                           "optimizer export: the writer");
}

/* The place of the next bytes, after a flush if the piece has no room; it never has less than
 * LEAST_PIECE. */
static memopt_status place(sink *s, uint64_t bytes, unsigned char **out_at)
{
    if (bytes > s->room - s->used)
        MO_TRY(flush(s));
    *out_at = s->piece + s->used;
    s->used += bytes;
    return MEMOPT_OK;
}

static void put_header(const memopt_optimizer *o, unsigned char *at, uint64_t bytes)
{
    memset(at, 0, MO_EXPORT_HEADER);
    memcpy(at, mo_export_magic, sizeof mo_export_magic);
    mo_put_u32(at + 8, o->is_cut ? (uint32_t)MO_EXPORT_VERSION : mo_export_version(o));
    mo_put_u32(at + 12, MO_EXPORT_HEADER);
    mo_put_u64(at + 16, bytes);
    mo_put_u32(at + 24, o->options.kind);
    mo_put_u32(at + 28, mo_format_block(o->options.state_format));
    mo_put_u64(at + 32, o->group_count);
    mo_put_u64(at + 40, o->parameter_count);
    mo_put_u32(at + 48, o->is_cut ? mo_export_version(o) : 0);
}

static void put_group(const memopt_optimizer_group *g, uint32_t version, unsigned char *at)
{
    mo_put_f64(at, g->lr);
    mo_put_f64(at + 8, g->beta1);
    mo_put_f64(at + 16, g->beta2);
    mo_put_f64(at + 24, g->eps);
    mo_put_f64(at + 32, g->weight_decay);
    mo_put_u32(at + 40, g->maximize);
    mo_put_u32(at + 44, 0);
    if (version == 1)
        return;
    mo_put_f64(at + 48, g->momentum);
    mo_put_f64(at + 56, g->dampening);
    mo_put_u32(at + 64, g->nesterov);
    mo_put_u32(at + 68, 0);
    if (version == 6) {
        mo_put_f64(at + 72, g->beta2_decay);
        mo_put_f64(at + 80, g->eps2);
        mo_put_f64(at + 88, g->d);
    }
    if (version != 4)
        return;
    mo_put_f64(at + 72, g->beta3);
    mo_put_f64(at + 80, g->alpha);
    mo_put_f64(at + 88, g->t_alpha);
    mo_put_f64(at + 96, g->t_beta3);
}

static memopt_status write_head(sink *s)
{
    const memopt_optimizer *o = s->o;
    const uint32_t version = mo_export_version(o);
    unsigned char *at;
    MO_TRY(place(s, MO_EXPORT_HEADER, &at));
    put_header(o, at, mo_export_bytes(o));
    for (uint64_t i = 0; i < o->group_count; i++) {
        MO_TRY(place(s, mo_export_group_bytes(version), &at));
        put_group(&o->groups[i], version, at);
    }
    return flush(s);
}

/* The records of parameters from `first` on, as many as fit the piece. */
static memopt_status write_records(sink *s, uint64_t first, uint64_t count)
{
    const uint64_t size = mo_export_record_bytes(s->o->is_cut);
    for (uint64_t i = 0; i < count; i++) {
        const mo_parameter *p = &s->o->parameters[first + i];
        unsigned char *at = s->piece + i * size;
        mo_put_u64(at, p->tensor.count);
        mo_put_u32(at + 8, mo_export_format(p));
        mo_put_u32(at + 12, p->group);
        mo_put_u32(at + 24, p->rows);
        mo_put_u32(at + 28, p->columns);
        if (s->o->is_cut) {
            mo_put_u64(at + 32, p->first);
            mo_put_u64(at + 40, p->whole);
        }
        MO_TRY(memopt_copy(s->o->device, at + 16, p->device.steps, sizeof(uint64_t), s->stream));
    }
    MO_TRY(memopt_stream_sync(s->o->device, s->stream));
    for (uint64_t i = 0; i < count; i++)
        mo_export_turn(s->piece + i * size + 16, 8, 8);
    s->used = count * size;
    return flush(s);
}

static memopt_status write_part(sink *s, const mo_state_part *part)
{
    for (uint64_t done = 0; done < part->padded; done += s->room) {
        uint64_t padded = mo_min_u64(s->room, part->padded - done);
        uint64_t bytes = mo_min_u64(padded, part->bytes - done);
        memset(s->piece + bytes, 0, (size_t)(padded - bytes));
        MO_TRY(
            memopt_copy(s->o->device, s->piece, (const char *)part->data + done, bytes, s->stream));
        MO_TRY(memopt_stream_sync(s->o->device, s->stream));
        mo_export_turn(s->piece, bytes, part->word);
        s->used = padded;
        MO_TRY(flush(s));
    }
    return MEMOPT_OK;
}

static memopt_status write_all(sink *s)
{
    const memopt_optimizer *o = s->o;
    const uint64_t count = o->parameter_count;
    const uint64_t batch = s->room / mo_export_record_bytes(o->is_cut);
    MO_TRY(write_head(s));
    for (uint64_t i = 0; i < count; i += batch)
        MO_TRY(write_records(s, i, mo_min_u64(batch, count - i)));
    for (uint64_t i = 0; i < count; i++) {
        mo_state_part parts[MO_EXPORT_PARTS];
        const int n = mo_state_parts(&o->parameters[i], parts);
        for (int k = 0; k < n; k++)
            MO_TRY(write_part(s, &parts[k]));
    }
    mo_put_u32(s->piece, s->crc);
    mo_put_u32(s->piece + 4, 0);
    s->used = MO_EXPORT_END;
    return flush(s);
}

static memopt_status export_to(memopt_optimizer *o, memopt_export_writer write, void *user,
                               memopt_stream stream)
{
    sink s = {.o = o, .stream = stream, .write = write, .user = user};
    void *piece = NULL;
    MO_TRY(mo_paged_check(o, "optimizer export"));
    MO_TRY(mo_optimizer_use_stream(o, stream));
    s.room = mo_min_u64(PIECE, (mo_export_bytes(o) / LEAST_PIECE + 1) * LEAST_PIECE);
    MO_TRY(memopt_host_alloc(o->device, s.room, &piece));
    s.piece = piece;
    memopt_status status = write_all(&s);
    if (status != MEMOPT_OK)
        (void)memopt_device_sync(o->device); /* a copy may still write to the piece */
    mo_keep_first(&status, memopt_host_free(o->device, piece));
    return status;
}

memopt_status memopt_optimizer_export_pieces_sync(memopt_optimizer *o, memopt_export_writer writer,
                                                  void *user, memopt_stream stream)
{
    if (o == NULL || writer == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer export: %s is NULL",
                       o == NULL ? "the handle" : "writer");
    if (mo_device_inherited(o->device))
        return mo_fail_inherited("optimizer_export_pieces_sync");
    return export_to(o, writer, user, stream);
}

/* The writer that fills a buffer; `user` is where it goes on. */
static memopt_status append(void *user, const void *piece, uint64_t bytes)
{
    unsigned char **at = user;
    memcpy(*at, piece, (size_t)bytes);
    *at += bytes;
    return MEMOPT_OK;
}

memopt_status memopt_optimizer_export_sync(memopt_optimizer *o, uint64_t bytes,
                                           memopt_stream stream, void *buffer, uint64_t *out_bytes)
{
    if (o == NULL || (buffer == NULL && out_bytes == NULL))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer export: %s is NULL",
                       o == NULL ? "the handle" : "buffer, and so is out_bytes");
    if (mo_device_inherited(o->device))
        return mo_fail_inherited("optimizer_export_sync");
    uint64_t needed = mo_export_bytes(o);
    if (buffer != NULL && bytes < needed)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer export: %" PRIu64 " bytes of buffer, %" PRIu64 " needed", bytes,
                       needed);
    unsigned char *at = buffer;
    if (buffer != NULL)
        MO_TRY(export_to(o, append, &at, stream));
    if (out_bytes != NULL)
        *out_bytes = needed;
    return MEMOPT_OK;
}
