/*
 * Modules. An image is looked at as far as a driver would reject it: its kind, whether it is for
 * this device, and whether it holds the kernel that is asked for. What runs then is the kernel of
 * that name compiled for the host.
 */
#include "module.h"

#include "emulator.h"
#include "gfx.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODULE_MAGIC 0x6D6F64756C653031u
#define FUNCTION_MAGIC 0x66756E6374696F6Eu

enum { EM_CUDA_ = 190, EM_AMDGPU_ = 224 };

struct sim_module {
    uint64_t magic;
    sim_context *context;
    char *names; /* the image's bytes where kernel names can be found in them, or NULL */
    uint64_t bytes;
    int unloaded;
};

struct sim_function {
    uint64_t magic;
    sim_module *module;
    const mo_sim_kernel *kernel;
};

/* --- images -------------------------------------------------------------------------------- */

static uint64_t elf_bytes(const void *image)
{
    const Elf64_Ehdr *header = image;
    return header->e_shoff + (uint64_t)header->e_shnum * header->e_shentsize;
}

/* The oldest driver that takes a PTX version: CUDA 11.x came with 7.x, 12.x with 8.x, … */
static uint32_t driver_for_ptx(unsigned major, unsigned minor)
{
    return major < 7 ? 10000 : (major + 4) * 1000 + minor * 10;
}

static sim_status check_ptx(const char *text)
{
    unsigned major = 0, minor = 0, target = 0;
    const char *version = strstr(text, ".version"), *arch = strstr(text, ".target sm_");
    if (version == NULL || arch == NULL || sscanf(version, ".version %u.%u", &major, &minor) != 2 ||
        sscanf(arch, ".target sm_%u", &target) != 1)
        return SIM_INVALID_IMAGE;
    if (driver_for_ptx(major, minor) > sim_options.driver_version)
        return SIM_UNSUPPORTED_PTX;
    return target <= sim_options.major * 10 + sim_options.minor ? SIM_OK : SIM_NO_BINARY;
}

/* A binary for one capability runs on later ones of the same generation. */
static int runs_code_for(uint32_t target)
{
    return target / 10 == sim_options.major && target % 10 <= sim_options.minor;
}

static sim_status check_elf(const void *image)
{
    const Elf64_Ehdr *header = image;
    if (header->e_machine != (sim_is_hip ? EM_AMDGPU_ : EM_CUDA_))
        return SIM_INVALID_IMAGE;
    if (sim_is_hip)
        return (header->e_flags & 0xFF) == sim_gfx_machine(sim_options.gfx) ? SIM_OK
                                                                            : SIM_NO_BINARY;
    /* CUDA 13 moved the target by a byte and counted the ABI version up. */
    unsigned shift = header->e_ident[EI_ABIVERSION] >= 8 ? 8 : 0;
    return runs_code_for(header->e_flags >> shift & 0xFF) ? SIM_OK : SIM_NO_BINARY;
}

/* The entries of a fatbin, each with a head of its own length in front of its data. */
typedef struct fat_entry {
    uint16_t kind, version;
    uint32_t head_bytes;
    uint64_t bytes;
    uint32_t compressed, unknown;
    uint16_t minor, major; /* of the PTX */
    uint32_t target;
} fat_entry;

/* OK where one of the entries is for this device and driver. */
static sim_status check_fatbin(const void *image)
{
    enum { PTX = 1, CODE = 2, HEAD_BYTES = 16 };
    uint64_t bytes;
    uint16_t head;
    sim_status status = SIM_NO_BINARY;
    memcpy(&head, (const char *)image + 6, sizeof head);
    memcpy(&bytes, (const char *)image + 8, sizeof bytes);
    if (head != HEAD_BYTES)
        return SIM_INVALID_IMAGE;
    for (uint64_t at = 0; at + sizeof(fat_entry) <= bytes;) {
        fat_entry entry;
        memcpy(&entry, (const char *)image + head + at, sizeof entry);
        if (entry.head_bytes < sizeof entry || (entry.kind != PTX && entry.kind != CODE))
            return SIM_INVALID_IMAGE;
        if (entry.kind == CODE && runs_code_for(entry.target))
            return SIM_OK;
        if (entry.kind == PTX && entry.target <= sim_options.major * 10 + sim_options.minor) {
            if (driver_for_ptx(entry.major, entry.minor) <= sim_options.driver_version)
                return SIM_OK;
            status = SIM_UNSUPPORTED_PTX;
        }
        at += entry.head_bytes + entry.bytes;
    }
    return status;
}

