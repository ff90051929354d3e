/*
 * The door between NVIDIA's own libraries and the driver. NVRTC 13 asks for a table of functions
 * and takes it for granted that it gets one where a driver is there. A table starts with its size
 * in bytes, by which such a library knows what is in it: this one holds the size only.
 */
#include <stddef.h>
#include <stdint.h>

__attribute__((visibility("default"))) int cuGetExportTable(const void **out, const void *id);
__attribute__((visibility("default"))) int cuGetExportTable(const void **out, const void *id)
{
    static const uint64_t table[1] = {sizeof table};
    if (out == NULL || id == NULL)
        return 1; /* CUDA_ERROR_INVALID_VALUE */
    *out = table;
    return 0;
}
