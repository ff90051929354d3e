/*
 * What the tests of run-time compilation share: a device of the simulated CUDA driver that no image
 * fits (the environment says which), a launch, and the simulated compiler's counters.
 */
#ifndef TEST_GPU_COMPILE_H
#define TEST_GPU_COMPILE_H

#include "support.h"

#include "base/memory.h"
#include "device/gpu/gpu.h"
#include "memopt/cast.h"

#include <dlfcn.h>

static inline memopt_device *open_device(const char *name)
{
    memopt_device *device = NULL;
    OK(memopt_device_open(name, NULL, &device));
    return device;
}

/* Casts 64 floats; what is computed is checked. */
static inline memopt_status launch(memopt_device *device)
{
    float values[64];
    uint16_t halves[64] = {0};
    void *memory = NULL;
    for (int i = 0; i < 64; i++)
        values[i] = (float)i;
    OK(mo_mem_alloc(device, 1024, &memory));
    memopt_tensor from = {memory, 64, MEMOPT_DTYPE_F32};
    memopt_tensor to = {(char *)memory + 512, 64, MEMOPT_DTYPE_BF16};
    OK(memopt_copy(device, from.data, values, sizeof values, NULL));
    memopt_status status = memopt_cast(device, &to, &from, 1, NULL, NULL);
    if (status == MEMOPT_OK) {
        OK(memopt_copy(device, halves, to.data, sizeof halves, NULL));
        OK(memopt_stream_sync(device, NULL));
        assert_int_equal(halves[1], 0x3F80);
        assert_int_equal(halves[63], 0x427C);
    }
    char message[1024];
    snprintf(message, sizeof message, "%s", memopt_last_error());
    OK(mo_mem_free(device, memory, 1024));
    if (status != MEMOPT_OK)
        assert_string_equal(message, memopt_last_error());
    return status;
}

/* A counter of the simulated compiler that the library would use; -1 if that is a real one. */
static inline int compiler_says(const char *backend, const char *counter)
{
    memopt_backend_info info = {.struct_size = sizeof info};
    int (*function)(void) = NULL;
    OK(memopt_backend_get_info(backend, &info));
    void *library = dlopen(info.compiler, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL)
        return -1;
    void *address = dlsym(library, counter);
    memcpy(&function, &address, sizeof function);
    int value = function != NULL ? function() : -1;
    dlclose(library);
    return value;
}

#endif
