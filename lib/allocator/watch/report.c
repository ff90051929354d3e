/* Texts for people: the out-of-memory message and the list of tags. */
#include "allocator/watch/report.h"

#include "allocator/memory/segment_common.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/options.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

/* A text that grows up to its capacity; the rest is cut. */
typedef struct writer {
    char *text;
    size_t room;
    size_t length;
} writer;

static void say(writer *out, const char *format, ...) MO_PRINTF(2, 3);

static void say(writer *out, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(out->text + out->length, out->room - out->length, format, arguments);
    va_end(arguments);
    if (written > 0)
        out->length = mo_min_u64(out->length + (size_t)written, out->room - 1);
}

/* The largest tag with blocks that is not listed yet; MO_TAGS if none. */
static uint32_t largest_tag(const memopt_allocator *allocator, uint64_t told)
{
    uint32_t largest = MO_TAGS;
    for (uint32_t i = 0; i < allocator->tag_count; i++) {
        const mo_tag *tag = &allocator->tags[i];
        if (tag->blocks == 0 || (told >> i & 1))
            continue;
        if (largest == MO_TAGS || tag->current > allocator->tags[largest].current)
            largest = i;
    }
    return largest;
}

static void say_tags(writer *out, const memopt_allocator *allocator, unsigned most)
{
    uint64_t told = 0;
    for (unsigned i = 0; i < most; i++) {
        uint32_t tag = largest_tag(allocator, told);
        if (tag == MO_TAGS)
            return;
        say(out, "%s%s %s in %" PRIu64, i == 0 ? "" : ", ", allocator->tags[tag].name,
            MO_SIZE(allocator->tags[tag].current), allocator->tags[tag].blocks);
        told |= UINT64_C(1) << tag;
    }
}

void mo_report_tags(const memopt_allocator *allocator, unsigned most, char *text, size_t size)
{
    writer out = {text, size, 0};
    text[0] = '\0';
    say_tags(&out, allocator, most);
}

/* --- the cause -------------------------------------------------------------------------------- */

/* Whose live blocks are in the way. */
static void say_holder(writer *out, const memopt_allocator *allocator)
{
    const memopt_oom_report *oom = &allocator->oom;
    say(out, "%s %s in %" PRIu64 ", ", allocator->tags[oom->holder_tag].name,
        MO_SIZE(oom->holder_bytes), oom->holder_blocks);
    if (oom->holder_newest < oom->holder_oldest)
        say(out, "%" PRIu64 " to ", oom->holder_newest);
    say(out, "%" PRIu64 " allocation%s old", oom->holder_oldest,
        oom->holder_oldest == 1 ? "" : "s");
}

static void say_holes(writer *out, const memopt_allocator *allocator, const char *where)
{
    const memopt_oom_report *oom = &allocator->oom;
    say(out, "%s are free in %s, beside ", MO_SIZE(oom->cached_bytes - oom->spare_bytes), where);
    say_holder(out, allocator);
}

static void say_limit(writer *out, const memopt_allocator *allocator)
{
    const memopt_allocator *parent = allocator->family->parent;
    int own = mo_allowed(allocator) <= mo_allowed(parent);
    say(out, "the limit of %s", MO_SIZE(allocator->oom.limit_bytes));
    if (allocator != parent && !own)
        say(out, " of its parent");
    if ((own ? allocator : parent)->config.per_process_memory_fraction < 1)
        say(out, " (per_process_memory_fraction:%g)",
            (own ? allocator : parent)->config.per_process_memory_fraction);
}

static void say_rounding(writer *out, const memopt_oom_report *oom)
{
    uint64_t roundup = oom->rounding_bytes - oom->unsplit_bytes;
    say(out, "%s were added to what was asked: by ", MO_SIZE(oom->rounding_bytes));
    if (roundup > 0)
        say(out, "roundup_power2_divisions %s", MO_SIZE(roundup));
    if (oom->unsplit_bytes > 0)
        say(out, "%smax_split_size_mb %s", roundup > 0 ? ", " : "", MO_SIZE(oom->unsplit_bytes));
}

