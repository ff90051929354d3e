/* A run-time compiler: the entry points of NVRTC or hipRTC, which take the same arguments. */
#ifndef MO_DEVICE_GPU_COMPILER_H
#define MO_DEVICE_GPU_COMPILER_H

#include "device/gpu/gpu.h"

typedef struct mo_gpu_program_opaque *mo_gpu_program;

enum { MO_GPU_MOST_TARGETS = 64 };

/* X(field, result, parameters, NVRTC's name behind the prefix, hipRTC's, required) */
#define MO_GPU_COMPILER_CALLS(X)                                                                   \
    X(create, int,                                                                                 \
      (mo_gpu_program * out, const char *source, const char *name, int headers,                    \
       const char *const *texts, const char *const *names),                                        \
      "CreateProgram", "CreateProgram", 1)                                                         \
    X(destroy, int, (mo_gpu_program * program_), "DestroyProgram", "DestroyProgram", 1)            \
    X(compile, int, (mo_gpu_program program_, int count, const char *const *options),              \
      "CompileProgram", "CompileProgram", 1)                                                       \
    X(log_size, int, (mo_gpu_program program_, size_t * out), "GetProgramLogSize",                 \
      "GetProgramLogSize", 1)                                                                      \
    X(log, int, (mo_gpu_program program_, char *out), "GetProgramLog", "GetProgramLog", 1)         \
    X(code_size, int, (mo_gpu_program program_, size_t * out), "GetCUBINSize", "GetCodeSize", 1)   \
    X(code, int, (mo_gpu_program program_, char *out), "GetCUBIN", "GetCode", 1)                   \
    X(text_size, int, (mo_gpu_program program_, size_t * out), "GetPTXSize", "GetCodeSize", 1)     \
    X(text, int, (mo_gpu_program program_, char *out), "GetPTX", "GetCode", 1)                     \
    X(version, int, (int *out_major, int *out_minor), "Version", "Version", 1)                     \
    X(error_string, const char *, (int code), "GetErrorString", "GetErrorString", 1)               \
    X(target_count, int, (int *out), "GetNumSupportedArchs", "", 0)                                \
    X(targets, int, (int *out), "GetSupportedArchs", "", 0)

struct mo_gpu_compiler {
    void *library; /* NULL: not opened yet, or not usable */
#define MO_GPU_COMPILER_FIELD(field, result, parameters, cuda, hip, required)                      \
    result(*field) parameters;
    MO_GPU_COMPILER_CALLS(MO_GPU_COMPILER_FIELD)
#undef MO_GPU_COMPILER_FIELD
    int major, minor;
    int known_count; /* compute capabilities as 90; 0: it does not tell */
    int known[MO_GPU_MOST_TARGETS];
    uint64_t file_bytes, file_time; /* two builds of one version differ in these */
    char file[MO_LIBRARY_FILE];
};

#endif