static uint32_t crc32(const unsigned char *data, uint64_t bytes)
{
    uint32_t crc = ~0u;
    for (uint64_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

/* Kernels that were translated from an image run in the place of that image only. */
static int is_other_image(const void *image, uint64_t bytes)
{
    const mo_sim_loaded *loaded = sim_loaded_kernels();
    if (loaded == NULL)
        return 0;
    uint32_t digest = crc32(image, bytes);
    for (const uint64_t *known = loaded->image_digests; *known != 0; known++)
        if (digest == *known)
            return 0;
    sim_violation(0, 0, "MEMOPT_SIM_KERNELS is not made from the image that is loaded");
    return 1;
}

static sim_status check_image(const void *image, uint64_t *out_named_bytes)
{
    static const unsigned char fatbin[4] = {0x50, 0xED, 0x55, 0xBA};
    *out_named_bytes = 0;
    if (memcmp(image, ELFMAG, SELFMAG) == 0) {
        sim_status status = check_elf(image);
        *out_named_bytes = elf_bytes(image);
        return status == SIM_OK && sim_is_hip && is_other_image(image, *out_named_bytes)
                   ? SIM_INVALID_IMAGE
                   : status;
    }
    if (sim_is_hip)
        return SIM_INVALID_IMAGE;
    if (memcmp(image, fatbin, sizeof fatbin) == 0)
        return check_fatbin(image);
    if (strstr(image, ".version") == NULL)
        return SIM_INVALID_IMAGE;
    *out_named_bytes = strlen(image);
    return is_other_image(image, *out_named_bytes) ? SIM_INVALID_IMAGE : check_ptx(image);
}

/* --- modules ------------------------------------------------------------------------------- */

/* Copies what kernel names are looked for in. Of a text that is what follows each ".entry ", so
 * that four megabytes of PTX are searched once, not once for each kernel. */
static uint64_t copy_names(char *names, const char *image, uint64_t bytes)
{
    static const char mark[] = ".entry ";
    const char *at = image, *end = image + bytes;
    uint64_t copied = 0;
    if (memcmp(image, ELFMAG, SELFMAG) == 0) {
        memcpy(names, image, bytes);
        return bytes;
    }
    while ((at = memmem(at, (size_t)(end - at), mark, sizeof mark - 1)) != NULL) {
        at += sizeof mark - 2; /* with the space */
        for (const char *start = at; at < end && (at == start || *at != '('); at++)
            names[copied++] = *at;
        names[copied++] = '(';
    }
    return copied;
}

sim_status sim_module_load(sim_context *context, const void *image, sim_module **out_module)
{
    uint64_t bytes = 0;
    sim_status status = check_image(image, &bytes);
    if (status != SIM_OK)
        return status;
    sim_module *module = sim_handle_new(sizeof *module);
    if (module == NULL)
        return SIM_OUT_OF_MEMORY;
    module->magic = MODULE_MAGIC;
    module->context = context;
    module->bytes = bytes;
    if (bytes != 0) {
        module->names = malloc(bytes + 1);
        if (module->names == NULL) {
            free(module);
            return SIM_OUT_OF_MEMORY;
        }
        module->bytes = copy_names(module->names, image, bytes);
    }
    *out_module = module;
    return SIM_OK;
}

static sim_status check_module(const sim_module *module, const sim_context *context)
{
    if ((uintptr_t)module < SIM_PAGE || (uintptr_t)module % sizeof(void *) != 0 ||
        module->magic != MODULE_MAGIC || module->unloaded || module->context != context)
        return SIM_INVALID_HANDLE;
    return SIM_OK;
}

sim_status sim_module_unload(sim_module *module, const sim_context *context)
{
    sim_status status = check_module(module, context);
    if (status != SIM_OK)
        return status;
    free(module->names);
    module->names = NULL;
    module->unloaded = 1;
    return SIM_OK;
}

/* The name as a whole word of the image: in a symbol table or in front of a parenthesis. */
static int image_names(const sim_module *module, const char *name)
{
    size_t length = strlen(name);
    const char *end = module->names + module->bytes;
    for (const char *at = module->names;
         (at = memmem(at, (size_t)(end - at), name, length)) != NULL; at++) {
        char after = at + length < end ? at[length] : '\0';
        char before = at > module->names ? at[-1] : '\0';
        if ((after == '\0' || after == '(' || after == ' ' || after == '\n') &&
            (before == '\0' || before == ' ' || before == '\t'))
            return 1;
    }
    return 0;
}

sim_status sim_module_function(sim_module *module, const sim_context *context, const char *name,
                               sim_function **out_function)
{
    sim_status status = check_module(module, context);
    if (status != SIM_OK)
        return status;
    const mo_sim_kernel *kernel = sim_find_kernel(name);
    if (kernel == NULL || (module->names != NULL && !image_names(module, name)))
        return SIM_NOT_FOUND;
    sim_function *function = sim_handle_new(sizeof *function);
    if (function == NULL)
        return SIM_OUT_OF_MEMORY;
    *function = (sim_function){FUNCTION_MAGIC, module, kernel};
    *out_function = function;
    return SIM_OK;
}

sim_status sim_function_check(const sim_function *function, const sim_context *context)
{
    if ((uintptr_t)function < SIM_PAGE || (uintptr_t)function % sizeof(void *) != 0 ||
        function->magic != FUNCTION_MAGIC)
        return SIM_INVALID_HANDLE;
    return check_module(function->module, context);
}

/* --- launches ------------------------------------------------------------------------------ */

static sim_status check_dimensions(const sim_launch *launch)
{
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    for (int i = 0; i < 3; i++)
        if (launch->grid[i] == 0 || launch->block[i] == 0)
            return SIM_INVALID_VALUE;
    if (threads > 1024 || launch->block[2] > 64 || launch->grid[0] > INT32_MAX ||
        launch->grid[1] > 65535 || launch->grid[2] > 65535 || launch->shared > 48 << 10)
        return SIM_INVALID_VALUE;
    if (sim_is_hip && (uint64_t)launch->grid[0] * launch->block[0] > UINT32_MAX)
        return SIM_INVALID_VALUE;
    if (launch->grid[1] * launch->grid[2] != 1 || launch->block[1] * launch->block[2] != 1) {
        sim_violation(0, 0, "a launch in more than one dimension, which no kernel here expects");
        return SIM_INVALID_VALUE;
    }
    return SIM_OK;
}

static sim_status read_arguments(const sim_launch *launch, const mo_sim_kernel *kernel,
                                 sim_kernel_call *call)
{
    if (launch->parameters == NULL || kernel->args_size + sizeof call->first_item > SIM_PARAMS)
        return SIM_INVALID_VALUE;
    memcpy(call->args, launch->parameters[0], kernel->args_size);
    memcpy(&call->first_item, launch->parameters[1], sizeof call->first_item);
    return SIM_OK;
}

sim_status sim_module_launch(sim_function *function, sim_context *context, sim_stream *stream,
                             const sim_launch *launch)
{
    sim_status status = sim_function_check(function, context);
    if (status == SIM_OK)
        status = check_dimensions(launch);
    if (status != SIM_OK)
        return status;
    sim_op *op = sim_op_new(SIM_LAUNCH, context);
    sim_kernel_call *call = op != NULL ? calloc(1, sizeof *call) : NULL;
    if (call == NULL) {
        free(op);
        return SIM_OUT_OF_MEMORY;
    }
    call->kernel = function->kernel;
    call->grid = launch->grid[0];
    call->block = launch->block[0];
    op->launch = call;
    status = read_arguments(launch, function->kernel, call);
    if (status == SIM_OK)
        return sim_submit(stream, op);
    sim_op_free(op);
    return status;
}
