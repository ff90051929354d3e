/*
 * Finding a run-time compiler.
 *
 * Every library that opens is looked at, since one machine may have several: the first that knows
 * the device and is not newer than the driver is used, else the first that knows the device. A
 * library that was opened stays. compiler_lock guards the list of them; an entry of it is constant.
 */
#define _GNU_SOURCE /* secure_getenv */

#include "device/gpu/compiler.h"

#include "base/lock.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_COMPILERS = 16 };

static const struct {
    const char *cuda, *hip;
    size_t offset;
    int required;
} compiler_entries[] = {
#define COMPILER_ENTRY(field, result, parameters, cuda, hip, required)                             \
    {cuda, hip, offsetof(mo_gpu_compiler, field), required},
    MO_GPU_COMPILER_CALLS(COMPILER_ENTRY)
#undef COMPILER_ENTRY
};

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
        count > 0 && count <= MO_GPU_MOST_TARGETS && c->targets(c->known) == 0)
        c->known_count = count;
    if (stat(c->file, &info) == 0) {
        c->file_bytes = (uint64_t)info.st_size;
        c->file_time = (uint64_t)info.st_mtime;
    }
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
    const mo_images *images = gpu->driver->vendor->images;
    *recipe = (mo_gpu_recipe){.compiler = c, .text = images->source, .bytes = images->source_bytes};
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

/* --- looking through all ------------------------------------------------------------------- */

/* A search for the best compiler of a device. */
typedef struct search {
    const mo_gpu_driver *driver;
    const mo_gpu_device *gpu; /* NULL: for no device in particular */
    mo_gpu_recipe *recipe;
    char *problem;
    uint32_t seen; /* bits 1 << entry of the list */
    int found, done;
} search;

/* Pre: compiler_lock held. Takes the library over. NULL where it was seen before or is not usable.
 */
static const mo_gpu_compiler *add(search *s, void *library, const char *file)
{
    mo_gpu_compiler *list = is_cuda(s->driver) ? cuda_compilers : hip_compilers;
    size_t i = 0;
    MO_PRE(mo_is_locked(&compiler_lock));
    while (i < MOST_COMPILERS && list[i].library != NULL && list[i].library != library)
        i++;
    if (i == MOST_COMPILERS || list[i].library == library)
        dlclose(library);
    if (i == MOST_COMPILERS || (s->seen >> i & 1) != 0)
        return NULL;
    if (list[i].library == NULL) {
        mo_gpu_compiler found = {.library = library};
        snprintf(found.file, sizeof found.file, "%s", file);
        if (!find_entries(&found, s->driver, s->problem)) {
            dlclose(library);
            return NULL;
        }
        ask_compiler(&found);
        list[i] = found;
    }
    s->seen |= 1u << i;
    return &list[i];
}

/* `library` NULL: it could not be opened, and why. */
static void consider(search *s, void *library, const char *file, const char *why)
{
    mo_gpu_recipe candidate;
    if (library == NULL && why[0] != '\0')
        tell(s->problem, "%s", why);
    const mo_gpu_compiler *c = library != NULL ? add(s, library, file) : NULL;
    if (c == NULL)
        return;
    if (s->gpu == NULL)
        candidate = (mo_gpu_recipe){.compiler = c};
    else if (!fill_recipe(c, s->gpu, &candidate, s->problem))
        return;
    int newer = newer_than_driver(c, s->driver);
    if (!s->found || !newer)
        *s->recipe = candidate;
    s->found = 1;
    s->done = !newer;
}

static void consider_file(search *s, const char *path)
{
    char file[MO_LIBRARY_FILE], why[MO_LIBRARY_TEXT];
    if (!s->done)
        consider(s, mo_library_open_file(path, file, why), file, why);
}

/* What the folder has of the vendor's list; returns how many. */
static int consider_folder(search *s, const char *folder)
{
    char path[MO_GPU_PATH_BYTES];
    int count = 0;
    for (const char *const *name = s->driver->vendor->compilers; *name != NULL; name++) {
        int length = snprintf(path, sizeof path, "%s/%s", folder, *name);
        if (length < 0 || (size_t)length >= sizeof path || access(path, R_OK) != 0)
            continue;
        count++;
        consider_file(s, path);
    }
    return count;
}

