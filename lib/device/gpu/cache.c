/*
 * Compiled kernels on disk: one file a key in $MEMOPT_CACHE_DIR, else $XDG_CACHE_HOME/memopt, else
 * ~/.cache/memopt. An empty MEMOPT_CACHE_DIR turns the cache off.
 *
 * A file is written under another name and renamed, so that readers see all of it or none, and
 * carries its size and a digest of its key and contents, so that a damaged one is replaced. Only
 * files of this user that others cannot write are read: they are run on the device. Every failure
 * is harmless: the kernels are then compiled again.
 *
 * Who makes a file holds a lock on one byte of the file ".lock", chosen by the key, so that others
 * wait and find what was made. The kernel releases the lock when a process ends, however it does.
 */
#define _GNU_SOURCE /* F_OFD_SETLK, mkostemp, secure_getenv */

#include "device/gpu/gpu.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "base/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = MO_GPU_PATH_BYTES };

#define MAGIC "memopt3"
#define MOST_BYTES ((uint64_t)1 << 30)

typedef struct header {
    char magic[8];
    uint64_t bytes;
    char digest[MO_SHA256_TEXT - 1]; /* no zero byte behind it, so no gap in the file */
} header;

static void digest_file(const char *key, const void *data, uint64_t bytes, char *digest)
{
    mo_sha256 sha;
    mo_sha256_begin(&sha);
    mo_sha256_add(&sha, key, strlen(key));
    mo_sha256_add(&sha, data, bytes);
    mo_sha256_end(&sha, digest);
}

void mo_gpu_cache_key(const mo_gpu_device *gpu, const mo_gpu_recipe *recipe, const char *kernel,
                      char *key)
{
    char identity[MO_GPU_IDENTITY_BYTES], digest[MO_SHA256_TEXT];
    mo_gpu_recipe_identity(gpu, recipe, identity);
    digest_file(identity, recipe->text, recipe->bytes, digest);
    snprintf(key, MO_GPU_KEY_BYTES, "%s-%s-%.32s-%s.bin", gpu->driver->vendor->name, gpu->target,
             digest, kernel);
}

/* Makes the folder and those above it. 1 if it is there in the end. */
static int make_folder(char *path)
{
    struct stat info;
    for (char *at = strchr(path + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        *at = '\0';
        (void)mkdir(path, 0700); /* a failure shows at the end */
        *at = '/';
    }
    if (mkdir(path, 0700) == 0)
        return 1;
    int why = errno;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return 1;
    mo_log(MEMOPT_LOG_WARNING, "cache: the folder %s cannot be made: %s", path, strerror(why));
    return 0;
}

/* The folder's path; 0 where the cache is off or there is no place for it. */
static int cache_folder(char *out)
{
    const char *own = secure_getenv("MEMOPT_CACHE_DIR");
    const char *base = secure_getenv("XDG_CACHE_HOME"), *home = secure_getenv("HOME");
    int length = -1;
    if (own != NULL && own[0] == '/')
        length = snprintf(out, PATH_BYTES, "%s", own);
    else if (own == NULL && base != NULL && base[0] == '/')
        length = snprintf(out, PATH_BYTES, "%s/memopt", base);
    else if (own == NULL && home != NULL && home[0] == '/')
        length = snprintf(out, PATH_BYTES, "%s/.cache/memopt", home);
    return length > 0 && length < PATH_BYTES - 2 * MO_GPU_KEY_BYTES;
}

static int cache_path(const char *key, char *out)
{
    if (!cache_folder(out))
        return 0;
    size_t length = strlen(out);
    snprintf(out + length, PATH_BYTES - length, "/%s", key);
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
    char digest[MO_SHA256_TEXT];
    header head;
    int intact = 0;
    if (!cache_path(key, path))
        return 0;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0)
        return 0;
    if (is_ours(file) && mo_read_bytes(file, &head, sizeof head) &&
        memcmp(head.magic, MAGIC, sizeof head.magic) == 0 && head.bytes > 0 &&
        head.bytes <= MOST_BYTES) {
        char *binary = mo_malloc(head.bytes + 1);
        if (binary != NULL && mo_read_bytes(file, binary, head.bytes)) {
            digest_file(key, binary, head.bytes, digest);
            intact = memcmp(digest, head.digest, sizeof head.digest) == 0;
        }
        if (intact) {
            binary[head.bytes] = '\0';
            *out_binary = binary;
            *out_bytes = head.bytes;
        } else
            mo_free(binary);
    }
    close(file);
    if (!intact) {
        mo_log(MEMOPT_LOG_WARNING, "cache: %s is damaged or not ours; it is not used", path);
        (void)unlink(path);
    }
    return intact;
}

