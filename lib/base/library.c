/* Opening a vendor's library; see library.h. */
#define _GNU_SOURCE /* dlinfo, secure_getenv */

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

void *mo_library_open(const char *const *names, char *out_file, char *out_tried, char *out_problem)
{
    const char *path = mo_driver_path();
    out_file[0] = out_tried[0] = out_problem[0] = '\0';
    for (size_t i = 0; names[i] != NULL; i++) {
        mo_append(out_tried, MO_LIBRARY_TEXT, "%s%s", i == 0 ? "" : ", ", names[i]);
        void *library =
            path != NULL ? open_in(path, names[i], out_problem) : open_file(names[i], out_problem);
        if (library != NULL) {
            struct link_map *map = NULL;
            int known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0';
            snprintf(out_file, MO_LIBRARY_FILE, "%s", known ? map->l_name : names[i]);
            out_problem[0] = '\0';
            return library;
        }
    }
    return NULL;
}
