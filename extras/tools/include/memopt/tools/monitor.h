/**
 * @file monitor.h
 * @brief Watches devices and the processes on them without opening a device.
 *
 * A ::memopt_monitor reads what the driver reports to every user: memory in use, load, temperature,
 * power, and the memory of each process. It creates no context, so it uses no device memory.
 *
 * | back end | what is read |
 * |---|---|
 * | "cuda" | NVML, `libnvidia-ml.so.1` |
 * | "hip" | ROCm SMI, `librocm_smi64.so`; without it the files of the amdgpu driver in `/sys` |
 * | "cpu" | `/proc`: the machine's memory, its load, and the processes' resident memory |
 *
 * ROCm SMI is not loaded if the amdgpu driver has no files in `/sys`: then there is no card.
 *
 * Devices have the numbers of the monitoring library, in order of bus addresses.
 * `CUDA_VISIBLE_DEVICES` and `HIP_VISIBLE_DEVICES` do not change them: match devices by
 * memopt_monitor_reading::pci or memopt_monitor_reading::uuid.
 *
 * **Threads.** One thread at a time per monitor, from any thread. Different monitors are
 * independent.
 */
#ifndef MEMOPT_MONITOR_H
#define MEMOPT_MONITOR_H

#include <memopt/base.h>

MEMOPT_BEGIN_DECLS

/** @brief A monitor of the devices of one back end. */
typedef struct memopt_monitor memopt_monitor;

/** @brief Values of a reading; bits of memopt_monitor_reading::fields, denied and failed. */
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

/** @brief The source of readings. Lists are separated by ", ". A text that does not fit is cut. */
typedef struct memopt_monitor_info {
    size_t struct_size; /**< Set by the caller. */
    /** #MEMOPT_OK: a monitor can be opened. Otherwise the status that opening one returns. */
    memopt_status status;
    int32_t driver_code;  /**< The library's code of the problem; 0 if it has none. */
    int32_t device_count; /**< The number of devices. */
    char source[16];      /**< "nvml", "rocm_smi", "sysfs" or "proc"; "" if nothing. */
    char library[256];    /**< The library's file, or the directory that is read; "" if none. */
    char version[96];     /**< The version of the driver or library as it writes it; "" if unknown.
                           */
    char tried[512];      /**< The names of the files and directories that were tried. */
    /** Why it does not work. With #MEMOPT_OK: why the better source was not used, or "". */
    char problem[512];
    char missing[512]; /**< Entry points that the library lacks. */
} memopt_monitor_info;

/** @brief Initialiser of ::memopt_monitor_info. */
#define MEMOPT_MONITOR_INFO_INIT                                                                   \
    {                                                                                              \
        sizeof(memopt_monitor_info), 0, 0, 0, "", "", "", "", "", ""                               \
    }

/**
 * @brief One device at one moment.
 *
 * A value is valid only if its bit is set in fields. Otherwise a number of bytes is 0, another
 * number is NaN, a text is "". A bit that is set in none of fields, denied and failed is a value
 * that the device or the driver does not report.
 */
typedef struct memopt_monitor_reading {
    size_t struct_size;        /**< Set by the caller. */
    uint32_t fields;           /**< Bits of ::memopt_monitor_field: values that were read. */
    uint32_t denied;           /**< Values that this user may not read. */
    uint32_t failed;           /**< Values that the driver failed to read; problem says why. */
    int32_t driver_code;       /**< The driver's code of the first denied or failed value, or 0. */
    char name[96];             /**< The name that the driver gives. */
    char uuid[96];             /**< The same on every boot. */
    char pci[32];              /**< Bus address, "0000:3b:00.0". */
    uint64_t memory_total;     /**< Total bytes. */
    uint64_t memory_used;      /**< Bytes in use by anyone. */
    uint64_t memory_free;      /**< Bytes that can be allocated ("cpu": without swapping). */
    uint64_t memory_reserved;  /**< Bytes that the driver reserves, not included in used or free. */
    double utilization;        /**< Percent of the last sampling period in which the device worked.
                                */
    double memory_utilization; /**< Percent of the last sampling period in which memory was
                                    accessed. */
    double temperature;        /**< Temperature of the chip in degrees Celsius. */
    double power;              /**< Power in watts. */
    double power_limit;        /**< Power in watts above which the driver slows the device down. */
    char problem[256];         /**< The first denied or failed value in the driver's words; "" if
                                    none. */
} memopt_monitor_reading;

