/* Any bytes as CSV text, whole and in pieces: both give the same trace, or the same refusal with
 * the number of a line; and what was read can be replayed where it is small. */
#include "base/error.h"
#include "base/memory.h"
#include "trace/trace.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition))                                                                          \
            abort();                                                                               \
    } while (0)

enum { SMALL_STREAMS = 8, CAPACITY = 64 << 20 };

static memopt_status read_pieces(memopt_trace *trace, const char *text, size_t size, size_t piece)
{
    for (size_t at = 0; at < size; at += piece) {
        size_t left = size - at;
        memopt_status status =
            memopt_trace_parse_csv(trace, text + at, left < piece ? left : piece);
        if (status != MEMOPT_OK)
            return status;
    }
    return memopt_trace_end_csv(trace);
}

/* Each free or recorded stream is of a living block, numbers are below the slots, the counts are
 * right. */
static void require_consistent(const memopt_trace *trace)
{
    const memopt_trace_info *info = &trace->info;
    uint64_t *alive = calloc(trace->slots + 1, sizeof *alive), live = 0, peak = 0, blocks = 0;
    REQUIRE(alive != NULL && info->events == trace->count);
    for (uint64_t i = 0; i < trace->count; i++) {
        const mo_trace_step *s = &trace->steps[i];
        REQUIRE(s->block < trace->slots);
        REQUIRE((alive[s->block] == 0) == (s->bytes > 0));
        if (mo_trace_is_use(s)) {
            REQUIRE((s->stream & ~MO_TRACE_USE) < trace->stream_count);
            continue;
        }
        REQUIRE(s->stream < trace->stream_count || (s->bytes == 0 && s->stream == MO_TRACE_SAME));
        live += s->bytes - alive[s->block];
        blocks += s->bytes > 0 ? 1 : UINT64_MAX;
        alive[s->block] = s->bytes;
        peak = live > peak ? live : peak;
    }
    REQUIRE(live == info->live_bytes && peak == info->peak_live_bytes);
    REQUIRE(blocks == info->live_blocks);
    free(alive);
}

static void require_replay(const memopt_trace *trace)
{
    memopt_replay_options options = MEMOPT_REPLAY_OPTIONS_INIT;
    memopt_replay_result result = {.struct_size = sizeof result};
    options.capacity = CAPACITY;
    options.config = trace->count % 2 ? "expandable_segments:True" : "";
    if (trace->info.allocations == 0 || trace->stream_count > SMALL_STREAMS)
        return;
    REQUIRE(memopt_trace_replay(trace, &options, &result) == MEMOPT_OK);
    REQUIRE(result.out_of_memory == (result.events < trace->count));
    REQUIRE(result.out_of_memory || trace->info.peak_live_bytes <= CAPACITY);
    REQUIRE(result.peak_reserved_bytes <= CAPACITY);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    memopt_trace *whole = NULL, *cut = NULL;
    const char *text = (const char *)data;
    char said[1024];
    REQUIRE(memopt_trace_create(NULL, &whole) == MEMOPT_OK);
    REQUIRE(memopt_trace_create(NULL, &cut) == MEMOPT_OK);
    memopt_status status = read_pieces(whole, text, size, size + 1);
    strncpy(said, memopt_last_error(), sizeof said - 1);
    said[sizeof said - 1] = '\0';
    REQUIRE(read_pieces(cut, text, size, 1 + size % 7) == status);
    if (status != MEMOPT_OK) {
        REQUIRE(status == MEMOPT_CORRUPT || status == MEMOPT_LIMIT_REACHED);
        REQUIRE(strncmp(said, "trace: ", 7) == 0);
        REQUIRE(strcmp(said, memopt_last_error()) == 0);
    }
    REQUIRE(whole->count == cut->count);
    REQUIRE(whole->count == 0 ||
            memcmp(whole->steps, cut->steps, whole->count * sizeof *whole->steps) == 0);
    REQUIRE(memcmp(&whole->info, &cut->info, sizeof whole->info) == 0);
    require_consistent(whole);
    require_replay(whole);
    memopt_trace_destroy(whole);
    memopt_trace_destroy(cut);
    REQUIRE(mo_memory_live_blocks() == 0);
    return 0;
}
