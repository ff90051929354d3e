/*
 * CSV text to events. Lines are taken from the caller's piece where they are whole; an unfinished
 * one is kept until the next piece. Fields are cut at commas: no column that is read can hold one.
 */
#include "trace/trace.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

typedef struct field {
    const char *text;
    uint64_t size;
} field;

enum { SHOWN = 40, READ_BYTES = 1 << 16 };

/* Quotes a field for a message; room[SHOWN + 4]. */
static const char *shown(char *room, field f)
{
    uint64_t i = 0;
    for (; i < f.size && i < SHOWN; i++)
        room[i] = f.text[i] >= ' ' && f.text[i] <= '~' ? f.text[i] : '?';
    memcpy(room + i, i < f.size ? "..." : "", i < f.size ? 4 : 1);
    return room;
}
#define SHOWN_FIELD(f) shown((char[SHOWN + 4]){0}, (f))

static int blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static field trim(field f)
{
    while (f.size > 0 && blank(f.text[0]))
        f = (field){f.text + 1, f.size - 1};
    while (f.size > 0 && blank(f.text[f.size - 1]))
        f.size--;
    return f;
}

static field unquote(field f)
{
    f = trim(f);
    if (f.size >= 2 && f.text[0] == '"' && f.text[f.size - 1] == '"')
        f = trim((field){f.text + 1, f.size - 2});
    return f;
}

static int is(field f, const char *word)
{
    return f.size == strlen(word) && strncasecmp(f.text, word, f.size) == 0;
}

/* Cuts a line into at most MO_TRACE_COLUMNS fields; returns how many there are. */
static int cut(field line, field *fields)
{
    int count = 0;
    for (;;) {
        const char *comma = memchr(line.text, ',', line.size);
        uint64_t size = comma != NULL ? (uint64_t)(comma - line.text) : line.size;
        if (count < MO_TRACE_COLUMNS)
            fields[count] = unquote((field){line.text, size});
        count++;
        if (comma == NULL || count > MO_TRACE_COLUMNS)
            return count;
        line = (field){comma + 1, line.size - size - 1};
    }
}

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 16;
}

/* A whole number in base 10 or 16, 0x before it meaning 16. 1 on success. */
static int number(field f, uint64_t base, uint64_t *out)
{
    uint64_t value = 0;
    if (is(f, "(nil)")) {
        *out = 0;
        return 1;
    }
    if (f.size > 2 && f.text[0] == '0' && (f.text[1] | 0x20) == 'x') {
        base = 16;
        f = (field){f.text + 2, f.size - 2};
    }
    for (uint64_t i = 0; i < f.size; i++) {
        uint64_t next = (uint64_t)digit(f.text[i]);
        if (next >= base || !mo_mul_u64(value, base, &value) || !mo_add_u64(value, next, &value))
            return 0;
    }
    *out = value;
    return f.size > 0;
}

/* --- the header ------------------------------------------------------------------------------ */

static memopt_status read_header(mo_trace_csv *csv, field line)
{
    struct {
        const char *name;
        int *column;
    } known[] = {{"Action", &csv->action},
                 {"Pointer", &csv->pointer},
                 {"Size", &csv->size},
                 {"Stream", &csv->stream}};
    field fields[MO_TRACE_COLUMNS];
    if (line.size >= 3 && memcmp(line.text, "\xEF\xBB\xBF", 3) == 0)
        line = (field){line.text + 3, line.size - 3};
    csv->columns = cut(line, fields);
    if (csv->columns > MO_TRACE_COLUMNS)
        return mo_fail(MEMOPT_CORRUPT, "trace: line %" PRIu64 ": more than %d columns", csv->line,
                       MO_TRACE_COLUMNS);
    for (int k = 0; k < 4; k++) {
        *known[k].column = -1;
        for (int i = 0; i < csv->columns; i++) {
            if (!is(fields[i], known[k].name))
                continue;
            if (*known[k].column >= 0)
                return mo_fail(MEMOPT_CORRUPT, "trace: line %" PRIu64 ": two columns are named %s",
                               csv->line, known[k].name);
            *known[k].column = i;
        }
        if (*known[k].column < 0 && k < 3)
            return mo_fail(MEMOPT_CORRUPT,
                           "trace: line %" PRIu64
                           ": '%s' is not a header: column %s is missing; the "
                           "first line names the columns, such as "
                           "Thread,Time,Action,Pointer,Size,Stream",
                           csv->line, SHOWN_FIELD(line), known[k].name);
    }
    csv->has_header = 1;
    return MEMOPT_OK;
}

