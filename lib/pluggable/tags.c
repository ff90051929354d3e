/*
 * The tag of what a thread allocates. A name keeps its place in a table of the process, which only
 * grows; a slot knows the number that its allocator has for it, from the first allocation on.
 */
#include "pluggable/pluggable.h"

#include "base/error.h"
#include "base/lock.h"

#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 32 }; /* of a tag, as memopt_allocator_register_tag() has it */

/* Under mo_plug_lock; what is there never changes. */
static char names[MO_PLUG_TAGS][NAME_BYTES] = {"other"};
static unsigned name_count = 1;

static _Thread_local unsigned current; /* 0: "other" */

/* Lock held. MO_PLUG_TAGS: there is no room. */
static unsigned place_of(const char *name)
{
    unsigned i = 0;
    while (i < name_count && strcmp(names[i], name) != 0)
        i++;
    if (i == name_count && i < MO_PLUG_TAGS)
        snprintf(names[name_count++], NAME_BYTES, "%s", name);
    return i;
}

memopt_status memopt_pluggable_set_tag(const char *name, const char **out_previous)
{
    if (name == NULL)
        name = names[0];
    if (name[0] == '\0' || strlen(name) >= NAME_BYTES)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "pluggable_set_tag: name has %zu characters; give 1 to %d", strlen(name),
                       NAME_BYTES - 1);
    mo_lock(&mo_plug_lock);
    unsigned place = place_of(name);
    mo_unlock(&mo_plug_lock);
    if (place == MO_PLUG_TAGS)
        return mo_fail(MEMOPT_LIMIT_REACHED,
                       "pluggable_set_tag: no room for \"%s\": %d names were used already", name,
                       MO_PLUG_TAGS);
    if (out_previous != NULL)
        *out_previous = names[current];
    current = place;
    return MEMOPT_OK;
}

memopt_status mo_plug_tag(mo_plug_slot *slot, memopt_tag *out_tag)
{
    memopt_status status = MEMOPT_OK;
    unsigned place = current;
    *out_tag = MEMOPT_TAG_OTHER;
    if (place == 0)
        return MEMOPT_OK;
    *out_tag = atomic_load_explicit(&slot->tags[place], memory_order_acquire);
    if (*out_tag == MEMOPT_TAG_OTHER)
        status = memopt_allocator_register_tag(slot->first, names[place], out_tag);
    if (status == MEMOPT_OK)
        atomic_store_explicit(&slot->tags[place], *out_tag, memory_order_release);
    return status;
}