/* The files and folders that the vendor's variable names, separated by ':'. */
static void consider_named(search *s, const char *named)
{
    const mo_gpu_vendor *vendor = s->driver->vendor;
    char place[MO_GPU_PATH_BYTES];
    struct stat info;
    tell(s->problem, "%s is \"%s\"", vendor->compiler_variable, named);
    for (size_t length; *named != '\0'; named += length + (named[length] == ':')) {
        length = strcspn(named, ":");
        if (length == 0 || length >= sizeof place)
            continue;
        snprintf(place, sizeof place, "%.*s", (int)length, named);
        if (stat(place, &info) != 0 || !S_ISDIR(info.st_mode))
            consider_file(s, place);
        else if (consider_folder(s, place) == 0)
            tell(s->problem, "%s has no %s", place, vendor->compilers[0]);
    }
}

/* In site-packages: the vendor's packages beside memopt/lib, where this library lies. */
static void consider_wheels(search *s)
{
    static const char place[] = "/memopt/lib";
    char folder[MO_GPU_PATH_BYTES], wheel[MO_GPU_PATH_BYTES];
    if (s->driver->vendor->compiler_wheels == NULL)
        return;
    mo_gpu_library_folder(folder);
    size_t length = strlen(folder), end = strlen(place);
    if (length < end || strcmp(folder + length - end, place) != 0)
        return;
    folder[length - end] = '\0';
    for (const char *const *at = s->driver->vendor->compiler_wheels; *at != NULL; at++)
        if (snprintf(wheel, sizeof wheel, "%s/%s", folder, *at) < (int)sizeof wheel)
            (void)consider_folder(s, wheel);
}

/* One that the program has loaded, of any version; wheels; what the loader finds. "" in the
 * vendor's list is the driver's own library, which must not be opened a second time from
 * elsewhere. */
static void consider_installed(search *s)
{
    const mo_gpu_vendor *vendor = s->driver->vendor;
    char file[MO_LIBRARY_FILE], tried[MO_LIBRARY_TEXT], why[MO_LIBRARY_TEXT] = "";
    const char *one[] = {vendor->compilers[0], NULL};
    consider(s, mo_library_loaded(one, file), file, why);
    if (!s->done && mo_driver_path() == NULL)
        consider_wheels(s);
    for (const char *const *name = vendor->compilers; *name != NULL && !s->done; name++) {
        one[0] = *name;
        void *library = (*name)[0] != '\0' ? mo_library_open(one, file, tried, why)
                                           : mo_library_share(vendor->libraries, file, tried, why);
        consider(s, library, file, why);
    }
}

/* 1 and a recipe, or 0 and why not. `gpu` NULL: any compiler. */
static int choose(const mo_gpu_driver *driver, const mo_gpu_device *gpu, mo_gpu_recipe *out_recipe,
                  char *problem)
{
    const char *variable = driver->vendor->compiler_variable;
    const char *named = variable != NULL ? secure_getenv(variable) : NULL;
    search s = {.driver = driver, .gpu = gpu, .recipe = out_recipe, .problem = problem};
    problem[0] = '\0';
    mo_lock(&compiler_lock);
    if (named != NULL && named[0] != '\0')
        consider_named(&s, named);
    else
        consider_installed(&s);
    mo_unlock(&compiler_lock);
    return s.found;
}

memopt_status mo_gpu_find_recipe(const mo_gpu_device *gpu, mo_gpu_recipe *out_recipe)
{
    char problem[MO_LIBRARY_TEXT];
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    if (choose(gpu->driver, gpu, out_recipe, problem))
        return MEMOPT_OK;
    return mo_fail(MEMOPT_UNSUPPORTED,
                   "%s:%d: no kernels for %s (%s) are built in, and no run-time compiler works: "
                   "%s; install one, or build the library with that target",
                   vendor->name, gpu->index, gpu->target, gpu->name, problem);
}

void mo_gpu_compiler_report(const mo_gpu_driver *driver, char *file, char *problem)
{
    mo_gpu_recipe recipe;
    int found = choose(driver, NULL, &recipe, problem);
    snprintf(file, MO_LIBRARY_FILE, "%s", found ? recipe.compiler->file : "");
}