/* --- a line ---------------------------------------------------------------------------------- */

static memopt_status malformed(const mo_trace_csv *csv, const char *column, field f,
                               const char *what)
{
    return mo_fail(MEMOPT_CORRUPT, "trace: line %" PRIu64 ": the %s '%s' must be %s", csv->line,
                   column, SHOWN_FIELD(f), what);
}

/* A memopt_trace_action, or 0. */
static uint32_t read_action(field f)
{
    if (is(f, "allocate") || is(f, "alloc"))
        return MEMOPT_TRACE_ALLOC;
    if (is(f, "free") || is(f, "deallocate"))
        return MEMOPT_TRACE_FREE;
    if (is(f, "record stream"))
        return MEMOPT_TRACE_RECORD_STREAM;
    return is(f, "allocate failure") ? MEMOPT_TRACE_FAILED : 0;
}

static memopt_status read_numbers(const mo_trace_csv *csv, const field *fields,
                                  memopt_trace_event *event)
{
    field pointer = fields[csv->pointer], size = fields[csv->size];
    if (!number(pointer, 16, &event->id) && event->action != MEMOPT_TRACE_FAILED)
        return malformed(csv, "pointer", pointer, "a hexadecimal address");
    int has_size = event->action == MEMOPT_TRACE_ALLOC || event->action == MEMOPT_TRACE_FAILED;
    if ((has_size || size.size > 0) && !number(size, 10, &event->bytes))
        return malformed(csv, "size", size, "a number of bytes");
    if (csv->stream >= 0 && (!number(fields[csv->stream], 10, &event->stream) ||
                             event->stream == MEMOPT_TRACE_OWN_STREAM))
        return malformed(csv, "stream", fields[csv->stream], "a stream number (decimal or 0x...)");
    return MEMOPT_OK;
}

static memopt_status read_event(memopt_trace *trace, field line)
{
    mo_trace_csv *csv = &trace->csv;
    field fields[MO_TRACE_COLUMNS];
    memopt_trace_event event = {0};
    int count = cut(line, fields);
    if (count != csv->columns)
        return mo_fail(MEMOPT_CORRUPT,
                       "trace: line %" PRIu64 ": '%s' has %d field%s; the header has %d", csv->line,
                       SHOWN_FIELD(line), count, count == 1 ? "" : "s", csv->columns);
    event.action = read_action(fields[csv->action]);
    if (event.action == 0)
        return malformed(csv, "action", fields[csv->action],
                         "'allocate', 'free', 'record stream' or 'allocate failure'");
    memopt_status status = read_numbers(csv, fields, &event);
    if (status != MEMOPT_OK)
        return status;
    if (event.action == MEMOPT_TRACE_FREE && event.id == 0)
        return MEMOPT_OK; /* of NULL */
    status = mo_trace_reserve(trace, &event, 1);
    return status == MEMOPT_OK ? mo_trace_append(trace, &event, "line", csv->line) : status;
}

/* A small compressed file can hold any number of them, so an unreasonable number is refused. */
static memopt_status pass_empty_line(memopt_trace *trace)
{
    mo_trace_csv *csv = &trace->csv;
    uint64_t most = MO_TRACE_EMPTY_LINES + trace->info.events;
    if (++csv->empty <= most)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_CORRUPT,
                   "trace: line %" PRIu64 ": more than %" PRIu64 " lines are empty: this is not a "
                   "trace",
                   csv->line, most);
}

