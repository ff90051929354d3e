/*
 * Run-time compilation through NVRTC or hipRTC, whose entry points take the same arguments.
 *
 * Every library of the vendor's list that opens is looked at, since one machine may have several:
 * the first that knows the device and is not newer than the driver is used, else the first that
 * knows the device. A library that was opened stays. compiler_lock guards the slots while they are
 * filled in; a slot with a library is constant.
 */
#include "device/gpu/gpu.h"

#include "base/lock.h"
#include "base/log.h"
#include "base/memory.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

typedef struct program_opaque *program;

enum { MOST_COMPILERS = 8, MOST_TARGETS = 64, MOST_OPTIONS = 8, OUT_OF_MEMORY = 1 };

/* X(field, result, parameters, NVRTC's name behind the prefix, hipRTC's, required) */
#define COMPILER_CALLS(X)                                                                          \
    X(create, int,                                                                                 \
      (program * out, const char *source, const char *name, int headers, const char *const *texts, \
       const char *const *names),                                                                  \
      "CreateProgram", "CreateProgram", 1)                                                         \
    X(destroy, int, (program * program_), "DestroyProgram", "DestroyProgram", 1)                   \
    X(compile, int, (program program_, int count, const char *const *options), "CompileProgram",   \
      "CompileProgram", 1)                                                                         \
    X(log_size, int, (program program_, size_t * out), "GetProgramLogSize", "GetProgramLogSize",   \
      1)                                                                                           \
    X(log, int, (program program_, char *out), "GetProgramLog", "GetProgramLog", 1)                \
    X(code_size, int, (program program_, size_t * out), "GetCUBINSize", "GetCodeSize", 1)          \
    X(code, int, (program program_, char *out), "GetCUBIN", "GetCode", 1)                          \
    X(text_size, int, (program program_, size_t * out), "GetPTXSize", "GetCodeSize", 1)            \
    X(text, int, (program program_, char *out), "GetPTX", "GetCode", 1)                            \
    X(version, int, (int *out_major, int *out_minor), "Version", "Version", 1)                     \
    X(error_string, const char *, (int code), "GetErrorString", "GetErrorString", 1)               \
    X(target_count, int, (int *out), "GetNumSupportedArchs", "", 0)                                \
    X(targets, int, (int *out), "GetSupportedArchs", "", 0)

struct mo_gpu_compiler {
    void *library; /* NULL: not opened yet, or not usable */
#define COMPILER_FIELD(field, result, parameters, cuda, hip, required) result(*field) parameters;
    COMPILER_CALLS(COMPILER_FIELD)
#undef COMPILER_FIELD
    int major, minor;
    int known_count; /* compute capabilities as 90; 0: it does not tell */
    int known[MOST_TARGETS];
    uint64_t file_bytes, file_time; /* two builds of one version differ in these */
    char file[MO_LIBRARY_FILE];
};

static const struct {
    const char *cuda, *hip;
    size_t offset;
    int required;
} compiler_entries[] = {
#define COMPILER_ENTRY(field, result, parameters, cuda, hip, required)                             \
    {cuda, hip, offsetof(mo_gpu_compiler, field), required},
    COMPILER_CALLS(COMPILER_ENTRY)
#undef COMPILER_ENTRY
};

/* The same bits as everywhere: no contraction, IEEE division and square root, denormals. */
static const char *const cuda_options[] = {"--std=c++17",
                                           "--fmad=false",
                                           "--prec-div=true",
                                           "--prec-sqrt=true",
                                           "--ftz=false",
                                           "--disable-warnings",
                                           NULL};
static const char *const hip_options[] = {"-std=c++17", "-O3", "-ffp-contract=off", "-w", NULL};

static pthread_mutex_t compiler_lock = PTHREAD_MUTEX_INITIALIZER;
static mo_gpu_compiler cuda_compilers[MOST_COMPILERS], hip_compilers[MOST_COMPILERS];

static int is_cuda(const mo_gpu_driver *driver)
{
    return strcmp(driver->vendor->compiler_prefix, "nvrtc") == 0;
}

/* Appends to problem[MO_LIBRARY_TEXT] as far as it fits. */
static void tell(char *problem, const char *format, ...) MO_PRINTF(2, 3);

