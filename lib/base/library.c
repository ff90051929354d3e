/* Opening a vendor's library; see library.h. */
#define _GNU_SOURCE /* dl_iterate_phdr, dlinfo, secure_getenv */

#include "base/library.h"

#include <dlfcn.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void mo_append(char *text, size_t size, const char *format, ...)
{
    size_t length = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + length, size - length, format, arguments);
    va_end(arguments);
}

const char *mo_driver_path(void)
{
    return secure_getenv("MEMOPT_DRIVER_PATH");
}

/* Opens a file; a failure is added to out_problem. */
static void *open_file(const char *file, char *out_problem)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library != NULL)
        return library;
    const char *why = dlerror();
    mo_append(out_problem, MO_LIBRARY_TEXT, "%s%s", out_problem[0] == '\0' ? "" : "; ",
              why != NULL ? why : file);
    return NULL;
}

/* Opens the name in the first folder of `path` where that works. */
static void *open_in(const char *path, const char *name, char *out_problem)
{
    char file[4096];
    void *library = NULL;
    int found = 0;
    for (size_t length; *path != '\0' && library == NULL; path += length + (path[length] == ':')) {
        length = strcspn(path, ":");
        int bytes = snprintf(file, sizeof file, "%.*s/%s", (int)length, path, name);
        if (length == 0 || bytes < 0 || (size_t)bytes >= sizeof file || access(file, F_OK) != 0)
            continue;
        found = 1;
        library = open_file(file, out_problem);
    }
    if (!found)
        mo_append(out_problem, MO_LIBRARY_TEXT, "%s%s: in no folder of MEMOPT_DRIVER_PATH",
                  out_problem[0] == '\0' ? "" : "; ", name);
    return library;
}

static void tell_file(void *library, const char *name, char *out_file)
{
    struct link_map *map = NULL;
    int known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0';
    snprintf(out_file, MO_LIBRARY_FILE, "%s", known ? map->l_name : name);
}

/* --- what the program has loaded ----------------------------------------------------------- */

typedef struct search {
    const char *const *names;
    char found[4096];
} search;

/* "libamdhip64.so.7" and "libamdhip64.so" are versions of one library. */
static int same_library(const char *file, const char *name)
{
    const char *end = strstr(name, ".so");
    size_t length = end != NULL ? (size_t)(end - name) + 3 : strlen(name);
    return strncmp(file, name, length) == 0 && (file[length] == '\0' || file[length] == '.');
}

/* For dl_iterate_phdr, which holds the loader's lock: copies the path, and opens nothing. */
static int look_at(struct dl_phdr_info *info, size_t bytes, void *user)
{
    search *wanted = user;
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *file = slash != NULL ? slash + 1 : info->dlpi_name;
    (void)bytes;
    for (size_t i = 0; wanted->names[i] != NULL; i++)
        if (same_library(file, wanted->names[i]) &&
            strlen(info->dlpi_name) < sizeof wanted->found) {
            strcpy(wanted->found, info->dlpi_name);
            return 1;
        }
    return 0;
}

void *mo_library_loaded(const char *const *names, char *out_file)
{
    search wanted = {.names = names};
    void *library = NULL;
    if (mo_driver_path() != NULL)
        return NULL;
    for (size_t i = 0; names[i] != NULL && library == NULL; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (library == NULL && dl_iterate_phdr(look_at, &wanted) != 0)
        library = dlopen(wanted.found, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (library != NULL)
        tell_file(library, names[0], out_file);
    return library;
}

/* --- opening ------------------------------------------------------------------------------- */

void *mo_library_open_file(const char *path, char *out_file, char *out_problem)
{
    out_file[0] = out_problem[0] = '\0';
    void *library = open_file(path, out_problem);
    if (library != NULL)
        tell_file(library, path, out_file);
    return library;
}

void *mo_library_open(const char *const *names, char *out_file, char *out_tried, char *out_problem)
{
    const char *path = mo_driver_path();
    out_file[0] = out_tried[0] = out_problem[0] = '\0';
    for (size_t i = 0; names[i] != NULL; i++) {
        mo_append(out_tried, MO_LIBRARY_TEXT, "%s%s", i == 0 ? "" : ", ", names[i]);
        void *library =
            path != NULL ? open_in(path, names[i], out_problem) : open_file(names[i], out_problem);
        if (library != NULL) {
            tell_file(library, names[i], out_file);
            out_problem[0] = '\0';
            return library;
        }
    }
    return NULL;
}

void *mo_library_share(const char *const *names, char *out_file, char *out_tried, char *out_problem)
{
    void *library = mo_library_loaded(names, out_file);
    if (library == NULL)
        return mo_library_open(names, out_file, out_tried, out_problem);
    out_tried[0] = out_problem[0] = '\0';
    return library;
}
