/*
 * Recording a trace: a line of CSV for each allocation, recorded stream and free, in the order of
 * the allocator's lock, in the form that memopt replay reads. The gate stays closed meanwhile.
 *
 * Lines gather in a buffer that is made at the start; the event that fills it writes it to the
 * file, under the lock, so that nothing is allocated or lost. After the first failing write no more
 * events are kept, and the file ends behind the last whole buffer: the program goes on, and the end
 * of the recording tells.
 */
#include "allocator/watch/recorder.h"

#include "allocator/watch/history.h"

#include "base/lock.h"
#include "base/memory.h"
#include "base/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 16, MOST_OF_LINE = 192 };

struct mo_recorder {
    mo_sink sink;
    int file;
    int error; /* errno of the first failed write; 0: none */
    double begun;
    uint64_t events;  /* recorded so far */
    uint64_t in_file; /* of them, in the file */
    uint64_t written; /* bytes of the file */
    uint64_t used;    /* bytes of text */
    char *path;
    char text[BUFFER_BYTES];
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void flush(mo_recorder *recorder)
{
    if (recorder->error == 0)
        recorder->error =
            mo_write_at(pwrite, recorder->file, recorder->text, recorder->used, recorder->written);
    if (recorder->error == 0) {
        recorder->written += recorder->used;
        recorder->in_file = recorder->events;
    }
    recorder->used = 0;
}

/* The tag's name without what would end a field. */
static const char *tag_field(const memopt_allocator *allocator, memopt_tag tag, char *field)
{
    snprintf(field, MO_TAG_NAME, "%s", allocator->tags[tag].name);
    for (char *c = field; *c != '\0'; c++)
        if (*c == ',' || *c == '"' || (unsigned char)*c < ' ')
            *c = '_';
    return field;
}

static const char *const actions[] = {[MO_ALLOC] = "allocate",
                                      [MO_USE] = "record stream",
                                      [MO_FREE] = "free",
                                      [MO_FAILED] = "allocate failure"};

static void add_line(memopt_allocator *allocator, mo_sink *sink, const mo_event *event)
{
    mo_recorder *recorder = (mo_recorder *)sink;
    char field[MO_TAG_NAME];
    memopt_history_event fields;
    if (recorder->error != 0)
        return;
    mo_history_fields(event, &fields);
    if (BUFFER_BYTES - recorder->used < MOST_OF_LINE)
        flush(recorder);
    recorder->events++;
    recorder->used += (uint64_t)snprintf(
        recorder->text + recorder->used, MOST_OF_LINE,
        "%" PRIu32 ",%.0f,%s,0x%" PRIxPTR ",%" PRIu64 ",0x%" PRIxPTR ",%s\n", mo_this_thread(),
        now() - recorder->begun, actions[event->what], (uintptr_t)fields.address, fields.bytes,
        (uintptr_t)fields.stream, tag_field(allocator, fields.tag, field));
}

static int stay_closed(mo_sink *sink)
{
    (void)sink;
    return 0;
}

/* --- begin and end ------------------------------------------------------------------------- */

static void discard(mo_recorder *recorder)
{
    mo_free(recorder->path);
    mo_free(recorder);
}

static memopt_status cannot(const char *call, const char *path, int error)
{
    return mo_fail_driver(MEMOPT_IO_ERROR, error, strerror(error),
                          "%s: %s: %s; give the name of a file in a writable directory", call, path,
                          strerror(error));
}

static memopt_status open_recorder(const char *path, mo_recorder **out_recorder)
{
    static const char header[] = "Thread,Time,Action,Pointer,Size,Stream,Tag\n";
    mo_recorder *recorder = mo_calloc(1, sizeof *recorder);
    if (recorder == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    recorder->path = mo_strdup(path);
    if (recorder->path == NULL) {
        discard(recorder);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    recorder->file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
    if (recorder->file < 0) {
        memopt_status status = cannot("allocator_trace", path, errno);
        discard(recorder);
        return status;
    }
    memcpy(recorder->text, header, sizeof header - 1);
    recorder->used = sizeof header - 1;
    recorder->begun = now();
    recorder->sink = (mo_sink){.wants = MO_WANTS(MO_ALLOC) | MO_WANTS(MO_USE) | MO_WANTS(MO_FREE) |
                                        MO_WANTS(MO_FAILED),
                               .tell = add_line,
                               .open = stay_closed};
    *out_recorder = recorder;
    return MEMOPT_OK;
}

static memopt_status start(memopt_allocator *allocator, const char *path)
{
    mo_recorder *recorder = NULL;
    mo_lock(&allocator->lock);
    int busy = allocator->recorder != NULL;
    mo_unlock(&allocator->lock);
    memopt_status status = busy ? MEMOPT_BUSY : open_recorder(path, &recorder);
    if (status == MEMOPT_OK) {
        mo_lock(&allocator->lock);
        busy = allocator->recorder != NULL; /* another thread was faster */
        if (!busy) {
            allocator->recorder = recorder;
            mo_sink_add(allocator, &recorder->sink);
            mo_sink_tell_present(allocator, &recorder->sink);
        }
        mo_unlock(&allocator->lock);
    }
    if (!busy)
        return status;
    if (recorder != NULL) {
        close(recorder->file);
        discard(recorder);
    }
    return mo_fail(MEMOPT_BUSY, "allocator_trace: a trace is already being recorded; end it first, "
                                "by a path of NULL");
}

/* Writes what is left; 0 or the first errno. The file then ends with a whole line. */
static int finish(mo_recorder *recorder)
{
    flush(recorder);
    if (recorder->error != 0)
        (void)!ftruncate(recorder->file, (off_t)recorder->written);
    if (close(recorder->file) != 0 && recorder->error == 0 && errno != EINTR)
        recorder->error = errno;
    return recorder->error;
}

memopt_status mo_recorder_end(memopt_allocator *allocator, uint64_t *out_events)
{
    memopt_status status = MEMOPT_OK;
    mo_lock(&allocator->lock);
    mo_recorder *recorder = allocator->recorder;
    allocator->recorder = NULL;
    if (recorder != NULL)
        mo_sink_remove(allocator, &recorder->sink);
    mo_unlock(&allocator->lock);
    if (recorder == NULL)
        return MEMOPT_OK;
    int error = finish(recorder);
    if (error != 0)
        status = mo_fail_driver(MEMOPT_IO_ERROR, error, strerror(error),
                                "allocator_trace: %s: %s; the file has the first %" PRIu64
                                " events; free space and record again",
                                recorder->path, strerror(error), recorder->in_file);
    else if (out_events != NULL)
        *out_events = recorder->events;
    discard(recorder);
    return status;
}

static memopt_status stop(memopt_allocator *allocator, uint64_t *out_events)
{
    mo_lock(&allocator->lock);
    int recording = allocator->recorder != NULL;
    mo_unlock(&allocator->lock);
    if (!recording)
        return mo_fail(MEMOPT_NOT_FOUND,
                       "allocator_trace: path is NULL, which ends a trace, but no "
                       "trace is being recorded");
    return mo_recorder_end(allocator, out_events);
}

memopt_status memopt_allocator_trace(memopt_allocator *allocator, const char *path,
                                     uint64_t *out_events)
{
    MO_NOT_NULL("allocator_trace", allocator);
    MO_TRY(mo_check_process(allocator->device, "allocator_trace"));
    return path != NULL ? start(allocator, path) : stop(allocator, out_events);
}
