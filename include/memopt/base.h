/**
 * @file base.h
 * @brief Version, export macros, status codes, last error, log, element types and tensors.
 *
 * Every other header of the library includes this one. Nothing here touches a device.
 */
#ifndef MEMOPT_BASE_H
#define MEMOPT_BASE_H

#include <stddef.h>
#include <stdint.h>

/** Major version: grows when an existing program would break. */
#define MEMOPT_VERSION_MAJOR 0
/** Minor version: grows when something is added. */
#define MEMOPT_VERSION_MINOR 9
/** Patch version: grows when only corrections are made. */
#define MEMOPT_VERSION_PATCH 0
/** The version as one number that can be compared: major * 10000 + minor * 100 + patch. */
#define MEMOPT_VERSION                                                                             \
    (MEMOPT_VERSION_MAJOR * 10000 + MEMOPT_VERSION_MINOR * 100 + MEMOPT_VERSION_PATCH)

/** @cond INTERNAL */
#if defined(MEMOPT_API) /* the user says how the interface is seen */
#elif defined(MEMOPT_STATIC_DEFINE)
#define MEMOPT_API
#elif defined(__GNUC__)
#define MEMOPT_API __attribute__((visibility("default")))
#else
#define MEMOPT_API
#endif

#ifdef __cplusplus
#define MEMOPT_BEGIN_DECLS extern "C" {
#define MEMOPT_END_DECLS }
#else
#define MEMOPT_BEGIN_DECLS
#define MEMOPT_END_DECLS
#endif
/** @endcond */

MEMOPT_BEGIN_DECLS

/**
 * @brief The result of a call: #MEMOPT_OK, one of the other codes below, or a callback's own value.
 *
 * Values are fixed and never reused. A caller's callback may return any value of at least
 * #MEMOPT_STATUS_USER; the outer call returns that value unchanged.
 */
typedef int32_t memopt_status;

/** One line per status: X(NAME, value, message). */
#define MEMOPT_STATUS_LIST(X)                                                                      \
    X(OK, 0, "success")                                                                            \
    X(INVALID_ARGUMENT, 1, "an argument is invalid")                                               \
    X(UNSUPPORTED, 2, "not supported by this build, back end or device")                           \
    X(OUT_OF_HOST_MEMORY, 3, "out of host memory")                                                 \
    X(OUT_OF_DEVICE_MEMORY, 4, "out of device memory")                                             \
    X(LIMIT_REACHED, 5, "a limit set by the caller is reached")                                    \
    X(DRIVER_MISSING, 6, "the driver of this back end is missing or too old")                      \
    X(DRIVER_ERROR, 7, "the driver returned an error")                                             \
    X(DEVICE_LOST, 8, "the device is lost; its handles can only be destroyed")                     \
    X(DEVICE_FAULT, 9, "device memory was misused (a missing dependency or use after free)")       \
    X(BUSY, 10, "still in use")                                                                    \
    X(NOT_READY, 11, "not finished yet")                                                           \
    X(NOT_FOUND, 12, "not found")                                                                  \
    X(CORRUPT, 13, "the data are damaged or not of this format")                                   \
    X(IO_ERROR, 14, "a file could not be read or written")                                         \
    X(MISMATCH, 15, "recomputed values differ from the first run")                                 \
    X(INTERNAL, 16, "an internal invariant is broken; please report it")

/** @brief The library's status codes. */
enum {
/** @cond INTERNAL */
#define MEMOPT_STATUS_ENUMERATOR(name, value, message) MEMOPT_##name = (value),
    MEMOPT_STATUS_LIST(MEMOPT_STATUS_ENUMERATOR)
#undef MEMOPT_STATUS_ENUMERATOR
    /** @endcond */
    MEMOPT_STATUS_USER = 0x10000 /**< The first value that a caller's callbacks may use. */
};

/**
 * @brief The version of the library that is loaded.
 * @return #MEMOPT_VERSION of the loaded library. It can differ from the header that the caller was
 *        compiled with.
 * @since 0.9
 */
