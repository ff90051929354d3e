/* Loading the driver a second time, beside the library, as a program would. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <string.h>

typedef struct context_calls {
    int (*device_get)(int *out, int index);        /* CUDA */
    int (*retain)(void **out_context, int device); /* CUDA */
    int (*release)(int device);                    /* CUDA */
    int (*push)(void *context);                    /* CUDA */
    int (*pop)(void **out_context);                /* CUDA */
    int (*set_device)(int index);                  /* HIP */
    int (*get_device)(int *out_index);             /* HIP */
} context_calls;

static driver calls;
static context_calls contexts;
static void *library;
static _Thread_local int saved_device;

static void *symbol(const char *name, int required)
{
    void *address = dlsym(library, name);
    if (address == NULL && required)
        fail(__FILE__, __LINE__, "the driver has no %s", name);
    return address;
}

/* dlsym's pointers to functions, through memcpy as C wants it. */
#define LOAD(field, name, required)                                                                \
    do {                                                                                           \
        void *load_address_ = symbol(name, required);                                              \
        memcpy(&(field), &load_address_, sizeof load_address_);                                    \
    } while (0)

static void load(int cuda)
{
    static const char *const names[] = {"libcuda.so.1",     "libamdhip64.so",   "libamdhip64.so.7",
                                        "libamdhip64.so.6", "libamdhip64.so.5", NULL};
    for (int i = cuda ? 0 : 1; library == NULL && names[i] != NULL && (i == 0 || !cuda); i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        fail(__FILE__, __LINE__, "the driver cannot be loaded: %s", dlerror());
#define LOAD_CALL(field, parameters, cuda_name, hip_name)                                          \
    LOAD(calls.field, cuda ? #cuda_name : #hip_name, 1);
#define LOAD_OPTIONAL(field, parameters, cuda_name, hip_name)                                      \
    LOAD(calls.field, cuda ? #cuda_name : #hip_name, 0);
    DRIVER_CALLS(LOAD_CALL)
    GRAPH_CALLS(LOAD_OPTIONAL)
    if (cuda) {
        LOAD(contexts.device_get, "cuDeviceGet", 1);
        LOAD(contexts.retain, "cuDevicePrimaryCtxRetain", 1);
        LOAD(contexts.release, "cuDevicePrimaryCtxRelease_v2", 1);
        LOAD(contexts.push, "cuCtxPushCurrent_v2", 1);
        LOAD(contexts.pop, "cuCtxPopCurrent_v2", 1);
    } else {
        LOAD(contexts.set_device, "hipSetDevice", 1);
        LOAD(contexts.get_device, "hipGetDevice", 1);
    }
}

const driver *driver_enter(world *w)
{
    int cuda = strcmp(w->properties.backend, "cuda") == 0, device = 0;
    void *context = NULL;
    if (strcmp(w->properties.backend, "cpu") == 0)
        return NULL;
    if (library == NULL)
        load(cuda);
    if (!cuda) {
        DRIVER_OK(contexts.get_device(&saved_device));
        DRIVER_OK(contexts.set_device(w->properties.index));
        return &calls;
    }
    DRIVER_OK(contexts.device_get(&device, w->properties.index));
    DRIVER_OK(contexts.retain(&context, device));
    DRIVER_OK(contexts.push(context));
    return &calls;
}

void driver_leave(world *w)
{
    int device = 0;
    void *context = NULL;
    if (strcmp(w->properties.backend, "hip") == 0)
        DRIVER_OK(contexts.set_device(saved_device));
    if (strcmp(w->properties.backend, "cuda") != 0)
        return;
    DRIVER_OK(contexts.pop(&context));
    DRIVER_OK(contexts.device_get(&device, w->properties.index));
    DRIVER_OK(contexts.release(device)); /* the library holds it too, so it lives on */
}