static void warn_of_folder(void)
{
    const char *own = secure_getenv("MEMOPT_CACHE_DIR");
    if (own != NULL && own[0] != '\0' && own[0] != '/')
        mo_log(MEMOPT_LOG_WARNING,
               "cache: MEMOPT_CACHE_DIR is \"%s\", not a path from the root; nothing is kept", own);
}

void mo_gpu_cache_write(const char *key, const void *binary, uint64_t bytes)
{
    char path[PATH_BYTES], other[PATH_BYTES], digest[MO_SHA256_TEXT];
    header head = {.magic = MAGIC, .bytes = bytes};
    digest_file(key, binary, bytes, digest);
    memcpy(head.digest, digest, sizeof head.digest);
    warn_of_folder();
    if (!cache_folder(other) || !make_folder(other) || !cache_path(key, path))
        return;
    size_t length = strlen(other);
    snprintf(other + length, sizeof other - length, "/new-XXXXXX");
    int file = mkostemp(other, O_CLOEXEC);
    int why = file < 0 ? errno : 0;
    if (file >= 0) {
        if (!write_all(file, &head, sizeof head) || !write_all(file, binary, bytes))
            why = errno;
        if (close(file) != 0 && why == 0)
            why = errno;
        if (why == 0 && rename(other, path) != 0)
            why = errno;
        if (why != 0)
            (void)unlink(other);
    }
    if (why != 0)
        mo_log(MEMOPT_LOG_WARNING, "cache: %s cannot be written: %s", path, strerror(why));
}

void mo_gpu_cache_drop(const char *key)
{
    char path[PATH_BYTES];
    if (cache_path(key, path))
        (void)unlink(path);
}

void mo_gpu_cache_place(char *text)
{
    if (!cache_folder(text))
        text[0] = '\0';
}

/* --- one makes, the others wait ------------------------------------------------------------ */

/* Longer than any compilation takes; then each makes it for itself. */
enum { WAIT_SECONDS = 120, WAITS_A_SECOND = 50 };

/* One of 2^30 bytes; a lock may lie behind the end of a file. */
static off_t place_of(const char *key)
{
    uint32_t hash = 0;
    for (; *key != '\0'; key++)
        hash = hash * 31 + (unsigned char)*key;
    return (off_t)(hash >> 2);
}

/* 0, or an errno: EAGAIN while another has it. */
static int try_lock(int file, off_t place)
{
    struct flock one = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = place, .l_len = 1, .l_pid = 0};
    if (fcntl(file, F_OFD_SETLK, &one) == 0)
        return 0;
    return errno == EACCES ? EAGAIN : errno;
}

int mo_gpu_cache_lock(const char *key)
{
    char path[PATH_BYTES];
    const struct timespec pause = {.tv_nsec = 1000000000 / WAITS_A_SECOND};
    if (!cache_folder(path) || !make_folder(path) || !cache_path(".lock", path))
        return -1;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    int code = file >= 0 ? try_lock(file, place_of(key)) : errno;
    if (code == EAGAIN)
        mo_log(MEMOPT_LOG_WARNING, "cache: waits for another process, which makes %s", key);
    for (int i = 0; code == EAGAIN && i < WAIT_SECONDS * WAITS_A_SECOND; i++) {
        (void)nanosleep(&pause, NULL);
        code = try_lock(file, place_of(key));
    }
    if (code == 0)
        return file;
    mo_log(MEMOPT_LOG_INFO, "cache: %s cannot be locked: %s", path, strerror(code));
    if (file >= 0)
        close(file);
    return -1;
}

void mo_gpu_cache_unlock(int lock)
{
    if (lock >= 0)
        close(lock);
}