static void tell(char *problem, const char *format, ...)
{
    size_t length = strlen(problem);
    va_list arguments;
    if (length != 0 && length < MO_LIBRARY_TEXT - 2) {
        memcpy(problem + length, "; ", 3);
        length += 2;
    }
    va_start(arguments, format);
    vsnprintf(problem + length, MO_LIBRARY_TEXT - length, format, arguments);
    va_end(arguments);
}

/* --- finding a compiler -------------------------------------------------------------------- */

/* 1 if all entry points that are needed are there. */
static int find_entries(mo_gpu_compiler *c, const mo_gpu_driver *driver, char *problem)
{
    for (size_t i = 0; i < sizeof compiler_entries / sizeof compiler_entries[0]; i++) {
        char symbol[64];
        const char *name = is_cuda(driver) ? compiler_entries[i].cuda : compiler_entries[i].hip;
        snprintf(symbol, sizeof symbol, "%s%s", driver->vendor->compiler_prefix, name);
        void *address = name[0] != '\0' ? dlsym(c->library, symbol) : NULL;
        if (address == NULL && compiler_entries[i].required) {
            tell(problem, "%s has no %s, a newer one is needed", c->file, symbol);
            return 0;
        }
        memcpy((char *)c + compiler_entries[i].offset, &address, sizeof address);
    }
    return 1;
}

static void ask_compiler(mo_gpu_compiler *c)
{
    struct stat info;
    int count = 0;
    if (c->version(&c->major, &c->minor) != 0)
        c->major = c->minor = 0;
    if (c->target_count != NULL && c->targets != NULL && c->target_count(&count) == 0 &&
        count > 0 && count <= MOST_TARGETS && c->targets(c->known) == 0)
        c->known_count = count;
    if (stat(c->file, &info) == 0) {
        c->file_bytes = (uint64_t)info.st_size;
        c->file_time = (uint64_t)info.st_mtime;
    }
}

/* Candidate 0 is a compiler that the program has loaded, of any version; the others are the names
 * of the list. "" in it is the driver's own library, which must not be opened a second time from
 * elsewhere. NULL where there is none. */
static void *open_candidate(const mo_gpu_driver *driver, size_t i, char *out_file, char *problem)
{
    char tried[MO_LIBRARY_TEXT], why[MO_LIBRARY_TEXT] = "";
    const char *const *names = driver->vendor->compilers;
    const char *const one[] = {names[i == 0 ? 0 : i - 1], NULL};
    void *library = NULL;
    if (i == 0)
        return mo_library_loaded(one, out_file);
    if (one[0][0] != '\0')
        library = mo_library_open(one, out_file, tried, why);
    else
        library = mo_library_share(driver->vendor->libraries, out_file, tried, why);
    if (library == NULL)
        tell(problem, "%s", why);
    return library;
}

/* Pre: compiler_lock held. Slot i, opened; NULL and why where it cannot be. */
static const mo_gpu_compiler *open_compiler(const mo_gpu_driver *driver, size_t i, char *problem)
{
    MO_PRE(mo_is_locked(&compiler_lock));
    mo_gpu_compiler *slots = is_cuda(driver) ? cuda_compilers : hip_compilers;
    if (slots[i].library != NULL)
        return &slots[i];
    mo_gpu_compiler found = {0};
    found.library = open_candidate(driver, i, found.file, problem);
    if (found.library == NULL)
        return NULL;
    for (size_t k = 0; k < MOST_COMPILERS; k++)
        if (slots[k].library == found.library) { /* under another name */
            dlclose(found.library);
            return NULL;
        }
    if (!find_entries(&found, driver, problem)) {
        dlclose(found.library);
        return NULL;
    }
    ask_compiler(&found);
    slots[i] = found;
    return &slots[i];
}

/* The newest target of the compiler that the device runs, up to its own; 0 if it tells none. */
static int newest_known(const mo_gpu_compiler *c, const mo_gpu_device *gpu)
{
    int newest = 0;
    for (int i = 0; i < c->known_count; i++)
        if (c->known[i] <= (int)gpu->capability && c->known[i] > newest)
            newest = c->known[i];
    return newest;
}

