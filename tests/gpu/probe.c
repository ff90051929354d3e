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

static int probe(const char *prefix, int index)
{
    static const char *const calls[] = {"Init",          "DriverGetVersion", "DeviceGet",
                                        "DeviceGetName", "DeviceGetCount",   "GetDeviceCount"};
    int cuda = strcmp(prefix, "cu") == 0;
    void *found[6];
    for (int i = 0; i < 6; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", prefix, calls[i]);
        found[i] = dlsym(library, name);
    }
    void *counter = cuda ? found[4] : found[5];
    if (!found[0] || !found[1] || !found[2] || !found[3] || !counter)
        return stop("dlsym", 0);
    int count = 0, version = 0, device = 0, major = 0, minor = 0, code;
    char name[256] = "";
    if ((code = ((call_init *)found[0])(0)) != 0)
        return stop("Init", code);
    if ((code = ((call_count *)counter)(&count)) != 0)
        return stop("DeviceCount", code);
    if (index >= count)
        return stop("DeviceCount (too few devices)", count);
    (void)((call_count *)found[1])(&version);
    if ((code = ((call_get *)found[2])(&device, index)) != 0)
        return stop("DeviceGet", code);
    (void)((call_name *)found[3])(name, sizeof name, device);
    call_attribute *attribute = cuda ? (call_attribute *)dlsym(library, "cuDeviceGetAttribute") : 0;
    if (attribute == NULL) {
        printf("%s\t-\t%d\n", name, version);
        return 0;
    }
    (void)attribute(&major, CUDA_CAPABILITY_MAJOR, device);
    (void)attribute(&minor, CUDA_CAPABILITY_MINOR, device);
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
