/* What blocks are for. A tag is its position in the allocator's fixed table; all members of a
 * family have the same tags, which are added under `slow`. */
#include "allocator/watch/tags.h"

#include "allocator/memory/observers.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/options.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void count(memopt_allocator *allocator, mo_sink *sink, const mo_event *event)
{
    memopt_tag tag = event->block->tag;
    mo_tag *entry = &allocator->tags[tag];
    (void)sink;
    if (event->what == MO_FREE) {
        entry->current -= event->block->requested;
        entry->blocks--;
        return;
    }
    entry->current += event->block->requested;
    entry->blocks++;
    entry->peak = mo_max_u64(entry->peak, entry->current);
    allocator->tags_raised |= UINT64_C(1) << tag;
}

void mo_tags_init(memopt_allocator *allocator)
{
    static const char *const built_in[MEMOPT_TAG_USER] = {"other", "weights", "gradients",
                                                          "optimizer", "activations"};
    for (uint32_t i = 0; i < MEMOPT_TAG_USER; i++)
        snprintf(allocator->tags[i].name, MO_TAG_NAME, "%s", built_in[i]);
    allocator->tag_count = MEMOPT_TAG_USER;
    allocator->tagging = (mo_sink){.wants = MO_WANTS(MO_ALLOC) | MO_WANTS(MO_FREE), .tell = count};
    mo_sink_add(allocator, &allocator->tagging);
}

void mo_tags_copy(memopt_allocator *pool, memopt_allocator *parent)
{
    mo_lock(&parent->lock);
    for (uint32_t i = 0; i < parent->tag_count; i++)
        memcpy(pool->tags[i].name, parent->tags[i].name, MO_TAG_NAME);
    pool->tag_count = parent->tag_count;
    mo_unlock(&parent->lock);
}

/* The tag of a name; the first unused one if there is none. */
static uint32_t find(memopt_allocator *allocator, const char *name)
{
    uint32_t i = 0;
    mo_lock(&allocator->lock);
    while (i < allocator->tag_count && strcmp(allocator->tags[i].name, name) != 0)
        i++;
    mo_unlock(&allocator->lock);
    return i;
}

static void add(memopt_allocator *allocator, const char *name)
{
    mo_lock(&allocator->lock);
    snprintf(allocator->tags[allocator->tag_count++].name, MO_TAG_NAME, "%s", name);
    mo_unlock(&allocator->lock);
}

/* The tag of a name, a new one if there is room; MO_TAGS if not. */
static memopt_status find_or_add(memopt_allocator *allocator, const char *name, uint32_t *out_tag)
{
    MO_TRY(mo_family_enter(allocator->family, "allocator_register_tag"));
    uint32_t tag = find(allocator, name); /* nobody else changes the count */
    if (tag == allocator->tag_count && tag < MO_TAGS)
        for (memopt_allocator *each = allocator->family->members; each != NULL;
             each = each->next_member)
            add(each, name);
    mo_family_leave(allocator->family);
    *out_tag = tag;
    return MEMOPT_OK;
}

memopt_status memopt_allocator_register_tag(memopt_allocator *allocator, const char *name,
                                            memopt_tag *out_tag)
{
    MO_NOT_NULL("allocator_register_tag", allocator, name, out_tag);
    MO_TRY(mo_check_process(allocator->device, "allocator_register_tag"));
    size_t length = strlen(name);
    if (length == 0 || length >= MO_TAG_NAME)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "allocator_register_tag: the name has %zu characters; give it 1 to %d",
                       length, MO_TAG_NAME - 1);
    uint32_t tag = MO_TAGS;
    MO_TRY(find_or_add(allocator, name, &tag));
    if (tag == MO_TAGS)
        return mo_fail(MEMOPT_LIMIT_REACHED,
                       "allocator_register_tag: all %d tags are taken, \"%s\" is one too many",
                       MO_TAGS, name);
    *out_tag = tag;
    return MEMOPT_OK;
}

memopt_status memopt_allocator_set_outside(memopt_allocator *allocator, memopt_tag tag,
                                           uint64_t bytes)
{
    MO_NOT_NULL("allocator_set_outside", allocator);
    MO_TRY(mo_check_process(allocator->device, "allocator_set_outside"));
    mo_family *family = allocator->family;
    MO_TRY(mo_family_enter(family, "allocator_set_outside"));
    mo_lock(&allocator->lock);
    uint32_t count = allocator->tag_count;
    /* What is counted stays far below the limits of its sum. */
    int fits = tag < count && bytes <= MO_OUTSIDE_MOST;
    if (fits) {
        uint64_t *now = &allocator->tags[tag].outside;
        allocator->outside += bytes - *now;
        family->outside += bytes - *now;
        *now = bytes;
    }
    mo_unlock(&allocator->lock);
    mo_family_leave(family);
    if (fits)
        return MEMOPT_OK;
    return tag >= count
               ? mo_fail(MEMOPT_INVALID_ARGUMENT,
                         "allocator_set_outside: tag %" PRIu32 " is not among the %" PRIu32
                         " registered ones",
                         tag, count)
               : mo_fail(MEMOPT_INVALID_ARGUMENT,
                         "allocator_set_outside: %" PRIu64 " bytes are more than 2^48", bytes);
}

memopt_status memopt_allocator_get_tag_stats(memopt_allocator *allocator, memopt_tag tag,
                                             memopt_tag_stats *out_stats)
{
    memopt_tag_stats full = MEMOPT_TAG_STATS_INIT;
    MO_NOT_NULL("allocator_get_tag_stats", allocator);
    MO_TRY(mo_check_process(allocator->device, "allocator_get_tag_stats"));
    mo_lock(&allocator->lock);
    uint32_t count = allocator->tag_count;
    if (tag < count) {
        const mo_tag *entry = &allocator->tags[tag];
        full.name = entry->name;
        full.current_bytes = entry->current;
        full.peak_bytes = entry->peak;
        full.blocks = entry->blocks;
        full.outside_bytes = entry->outside;
    }
    mo_unlock(&allocator->lock);
    if (tag >= count)
        return mo_fail(MEMOPT_NOT_FOUND,
                       "allocator_get_tag_stats: tag %" PRIu32 " is not among the %" PRIu32
                       " registered ones",
                       tag, count);
    return mo_result_write(out_stats, &full, sizeof full, "memopt_tag_stats");
}
