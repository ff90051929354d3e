/*
 * The adversarial order of the "cpu" device: a scheduler that makes missing dependencies show.
 *
 * Nothing runs until a thread waits for it. Then, before each operation X that is needed, other
 * streams run first what was enqueued after X and does not depend on it: an order that breaks a
 * program without the right waits. Work that is not needed and was enqueued before X is delayed, so
 * a consumer that does not wait for its producer reads old bytes. Operations whose ranges are known
 * (copies, fills, frees) run against the order of their calls wherever that is legal; for the rest,
 * where a stream would have to run operations from before X to reach those from after it, the seed
 * decides.
 *
 * mo_note_free poisons a range in the order of its stream. A copy or fill on a range is a violation
 * if it was enqueued before a free of it and runs after that free (whoever owns the range by then),
 * or if the range is free when it runs; so is one on addresses without accessible memory, which is
 * skipped. The next synchronising call returns the first violation.
 *
 * With a lag and in the eager order operations run in the order of their calls: once the host is far
 * enough ahead, or when something waits for them. Freed memory is not poisoned then.
 *
 * `busy` is the right to run operations; one thread at a time holds it and releases the device's
 * lock during each operation. All state here is guarded by that lock.
 */
#include "device/cpu/adversary.h"
#include "device/cpu/race.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A free that has run while operations from before it were still waiting. */
typedef struct mo_cpu_tombstone {
    uintptr_t start;
    uint64_t size;
    uint64_t number;
    const mo_cpu_stream *stream; /* for messages only */
} mo_cpu_tombstone;

/* freed.value is only printed, so a stream that has ended is harmless. */

int mo_cpu_adversary_init(mo_cpu_adversary *adversary)
{
    if (!mo_ranges_init(&adversary->freed))
        return 0;
    if (!mo_grow((void **)&adversary->tombstones, &adversary->tombstone_capacity, 64,
                 sizeof(mo_cpu_tombstone))) {
        mo_ranges_fini(&adversary->freed);
        return 0;
    }
    return 1;
}

void mo_cpu_adversary_fini(mo_cpu_adversary *adversary)
{
    mo_ranges_fini(&adversary->freed);
    mo_free(adversary->tombstones);
}

/* splitmix64: Steele, Lea, Flood 2014. */
static uint64_t next_random(mo_cpu_adversary *adversary)
{
    uint64_t z = adversary->random += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
}

int mo_cpu_polled_enough(mo_cpu_device *cpu, uint32_t *polls)
{
    enum { MOST_POLLS = 8 };
    MO_PRE(mo_is_locked(&cpu->lock));
    if (++*polls < MOST_POLLS && next_random(&cpu->adversary) % 4 != 0)
        return 0;
    *polls = 0;
    return 1;
}

int mo_cpu_is_past(const mo_cpu_device *cpu, uint64_t due)
{
    if (cpu->clock.runs)
        return due <= cpu->clock.now;
    return cpu->lag < cpu->adversary.next_number && due <= cpu->adversary.next_number - cpu->lag;
}

/* --- which operation runs next ------------------------------------------------------------- */

/* The stream whose head must run next for `stream` to continue: itself, or the one it waits for.
 * NULL if that is `avoided`. Pre: the stream is not idle. */
static mo_cpu_stream *runnable(mo_cpu_stream *stream, const mo_cpu_stream *avoided)
{
    while (stream != avoided) {
        const mo_cpu_op *op = stream->head;
        MO_PRE(op != NULL);
        if (op->kind != MO_CPU_WAIT || op->marker->done)
            return stream;
        stream = op->marker->stream;
    }
    return NULL;
}

static int writes_into(const mo_cpu_op *op, const void *start, uint64_t size)
{
    return (op->kind == MO_CPU_COPY || op->kind == MO_CPU_FILL || op->kind == MO_CPU_NOTE_FREE) &&
           mo_ranges_overlap(op->destination, op->bytes, start, size);
}

