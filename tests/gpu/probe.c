/*
 * probe cuda|hip N: asks the driver, before anything is built, whether device N is there.
 *
 * Needs a C compiler only: cc probe.c -ldl. Prints one line: the name, the compute capability
 * without its point (cuda) or "-" (hip), the driver's version; tab-separated. 77: no such device.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int call_init(unsigned flags);
typedef int call_count(int *count);
typedef int call_get(int *device, int ordinal);
typedef int call_name(char *name, int size, int device);
typedef int call_attribute(int *value, int attribute, int device);

enum { CUDA_CAPABILITY_MAJOR = 75, CUDA_CAPABILITY_MINOR = 76 };

static void *library;

static void *open_first(const char *const *names)
{
    for (; library == NULL && *names != NULL; names++)
        library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        fprintf(stderr, "probe: %s\n", dlerror());
    return library;
}

static int stop(const char *call, int code)
{
    fprintf(stderr, "probe: %s returned %d\n", call, code);
    return 77;
}

static void *find(const char *prefix, const char *call)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s", prefix, call);
    return dlsym(library, name);
}

static int probe(const char *prefix, int index)
{
    /* HIP counts under another name, and its devices are their numbers. */
    int cuda = strcmp(prefix, "cu") == 0;
    void *init = find(prefix, "Init"), *get_version = find(prefix, "DriverGetVersion");
    void *get_count = find(prefix, cuda ? "DeviceGetCount" : "GetDeviceCount");
    void *get_name = find(prefix, "DeviceGetName");
    void *get = cuda ? find(prefix, "DeviceGet") : NULL;
    void *get_attribute = cuda ? find(prefix, "DeviceGetAttribute") : NULL;
    int count = 0, version = 0, device = index, major = 0, minor = 0, code;
    char name[256] = "";
    if (!init || !get_count || !get_name || !get_version || (cuda && (!get || !get_attribute)))
        return stop("dlsym", 0);
    if ((code = ((call_init *)init)(0)) != 0)
        return stop("Init", code);
    if ((code = ((call_count *)get_count)(&count)) != 0)
        return stop("GetCount", code);
    if (index >= count)
        return stop("GetCount (too few devices)", count);
    if (cuda && (code = ((call_get *)get)(&device, index)) != 0)
        return stop("DeviceGet", code);
    (void)((call_count *)get_version)(&version);
    (void)((call_name *)get_name)(name, sizeof name, device);
    if (!cuda) {
        printf("%s\t-\t%d\n", name, version);
        return 0;
    }
    (void)((call_attribute *)get_attribute)(&major, CUDA_CAPABILITY_MAJOR, device);
    (void)((call_attribute *)get_attribute)(&minor, CUDA_CAPABILITY_MINOR, device);
    printf("%s\t%d%d\t%d\n", name, major, minor, version);
    return 0;
}

int main(int count, char **words)
{
    static const char *const cuda[] = {"libcuda.so.1", NULL};
    static const char *const hip[] = {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6",
                                      "libamdhip64.so.5", NULL};
    if (count != 3 || (strcmp(words[1], "cuda") != 0 && strcmp(words[1], "hip") != 0)) {
        fputs("probe cuda|hip N\n", stderr);
        return 2;
    }
    int is_cuda = strcmp(words[1], "cuda") == 0;
    if (open_first(is_cuda ? cuda : hip) == NULL)
        return 77;
    return probe(is_cuda ? "cu" : "hip", atoi(words[2]));
}
