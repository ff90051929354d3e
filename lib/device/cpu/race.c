#include "device/cpu/race.h"

#include "base/library.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Tags: the operation's number and, in the lowest bits, its name. */
enum { NAME_BITS = 10, MOST_NAMES = 1 << NAME_BITS };

struct mo_cpu_race {
    int quiet;    /* no call fails */
    int lost;     /* the finder knows no longer all */
    char **names; /* of notes; their numbers follow those of kinds */
    uint64_t name_count, name_capacity;
    uint32_t *unused; /* actors whose streams have ended */
    uint64_t unused_count, unused_capacity;
    const void *streams[MEMOPT_RACE_MOST_STREAMS + 1]; /* by actor; only printed */
    uint64_t told;                                     /* reports that have been returned */
};

static const char *const kind_names[] = {[MO_CPU_COPY] = "copy",
                                         [MO_CPU_FILL] = "fill",
                                         [MO_CPU_CALLBACK] = "callback",
                                         [MO_CPU_LAUNCH] = "launch",
                                         [MO_CPU_RECORD] = "record",
                                         [MO_CPU_WAIT] = "wait",
                                         [MO_CPU_NOTE_ALLOC] = "allocation",
                                         [MO_CPU_NOTE_FREE] = "free"};
enum { HOST_FREE = sizeof kind_names / sizeof *kind_names, OTHER_NAME, KINDS };

static int is_wanted(memopt_race_search search)
{
    const char *text = getenv("MEMOPT_RACE");
    if (search != MEMOPT_RACE_SEARCH_DEFAULT || text == NULL || text[0] == '\0' ||
        strcmp(text, "0") == 0)
        return search == MEMOPT_RACE_SEARCH_ON || search == MEMOPT_RACE_SEARCH_QUIET;
    if (strcmp(text, "1") != 0)
        mo_log(MEMOPT_LOG_WARNING, "cpu: MEMOPT_RACE=%s is not 0 or 1; it is ignored", text);
    return strcmp(text, "1") == 0;
}

