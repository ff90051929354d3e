/*
 * Every outcome that a driver tells apart: one line each, with both vendors' numbers and names.
 * HIP has no number for some; what it says instead stands in their place.
 */
#ifndef MEMOPT_SIM_STATUS_H
#define MEMOPT_SIM_STATUS_H

#include <stdint.h>

/* X(name, CUDA number, CUDA name after CUDA_, HIP number, HIP name after hip, text) */
#define SIM_STATUSES(X)                                                                            \
    X(OK, 0, SUCCESS, 0, Success, "no error")                                                      \
    X(INVALID_VALUE, 1, ERROR_INVALID_VALUE, 1, ErrorInvalidValue, "invalid argument")             \
    X(OUT_OF_MEMORY, 2, ERROR_OUT_OF_MEMORY, 2, ErrorOutOfMemory, "out of memory")                 \
    X(NOT_INITIALIZED, 3, ERROR_NOT_INITIALIZED, 3, ErrorNotInitialized, "initialization error")   \
    X(UNAVAILABLE, 46, ERROR_DEVICE_UNAVAILABLE, 999, ErrorUnknown,                                \
      "device is busy or unavailable")                                                             \
    X(NO_DEVICE, 100, ERROR_NO_DEVICE, 100, ErrorNoDevice, "no device is detected")                \
    X(INVALID_DEVICE, 101, ERROR_INVALID_DEVICE, 101, ErrorInvalidDevice,                          \
      "invalid device ordinal")                                                                    \
    X(INVALID_IMAGE, 200, ERROR_INVALID_IMAGE, 200, ErrorInvalidImage,                             \
      "device kernel image is invalid")                                                            \
    X(INVALID_CONTEXT, 201, ERROR_INVALID_CONTEXT, 201, ErrorInvalidContext,                       \
      "invalid device context")                                                                    \
    X(NO_BINARY, 209, ERROR_NO_BINARY_FOR_GPU, 209, ErrorNoBinaryForGpu,                           \
      "no kernel image is available for the device")                                               \
    X(ECC, 214, ERROR_ECC_UNCORRECTABLE, 214, ErrorECCNotCorrectable,                              \
      "uncorrectable ECC error encountered")                                                       \
    X(INVALID_PTX, 218, ERROR_INVALID_PTX, 218, ErrorInvalidKernelFile,                            \
      "a PTX JIT compilation failed")                                                              \
    X(UNSUPPORTED_PTX, 222, ERROR_UNSUPPORTED_PTX_VERSION, 200, ErrorInvalidImage,                 \
      "PTX was made by a newer toolchain")                                                         \
    X(INVALID_HANDLE, 400, ERROR_INVALID_HANDLE, 400, ErrorInvalidHandle,                          \
      "invalid resource handle")                                                                   \
    X(ILLEGAL_STATE, 401, ERROR_ILLEGAL_STATE, 401, ErrorIllegalState,                             \
      "the operation cannot be performed in the present state")                                    \
    X(NOT_FOUND, 500, ERROR_NOT_FOUND, 500, ErrorNotFound, "named symbol not found")               \
    X(NOT_READY, 600, ERROR_NOT_READY, 600, ErrorNotReady, "device not ready")                     \
    X(ILLEGAL_ADDRESS, 700, ERROR_ILLEGAL_ADDRESS, 700, ErrorIllegalAddress,                       \
      "an illegal memory access was encountered")                                                  \
    X(OUT_OF_RESOURCES, 701, ERROR_LAUNCH_OUT_OF_RESOURCES, 701, ErrorLaunchOutOfResources,        \
      "too many resources requested for launch")                                                   \
    X(CONTEXT_DESTROYED, 709, ERROR_CONTEXT_IS_DESTROYED, 709, ErrorContextIsDestroyed,            \
      "context is destroyed")                                                                      \
    X(HOST_REGISTERED, 712, ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712,                             \
      ErrorHostMemoryAlreadyRegistered, "host memory is already registered")                       \
    X(HOST_NOT_REGISTERED, 713, ERROR_HOST_MEMORY_NOT_REGISTERED, 713,                             \
      ErrorHostMemoryNotRegistered, "host memory is not registered")                               \
    X(LAUNCH_FAILED, 719, ERROR_LAUNCH_FAILED, 719, ErrorLaunchFailure,                            \
      "unspecified launch failure")                                                                \
    X(NOT_PERMITTED, 800, ERROR_NOT_PERMITTED, 999, ErrorUnknown, "operation not permitted")       \
    X(NOT_SUPPORTED, 801, ERROR_NOT_SUPPORTED, 801, ErrorNotSupported, "operation not supported")  \
    X(CAPTURE_UNSUPPORTED, 900, ERROR_STREAM_CAPTURE_UNSUPPORTED, 900,                             \
      ErrorStreamCaptureUnsupported, "operation not permitted when a stream is capturing")         \
    X(CAPTURE_INVALIDATED, 901, ERROR_STREAM_CAPTURE_INVALIDATED, 901,                             \
      ErrorStreamCaptureInvalidated, "the capture was invalidated by an earlier error")            \
    X(CAPTURE_MERGE, 902, ERROR_STREAM_CAPTURE_MERGE, 902, ErrorStreamCaptureMerge,                \
      "the operation would merge two captures")                                                    \
    X(CAPTURE_UNMATCHED, 903, ERROR_STREAM_CAPTURE_UNMATCHED, 903, ErrorStreamCaptureUnmatched,    \
      "the capture began on another stream")                                                       \
    X(CAPTURE_UNJOINED, 904, ERROR_STREAM_CAPTURE_UNJOINED, 904, ErrorStreamCaptureUnjoined,       \
      "capturing streams have not been joined")                                                    \
    X(CAPTURE_ISOLATION, 905, ERROR_STREAM_CAPTURE_ISOLATION, 905, ErrorStreamCaptureIsolation,    \
      "a dependency would cross the capture's boundary")                                           \
    X(CAPTURE_IMPLICIT, 906, ERROR_STREAM_CAPTURE_IMPLICIT, 906, ErrorStreamCaptureImplicit,       \
      "the legacy stream would depend on a capture")                                               \
    X(CAPTURED_EVENT, 907, ERROR_CAPTURED_EVENT, 907, ErrorCapturedEvent,                          \
      "the event was last recorded in a capture")                                                  \
    X(CAPTURE_THREAD, 908, ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, ErrorStreamCaptureWrongThread,  \
      "the capture began in another thread")                                                       \
    X(UNKNOWN, 999, ERROR_UNKNOWN, 999, ErrorUnknown, "unknown error")

typedef enum sim_status {
#define SIM_STATUS(name, cuda, cuda_name, hip, hip_name, text) SIM_##name,
    SIM_STATUSES(SIM_STATUS)
#undef SIM_STATUS
        SIM_STATUS_COUNT
} sim_status;

/* The number that this library's vendor has for an outcome. */
int32_t sim_status_code(sim_status status);
/* Name and text of a vendor's number; 0: it has none. */
int sim_status_texts(int32_t code, const char **out_name, const char **out_text);

#endif
