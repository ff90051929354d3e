/*
 * The GPU forms of the kernels: what was compiled when the library was built, in it or in files
 * beside it (MEMOPT_GPU_IMAGES_EMBED), and the source for what was not. Made by
 * cmake/MemoptGpu.cmake; empty where MEMOPT_CUDA or MEMOPT_HIP is OFF, and without images where no
 * compiler was found.
 */
#ifndef MO_KERNELS_CORE_GPU_IMAGES_H
#define MO_KERNELS_CORE_GPU_IMAGES_H

#include <stdint.h>

/* CUDA: "fatbin" (SASS and PTX, the driver chooses) and "ptx75" (a text, older drivers accept it).
 * HIP: a code object per target, "gfx90a". A zero byte follows the data, not counted in bytes.
 * In the library: data. In a file: its name and SHA-256, 64 hexadecimal digits. */
typedef struct mo_image {
    const char *target;
    const void *data;
    uint64_t bytes;
    const char *file;
    const char *digest;
} mo_image;

/* source: one text without #include of anything, for NVRTC and hipRTC; NULL where OFF. It ends in a
 * zero byte that is not counted. The first image that fits is the best. */
typedef struct mo_images {
    const mo_image *images; /* NULL if count is 0 */
    uint32_t count;
    const char *source;
    uint64_t source_bytes;
} mo_images;

extern const mo_images mo_cuda_images;
extern const mo_images mo_hip_images;

#endif