/* 1 if the compiler can compile for the device. */
static int fill_recipe(const mo_gpu_compiler *c, const mo_gpu_device *gpu, mo_gpu_recipe *recipe,
                       char *problem)
{
    *recipe = (mo_gpu_recipe){.compiler = c};
    gpu->driver->vendor->target_option(gpu, recipe->target, sizeof recipe->target);
    if (c->known_count == 0)
        return 1;
    int newest = newest_known(c, gpu);
    if (newest == 0) {
        tell(problem, "%s (version %d.%d) compiles for sm_%d and newer, not for %s", c->file,
             c->major, c->minor, c->known[0], gpu->target);
        return 0;
    }
    if (newest != (int)gpu->capability) {
        recipe->intermediate = 1;
        snprintf(recipe->target, sizeof recipe->target, "--gpu-architecture=compute_%d", newest);
    }
    return 1;
}

/* CUDA's versions are those of the toolkit, as the driver's are; hipRTC has its own. */
static int newer_than_driver(const mo_gpu_compiler *c, const mo_gpu_driver *driver)
{
    return is_cuda(driver) && driver->version != 0 && c->major > driver->version / 1000;
}

/* Pre: compiler_lock held. 1 and a recipe, or 0 and why not. `gpu` NULL: any compiler. */
static int choose(const mo_gpu_driver *driver, const mo_gpu_device *gpu, mo_gpu_recipe *out_recipe,
                  char *problem)
{
    mo_gpu_recipe candidate;
    int found = 0;
    MO_PRE(mo_is_locked(&compiler_lock));
    problem[0] = '\0';
    for (size_t i = 0; i < MOST_COMPILERS; i++) {
        if (i > 0 && driver->vendor->compilers[i - 1] == NULL)
            break;
        const mo_gpu_compiler *c = open_compiler(driver, i, problem);
        if (c == NULL)
            continue;
        if (gpu == NULL)
            candidate = (mo_gpu_recipe){.compiler = c};
        else if (!fill_recipe(c, gpu, &candidate, problem))
            continue;
        int newer = newer_than_driver(c, driver);
        if (!found || !newer)
            *out_recipe = candidate;
        found = 1;
        if (!newer)
            break;
    }
    return found;
}

memopt_status mo_gpu_find_recipe(const mo_gpu_device *gpu, mo_gpu_recipe *out_recipe)
{
    char problem[MO_LIBRARY_TEXT];
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    mo_lock(&compiler_lock);
    int found = choose(gpu->driver, gpu, out_recipe, problem);
    mo_unlock(&compiler_lock);
    if (found)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_UNSUPPORTED,
                   "%s:%d: no kernels for %s (%s) are built in, and no run-time compiler works: "
                   "%s; install one, or build the library with that target",
                   vendor->name, gpu->index, gpu->target, gpu->name, problem);
}

void mo_gpu_compiler_report(const mo_gpu_driver *driver, char *file, char *problem)
{
    mo_gpu_recipe recipe;
    mo_lock(&compiler_lock);
    int found = choose(driver, NULL, &recipe, problem);
    mo_unlock(&compiler_lock);
    snprintf(file, MO_LIBRARY_FILE, "%s", found ? recipe.compiler->file : "");
}

void mo_gpu_recipe_name(const mo_gpu_recipe *recipe, char *text, size_t size)
{
    const mo_gpu_compiler *c = recipe->compiler;
    snprintf(text, size, "%s (version %d.%d)", c->file, c->major, c->minor);
}

/* The recipe's option and those of every device; returns how many. */
static int all_options(const mo_gpu_device *gpu, const mo_gpu_recipe *recipe,
                       const char *options[MOST_OPTIONS])
{
    const char *const *fixed = is_cuda(gpu->driver) ? cuda_options : hip_options;
    int count = 0;
    options[count++] = recipe->target;
    for (int i = 0; fixed[i] != NULL; i++)
        options[count++] = fixed[i];
    return count;
}

void mo_gpu_recipe_identity(const mo_gpu_device *gpu, const mo_gpu_recipe *recipe, char *identity)
{
    const mo_gpu_compiler *c = recipe->compiler;
    const char *options[MOST_OPTIONS];
    int count = all_options(gpu, recipe, options);
    int length = snprintf(identity, MO_GPU_IDENTITY_BYTES,
                          "memopt %d, %s %d.%d, %" PRIu64 " bytes of %" PRIu64 ", %s",
                          MEMOPT_VERSION, gpu->driver->vendor->compiler_prefix, c->major, c->minor,
                          c->file_bytes, c->file_time, recipe->intermediate ? "text" : "code");
    for (int i = 0; i < count && length > 0 && length < MO_GPU_IDENTITY_BYTES; i++)
        length += snprintf(identity + length, (size_t)(MO_GPU_IDENTITY_BYTES - length), " %s",
                           options[i]);
}