MEMOPT_API uint32_t memopt_version(void);

/**
 * @brief The version of the loaded library as text.
 * @return a static string such as "0.9.0"; never NULL.
 * @since 0.9
 */
MEMOPT_API const char *memopt_version_string(void);

/**
 * @brief The name of a status.
 * @param status any value.
 * @return a static string, never NULL: a name such as "OUT_OF_DEVICE_MEMORY", "USER" for values
 *        from #MEMOPT_STATUS_USER on, "UNKNOWN" for any other value. Thread-safe.
 * @since 0.9
 */
MEMOPT_API const char *memopt_status_name(memopt_status status);

/**
 * @brief What a status means, in one short sentence.
 * @param status any value.
 * @return a static string; never NULL. Thread-safe.
 * @since 0.9
 */
MEMOPT_API const char *memopt_status_message(memopt_status status);

/**
 * @brief The details of this thread's last failed call, with sizes and names.
 *
 * The layer that first detects the error writes the text. A later success does not clear it. Where a
 * callback of the caller's returned the status, and no call of the library has just failed with it,
 * the text names the callback and the status.
 * @return a string that belongs to the calling thread and stays valid until that thread's next
 *        failing call; "" if no call has failed yet. Never NULL.
 * @since 0.9
 */
MEMOPT_API const char *memopt_last_error(void);

/** @brief This thread's last error in parts. */
typedef struct memopt_error_info {
    size_t struct_size;         /**< Set by the caller: sizeof(memopt_error_info). */
    memopt_status status;       /**< The status of the failed call. */
    int32_t driver_code;        /**< The code of the driver, or errno of the system; 0 if none. */
    const char *message;        /**< The same text as memopt_last_error(). */
    const char *driver_message; /**< The name of driver_code; "" if none. */
} memopt_error_info;

/** @brief Initialiser of ::memopt_error_info. */
#define MEMOPT_ERROR_INFO_INIT                                                                     \
    {                                                                                              \
        sizeof(memopt_error_info), 0, 0, NULL, NULL                                                \
    }

/**
 * @brief This thread's last error in parts.
 * @param[in,out] out_info struct_size set by the caller; the rest is filled as far as it reaches.
 * @retval MEMOPT_OK done; status is #MEMOPT_OK if no call of this thread has failed yet.
 * @retval MEMOPT_INVALID_ARGUMENT out_info is NULL or its struct_size is below sizeof(size_t).
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_last_error_info(memopt_error_info *out_info);

/** @brief How important a log line is. */
typedef int32_t memopt_log_level;

/** @brief The values of ::memopt_log_level. */
enum {
    MEMOPT_LOG_OFF = 0,     /**< Nothing. */
    MEMOPT_LOG_ERROR = 1,   /**< Failed calls. */
    MEMOPT_LOG_WARNING = 2, /**< Something the user should look at. */
    MEMOPT_LOG_INFO = 3,    /**< Devices that are opened, configurations that are used. */
    MEMOPT_LOG_DEBUG = 4    /**< Segments, growth, releases. */
};

/**
 * @brief Receives a log line.
 * @param user the pointer given to memopt_set_log().
 * @param level how important the line is.
 * @param message the line without a newline; valid during the call only.
 *
 * The library may call this function from any thread that calls the library and from the library's
 * worker threads. The library holds no lock meanwhile. The callback may call the library, with two
 * exceptions: memopt_set_log() returns #MEMOPT_BUSY, and a handle that only one thread may use at a
 * time must not be used if the call that logs uses it. Log lines caused by the callback's own calls
 * are dropped. After the callback, the last error is the same as before it.
 */
typedef void (*memopt_log_callback)(void *user, memopt_log_level level, const char *message);