/** @brief Initialiser of ::memopt_monitor_reading. */
#define MEMOPT_MONITOR_READING_INIT                                                                \
    {                                                                                              \
        sizeof(memopt_monitor_reading), 0, 0, 0, 0, "", "", "", 0, 0, 0, 0, 0, 0, 0, 0, 0, ""      \
    }

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
    size_t struct_size;  /**< Set by the library. */
    int32_t pid;         /**< The process number that the driver gives. In a container it may be the
                              number on the host. */
    uint32_t kind;       /**< Bits of ::memopt_process_kind. */
    uint64_t used_bytes; /**< Device memory, or resident memory on "cpu". */
    uint32_t used_known; /**< 1: used_bytes is valid; 0: the driver does not report it. */
    char name[64];       /**< The name of the command; "" if it cannot be read. */
} memopt_process_info;

/** @brief Initialiser of ::memopt_process_info. */
#define MEMOPT_PROCESS_INFO_INIT                                                                   \
    {                                                                                              \
        sizeof(memopt_process_info), 0, 0, 0, 0, ""                                                \
    }

/**
 * @brief Receives one process.
 * @param user the pointer given to memopt_monitor_processes().
 * @param process the process; valid during the call only.
 * @return #MEMOPT_OK to continue. Any other value ends the visit and is returned unchanged.
 *
 * Called on the calling thread. It must not use the same monitor.
 */
typedef memopt_status (*memopt_process_visitor)(void *user, const memopt_process_info *process);

/**
 * @brief Describes the source of readings: the library, missing entry points, why it does not work.
 *
 * A missing source is not a failure of this call: see memopt_monitor_info::status.
 * @param backend "cpu", "cuda" or "hip".
 * @param[in,out] out_info the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_NOT_FOUND there is no such back end; the message lists the existing ones.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed.
 *
 * Thread-safe.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_monitor_get_info(const char *backend,
                                                 memopt_monitor_info *out_info);

/**
 * @brief Opens a monitor. It opens no device and creates no context.
 * @param backend "cpu", "cuda" or "hip".
 * @param[out] out_monitor the monitor; close it with memopt_monitor_close().
 * @retval MEMOPT_OK done, also if there is no device.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_NOT_FOUND there is no such back end.
 * @retval MEMOPT_UNSUPPORTED this build of the library does not contain the back end.
 * @retval MEMOPT_DRIVER_MISSING there is no library to read from, it lacks a required entry point,
 *         or there is no driver behind it; memopt_last_error() says what was tried.
 * @retval MEMOPT_DRIVER_ERROR the library does not start.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the handle.
 *
 * Thread-safe. The library stays loaded when the monitor is closed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_monitor_open(const char *backend, memopt_monitor **out_monitor);

/**
 * @brief Closes a monitor.
 * @param monitor the monitor; NULL does nothing.
 * @retval MEMOPT_OK closed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_monitor_close(memopt_monitor *monitor);

/**
 * @brief Returns the number of devices at the time when the monitor was opened.
 * @param monitor the monitor.
 * @param[out] out_count the number of devices; 0 is a success.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_monitor_get_device_count(memopt_monitor *monitor,
                                                         int32_t *out_count);

/**
 * @brief Reads one device.
 *
 * A value that cannot be read does not make the call fail: see ::memopt_monitor_reading.
 * @param monitor the monitor.
 * @param index the device, from 0.
 * @param[in,out] out_reading the caller sets struct_size; the call fills at most that many bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or struct_size is too small.
 * @retval MEMOPT_NOT_FOUND there is no device with this index.
 * @retval MEMOPT_DEVICE_LOST the device has fallen off the bus or must be reset.
 * @retval MEMOPT_DRIVER_ERROR the library cannot read this device at all.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed.
 *
 * On "cpu", utilization is the average of all cores since the previous reading of this monitor, or
 * since it was opened.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_monitor_get_reading(memopt_monitor *monitor, int32_t index,
                                                    memopt_monitor_reading *out_reading);

/**
 * @brief Visits the processes that use a device, in order of decreasing memory, then by pid.
 *
 * Processes of other users are included as far as the driver reports them.
 * @param monitor the monitor.
 * @param index the device, from 0.
 * @param visitor called once per process.
 * @param user passed to visitor.
 * @retval MEMOPT_OK all processes were visited; there may be none.
 * @retval MEMOPT_INVALID_ARGUMENT monitor or visitor is NULL.
 * @retval MEMOPT_NOT_FOUND there is no device with this index.
 * @retval MEMOPT_UNSUPPORTED the device or the driver does not report processes.
 * @retval MEMOPT_DEVICE_LOST, MEMOPT_DRIVER_ERROR the device is lost or the driver failed; see
 *         memopt_last_error(). Also if this user may not read the list.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the list; nothing was visited.
 * @return otherwise the value that visitor returned.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_monitor_processes(memopt_monitor *monitor, int32_t index,
                                                  memopt_process_visitor visitor, void *user);

MEMOPT_END_DECLS

#endif /* MEMOPT_MONITOR_H */
