/**
 * @file monitor.h
 * @brief Watching devices and the processes on them without opening a device.
 *
 * A ::memopt_monitor reads what the driver tells everyone: memory in use, load, temperature, power,
 * and who uses how much. It makes no context, so watching costs no device memory.
 *
 * | back end | what is read |
 * |---|---|
 * | "cuda" | NVML, `libnvidia-ml.so.1` |
 * | "hip" | ROCm SMI, `librocm_smi64.so`; without it the files of the amdgpu driver in `/sys` |
 * | "cpu" | `/proc`: the machine's memory, its load, and the processes' resident memory |
 *
 * ROCm SMI is not loaded where that driver has no files: there is no card then.
 *
 * Devices are numbered as the monitoring library does, by bus address, whatever
 * `CUDA_VISIBLE_DEVICES` or `HIP_VISIBLE_DEVICES` say: match by memopt_monitor_reading::pci or
 * memopt_monitor_reading::uuid.
 *
 * **Threads.** One thread at a time per monitor, from any thread; different monitors do not disturb
 * each other.
 */
#ifndef MEMOPT_MONITOR_H
#define MEMOPT_MONITOR_H

#include <memopt/base.h>

MEMOPT_BEGIN_DECLS

/** @brief An open connection to what tells about the devices of one back end. */
typedef struct memopt_monitor memopt_monitor;

/** @brief What a reading has; bits of memopt_monitor_reading::fields, denied and failed. */
typedef uint32_t memopt_monitor_field;

/** @brief The values of ::memopt_monitor_field. */
enum {
    MEMOPT_MONITOR_NAME = 1,                /**< name */
    MEMOPT_MONITOR_UUID = 2,                /**< uuid */
    MEMOPT_MONITOR_PCI = 4,                 /**< pci */
    MEMOPT_MONITOR_MEMORY = 8,              /**< memory_total, memory_used, memory_free */
    MEMOPT_MONITOR_UTILIZATION = 16,        /**< utilization */
    MEMOPT_MONITOR_MEMORY_UTILIZATION = 32, /**< memory_utilization */
    MEMOPT_MONITOR_TEMPERATURE = 64,        /**< temperature */
    MEMOPT_MONITOR_POWER = 128,             /**< power */
    MEMOPT_MONITOR_POWER_LIMIT = 256,       /**< power_limit */
    MEMOPT_MONITOR_MEMORY_RESERVED = 512    /**< memory_reserved */
};

/** @brief What was found to read from. Lists are separated by ", "; texts are cut where they do not
 * fit. */
typedef struct memopt_monitor_info {
    size_t struct_size; /**< Set by the caller. */
    /** #MEMOPT_OK: a monitor can be opened. Otherwise what opening one returns. */
    memopt_status status;
    int32_t driver_code;  /**< The library's own code of the problem; 0 if it has none. */
    int32_t device_count; /**< Devices. */
    char source[16];      /**< "nvml", "rocm_smi", "sysfs" or "proc"; "" if nothing. */
    char library[256];    /**< The library's file, or the folder that is read; "" if none. */
    char version[96];     /**< The driver's or library's version as it writes it; "". */
    char tried[512];      /**< The names of files and folders that were tried. */
    /** Why it does not work; with #MEMOPT_OK: why the better source was not used, or "". */
    char problem[512];
    char missing[512]; /**< Entry points that the library lacks. */
} memopt_monitor_info;

/**
 * @brief One device at one moment.
 *
 * A value is meant only where its bit is in fields. Other numbers in bytes are 0, other doubles are
 * NaN, other texts are "". A bit that is in neither of fields, denied and failed is something that
 * the device or the driver does not tell.
 */
typedef struct memopt_monitor_reading {
    size_t struct_size;        /**< Set by the caller. */
    uint32_t fields;           /**< Bits of ::memopt_monitor_field: what is here. */
    uint32_t denied;           /**< What this user may not read. */
    uint32_t failed;           /**< What the driver failed to tell; problem says why. */
    int32_t driver_code;       /**< The driver's code of the first denied or failed one, or 0. */
    char name[96];             /**< As the driver calls it. */
    char uuid[96];             /**< The same on every boot. */
    char pci[32];              /**< Bus address, "0000:3b:00.0". */
    uint64_t memory_total;     /**< Bytes in all. */
    uint64_t memory_used;      /**< Bytes that somebody uses. */
    uint64_t memory_free;      /**< Bytes that can be allocated ("cpu": without swapping). */
    uint64_t memory_reserved;  /**< Bytes that the driver keeps to itself, not in used or free. */
    double utilization;        /**< Percent of the last moments in which something ran. */
    double memory_utilization; /**< Percent of the last moments in which memory was accessed. */
    double temperature;        /**< Degrees Celsius of the die. */
    double power;              /**< Watts drawn. */
    double power_limit;        /**< Watts at which the driver slows the device down. */
    char problem[256];         /**< The first denied or failed one in the driver's words; "". */
} memopt_monitor_reading;