static void say_stream(writer *out, const memopt_oom_report *oom)
{
    say(out, "%s were freed and wait for other streams", MO_SIZE(oom->pending_bytes));
    if (oom->spare_bytes > 0)
        say(out, ", %s are cached and kept while a stream records a graph",
            MO_SIZE(oom->spare_bytes));
}

static void say_live(writer *out, const memopt_allocator *allocator)
{
    if (allocator->oom.holder_blocks == 0) {
        say(out, "live memory elsewhere");
        return;
    }
    say(out, "live memory: ");
    say_holder(out, allocator);
}

static void say_cause(writer *out, const memopt_allocator *allocator)
{
    const memopt_oom_report *oom = &allocator->oom;
    say(out, "; cause: ");
    switch (oom->cause) {
    case MEMOPT_OOM_FRAGMENTATION:
        say_holes(out, allocator, "holes that are too small");
        return;
    case MEMOPT_OOM_SEGMENTS:
        say_holes(out, allocator, "holes of classic segments");
        return;
    case MEMOPT_OOM_LEAK:
        say(out, "a leak, or a cache that only grows: ");
        say_holder(out, allocator);
        return;
    case MEMOPT_OOM_STREAM:
        say_stream(out, oom);
        return;
    case MEMOPT_OOM_ROUNDING:
        say_rounding(out, oom);
        return;
    case MEMOPT_OOM_POOL:
        say(out, "%s are free in other pools, which keep them", MO_SIZE(oom->pool_bytes));
        return;
    case MEMOPT_OOM_LIMIT:
        say_limit(out, allocator);
        return;
    case MEMOPT_OOM_OUTSIDE:
        say(out, "%s of the device are used by others", MO_SIZE(oom->outside_bytes));
        return;
    case MEMOPT_OOM_REQUEST:
        say(out, "the request is larger than the device");
        return;
    default:
        say_live(out, allocator);
    }
}

/* What helps against the cause; NULL where only less live memory does. */
static const char *remedy(const memopt_allocator *allocator)
{
    switch (allocator->oom.cause) {
    case MEMOPT_OOM_FRAGMENTATION:
        return allocator->config.expandable_segments
                   ? "a pool of its own for blocks that live long"
                   : "expandable_segments:True, with a pool of its own for blocks that live long";
    case MEMOPT_OOM_SEGMENTS:
        return "expandable_segments:True (the cache is fragmented)";
    case MEMOPT_OOM_LEAK:
        return "to free these blocks (a trace shows who allocates them)";
    case MEMOPT_OOM_STREAM:
        return "this allocation before or after the recording of the graph";
    case MEMOPT_OOM_ROUNDING:
        return allocator->oom.unsplit_bytes * 2 > allocator->oom.rounding_bytes
                   ? "no max_split_size_mb, or a smaller max_non_split_rounding_mb"
                   : "no roundup_power2_divisions";
    case MEMOPT_OOM_POOL:
        return "to trim these pools, or to make them without retain";
    case MEMOPT_OOM_OUTSIDE:
        return "memopt monitor, which shows who they are";
    default:
        return NULL;
    }
}

/* What to try, the most likely help first. */
static void say_advice(writer *out, const memopt_allocator *allocator)
{
    const mo_tag *tags = allocator->tags;
    const char *first = remedy(allocator);
    uint64_t live = mo_stat_current(&allocator->stats, MO_STAT_ALLOCATED_BYTES);
    say(out, "; try: ");
    if (first != NULL)
        say(out, "%s, ", first);
    if (tags[MEMOPT_TAG_ACTIVATIONS].current > live / 4)
        say(out, "checkpoint regions or offload for the activations, ");
    if (tags[MEMOPT_TAG_OPTIMIZER].current > live / 4)
        say(out, "8-bit optimizer states, ");
    if (mo_allowed(allocator) < allocator->device_total ||
        mo_allowed(allocator->family->parent) < allocator->device_total)
        say(out, "a higher limit, ");
    say(out, "a smaller batch with accumulation");
}