memopt_status mo_cpu_race_init(mo_cpu_device *cpu, memopt_race_search search)
{
    if (!is_wanted(search))
        return MEMOPT_OK;
    cpu->race = mo_calloc(1, sizeof *cpu->race);
    if (cpu->race == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    cpu->race->quiet = search == MEMOPT_RACE_SEARCH_QUIET;
    memopt_race_options options = MEMOPT_RACE_OPTIONS_INIT;
    options.inherit = 1;
    memopt_status status = memopt_race_create(&options, &cpu->base.race);
    if (status == MEMOPT_OK)
        status = memopt_race_add_stream(cpu->base.race, &cpu->default_stream.actor);
    if (status != MEMOPT_OK)
        mo_cpu_race_fini(cpu);
    return status;
}

void mo_cpu_race_fini(mo_cpu_device *cpu)
{
    if (cpu->race == NULL)
        return;
    (void)memopt_race_destroy(cpu->base.race);
    cpu->base.race = NULL;
    for (uint64_t i = 0; i < cpu->race->name_count; i++)
        mo_free(cpu->race->names[i]);
    mo_free(cpu->race->names);
    mo_free(cpu->race->unused);
    mo_free(cpu->race);
    cpu->race = NULL;
}

static int is_fed(const mo_cpu_device *cpu)
{
    return cpu->race != NULL && !cpu->race->lost;
}

static void feed(mo_cpu_device *cpu, memopt_status status)
{
    if (status == MEMOPT_OK || cpu->race->lost)
        return;
    cpu->race->lost = 1;
    mo_log(MEMOPT_LOG_WARNING, "cpu: races are no longer looked for: %s", memopt_last_error());
}

/* --- streams ----------------------------------------------------------------------------------- */

void mo_cpu_race_stream_begins(mo_cpu_device *cpu, mo_cpu_stream *stream)
{
    mo_cpu_race *race = cpu->race;
    if (!is_fed(cpu))
        return;
    if (race->unused_count != 0)
        stream->actor = race->unused[--race->unused_count];
    else
        feed(cpu, memopt_race_add_stream(cpu->base.race, &stream->actor));
    if (!race->lost)
        race->streams[stream->actor] = stream;
}

void mo_cpu_race_stream_ends(mo_cpu_device *cpu, mo_cpu_stream *stream)
{
    mo_cpu_race *race = cpu->race;
    if (!is_fed(cpu))
        return;
    mo_cpu_race_host_waits(cpu, stream);
    if (mo_grow((void **)&race->unused, &race->unused_capacity, race->unused_count + 1,
                sizeof *race->unused))
        race->unused[race->unused_count++] = stream->actor;
}

/* --- operations -------------------------------------------------------------------------------- */

static uint64_t tag_of(uint64_t number, uint64_t name)
{
    return number << NAME_BITS | name;
}

void mo_cpu_race_enqueue(mo_cpu_device *cpu, const mo_cpu_stream *stream, mo_cpu_op *op)
{
    memopt_race *race = cpu->base.race;
    memopt_race_access uses[2] = {
        {.address = (uintptr_t)op->destination, .bytes = op->bytes, .mode = MEMOPT_RACE_WRITE},
        {.address = (uintptr_t)op->source, .bytes = op->bytes, .mode = MEMOPT_RACE_READ}};
    if (!is_fed(cpu))
        return;
    switch (op->kind) {
    case MO_CPU_COPY:
    case MO_CPU_FILL:
        feed(cpu, memopt_race_run(race, stream->actor, tag_of(op->number, op->kind), uses,
                                  op->kind == MO_CPU_COPY ? 2 : 1));
        break;
    case MO_CPU_CALLBACK:
        feed(cpu, memopt_race_record(race, stream->actor, &op->race_event));
        break;
    case MO_CPU_RECORD:
        op->marker->race = race;
        feed(cpu, memopt_race_record(race, stream->actor, &op->marker->race_event));
        break;
    case MO_CPU_WAIT:
        if (op->marker->race_event != 0)
            feed(cpu, memopt_race_wait_event(race, stream->actor, op->marker->race_event));
        break;
    case MO_CPU_LAUNCH: /* mo_reads() and mo_writes() have told what it uses */
    case MO_CPU_NOTE_ALLOC:
    case MO_CPU_NOTE_FREE:
        break;
    }
}

void mo_cpu_race_host_waits(mo_cpu_device *cpu, const mo_cpu_stream *stream)
{
    if (is_fed(cpu))
        feed(cpu, memopt_race_wait(cpu->base.race, MEMOPT_RACE_HOST, stream->actor));
}

void mo_cpu_race_host_waits_for(mo_cpu_device *cpu, const mo_cpu_marker *marker)
{
    if (is_fed(cpu) && marker->race_event != 0)
        feed(cpu, memopt_race_wait_event(cpu->base.race, MEMOPT_RACE_HOST, marker->race_event));
}

void mo_cpu_race_callback(mo_cpu_device *cpu, uint64_t event)
{
    if (event == 0)
        return;
    (void)memopt_race_wait_event(cpu->base.race, MEMOPT_RACE_HOST, event);
    (void)memopt_race_drop_event(cpu->base.race, event);
}

/* The number of a name, kept by its text; that of any other name beyond the most. */
static uint64_t name_of(mo_cpu_race *race, const char *what)
{
    uint64_t i = 0;
    while (i < race->name_count && strcmp(race->names[i], what) != 0)
        i++;
    if (i < race->name_count)
        return KINDS + i;
    char *kept = i + KINDS < MOST_NAMES && mo_grow((void **)&race->names, &race->name_capacity,
                                                   i + 1, sizeof *race->names)
                     ? mo_strdup(what)
                     : NULL;
    if (kept == NULL)
        return OTHER_NAME;
    race->names[race->name_count++] = kept;
    return KINDS + i;
}

void mo_cpu_race_uses(mo_cpu_device *cpu, const mo_cpu_stream *stream, const char *what,
                      const memopt_race_access *use)
{
    if (is_fed(cpu))
        feed(cpu, memopt_race_run(cpu->base.race, stream->actor,
                                  tag_of(cpu->adversary.next_number + 1, name_of(cpu->race, what)),
                                  use, 1));
}

/* --- memory ------------------------------------------------------------------------------------ */

void mo_cpu_race_note(mo_cpu_device *cpu, const mo_cpu_stream *stream, const mo_cpu_op *op)
{
    const uint64_t tag = tag_of(cpu->adversary.next_number + 1, op->kind);
    const uint64_t address = (uintptr_t)op->destination;
    if (!is_fed(cpu))
        return;
    feed(cpu, op->kind == MO_CPU_NOTE_FREE
                  ? memopt_race_free(cpu->base.race, address, tag)
                  : memopt_race_allocate(cpu->base.race, address, op->bytes, MEMOPT_RACE_DEVICE,
                                         stream->actor, tag));
}

void mo_cpu_race_forget(mo_cpu_device *cpu, const void *pointer, uint64_t bytes, int host)
{
    const memopt_race_access use = {
        .address = (uintptr_t)pointer, .bytes = bytes, .mode = MEMOPT_RACE_WRITE};
    if (cpu->race == NULL)
        return;
    mo_lock(&cpu->lock);
    if (is_fed(cpu)) { /* a block of its own, which displaces all that was there */
        if (host)
            feed(cpu, memopt_race_run(cpu->base.race, MEMOPT_RACE_HOST,
                                      tag_of(cpu->adversary.next_number, HOST_FREE), &use, 1));
        feed(cpu,
             memopt_race_allocate(cpu->base.race, use.address, bytes, MEMOPT_RACE_PINNED, 0, 0));
        feed(cpu, memopt_race_free(cpu->base.race, use.address, 0));
    }
    mo_unlock(&cpu->lock);
}

/* --- messages ---------------------------------------------------------------------------------- */

static const char *name_text(const mo_cpu_race *race, uint64_t tag)
{
    uint64_t name = tag % MOST_NAMES;
    return name >= KINDS        ? race->names[name - KINDS]
           : name == HOST_FREE  ? "free of page-locked memory"
           : name == OTHER_NAME ? "operation"
                                : kind_names[name];
}

/* "the copy (operation 7) on stream 0x…"; what the host does has no stream. */
static void append_side(const mo_cpu_race *race, const memopt_race_side *side, char *text,
                        size_t size)
{
    mo_append(text, size, "the %s ", name_text(race, side->tag));
    if (side->actor == MEMOPT_RACE_HOST)
        mo_append(text, size, "by the host");
    else
        mo_append(text, size, "(operation %" PRIu64 ") on stream %p", side->tag >> NAME_BITS,
                  race->streams[side->actor]);
}

static void append_report(const mo_cpu_race *race, const memopt_race_report *r, char *text,
                          size_t size)
{
    const void *waited = race->streams[r->waited], *waiter = race->streams[r->waiter];
    if (r->kind == MEMOPT_RACE_FREED_IN_USE) {
        mo_append(text, size,
                  "cpu: race: the block of %" PRIu64 " bytes at %#" PRIx64
                  " was freed in the order of stream %p, and ",
                  r->block_bytes, r->block_address, waiter);
        append_side(race, &r->second, text, size);
        mo_append(text, size, " may get it, while ");
        append_side(race, &r->first, text, size);
        mo_append(text, size,
                  " %s it; record the use of stream %p, or make stream %p wait for it, "
                  "before the free",
                  r->first.write ? "writes" : "reads", waited, waiter);
        return;
    }
    mo_append(text, size, "cpu: race: ");
    append_side(race, &r->second, text, size);
    mo_append(text, size, " %s %" PRIu64 " bytes at %#" PRIx64 " that ",
              r->second.write ? "writes" : "reads", r->bytes, r->address);
    append_side(race, &r->first, text, size);
    mo_append(text, size, " %s, and nothing orders them; ", r->first.write ? "writes" : "reads");
    if (r->waiter == MEMOPT_RACE_HOST)
        mo_append(text, size, "wait for stream %p, or for an event recorded there, in between",
                  waited);
    else
        mo_append(text, size, "make stream %p wait for an event recorded on stream %p in between",
                  waiter, waited);
}

uint64_t mo_cpu_race_take(mo_cpu_device *cpu, char *text, size_t size)
{
    memopt_race_stats stats = MEMOPT_RACE_STATS_INIT;
    memopt_race_report report = MEMOPT_RACE_REPORT_INIT;
    uint64_t found = 0;
    if (cpu->race == NULL || cpu->race->quiet)
        return 0;
    mo_lock(&cpu->lock);
    (void)memopt_race_get_stats(cpu->base.race, &stats);
    if (stats.reports > cpu->race->told &&
        memopt_race_get_report(cpu->base.race, cpu->race->told, &report) == MEMOPT_OK) {
        append_report(cpu->race, &report, text, size);
        found = stats.reports - cpu->race->told;
        cpu->race->told = stats.reports;
    }
    mo_unlock(&cpu->lock);
    return found;
}
