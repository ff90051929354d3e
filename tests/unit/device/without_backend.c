/*
 * without_backend OFF OTHER: what a build without the back end OFF says, and that OTHER, whose
 * kernels are in the library as a source only, computes. Public headers only.
 */
#include "memopt/memopt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, memopt_last_error());       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define OK(call) CHECK((call) == MEMOPT_OK)

static void left_out(const char *backend)
{
    char name[16], option[32];
    memopt_device *device = NULL;
    memopt_backend_info info = {.struct_size = sizeof info};
    snprintf(name, sizeof name, "%s:0", backend);
    snprintf(option, sizeof option, "-DMEMOPT_%s=AUTO", backend[0] == 'c' ? "CUDA" : "HIP");
    CHECK(memopt_device_open(name, NULL, &device) == MEMOPT_UNSUPPORTED);
    CHECK(strstr(memopt_last_error(), option) != NULL);
    CHECK(strstr(memopt_last_error(), "\"cpu\"") != NULL);
    CHECK(device == NULL);
    OK(memopt_backend_get_info(backend, &info));
    CHECK(info.status == MEMOPT_UNSUPPORTED && info.targets[0] == '\0');
    CHECK((info.features & MEMOPT_BACKEND_RUNTIME_COMPILER) == 0);
}

static void source_only(const char *backend)
{
    memopt_backend_info info = {.struct_size = sizeof info};
    memopt_device *device = NULL;
    memopt_allocator *allocator = NULL;
    void *memory = NULL;
    float values[64];
    uint16_t results[64] = {0};
    char name[16];
    snprintf(name, sizeof name, "%s:0", backend);
    for (int i = 0; i < 64; i++)
        values[i] = (float)i;
    OK(memopt_backend_get_info(backend, &info));
    CHECK(info.targets[0] == '\0');
    CHECK((info.features & MEMOPT_BACKEND_RUNTIME_COMPILER) != 0);
    OK(memopt_device_open(name, NULL, &device));
    OK(memopt_allocator_create(device, NULL, NULL, &allocator));
    OK(memopt_allocator_alloc(allocator, 1024, MEMOPT_TAG_OTHER, NULL, &memory));
    memopt_tensor from = {memory, 64, MEMOPT_DTYPE_F32};
    memopt_tensor to = {(char *)memory + 512, 64, MEMOPT_DTYPE_BF16};
    OK(memopt_copy(device, from.data, values, sizeof values, NULL));
    OK(memopt_cast(device, &to, &from, 1, NULL, NULL));
    OK(memopt_copy(device, results, to.data, sizeof results, NULL));
    OK(memopt_stream_sync(device, NULL));
    CHECK(results[1] == 0x3F80 && results[63] == 0x427C);
    OK(memopt_allocator_free(allocator, memory));
    OK(memopt_allocator_destroy(allocator));
    OK(memopt_device_close(device));
}

int main(int count, char **values)
{
    if (count != 3)
        return 2;
    left_out(values[1]);
    source_only(values[2]);
    return 0;
}