/**
 * @brief Sets the receiver of log lines. There is one per process.
 *
 * By default, lines are dropped. If the environment variable MEMOPT_LOG is `error`, `warning`,
 * `info` or `debug`, lines up to that level go to standard error.
 * @param callback the receiver; NULL restores the default.
 * @param user passed to the callback.
 * @param level lines above this level are dropped before they are formatted.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT level is not a ::memopt_log_level.
 * @retval MEMOPT_BUSY the callback itself made this call.
 *
 * Thread-safe. When this call returns, the previous callback no longer runs on any other thread and
 * will not be called again.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_set_log(memopt_log_callback callback, void *user,
                                        memopt_log_level level);

/** @brief An element type. Values are fixed; the type is an int32_t everywhere in the ABI. */
typedef int32_t memopt_dtype;

/** @brief The element types. */
enum {
    MEMOPT_DTYPE_INVALID = 0,      /**< Not a type. */
    MEMOPT_DTYPE_F32 = 1,          /**< IEEE binary32. */
    MEMOPT_DTYPE_F16 = 2,          /**< IEEE binary16. */
    MEMOPT_DTYPE_BF16 = 3,         /**< bfloat16: the upper half of binary32. */
    MEMOPT_DTYPE_F8_E4M3 = 4,      /**< OCP 8-bit float, 4 exponent bits, no infinity. */
    MEMOPT_DTYPE_F8_E5M2 = 5,      /**< OCP 8-bit float, 5 exponent bits. */
    MEMOPT_DTYPE_U8 = 6,           /**< Unsigned byte, also the codes of block-wise states. */
    MEMOPT_DTYPE_I32 = 7,          /**< Signed 32-bit integer. */
    MEMOPT_DTYPE_I64 = 8,          /**< Signed 64-bit integer. */
    MEMOPT_DTYPE_F64 = 9,          /**< IEEE binary64. */
    MEMOPT_DTYPE_F8_E4M3FNUZ = 10, /**< AMD MI300's: no infinity, no -0, one NaN (0x80). */
    MEMOPT_DTYPE_F8_E5M2FNUZ = 11, /**< The same with 5 exponent bits. */
    MEMOPT_DTYPE_I16 = 12          /**< Signed 16-bit integer. @since 0.9 */
};

/**
 * @brief Bytes of one element.
 * @param dtype any value.
 * @return the size; 0 if dtype is not an element type. Thread-safe.
 * @since 0.9
 */
MEMOPT_API size_t memopt_dtype_size(memopt_dtype dtype);

/**
 * @brief The name of an element type.
 * @param dtype any value.
 * @return a static string such as "bf16"; "invalid" if dtype is not an element type.
 * @since 0.9
 */
MEMOPT_API const char *memopt_dtype_name(memopt_dtype dtype);

/**
 * @brief Finds an element type by name. "f32", "fp32" and "float32" mean the same, and so on.
 * @param name the name; case does not matter.
 * @param[out] out_dtype the type.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_NOT_FOUND no type has this name.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_dtype_parse(const char *name, memopt_dtype *out_dtype);

/**
 * @brief A contiguous run of elements, owned by the caller.
 *
 * No primitive needs the shape; count is the product of the shape. data must be aligned to the
 * element's size; 64-byte alignment is fastest.
 */
typedef struct memopt_tensor {
    void *data;         /**< First element; may be NULL only if count is 0 or the call allows it. */
    uint64_t count;     /**< Elements, not bytes. */
    memopt_dtype dtype; /**< Element type. */
} memopt_tensor;

/**
 * @brief Parses a size: "1536", "512MiB", "1.5GiB", "2 GB" (2e9), "4g" (4 GiB).
 *
 * Suffixes K, M, G, T and KiB…TiB are powers of 1024; KB…TB are powers of 1000. A fraction is
 * rounded to the nearest byte.
 * @param text the size; blanks around the number and the suffix are allowed.
 * @param[out] out_bytes the size in bytes.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or text is not a size, is negative, or does
 *         not fit 64 bits.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_parse_size(const char *text, uint64_t *out_bytes);

MEMOPT_END_DECLS

#endif /* MEMOPT_BASE_H */
