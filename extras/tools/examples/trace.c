/*
 * Replaying a trace: what does this run need of memory, does it fit a card, and does another
 * configuration of the allocator help? Without a GPU, in milliseconds.
 *
 * The trace is of steps whose activations vary in length, as CSV text; one recorded from a real run
 * is read in the same way, by memopt_trace_read_csv().
 */
#include <memopt/memopt.h>
#include <memopt/tools/trace.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != MEMOPT_OK) {                                                                 \
            fprintf(stderr, "%s: %s\n", #call, memopt_last_error());                               \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const double MIB = 1 << 20;

enum { STEPS = 60, LAYERS = 24 };

static void add_line(memopt_trace *trace, const char *action, int pointer, int bytes)
{
    char line[64];
    int size = snprintf(line, sizeof line, "%s,0x%x,%d\n", action, pointer, bytes);
    TRY(memopt_trace_parse_csv(trace, line, (uint64_t)size));
}

/* Each step saves what its layers need, of another length each time, and frees it backwards. */
static void make_trace(memopt_trace *trace)
{
    static const char header[] = "Action,Pointer,Size\n";
    TRY(memopt_trace_parse_csv(trace, header, sizeof header - 1));
    for (int step = 0; step < STEPS; step++) {
        int length = 1 + step * 7 % 12;
        for (int layer = 1; layer <= LAYERS; layer++)
            add_line(trace, "allocate", layer, length * 700000 + layer * 100000);
        for (int layer = LAYERS; layer >= 1; layer--)
            add_line(trace, "free", layer, 0);
    }
    TRY(memopt_trace_end_csv(trace));
}

/* The smallest device, and what happens on one with 2 MiB less. */
static uint64_t explore(const memopt_trace *trace, const char *config)
{
    memopt_replay_options options = MEMOPT_REPLAY_OPTIONS_INIT;
    memopt_replay_result r = MEMOPT_REPLAY_RESULT_INIT;
    uint64_t smallest;
    options.config = config;
    options.warm_passes = 3;
    TRY(memopt_trace_replay(trace, &options, &r));
    TRY(memopt_trace_find_capacity(trace, &options, &smallest));
    printf("\"%s\"\n  reserved         %8.1f MiB, %.3f of live\n", config,
           (double)r.peak_reserved_bytes / MIB, r.ratio);
    printf("  smallest device  %8.1f MiB\n", (double)smallest / MIB);
    printf("  an event         %8.0f ns\n", r.ns_per_event);
    options.capacity = smallest - ((uint64_t)2 << 20);
    TRY(memopt_trace_replay(trace, &options, &r));
    printf("  with 2 MiB less, event %" PRIu64 " fails: %.1f MiB asked, %.1f MiB alive\n",
           r.events + 1, (double)r.failed_bytes / MIB, (double)r.failed_live_bytes / MIB);
    return r.out_of_memory ? smallest : 0;
}

int main(void)
{
    memopt_trace *trace;
    memopt_trace_info info = MEMOPT_TRACE_INFO_INIT;
    TRY(memopt_trace_create(NULL, &trace));
    make_trace(trace);
    TRY(memopt_trace_get_info(trace, &info));
    printf("%" PRIu64 " events, at most %.1f MiB alive in %" PRIu64 " blocks\n", info.events,
           (double)info.peak_live_bytes / MIB, info.peak_live_blocks);
    uint64_t classic = explore(trace, "");
    uint64_t expandable = explore(trace, "expandable_segments:True");
    TRY(memopt_trace_destroy(trace));
    return expandable >= info.peak_live_bytes && expandable < classic ? 0 : 1;
}
