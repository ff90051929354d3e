/*
 * Run-time compilation through NVRTC or hipRTC, whose entry points take the same arguments. The
 * compiler library is opened when it is first needed and stays; compiler_lock is held only while it
 * is opened.
 */
#include "device/gpu.h"

#include "base/log.h"
#include "base/memory.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

typedef struct program_opaque *program;

/* X(field, parameters, NVRTC's name behind the prefix, hipRTC's) */
#define COMPILER_CALLS(X)                                                                          \
    X(create,                                                                                      \
      (program * out, const char *source, const char *name, int headers, const char *const *texts, \
       const char *const *names),                                                                  \
      "CreateProgram", "CreateProgram")                                                            \
    X(destroy, (program * program_), "DestroyProgram", "DestroyProgram")                           \
    X(compile, (program program_, int count, const char *const *options), "CompileProgram",        \
      "CompileProgram")                                                                            \
    X(log_size, (program program_, size_t * out), "GetProgramLogSize", "GetProgramLogSize")        \
    X(log, (program program_, char *out), "GetProgramLog", "GetProgramLog")                        \
    X(code_size, (program program_, size_t * out), "GetCUBINSize", "GetCodeSize")                  \
    X(code, (program program_, char *out), "GetCUBIN", "GetCode")

typedef struct compiler {
    void *library;
#define COMPILER_FIELD(field, parameters, cuda, hip) int(*field) parameters;
    COMPILER_CALLS(COMPILER_FIELD)
#undef COMPILER_FIELD
    char file[MO_GPU_FILE_BYTES];
} compiler;

static const struct {
    const char *cuda, *hip;
    size_t offset;
} compiler_entries[] = {
#define COMPILER_ENTRY(field, parameters, cuda, hip) {cuda, hip, offsetof(compiler, field)},
    COMPILER_CALLS(COMPILER_ENTRY)
#undef COMPILER_ENTRY
};

static pthread_mutex_t compiler_lock = PTHREAD_MUTEX_INITIALIZER;
static compiler cuda_compiler, hip_compiler;

static int is_cuda(const mo_gpu_driver *driver)
{
    return driver == &mo_cuda_driver;
}

/* Pre: compiler_lock held. 1 if all entry points are there. */
static int find_entries(compiler *c, const mo_gpu_driver *driver, char *out_problem)
{
    for (size_t i = 0; i < sizeof compiler_entries / sizeof compiler_entries[0]; i++) {
        char symbol[64];
        snprintf(symbol, sizeof symbol, "%s%s", driver->vendor->compiler_prefix,
                 is_cuda(driver) ? compiler_entries[i].cuda : compiler_entries[i].hip);
        void *address = dlsym(c->library, symbol);
        if (address == NULL) {
            snprintf(out_problem, MO_GPU_PROBLEM_BYTES, "%s has no %s", c->file, symbol);
            return 0;
        }
        memcpy((char *)c + compiler_entries[i].offset, &address, sizeof address);
    }
    return 1;
}

/* The compiler, or NULL and why (MO_GPU_PROBLEM_BYTES). */
static const compiler *find_compiler(const mo_gpu_driver *driver, char *out_problem)
{
    compiler *c = is_cuda(driver) ? &cuda_compiler : &hip_compiler;
    char tried[MO_GPU_PROBLEM_BYTES];
    out_problem[0] = '\0';
    pthread_mutex_lock(&compiler_lock);
    if (c->library == NULL) {
        c->library = mo_gpu_open_library(driver->vendor->compilers, c->file, tried, out_problem);
        if (c->library != NULL && !find_entries(c, driver, out_problem)) {
            dlclose(c->library);
            c->library = NULL;
        }
    }
    int found = c->library != NULL;
    pthread_mutex_unlock(&compiler_lock);
    return found ? c : NULL;
}

void mo_gpu_compiler_report(const mo_gpu_driver *driver, char *file, char *problem)
{
    const compiler *c = find_compiler(driver, problem);
    snprintf(file, MO_GPU_FILE_BYTES, "%s", c != NULL ? c->file : "");
}

/* What the compiler said, as far as a message has room. */
static memopt_status refused(const mo_gpu_device *gpu, const compiler *c, program p, int code)
{
    size_t bytes = 0;
    char *text = NULL;
    if (c->log_size(p, &bytes) == 0 && bytes > 1 && bytes < (size_t)1 << 24)
        text = mo_calloc(bytes + 1, 1);
    if (text != NULL && c->log(p, text) != 0)
        text[0] = '\0';
    memopt_status status =
        mo_fail_driver(MEMOPT_UNSUPPORTED, code, gpu->driver->vendor->compiler_prefix,
                       "%s:%d: no kernels for %s are built in, and %s does not compile them "
                       "(error %d): %s",
                       gpu->driver->vendor->name, gpu->index, gpu->target, c->file, code,
                       text != NULL ? text : "it says no more");
    mo_free(text);
    return status;
}

static memopt_status take_code(const compiler *c, program p, void **out_binary, uint64_t *out_bytes,
                               int *out_code)
{
    size_t bytes = 0;
    *out_code = c->code_size(p, &bytes);
    if (*out_code != 0)
        return MEMOPT_OK;
    void *binary = mo_malloc(bytes);
    if (binary == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    *out_code = c->code(p, binary);
    if (*out_code != 0) {
        mo_free(binary);
        return MEMOPT_OK;
    }
    *out_binary = binary;
    *out_bytes = bytes;
    return MEMOPT_OK;
}

memopt_status mo_gpu_compile(const mo_gpu_device *gpu, void **out_binary, uint64_t *out_bytes)
{
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    char problem[MO_GPU_PROBLEM_BYTES], target[2 * MO_GPU_TARGET_BYTES];
    const compiler *c = find_compiler(gpu->driver, problem);
    if (c == NULL)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "%s:%d: no kernels for %s (%s) are built in, and there is no run-time "
                       "compiler: %s",
                       vendor->name, gpu->index, gpu->target, gpu->name, problem);
    vendor->target_option(gpu, target, sizeof target);
    /* The same bits as everywhere: no contraction, IEEE division and square root, denormals. */
    const char *const cuda_options[] = {target, "--std=c++17", "--fmad=false"};
    const char *const hip_options[] = {target, "-std=c++17", "-O3", "-ffp-contract=off"};
    mo_log(MEMOPT_LOG_INFO, "%s:%d: compiling the kernels for %s with %s", vendor->name, gpu->index,
           gpu->isa, c->file);
    program p = NULL;
    memopt_status status = MEMOPT_OK;
    int code = c->create(&p, vendor->images->source, "memopt.cu", 0, NULL, NULL);
    if (code == 0) {
        code =
            is_cuda(gpu->driver) ? c->compile(p, 3, cuda_options) : c->compile(p, 4, hip_options);
        if (code == 0)
            status = take_code(c, p, out_binary, out_bytes, &code);
        if (status == MEMOPT_OK && code != 0)
            status = refused(gpu, c, p, code);
        (void)c->destroy(&p);
    } else
        status = mo_fail_driver(MEMOPT_UNSUPPORTED, code, vendor->compiler_prefix,
                                "%s:%d: %s takes no program (error %d)", vendor->name, gpu->index,
                                c->file, code);
    return status;
}