/* True if the order of two operations is known to matter. */
static int conflict(const mo_cpu_op *a, const mo_cpu_op *b)
{
    return writes_into(a, b->destination, b->bytes) || writes_into(b, a->destination, a->bytes) ||
           (b->kind == MO_CPU_COPY && writes_into(a, b->source, b->bytes)) ||
           (a->kind == MO_CPU_COPY && writes_into(b, a->source, a->bytes));
}

/* A stream through which an operation runs that was enqueued after the head of `needed`, conflicts
 * with it and does not wait for it; NULL if there is none. */
static mo_cpu_stream *rival(mo_cpu_device *cpu, const mo_cpu_stream *needed)
{
    const mo_cpu_op *x = needed->head;
    for (mo_cpu_stream *stream = &cpu->default_stream; stream != NULL; stream = stream->next) {
        if (stream == needed || stream->last_number < x->number)
            continue;
        const mo_cpu_op *op = stream->head;
        while (op != NULL && !(op->number > x->number && conflict(op, x))) {
            if (op->kind == MO_CPU_WAIT && op->marker->stream == needed)
                op = NULL; /* what follows waits for x */
            else
                op = op->next;
        }
        mo_cpu_stream *first = op != NULL ? runnable(stream, needed) : NULL;
        if (first != NULL)
            return first;
    }
    return NULL;
}

/* True if running the stream's head now would put it before a conflicting operation that was
 * enqueued later: the order that a program without waits relies on. */
static int would_hide(mo_cpu_device *cpu, const mo_cpu_stream *stream)
{
    const mo_cpu_op *head = stream->head;
    for (const mo_cpu_stream *other = &cpu->default_stream; other != NULL; other = other->next) {
        if (other == stream || other->last_number < head->number)
            continue;
        for (const mo_cpu_op *op = other->head; op != NULL; op = op->next)
            if (op->number > head->number && conflict(op, head))
                return 1;
    }
    return 0;
}

/* Whether a stream that holds operations from before and after number `x` runs ahead of it: decided
 * once for each x. */
static int seed_lets_overtake(mo_cpu_device *cpu, mo_cpu_stream *stream, uint64_t x)
{
    if (stream->overtaken_number != x) {
        stream->overtaken_number = x;
        stream->may_overtake = (next_random(&cpu->adversary) & 1) != 0;
    }
    return stream->may_overtake;
}

/* The stream that goes before the head of `needed`: one with a rival of it, or of those that can
 * without it, the one with the latest work; NULL if there is none. */
static mo_cpu_stream *overtaker(mo_cpu_device *cpu, const mo_cpu_stream *needed)
{
    uint64_t x = needed->head->number, latest = x;
    mo_cpu_stream *chosen = rival(cpu, needed);
    if (chosen != NULL)
        return chosen;
    for (mo_cpu_stream *stream = &cpu->default_stream; stream != NULL; stream = stream->next) {
        if (stream == needed || stream->head == NULL || stream->last_number <= latest)
            continue;
        mo_cpu_stream *first = runnable(stream, needed);
        if (first == NULL || would_hide(cpu, first) ||
            (stream->head->number < x && !seed_lets_overtake(cpu, stream, x)))
            continue;
        latest = stream->last_number;
        chosen = first;
    }
    return chosen;
}

/* --- violations ---------------------------------------------------------------------------- */

static const char *op_name(const mo_cpu_op *op)
{
    return op->kind == MO_CPU_COPY ? "copy" : op->kind == MO_CPU_FILL ? "fill" : "operation";
}

static void record_violation(mo_cpu_device *cpu, const mo_cpu_op *op, const mo_cpu_stream *stream,
                             const void *range, const char *what)
{
    mo_cpu_adversary *adversary = &cpu->adversary;
    if (adversary->violations++ != 0)
        return;
    const char *side = range == op->destination ? "to" : "from";
    snprintf(adversary->first, sizeof adversary->first,
             "cpu: a %s of %" PRIu64 " bytes %s %p on stream %p (operation %" PRIu64 ") %s",
             op_name(op), op->bytes, side, range,
             stream == &cpu->default_stream ? NULL : (const void *)stream, op->number, what);
}

static const void *stream_label(const mo_cpu_device *cpu, const void *stream)
{
    return stream == &cpu->default_stream ? NULL : stream;
}