/** @brief What a process uses a device for; bits of memopt_process_info::kind. */
typedef uint32_t memopt_process_kind;

/** @brief The values of ::memopt_process_kind. */
enum {
    MEMOPT_PROCESS_COMPUTE = 1,  /**< It computes. */
    MEMOPT_PROCESS_GRAPHICS = 2, /**< It draws. */
    MEMOPT_PROCESS_HOST = 4      /**< "cpu": a process of the machine. */
};

/** @brief A process that uses a device. */
typedef struct memopt_process_info {
    size_t struct_size;  /**< sizeof of what the library wrote. */
    int32_t pid;         /**< As the driver counts: in a container, it may be the host's number. */
    uint32_t kind;       /**< Bits of ::memopt_process_kind. */
    uint64_t used_bytes; /**< Device memory, or resident memory on "cpu". */
    uint32_t used_known; /**< 1 where used_bytes is meant; 0 where the driver does not tell. */
    char name[64];       /**< The command, as the system calls it; "" where it cannot be read. */
} memopt_process_info;

/**
 * @brief Receives one process.
 * @param user as given to memopt_monitor_processes().
 * @param process the process; valid during the call only.
 * @return #MEMOPT_OK to go on; anything else ends the visit and is returned by it.
 *
 * Called on the calling thread. It must not use the same monitor.
 */
typedef memopt_status (*memopt_process_visitor)(void *user, const memopt_process_info *process);

/**
 * @brief Tells what there is to read from: the library, what it lacks, why it does not work.
 *
 * That there is none is an answer, not a failure of this call: see memopt_monitor_info::status.
 * @param backend "cpu", "cuda" or "hip".
 * @param[in,out] out_info struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_NOT_FOUND there is no such back end; the message names those there are.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the bookkeeping.
 *
 * Thread-safe.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_monitor_get_info(const char *backend,
                                                 memopt_monitor_info *out_info);

/**
 * @brief Opens a monitor. No device is opened and no context is made.
 * @param backend "cpu", "cuda" or "hip".
 * @param[out] out_monitor the monitor; ended by memopt_monitor_close().
 * @retval MEMOPT_OK done; there may be no device.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_NOT_FOUND there is no such back end.
 * @retval MEMOPT_UNSUPPORTED this build of the library was made without that back end.
 * @retval MEMOPT_DRIVER_MISSING there is no library to read from, it lacks what every one has, or
 * no driver is behind it; memopt_last_error() says what was tried.
 * @retval MEMOPT_DRIVER_ERROR the library does not start.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the handle.
 *
 * Thread-safe. The library stays loaded when the monitor is closed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_monitor_open(const char *backend, memopt_monitor **out_monitor);

/**
 * @brief Closes a monitor.
 * @param monitor the monitor; NULL is fine.
 * @retval MEMOPT_OK closed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_monitor_close(memopt_monitor *monitor);

/**
 * @brief The number of devices when the monitor was opened.
 * @param monitor the monitor.
 * @param[out] out_count how many; 0 is a success.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_monitor_get_device_count(memopt_monitor *monitor,
                                                         int32_t *out_count);

/**
 * @brief Reads one device.
 *
 * A value that cannot be had does not fail the call: see ::memopt_monitor_reading.
 * @param monitor the monitor.
 * @param index the device, from 0.
 * @param[in,out] out_reading struct_size set by the caller; filled as far as it reaches.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_NOT_FOUND there is no device of this index.
 * @retval MEMOPT_DEVICE_LOST the device has fallen off the bus or must be reset.
 * @retval MEMOPT_DRIVER_ERROR the library refuses the device as a whole.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY the library has none left.
 *
 * On "cpu" utilization is that of all cores since the previous reading of this monitor, or since it
 * was opened.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_monitor_get_reading(memopt_monitor *monitor, int32_t index,
                                                    memopt_monitor_reading *out_reading);

/**
 * @brief Visits the processes that use a device, the greatest user first, then by pid.
 *
 * Processes of other users are among them as far as the driver tells.
 * @param monitor the monitor.
 * @param index the device, from 0.
 * @param visitor called once a process.
 * @param user handed to visitor.
 * @retval MEMOPT_OK all were visited; there may be none.
 * @retval MEMOPT_INVALID_ARGUMENT monitor or visitor is NULL.
 * @retval MEMOPT_NOT_FOUND there is no device of this index.
 * @retval MEMOPT_UNSUPPORTED the device or the driver does not tell.
 * @retval MEMOPT_DEVICE_LOST, MEMOPT_DRIVER_ERROR as told; also where this user may not read it.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the list; nothing was visited.
 * @return what visitor returned, where that was not #MEMOPT_OK.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_monitor_processes(memopt_monitor *monitor, int32_t index,
                                                  memopt_process_visitor visitor, void *user);

MEMOPT_END_DECLS

#endif /* MEMOPT_MONITOR_H */