/* --- compiling ----------------------------------------------------------------------------- */

/* Cuts the log down to its first line that tells an error, or else its first line. */
static const char *first_error(char *log)
{
    const char *first = NULL;
    for (char *line = log, *next; line != NULL && *line != '\0'; line = next) {
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        if (strstr(line, "error") != NULL)
            return line;
        if (first == NULL && strspn(line, " \t") != strlen(line))
            first = line;
    }
    return first != NULL ? first : "no further output";
}

/* The compiler's output, as far as it fits a message. */
static memopt_status refused(const mo_gpu_device *gpu, const mo_gpu_recipe *recipe, program p,
                             int code)
{
    const mo_gpu_compiler *c = recipe->compiler;
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    const char *name = c->error_string(code);
    char compiler[2 * MO_LIBRARY_FILE], *log = NULL;
    size_t bytes = 0;
    if (p != NULL && c->log_size(p, &bytes) == 0 && bytes > 1 && bytes < (size_t)1 << 24)
        log = mo_calloc(bytes + 1, 1);
    if (log != NULL && c->log(p, log) != 0)
        log[0] = '\0';
    if (log != NULL && log[0] != '\0')
        mo_log(MEMOPT_LOG_WARNING, "%s:%d: the run-time compiler says:\n%s", vendor->name,
               gpu->index, log);
    mo_gpu_recipe_name(recipe, compiler, sizeof compiler);
    memopt_status status =
        mo_fail_driver(code == OUT_OF_MEMORY ? MEMOPT_OUT_OF_HOST_MEMORY : MEMOPT_UNSUPPORTED, code,
                       name != NULL ? name : "",
                       "%s:%d: no kernels for %s are built in, and %s fails on %s: %s (%d): %.400s",
                       vendor->name, gpu->index, gpu->target, compiler, recipe->target,
                       name != NULL ? name : "an error without a name", code,
                       log != NULL ? first_error(log) : "no further output");
    mo_free(log);
    return status;
}

/* OK with the compiler's status in *out_code. */
static memopt_status take_code(const mo_gpu_recipe *recipe, program p, void **out_binary,
                               uint64_t *out_bytes, int *out_code)
{
    const mo_gpu_compiler *c = recipe->compiler;
    size_t bytes = 0;
    *out_code = recipe->intermediate ? c->text_size(p, &bytes) : c->code_size(p, &bytes);
    if (*out_code != 0)
        return MEMOPT_OK;
    char *binary = mo_calloc(bytes + 1, 1);
    if (binary == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    *out_code = recipe->intermediate ? c->text(p, binary) : c->code(p, binary);
    if (*out_code != 0) {
        mo_free(binary);
        return MEMOPT_OK;
    }
    *out_binary = binary;
    *out_bytes = bytes;
    return MEMOPT_OK;
}

memopt_status mo_gpu_compile(const mo_gpu_device *gpu, const mo_gpu_recipe *recipe,
                             void **out_binary, uint64_t *out_bytes)
{
    const mo_gpu_compiler *c = recipe->compiler;
    const char *options[MOST_OPTIONS];
    int count = all_options(gpu, recipe, options);
    mo_log(MEMOPT_LOG_INFO, "%s:%d: compiles the kernels for %s with %s: about a minute, once",
           gpu->driver->vendor->name, gpu->index, gpu->target, c->file);
    program p = NULL;
    memopt_status status = MEMOPT_OK;
    int code = c->create(&p, gpu->driver->vendor->images->source, "memopt.cu", 0, NULL, NULL);
    if (code == 0)
        code = c->compile(p, count, options);
    if (code == 0)
        status = take_code(recipe, p, out_binary, out_bytes, &code);
    if (status == MEMOPT_OK && code != 0)
        status = refused(gpu, recipe, p, code);
    if (p != NULL)
        (void)c->destroy(&p);
    return status;
}