/* The latest free that covers part of [start, +size) and was enqueued after operation `number`. */
static const mo_cpu_tombstone *find_tombstone(const mo_cpu_adversary *adversary, const void *start,
                                              uint64_t size, uint64_t number)
{
    for (uint64_t i = adversary->tombstone_count; i-- > 0;) {
        const mo_cpu_tombstone *stone = adversary->tombstones + i;
        if (stone->number > number &&
            mo_ranges_overlap(start, size, (const void *)stone->start, stone->size))
            return stone;
    }
    return NULL;
}

/* True if [start, +size) touches reserved addresses that are not mapped and accessible. */
static int is_hole(mo_cpu_memory *memory, const void *start, uint64_t size)
{
    mo_lock(&memory->lock);
    int hole = mo_ranges_overlapping(&memory->reservations, (uintptr_t)start, size) != NULL &&
               !mo_ranges_cover(&memory->accessible, (uintptr_t)start, size);
    mo_unlock(&memory->lock);
    return hole;
}

/* 1 if the operation can run on the range; records what is wrong with it. */
static int check_range(mo_cpu_device *cpu, const mo_cpu_stream *stream, const mo_cpu_op *op,
                       const void *start)
{
    char what[320];
    if (is_hole(&cpu->memory, start, op->bytes)) {
        record_violation(cpu, op, stream, start,
                         "was left out: when it ran, nothing was mapped there; wait for the "
                         "stream before unmapping");
        return 0;
    }
    const mo_cpu_tombstone *stone = find_tombstone(&cpu->adversary, start, op->bytes, op->number);
    const mo_range *freed =
        mo_ranges_overlapping(&cpu->adversary.freed, (uintptr_t)start, op->bytes);
    if (stone != NULL) {
        snprintf(what, sizeof what,
                 "ran after [%p, +%" PRIu64 ") was freed in the order of stream %p, which does not "
                 "wait for it; record the use of the other stream, or wait for its event, before "
                 "the free",
                 (void *)stone->start, stone->size, stream_label(cpu, stone->stream));
        record_violation(cpu, op, stream, start, what);
    } else if (freed != NULL) {
        snprintf(what, sizeof what,
                 "ran on memory that is free: [%p, +%" PRIu64 "), freed in the order of stream %p",
                 (void *)freed->start, freed->size, stream_label(cpu, freed->value));
        record_violation(cpu, op, stream, start, what);
    }
    return 1;
}

memopt_status mo_cpu_take_violation(mo_cpu_device *cpu)
{
    char text[sizeof cpu->adversary.first], races[640] = "";
    uint64_t raced = mo_cpu_race_take(cpu, races, sizeof races), found = 0;
    if (cpu->queued) {
        mo_lock(&cpu->lock);
        found = cpu->adversary.violations;
        cpu->adversary.violations = 0;
        memcpy(text, cpu->adversary.first, sizeof text);
        mo_unlock(&cpu->lock);
    }
    if (raced != 0)
        return mo_fail(MEMOPT_DEVICE_FAULT, "%s (%" PRIu64 " races since the last report%s%s)",
                       races, raced, found != 0 ? "; " : "", found != 0 ? text : "");
    if (found == 0)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_DEVICE_FAULT, "%s (%" PRIu64 " violations since the last report)", text,
                   found);
}

/* --- running ------------------------------------------------------------------------------- */

static void poison(void *start, uint64_t size)
{
    enum { PATTERN = 4096 }; /* even: the pattern goes on */
    unsigned char *bytes = start;
    uint64_t done = size < PATTERN ? size : PATTERN;
    for (uint64_t i = 0; i < done; i++)
        bytes[i] = (((uintptr_t)bytes + i) & 1) != 0 ? MO_POISON_HIGH : MO_POISON_LOW;
    for (uint64_t part; done < size; done += part) { /* a sanitizer looks at each byte of a loop */
        part = size - done < PATTERN ? size - done : PATTERN;
        memcpy(bytes + done, bytes, part);
    }
}

