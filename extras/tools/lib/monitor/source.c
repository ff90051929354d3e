/* What the sources of a monitor share: opening libraries, notes on fields, lists of processes,
 * small files.
 */
#include "monitor/source.h"

#include "base/library.h"
#include "base/memory.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Looks all up into the struct at calls; info->missing gets those that have no name. 1 where every
 * required one was found. */
static int resolve(const mo_monitor_library *source, void *library, void *calls,
                   memopt_monitor_info *info)
{
    int complete = 1;
    for (size_t i = 0; i < source->symbol_count; i++) {
        const mo_monitor_symbol *symbol = &source->symbols[i];
        void *address = NULL;
        for (size_t n = 0; n < 3 && address == NULL && symbol->names[n] != NULL; n++)
            address = dlsym(library, symbol->names[n]);
        memcpy((char *)calls + symbol->offset, &address, sizeof address);
        if (address != NULL)
            continue;
        complete = complete && !symbol->required;
        mo_append(info->missing, sizeof info->missing, "%s%s%s",
                  info->missing[0] == '\0' ? "" : ", ", symbol->names[0],
                  symbol->required ? " (required)" : "");
    }
    return complete;
}

/* Does everything exist that the library reads? Not checked for a library that a test or a user
 * names. */
static int has_needs(const mo_monitor_library *source, memopt_monitor_info *info)
{
    if (source->needs == NULL || mo_driver_path() != NULL)
        return 1;
    for (size_t i = 0; source->needs[i] != NULL; i++) {
        if (access(source->needs[i], F_OK) == 0)
            continue;
        snprintf(info->tried, sizeof info->tried, "%s", source->needs[i]);
        snprintf(info->problem, sizeof info->problem,
                 "%s: %s (no card, or its kernel driver is not loaded)", source->needs[i],
                 strerror(errno));
        return 0;
    }
    return 1;
}

memopt_status mo_monitor_open_library(const mo_monitor_library *source, memopt_monitor_info *info,
                                      memopt_monitor **out_monitor)
{
    memopt_status status = MEMOPT_DRIVER_MISSING;
    snprintf(info->source, sizeof info->source, "%s", source->source);
    if (!has_needs(source, info))
        return status;
    void *library = mo_library_open(source->names, info->library, info->tried, info->problem);
    if (library == NULL)
        return status;
    memopt_monitor *monitor = mo_calloc(1, source->monitor_bytes);
    if (monitor == NULL) {
        dlclose(library);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    monitor->ops = source->ops;
    if (resolve(source, library, (char *)monitor + source->calls, info)) {
        status = source->start(monitor, info);
    } else {
        snprintf(info->problem, sizeof info->problem,
                 "%s lacks entry points that every supported one has", info->library);
        dlclose(library);
    }
    if (status == MEMOPT_OK)
        *out_monitor = monitor;
    else
        monitor->ops->close(monitor);
    return status;
}

void mo_monitor_note(memopt_monitor_reading *reading, uint32_t field, mo_field_outcome outcome,
                     int32_t code, const char *what, const char *says)
{
    if (outcome == MO_FIELD_HERE)
        reading->fields |= field;
    else if (outcome == MO_FIELD_DENIED)
        reading->denied |= field;
    else if (outcome == MO_FIELD_FAILED)
        reading->failed |= field;
    if (outcome == MO_FIELD_HERE || outcome == MO_FIELD_NOT_TOLD || reading->problem[0] != '\0')
        return;
    reading->driver_code = code;
    snprintf(reading->problem, sizeof reading->problem, "%s: %s (%d)", what, says, (int)code);
}

mo_field_outcome mo_monitor_errno_outcome(int error)
{
    if (error == 0)
        return MO_FIELD_HERE;
    if (error == EACCES || error == EPERM)
        return MO_FIELD_DENIED;
    /* A driver's file returns this if the chip has no value. */
    return error == ENOENT || error == ENODATA || error == EOPNOTSUPP || error == ENODEV
               ? MO_FIELD_NOT_TOLD
               : MO_FIELD_FAILED;
}

int mo_process_add(mo_process_list *list, int32_t pid, uint32_t kind, uint64_t bytes)
{
    void *items = list->items;
    if (!mo_grow(&items, &list->capacity, list->count + 1, sizeof *list->items))
        return 0;
    list->items = items;
    list->items[list->count++] = (memopt_process_info){
        .struct_size = sizeof(memopt_process_info),
        .pid = pid,
        .kind = kind,
        .used_bytes = bytes == UINT64_MAX ? 0 : bytes,
        .used_known = bytes != UINT64_MAX,
    };
    return 1;
}

int mo_process_merge(mo_process_list *list, int32_t pid, uint32_t kind, uint64_t bytes)
{
    for (uint64_t i = 0; i < list->count; i++) {
        memopt_process_info *item = &list->items[i];
        if (item->pid != pid)
            continue;
        item->kind |= kind;
        if (bytes != UINT64_MAX && (!item->used_known || bytes > item->used_bytes)) {
            item->used_bytes = bytes;
            item->used_known = 1;
        }
        return 1;
    }
    return mo_process_add(list, pid, kind, bytes);
}

static int compare(const void *left, const void *right)
{
    const memopt_process_info *a = left, *b = right;
    if (a->used_bytes != b->used_bytes)
        return a->used_bytes < b->used_bytes ? 1 : -1;
    return (a->pid > b->pid) - (a->pid < b->pid);
}

void mo_process_sort(mo_process_list *list)
{
    if (list->count > 1)
        qsort(list->items, list->count, sizeof *list->items, compare);
}
