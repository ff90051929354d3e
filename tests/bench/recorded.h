/*
 * A recorded list of operations, as memopt_allocator_trace() writes it and tests/traces use it: CSV with
 * the columns Thread,Time,Action,Pointer,Size,Stream and more that are ignored. Blocks and streams get
 * numbers; those of freed blocks are given out again. A file that is anything else ends the program.
 */
#ifndef BENCH_RECORDED_H
#define BENCH_RECORDED_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum recorded_action { RECORDED_ALLOC, RECORDED_FREE, RECORDED_USE } recorded_action;

typedef struct recorded_step {
    recorded_action action;
    uint32_t block, stream;
    uint64_t bytes; /* of an allocation */
} recorded_step;

typedef struct recorded {
    recorded_step *steps;
    uint64_t count, room;
    uint64_t *pointers; /* of live blocks by number; 0: the number is unused */
    uint32_t slots, slot_room;
    uint64_t streams[64]; /* by number; number 0 is stream 0 */
    uint32_t stream_count;
} recorded;

static inline void recorded_need(int holds, const char *what, uint64_t line)
{
    if (holds)
        return;
    fprintf(stderr, "line %" PRIu64 ": %s\n", line, what);
    exit(1);
}

static inline void *recorded_grow(void *items, uint64_t count, size_t size)
{
    items = realloc(items, count * size);
    return items != NULL ? items : (abort(), NULL);
}

/* The number of a live block by its address, or, for address 0, an unused number. */
static inline uint32_t recorded_slot(recorded *r, uint64_t pointer)
{
    for (uint32_t i = r->slots; i-- > 0;)
        if (r->pointers[i] == pointer)
            return i;
    if (pointer != 0)
        return UINT32_MAX;
    if (r->slots == r->slot_room) {
        r->slot_room = 2 * r->slot_room + 64;
        r->pointers = recorded_grow(r->pointers, r->slot_room, sizeof *r->pointers);
    }
    r->pointers[r->slots] = 0;
    return r->slots++;
}

static inline uint32_t recorded_stream(recorded *r, uint64_t stream, uint64_t line)
{
    uint32_t i = 0;
    while (i < r->stream_count && r->streams[i] != stream)
        i++;
    recorded_need(i < sizeof r->streams / sizeof *r->streams, "too many streams", line);
    if (i == r->stream_count)
        r->streams[r->stream_count++] = stream;
    return i;
}

static inline recorded recorded_read(const char *path)
{
    char command[4200], text[512], action[32];
    recorded r = {.stream_count = 1};
    const char *end = strrchr(path, '.');
    snprintf(command, sizeof command, "%s '%s'",
             end != NULL && strcmp(end, ".gz") == 0 ? "gzip -dc" : "cat", path);
    FILE *file = popen(command, "r");
    recorded_need(file != NULL && fgets(text, sizeof text, file) != NULL, "no text", 1);
    for (uint64_t line = 2; fgets(text, sizeof text, file) != NULL; line++) {
        uint64_t pointer, bytes, stream;
        recorded_need(sscanf(text, "%*[^,],%*[^,],%31[^,],%" SCNx64 ",%" SCNu64 ",%" SCNu64, action,
                             &pointer, &bytes, &stream) == 4,
                      text, line);
        recorded_step step = {RECORDED_USE, 0, recorded_stream(&r, stream, line), bytes};
        if (strcmp(action, "allocate") == 0)
            step.action = RECORDED_ALLOC;
        else if (strcmp(action, "free") == 0)
            step.action = RECORDED_FREE;
        else if (strcmp(action, "record stream") != 0)
            continue; /* a failure, say */
        step.block = recorded_slot(&r, step.action == RECORDED_ALLOC ? 0 : pointer);
        if (step.block == UINT32_MAX)
            continue; /* it was there before */
        if (step.action != RECORDED_USE)
            r.pointers[step.block] = step.action == RECORDED_ALLOC ? pointer : 0;
        if (r.count == r.room) {
            r.room = 2 * r.room + 1024;
            r.steps = recorded_grow(r.steps, r.room, sizeof *r.steps);
        }
        r.steps[r.count++] = step;
    }
    pclose(file);
    return r;
}

static inline void recorded_end(recorded *r)
{
    free(r->steps);
    free(r->pointers);
}

/* Several programs at once, in turns: each one takes the same part of its steps, `burst` of the longest's.
 * Streams with the same number are one, or (own) each program has its own. */
static inline recorded recorded_together(const recorded *programs, int count, uint64_t burst,
                                         int own)
{
    recorded all = {.stream_count = 1};
    uint64_t longest = 0, *done = recorded_grow(NULL, (uint64_t)count, sizeof *done);
    for (int k = 0; k < count; k++) {
        done[k] = 0;
        longest = programs[k].count > longest ? programs[k].count : longest;
        all.room += programs[k].count;
    }
    all.steps = recorded_grow(NULL, all.room, sizeof *all.steps);
    for (uint64_t turn = 1; all.count < all.room; turn++) {
        const double part = (double)(turn * burst) / (double)longest;
        uint32_t slots = 0, streams = 0;
        for (int k = 0; k < count; k++) {
            const recorded *p = &programs[k];
            for (; done[k] < p->count && (double)done[k] < part * (double)p->count; done[k]++) {
                recorded_step step = p->steps[done[k]];
                step.block += slots;
                step.stream += streams;
                all.steps[all.count++] = step;
            }
            slots += p->slots;
            streams += own ? p->stream_count : 0;
            all.stream_count = streams > all.stream_count ? streams : all.stream_count;
            if (!own && p->stream_count > all.stream_count)
                all.stream_count = p->stream_count;
        }
        all.slots = slots;
    }
    free(done);
    return all;
}

#endif