/* Drops the marks of frees that no older operation is waiting for. */
static void prune_tombstones(mo_cpu_device *cpu)
{
    mo_cpu_adversary *adversary = &cpu->adversary;
    uint64_t oldest = UINT64_MAX, kept = 0;
    for (const mo_cpu_stream *stream = &cpu->default_stream; stream != NULL; stream = stream->next)
        if (stream->head != NULL && stream->head->number < oldest)
            oldest = stream->head->number;
    for (uint64_t i = 0; i < adversary->tombstone_count; i++)
        if (adversary->tombstones[i].number > oldest)
            adversary->tombstones[kept++] = adversary->tombstones[i];
    adversary->tombstone_count = kept;
}

/* Marks a range as freed. Without host memory only the mark is lost. */
static void mark_freed(mo_cpu_device *cpu, const mo_cpu_stream *stream, const mo_cpu_op *op)
{
    mo_cpu_adversary *adversary = &cpu->adversary;
    uintptr_t start = (uintptr_t)op->destination;
    mo_ranges_subtract(&adversary->freed, start, op->bytes);
    (void)mo_ranges_insert(&adversary->freed, start, op->bytes, (void *)(uintptr_t)stream);
    if (adversary->tombstone_count == adversary->tombstone_capacity)
        prune_tombstones(cpu);
    if (mo_grow((void **)&adversary->tombstones, &adversary->tombstone_capacity,
                adversary->tombstone_count + 1, sizeof(mo_cpu_tombstone)))
        adversary->tombstones[adversary->tombstone_count++] =
            (mo_cpu_tombstone){start, op->bytes, op->number, stream};
}

static void run_unlocked(mo_cpu_device *cpu, const mo_cpu_op *op)
{
    mo_unlock(&cpu->lock);
    if (op->kind == MO_CPU_NOTE_FREE)
        poison(op->destination, op->bytes);
    else
        mo_cpu_run(cpu, op);
    mo_lock(&cpu->lock);
}

static void run_head(mo_cpu_device *cpu, mo_cpu_stream *stream)
{
    const mo_cpu_op *op = stream->head;
    int legal = 1;
    switch (op->kind) {
    case MO_CPU_NOTE_ALLOC:
        mo_ranges_subtract(&cpu->adversary.freed, (uintptr_t)op->destination, op->bytes);
        break;
    case MO_CPU_NOTE_FREE:
        if (!cpu->adversarial || is_hole(&cpu->memory, op->destination, op->bytes))
            break;
        run_unlocked(cpu, op);
        mark_freed(cpu, stream, op);
        break;
    case MO_CPU_COPY:
        legal = check_range(cpu, stream, op, op->source);
        /* fall through */
    case MO_CPU_FILL:
        legal = check_range(cpu, stream, op, op->destination) && legal;
        if (legal)
            run_unlocked(cpu, op);
        break;
    case MO_CPU_CALLBACK:
    case MO_CPU_LAUNCH:
        run_unlocked(cpu, op);
        break;
    case MO_CPU_RECORD:
    case MO_CPU_WAIT:
        break;
    }
    mo_cpu_retire(stream);
}

static void enter(mo_cpu_device *cpu)
{
    MO_PRE(mo_is_locked(&cpu->lock));
    while (cpu->adversary.busy)
        pthread_cond_wait(&cpu->progress, &cpu->lock);
    cpu->adversary.busy = 1;
}

static void leave(mo_cpu_device *cpu)
{
    cpu->adversary.busy = 0;
    pthread_cond_broadcast(&cpu->progress);
}

static int is_earlier(const mo_cpu_op *a, const mo_cpu_op *b)
{
    return a->due != b->due ? a->due < b->due : a->number < b->number;
}

/* The stream with the operation that is complete first; NULL if all are idle. Nothing that its head
 * waits for is still to run. */
static mo_cpu_stream *oldest(mo_cpu_device *cpu)
{
    mo_cpu_stream *found = NULL;
    for (mo_cpu_stream *stream = &cpu->default_stream; stream != NULL; stream = stream->next)
        if (stream->head != NULL && (found == NULL || is_earlier(stream->head, found->head)))
            found = stream;
    return found;
}

