/*
 * Making the code of one kernel: by a run-time compiler from the embedded source, or by the driver,
 * which gets that kernel's part of an image in PTX.
 */
#include "device/gpu/compiler.h"

#include "base/log.h"
#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MOST_OPTIONS = 16, MOST_OPTION_BYTES = 80, OUT_OF_MEMORY = 1 };

/* The same bits as everywhere: no contraction, IEEE division and square root, denormals. */
static const char *const cuda_options[] = {"--std=c++17",
                                           "--fmad=false",
                                           "--prec-div=true",
                                           "--prec-sqrt=true",
                                           "--ftz=false",
                                           "--disable-warnings",
                                           NULL};
static const char *const hip_options[] = {"-std=c++17", "-O3", "-ffp-contract=off", "-w", NULL};

static int is_cuda(const mo_gpu_device *gpu)
{
    return strcmp(gpu->driver->vendor->compiler_prefix, "nvrtc") == 0;
}

void mo_gpu_recipe_name(const mo_gpu_device *gpu, const mo_gpu_recipe *recipe, char *text,
                        size_t size)
{
    const mo_gpu_compiler *c = recipe->compiler;
    if (c == NULL)
        snprintf(text, size, "the driver (version %d)", gpu->driver->version);
    else
        snprintf(text, size, "%s (version %d.%d)", c->file, c->major, c->minor);
}

/* The recipe's option and those of every device; returns how many. */
static int all_options(const mo_gpu_device *gpu, const mo_gpu_recipe *recipe,
                       const char *options[MOST_OPTIONS])
{
    const char *const *fixed = is_cuda(gpu) ? cuda_options : hip_options;
    int count = 0;
    options[count++] = recipe->target;
    for (int i = 0; fixed[i] != NULL; i++)
        options[count++] = fixed[i];
    if (recipe->types != NULL)
        options[count++] = recipe->types;
    return count;
}

void mo_gpu_recipe_identity(const mo_gpu_device *gpu, const mo_gpu_recipe *recipe, char *identity)
{
    const mo_gpu_compiler *c = recipe->compiler;
    const char *prefix = gpu->driver->vendor->compiler_prefix, *options[MOST_OPTIONS];
    if (c == NULL) {
        snprintf(identity, MO_GPU_IDENTITY_BYTES, "memopt %d, driver %d", MEMOPT_VERSION,
                 gpu->driver->version);
        return;
    }
    int count = all_options(gpu, recipe, options);
    int length = snprintf(identity, MO_GPU_IDENTITY_BYTES,
                          "memopt %d, %s %d.%d, %" PRIu64 " bytes of %" PRIu64 ", %s",
                          MEMOPT_VERSION, prefix, c->major, c->minor, c->file_bytes, c->file_time,
                          recipe->intermediate ? "text" : "code");
    for (int i = 0; i < count && length > 0 && length < MO_GPU_IDENTITY_BYTES; i++)
        length += snprintf(identity + length, (size_t)(MO_GPU_IDENTITY_BYTES - length), " %s",
                           options[i]);
}

/* --- a part of an image -------------------------------------------------------------------- */

/* Of a kernel's PTX, which ptxas compiles on a processor of 2023 (docs/benchmarks/compile.md). */
#define BYTES_A_SECOND 300000.0

/* Each kernel begins with ".visible .entry NAME(" and ends with "}", at the start of a line. */
memopt_status mo_gpu_part_recipe(const char *text, uint64_t bytes, const char *kernel,
                                 mo_gpu_recipe *out_recipe)
{
    static const char entry[] = ".visible .entry ";
    const size_t prefix = sizeof entry - 1, length = strlen(kernel);
    uint64_t used = 0, of_kernel = 0;
    int in_kernel = 0, kept = 1;
    char *part = mo_malloc(bytes + 1);
    if (part == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    for (const char *line = text, *next; *line != '\0'; line = next) {
        next = line + strcspn(line, "\n");
        next += *next == '\n';
        if (strncmp(line, entry, prefix) == 0) {
            in_kernel = 1;
            kept = strncmp(line + prefix, kernel, length) == 0 && line[prefix + length] == '(';
        }
        uint64_t added = kept ? (uint64_t)(next - line) : 0;
        memcpy(part + used, line, added);
        used += added;
        of_kernel += in_kernel ? added : 0;
        if (line[0] == '}') {
            in_kernel = 0;
            kept = 1;
        }
    }
    part[used] = '\0';
    *out_recipe = (mo_gpu_recipe){.text = part, .part = part, .bytes = used};
    out_recipe->seconds = (double)of_kernel / BYTES_A_SECOND;
    out_recipe->quick = out_recipe->seconds < 0.5;
    return MEMOPT_OK;
}

static memopt_status copy_part(const mo_gpu_recipe *recipe, void **out_binary, uint64_t *out_bytes)
{
    char *text = mo_malloc(recipe->bytes + 1);
    if (text == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memcpy(text, recipe->text, recipe->bytes + 1);
    *out_binary = text;
    *out_bytes = recipe->bytes;
    return MEMOPT_OK;
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
static memopt_status refused(const mo_gpu_device *gpu, const mo_gpu_recipe *recipe,
                             mo_gpu_program p, int code)
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
    mo_gpu_recipe_name(gpu, recipe, compiler, sizeof compiler);
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
static memopt_status take_code(const mo_gpu_recipe *recipe, mo_gpu_program p, void **out_binary,
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
                             const char *kernel, void **out_binary, uint64_t *out_bytes)
{
    const mo_gpu_compiler *c = recipe->compiler;
    const char *options[MOST_OPTIONS];
    char only[MOST_OPTION_BYTES];
    if (c == NULL)
        return copy_part(recipe, out_binary, out_bytes);
    int count = all_options(gpu, recipe, options);
    snprintf(only, sizeof only, "-DMO_ONLY_%s", kernel);
    options[count++] = "-DMO_ONLY";
    options[count++] = only;
    mo_gpu_program p = NULL;
    memopt_status status = MEMOPT_OK;
    int code = c->create(&p, recipe->text, "memopt.cu", 0, NULL, NULL);
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
