/*
 * Inside a monitor: one table of operations a source (nvml.c, rocm_smi.c, amdgpu_sysfs.c,
 * host.c), and what they share (monitor.c, source.c).
 *
 * A source never loads a device's driver through lib/device/gpu/driver.c and never makes a context.
 * It notes each field that it cannot read; only a failure of the whole device is a failing status.
 * Vendors' libraries stay loaded after their start: few programs unload them, and some libraries
 * crash then.
 */
#ifndef MO_DEVICE_MONITOR_H
#define MO_DEVICE_MONITOR_H

#include "memopt/tools/monitor.h"

#include "base/error.h"
#include "base/small_file.h"

typedef struct mo_process_list {
    memopt_process_info *items;
    uint64_t count, capacity;
} mo_process_list;

typedef struct mo_monitor_ops {
    /* Never fails. */
    void (*close)(memopt_monitor *monitor);
    /* The index is in range; *out is blank but for struct_size. */
    memopt_status (*read)(memopt_monitor *monitor, int32_t index, memopt_monitor_reading *out);
    /* The index is in range; list is empty. Appends; names are added by the caller. */
    memopt_status (*processes)(memopt_monitor *monitor, int32_t index, mo_process_list *list);
} mo_monitor_ops;

struct memopt_monitor {
    const mo_monitor_ops *ops;
    const char *backend; /* "cuda" */
    int32_t device_count;
};

/* Each opens its source and fills in what info has to say, also on failure; the status is info's
 * and no last error is written, except where host memory is out. */
memopt_status mo_nvml_open(memopt_monitor_info *info, memopt_monitor **out_monitor);
memopt_status mo_rocm_smi_open(memopt_monitor_info *info, memopt_monitor **out_monitor);
/* `root` stands before every path: "" but in tests. */
memopt_status mo_amdgpu_open(const char *root, memopt_monitor_info *info,
                             memopt_monitor **out_monitor);
memopt_status mo_host_monitor_open(const char *root, memopt_monitor_info *info,
                                   memopt_monitor **out_monitor);

/* --- source.c --- */

/* An entry point: its names, the preferred one first, and where its address goes. */
typedef struct mo_monitor_symbol {
    const char *names[3];
    size_t offset;
    int required;
} mo_monitor_symbol;

/* A source that is a vendor's library, whose monitor struct begins with a memopt_monitor. */
typedef struct mo_monitor_library {
    const char *source;       /* as info names it */
    const char *const *names; /* of the file, the preferred one first, ended by NULL */
    /* Folders that it reads, ended by NULL: if one is missing, the library is not started, because
     * it would write to standard error. NULL: none. */
    const char *const *needs;
    const mo_monitor_symbol *symbols;
    size_t symbol_count;
    size_t monitor_bytes; /* of its monitor struct */
    size_t calls;         /* where in that the entry points lie */
    const mo_monitor_ops *ops;
    /* Starts the library and counts devices; a failure goes to info. */
    memopt_status (*start)(memopt_monitor *monitor, memopt_monitor_info *info);
} mo_monitor_library;

memopt_status mo_monitor_open_library(const mo_monitor_library *library, memopt_monitor_info *info,
                                      memopt_monitor **out_monitor);

typedef enum mo_field_outcome {
    MO_FIELD_HERE,
    MO_FIELD_NOT_TOLD,
    MO_FIELD_DENIED,
    MO_FIELD_FAILED
} mo_field_outcome;

/* Notes the result of a field; what and says are for the reading's problem. */
void mo_monitor_note(memopt_monitor_reading *reading, uint32_t field, mo_field_outcome outcome,
                     int32_t code, const char *what, const char *says);

/* What an errno means for a field. */
mo_field_outcome mo_monitor_errno_outcome(int error);

/* Adds a process; used_known is 0 where bytes is UINT64_MAX. 0: out of host memory. */
int mo_process_add(mo_process_list *list, int32_t pid, uint32_t kind, uint64_t bytes);
/* The same with one entry per pid: joins kinds and keeps the larger number of bytes. */
int mo_process_merge(mo_process_list *list, int32_t pid, uint32_t kind, uint64_t bytes);
/* Greatest user first. */
void mo_process_sort(mo_process_list *list);

#endif
