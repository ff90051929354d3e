/* Texts for people: the out-of-memory message and the list of tags. */
#include "allocator/report.h"

#include "allocator/segment_common.h"

#include "base/checked.h"

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

/* The largest run that one block could use without the driver, and all free bytes. */
static uint64_t largest_free(const memopt_allocator *allocator, uint64_t *out_all)
{
    uint64_t largest = 0;
    *out_all = 0;
    for (mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next) {
        for (mo_block *block = segment->first; block != NULL; block = block->next) {
            if (block->state != MO_BLOCK_FREE)
                continue;
            *out_all += block->size;
            largest = mo_max_u64(largest, block->size);
        }
    }
    return largest;
}

/* What to try, the most likely help first. */
static void say_advice(writer *out, const memopt_allocator *allocator, const mo_request *request,
                       uint64_t cached)
{
    const mo_tag *tags = allocator->tags;
    uint64_t live = mo_stat_current(&allocator->stats, MO_STAT_ALLOCATED_BYTES);
    say(out, "; try: ");
    if (!allocator->config.expandable_segments && cached >= request->size / 2 && cached > live / 10)
        say(out, "expandable_segments:True (the cache is fragmented), ");
    if (tags[MEMOPT_TAG_ACTIVATIONS].current > live / 4)
        say(out, "checkpoint regions or offload for the activations, ");
    if (tags[MEMOPT_TAG_OPTIMIZER].current > live / 4)
        say(out, "8-bit optimizer states, ");
    if (mo_allowed(allocator) < allocator->device_total ||
        mo_allowed(allocator->family->parent) < allocator->device_total)
        say(out, "a higher limit, ");
    say(out, "a smaller batch with accumulation");
}

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

void mo_report_oom(memopt_allocator *allocator, const mo_request *request, uint64_t device_free,
                   char text[MO_REPORT_BYTES])
{
    writer out = {text, MO_REPORT_BYTES, 0};
    const mo_stats *stats = &allocator->stats;
    uint64_t cached, largest = largest_free(allocator, &cached);
    uint64_t pending = mo_stat_current(stats, MO_STAT_ACTIVE_BYTES) -
                       mo_stat_current(stats, MO_STAT_ALLOCATED_BYTES);
    say_who(&out, allocator);
    say(&out, "%s asked for %s", MO_SIZE(request->asked), allocator->tags[request->tag].name);
    if (allocator->foreign)
        say(&out, allocator->pinned ? " in page-locked memory" : " of the provider's memory");
    else
        say(&out, ", %s free of %s on the device", MO_SIZE(device_free),
            MO_SIZE(allocator->device_total));
    if (mo_allowed(allocator) < allocator->device_total)
        say(&out, ", limited to %s here", MO_SIZE(mo_allowed(allocator)));
    say_family(&out, allocator);
    say(&out, "; held here: %s allocated, %s cached",
        MO_SIZE(mo_stat_current(stats, MO_STAT_ALLOCATED_BYTES)), MO_SIZE(cached));
    if (pending > 0)
        say(&out, ", %s freed but in use by other streams", MO_SIZE(pending));
    say(&out, ", largest free block %s", MO_SIZE(largest));
    say(&out, "; largest tags: ");
    if (stats->by_pool[MO_POOL_ALL][MO_STAT_ALLOCATION].current == 0)
        say(&out, "none");
    say_tags(&out, allocator, 3);
    say_advice(&out, allocator, request, cached);
}
