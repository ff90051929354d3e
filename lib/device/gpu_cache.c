/*
 * Compiled kernels on disk: one file a key in $XDG_CACHE_HOME/memopt or ~/.cache/memopt.
 *
 * A file is written under another name and renamed, so that readers see all of it or none, and
 * carries its size and a hash, so that a damaged one is made anew. Only files of this user that
 * others cannot write are read: they are run on the device. Every failure is harmless: the kernels
 * are then compiled again.
 */
#define _GNU_SOURCE /* mkostemp */

#include "device/gpu.h"

#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 1024 };

#define MAGIC "memopt1"
#define MOST_BYTES ((uint64_t)1 << 30)

typedef struct header {
    char magic[8];
    uint64_t bytes;
    uint64_t hash;
} header;

/* FNV-1a, for finding damage and telling sources apart, not against forgery. */
static uint64_t hash_bytes(uint64_t hash, const void *data, uint64_t bytes)
{
    const unsigned char *at = data;
    for (uint64_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static const uint64_t first_seed = UINT64_C(0xcbf29ce484222325);
static const uint64_t second_seed = UINT64_C(0x84222325cbf29ce4);

void mo_gpu_cache_key(const mo_gpu_device *gpu, char *key)
{
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    const mo_images *images = vendor->images;
    char option[2 * MO_GPU_TARGET_BYTES];
    vendor->target_option(gpu, option, sizeof option);
    uint64_t a = hash_bytes(first_seed, images->source, images->source_bytes);
    uint64_t b = hash_bytes(second_seed, images->source, images->source_bytes);
    a = hash_bytes(a, option, strlen(option));
    b = hash_bytes(b, option, strlen(option));
    snprintf(key, MO_GPU_KEY_BYTES, "%s-%s-%016" PRIx64 "%016" PRIx64 ".bin", vendor->name,
             gpu->target, a, b);
}

/* The folder, made if asked. 1 on success. */
static int cache_folder(char *out, int make)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length;
    if (base != NULL && base[0] == '/')
        length = snprintf(out, PATH_BYTES, "%s", base);
    else if (home != NULL && home[0] == '/')
        length = snprintf(out, PATH_BYTES, "%s/.cache", home);
    else
        return 0;
    if (length < 0 || length > PATH_BYTES - 256)
        return 0;
    if (make && mkdir(out, 0700) != 0 && errno != EEXIST)
        return 0;
    memcpy(out + length, "/memopt", sizeof "/memopt");
    return !make || mkdir(out, 0700) == 0 || errno == EEXIST;
}

static int cache_path(const char *key, char *out, int make)
{
    if (!cache_folder(out, make))
        return 0;
    size_t length = strlen(out);
    snprintf(out + length, PATH_BYTES - length, "/%s", key);
    return 1;
}

static int read_all(int file, void *data, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t count = read(file, (char *)data + done, bytes - done);
        if (count <= 0 && !(count < 0 && errno == EINTR))
            return 0;
        done += count > 0 ? (uint64_t)count : 0;
    }
    return 1;
}

static int write_all(int file, const void *data, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t count = write(file, (const char *)data + done, bytes - done);
        if (count <= 0 && !(count < 0 && errno == EINTR))
            return 0;
        done += count > 0 ? (uint64_t)count : 0;
    }
    return 1;
}

static int is_ours(int file)
{
    struct stat info;
    return fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
           (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

int mo_gpu_cache_read(const char *key, void **out_binary, uint64_t *out_bytes)
{
    char path[PATH_BYTES];
    header head;
    int intact = 0;
    if (!cache_path(key, path, 0))
        return 0;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0)
        return 0;
    if (is_ours(file) && read_all(file, &head, sizeof head) &&
        memcmp(head.magic, MAGIC, sizeof head.magic) == 0 && head.bytes > 0 &&
        head.bytes <= MOST_BYTES) {
        void *binary = mo_malloc(head.bytes);
        intact = binary != NULL && read_all(file, binary, head.bytes) &&
                 hash_bytes(first_seed, binary, head.bytes) == head.hash;
        if (intact) {
            *out_binary = binary;
            *out_bytes = head.bytes;
        } else
            mo_free(binary);
    }
    close(file);
    if (!intact)
        mo_log(MEMOPT_LOG_WARNING, "cache: %s is damaged or not ours; it is not used", path);
    return intact;
}

void mo_gpu_cache_write(const char *key, const void *binary, uint64_t bytes)
{
    char path[PATH_BYTES], other[PATH_BYTES];
    header head = {MAGIC, bytes, hash_bytes(first_seed, binary, bytes)};
    if (!cache_path(key, path, 1) || !cache_folder(other, 0))
        return;
    size_t length = strlen(other);
    snprintf(other + length, sizeof other - length, "/new-XXXXXX");
    int file = mkostemp(other, O_CLOEXEC);
    if (file < 0) {
        mo_log(MEMOPT_LOG_WARNING, "cache: %s cannot be written: %s", path, strerror(errno));
        return;
    }
    int whole = write_all(file, &head, sizeof head) && write_all(file, binary, bytes);
    whole = close(file) == 0 && whole;
    if (!whole || rename(other, path) != 0) {
        mo_log(MEMOPT_LOG_WARNING, "cache: %s cannot be written: %s", path, strerror(errno));
        (void)unlink(other);
    }
}

void mo_gpu_cache_drop(const char *key)
{
    char path[PATH_BYTES];
    if (cache_path(key, path, 0))
        (void)unlink(path);
}