/* Pre: busy is held and the stream is not idle. */
static void step(mo_cpu_device *cpu, mo_cpu_stream *stream)
{
    MO_PRE(cpu->adversary.busy && mo_is_locked(&cpu->lock));
    if (!cpu->adversarial) {
        run_head(cpu, oldest(cpu));
        return;
    }
    mo_cpu_stream *needed = runnable(stream, NULL);
    mo_cpu_stream *other = overtaker(cpu, needed);
    run_head(cpu, other != NULL ? other : needed);
}

void mo_cpu_catch_up(mo_cpu_device *cpu)
{
    const mo_cpu_stream *stream = oldest(cpu);
    if (stream == NULL || !mo_cpu_is_past(cpu, stream->head->due))
        return;
    enter(cpu);
    for (mo_cpu_stream *next; (next = oldest(cpu)) != NULL && mo_cpu_is_past(cpu, next->head->due);)
        run_head(cpu, next);
    leave(cpu);
}

void mo_cpu_ask(mo_cpu_device *cpu)
{
    MO_PRE(mo_is_locked(&cpu->lock));
    if (!cpu->clock.runs)
        return;
    cpu->clock.now += cpu->clock.rates.call;
    mo_cpu_catch_up(cpu);
}

/* A wait for an operation that is not complete. In the adversarial order nothing says how far the
 * device is. */
static void count_wait(mo_cpu_device *cpu, uint64_t number, uint64_t due)
{
    const mo_cpu_stream *first = oldest(cpu);
    if (cpu->lag == 0 || first == NULL || number < first->head->number)
        return;
    uint64_t length = number - first->head->number + 1;
    cpu->waits.waits++;
    cpu->waits.waited += length;
    cpu->waits.waited_most = mo_max_u64(cpu->waits.waited_most, length);
    cpu->waits.drains += number == cpu->adversary.next_number;
    cpu->waits.nanoseconds += mo_cpu_wait_until(cpu, due);
}

void mo_cpu_force(mo_cpu_device *cpu, mo_cpu_stream *stream, uint64_t target)
{
    if (stream->completed >= target)
        return;
    if (target == stream->submitted)
        count_wait(cpu, stream->last_number, stream->due);
    enter(cpu);
    while (stream->completed < target)
        step(cpu, stream);
    leave(cpu);
}

/* One of the streams that hold operations up to `bound`, by the seed; NULL if there is none. */
static mo_cpu_stream *any_stream(mo_cpu_device *cpu, uint64_t bound)
{
    mo_cpu_stream *chosen = NULL;
    uint64_t found = 0;
    for (mo_cpu_stream *stream = &cpu->default_stream; stream != NULL; stream = stream->next)
        if (stream->head != NULL && stream->head->number <= bound &&
            next_random(&cpu->adversary) % ++found == 0)
            chosen = stream;
    return chosen;
}

static uint64_t last_due(const mo_cpu_device *cpu)
{
    uint64_t due = 0;
    for (const mo_cpu_stream *stream = &cpu->default_stream; stream != NULL; stream = stream->next)
        due = mo_max_u64(due, stream->due);
    return due;
}

void mo_cpu_force_all(mo_cpu_device *cpu)
{
    uint64_t bound = cpu->adversary.next_number;
    mo_cpu_stream *stream;
    count_wait(cpu, bound, last_due(cpu));
    enter(cpu);
    while ((stream = any_stream(cpu, bound)) != NULL)
        step(cpu, stream);
    leave(cpu);
}

void mo_cpu_force_marker(mo_cpu_device *cpu, mo_cpu_marker *marker)
{
    if (marker->done)
        return;
    count_wait(cpu, marker->number, marker->due);
    enter(cpu);
    while (!marker->done)
        step(cpu, marker->stream);
    leave(cpu);
}

void mo_cpu_forget(mo_cpu_device *cpu, const void *pointer, uint64_t bytes)
{
    mo_cpu_race_forget(cpu, pointer, bytes, 0);
    if (!cpu->adversarial)
        return;
    mo_lock(&cpu->lock);
    mo_ranges_subtract(&cpu->adversary.freed, (uintptr_t)pointer, bytes);
    mo_unlock(&cpu->lock);
}