/* What others hold and count here, the largest first. */
static void say_outside(writer *out, const memopt_allocator *allocator)
{
    uint64_t told = 0;
    for (int i = 0; i < 3; i++) {
        uint32_t largest = 0;
        uint64_t bytes = 0;
        for (uint32_t k = 0; k < allocator->tag_count; k++)
            if (allocator->tags[k].outside > bytes && !(told >> k & 1)) {
                largest = k;
                bytes = allocator->tags[k].outside;
            }
        if (bytes == 0)
            return;
        say(out, "%s%s %s", i == 0 ? "; counted from outside: " : ", ",
            allocator->tags[largest].name, MO_SIZE(bytes));
        told |= UINT64_C(1) << largest;
    }
}

/* --- the message ------------------------------------------------------------------------------ */

static void say_who(writer *out, const memopt_allocator *allocator)
{
    if (allocator == allocator->family->parent)
        say(out, "allocator: ");
    else
        say(out, "pool \"%s\": ", allocator->name);
}

static void say_family(writer *out, const memopt_allocator *allocator)
{
    const mo_family *family = allocator->family;
    uint64_t held = mo_stat_current(&allocator->stats, MO_STAT_RESERVED_BYTES);
    uint64_t allowed = mo_allowed(family->parent);
    if (family->pools == 0)
        return;
    if (allocator != family->parent && allowed < allocator->device_total)
        say(out, ", limited to %s with its parent and its pools", MO_SIZE(allowed));
    say(out, "; held by %s: %s",
        allocator == family->parent ? "its pools" : "its parent and other pools",
        MO_SIZE(family->held - held));
}

void mo_report_oom(const memopt_allocator *allocator, char text[MO_REPORT_BYTES])
{
    writer out = {text, MO_REPORT_BYTES, 0};
    const memopt_oom_report *oom = &allocator->oom;
    say_who(&out, allocator);
    say(&out, "%s asked for %s", MO_SIZE(oom->asked_bytes), allocator->tags[oom->tag].name);
    if (allocator->foreign)
        say(&out, allocator->pinned ? " in page-locked memory" : " of the provider's memory");
    else
        say(&out, ", %s free of %s on the device", MO_SIZE(oom->free_bytes),
            MO_SIZE(oom->total_bytes));
    if (mo_allowed(allocator) < allocator->device_total)
        say(&out, ", limited to %s here", MO_SIZE(mo_allowed(allocator)));
    say_family(&out, allocator);
    say_outside(&out, allocator);
    say(&out, "; held here: %s allocated, %s cached", MO_SIZE(oom->live_bytes),
        MO_SIZE(oom->cached_bytes));
    if (oom->pending_bytes > 0)
        say(&out, ", %s freed but in use by other streams", MO_SIZE(oom->pending_bytes));
    say(&out, ", largest free block %s", MO_SIZE(oom->largest_free_bytes));
    say(&out, "; largest tags: ");
    if (allocator->stats.by_pool[MO_POOL_ALL][MO_STAT_ALLOCATION].current == 0)
        say(&out, "none");
    say_tags(&out, allocator, 3);
    say_cause(&out, allocator);
    say_advice(&out, allocator);
}

memopt_status memopt_allocator_get_oom_report(memopt_allocator *allocator,
                                              memopt_oom_report *out_report)
{
    MO_NOT_NULL("allocator_get_oom_report", allocator);
    MO_TRY(mo_check_process(allocator->device, "allocator_get_oom_report"));
    mo_lock(&allocator->lock);
    const memopt_oom_report oom = allocator->oom;
    mo_unlock(&allocator->lock);
    if (oom.number == 0)
        return mo_fail(MEMOPT_NOT_FOUND,
                       "allocator_get_oom_report: no allocation has failed for lack of memory");
    return mo_result_write(out_report, &oom, sizeof oom, "memopt_oom_report");
}
