/*
 * GPU images in separate files (MEMOPT_GPU_IMAGES_EMBED=OFF): in $MEMOPT_KERNELS_DIR, else in
 * memopt/kernels next to the library. A file is used only if its digest is the one that the library
 * was built with.
 */
#define _GNU_SOURCE /* dladdr, secure_getenv */

#include "device/gpu/gpu.h"

#include "base/memory.h"
#include "base/sha256.h"
#include "base/small_file.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES (INT64_C(1) << 30)

_Static_assert(MO_GPU_PATH_BYTES >= PATH_MAX, "what realpath writes");

void mo_gpu_library_folder(char *out_path)
{
    Dl_info info;
    if (dladdr(&mo_cuda_images, &info) == 0 || realpath(info.dli_fname, out_path) == NULL)
        strcpy(out_path, "./");
    strrchr(out_path, '/')[0] = '\0';
}

void mo_gpu_image_path(const mo_image *image, char *out_path)
{
    const char *folder = secure_getenv("MEMOPT_KERNELS_DIR");
    if (folder != NULL && folder[0] != '\0') {
        snprintf(out_path, MO_GPU_PATH_BYTES, "%s/%s", folder, image->file);
        return;
    }
    mo_gpu_library_folder(out_path);
    mo_append(out_path, MO_GPU_PATH_BYTES, "/memopt/kernels/%s", image->file);
}

/* All of an open file, with a zero byte behind it. */
static memopt_status read_file(int file, const char *path, void **out_data, uint64_t *out_bytes)
{
    struct stat info;
    if (fstat(file, &info) != 0)
        return mo_fail_driver(MEMOPT_IO_ERROR, errno, "", "kernels: %s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode) || info.st_size > MOST_BYTES)
        return mo_fail(MEMOPT_CORRUPT, "kernels: %s is not a file of GPU code", path);
    char *data = mo_malloc((uint64_t)info.st_size + 1);
    if (data == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    errno = 0;
    if (!mo_read_bytes(file, data, (uint64_t)info.st_size)) {
        int why = errno != 0 ? errno : EIO;
        mo_free(data);
        return mo_fail_driver(MEMOPT_IO_ERROR, why, "", "kernels: reading %s: %s", path,
                              strerror(why));
    }
    data[info.st_size] = '\0';
    *out_data = data;
    *out_bytes = (uint64_t)info.st_size;
    return MEMOPT_OK;
}

static memopt_status check(const mo_image *image, const char *path, const void *data,
                           uint64_t bytes)
{
    char found[MO_SHA256_TEXT];
    mo_sha256 sha;
    mo_sha256_begin(&sha);
    mo_sha256_add(&sha, data, bytes);
    mo_sha256_end(&sha, found);
    if (strcmp(found, image->digest) == 0)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_CORRUPT,
                   "kernels: %s has %llu bytes with SHA-256 %s; this library was built with a file "
                   "of %llu bytes with SHA-256 %s. Install the files of the same build, or name "
                   "their folder in MEMOPT_KERNELS_DIR",
                   path, (unsigned long long)bytes, found, (unsigned long long)image->bytes,
                   image->digest);
}

memopt_status mo_gpu_image_read(const mo_image *image, void **out_data)
{
    char path[MO_GPU_PATH_BYTES];
    void *data = NULL;
    uint64_t bytes = 0;
    mo_gpu_image_path(image, path);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 && (errno == ENOENT || errno == ENOTDIR))
        return MEMOPT_NOT_FOUND;
    if (file < 0)
        return mo_fail_driver(MEMOPT_IO_ERROR, errno, "", "kernels: opening %s: %s", path,
                              strerror(errno));
    memopt_status status = read_file(file, path, &data, &bytes);
    close(file);
    if (status == MEMOPT_OK)
        status = check(image, path, data, bytes);
    if (status != MEMOPT_OK) {
        mo_free(data);
        return status;
    }
    *out_data = data;
    return MEMOPT_OK;
}