/* A line without its end. */
static memopt_status read_line(memopt_trace *trace, const char *text, uint64_t size)
{
    field line = trim((field){text, size});
    trace->csv.line++;
    trace->info.lines++;
    if (line.size == 0)
        trace->csv.status = pass_empty_line(trace);
    else if (trace->csv.has_header)
        trace->csv.status = read_event(trace, line);
    else
        trace->csv.status = read_header(&trace->csv, line);
    return trace->csv.status;
}

/* --- pieces ---------------------------------------------------------------------------------- */

/* Keeps the start of an unfinished line. */
static memopt_status keep(memopt_trace *trace, const char *text, uint64_t size)
{
    mo_trace_csv *csv = &trace->csv;
    if (size > MO_TRACE_LINE - csv->kept)
        return csv->status =
                   mo_fail(MEMOPT_CORRUPT,
                           "trace: line %" PRIu64 " is longer than %d bytes: this is not a "
                           "trace",
                           ++csv->line, MO_TRACE_LINE);
    memcpy(csv->text + csv->kept, text, size);
    csv->kept += size;
    return MEMOPT_OK;
}

static memopt_status failed_before(const mo_trace_csv *csv)
{
    return mo_fail(csv->status, "trace: reading failed at line %" PRIu64 "; create a new trace",
                   csv->line);
}

static memopt_status read_kept(memopt_trace *trace)
{
    uint64_t size = trace->csv.kept;
    trace->csv.kept = 0;
    return read_line(trace, trace->csv.text, size);
}

memopt_status memopt_trace_parse_csv(memopt_trace *trace, const char *text, uint64_t bytes)
{
    memopt_status status = MEMOPT_OK;
    if (trace == NULL || (text == NULL && bytes > 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "trace_parse_csv: %s is NULL",
                       trace == NULL ? "trace" : "text");
    if (trace->csv.status != MEMOPT_OK)
        return failed_before(&trace->csv);
    while (bytes > 0 && status == MEMOPT_OK) {
        const char *end = memchr(text, '\n', bytes);
        uint64_t size = end != NULL ? (uint64_t)(end - text) : bytes;
        if (end == NULL)
            return keep(trace, text, size);
        if (trace->csv.kept == 0) {
            status = read_line(trace, text, size);
        } else {
            status = keep(trace, text, size);
            if (status == MEMOPT_OK)
                status = read_kept(trace);
        }
        text += size + 1;
        bytes -= size + 1;
    }
    return status;
}

memopt_status memopt_trace_end_csv(memopt_trace *trace)
{
    if (trace == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "trace_end_csv: trace is NULL");
    mo_trace_csv *csv = &trace->csv;
    if (csv->status != MEMOPT_OK)
        return failed_before(csv);
    if (csv->kept > 0 && read_kept(trace) != MEMOPT_OK) {
        if (csv->status != MEMOPT_CORRUPT)
            return csv->status;
        char why[256];
        strncpy(why, memopt_last_error(), sizeof why - 1);
        why[sizeof why - 1] = '\0';
        return mo_fail(MEMOPT_CORRUPT,
                       "%s; it is the last and has no line end: the file was cut "
                       "off",
                       why);
    }
    if (!csv->has_header)
        return csv->status =
                   mo_fail(MEMOPT_CORRUPT, "trace: empty; a header such as "
                                           "Thread,Time,Action,Pointer,Size,Stream was expected");
    memset(csv, 0, sizeof *csv);
    return MEMOPT_OK;
}

memopt_status memopt_trace_read_csv(memopt_trace *trace, int32_t file)
{
    memopt_status status = MEMOPT_OK;
    if (trace == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "trace_read_csv: trace is NULL");
    char *text = mo_malloc(READ_BYTES);
    if (text == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    while (status == MEMOPT_OK) {
        ssize_t got = read(file, text, READ_BYTES);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            int error = errno;
            status =
                mo_fail_driver(MEMOPT_IO_ERROR, error, strerror(error),
                               "trace_read_csv: the file cannot be read after line %" PRIu64 ": %s",
                               trace->csv.line, strerror(error));
        } else if (got == 0) {
            status = memopt_trace_end_csv(trace);
            break;
        } else {
            status = memopt_trace_parse_csv(trace, text, (uint64_t)got);
        }
    }
    mo_free(text);
    return status;
}
