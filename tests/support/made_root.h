/* A folder of its own for each test. The including file defines _GNU_SOURCE, for nftw. */
#ifndef TEST_SUPPORT_MADE_ROOT_H
#define TEST_SUPPORT_MADE_ROOT_H

#include "unit/device/support.h"

#include <errno.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/memopt-root-XXXXXX";

static inline int remove_one(const char *path, const struct stat *about, int kind,
                             struct FTW *where)
{
    return remove(path);
}

static inline int make_root(void **state)
{
    strcpy(root + sizeof root - 7, "XXXXXX");
    return mkdtemp(root) == NULL;
}

static inline int remove_root(void **state)
{
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Writes a file below the root, with the folders on the way. */
static inline void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = path + sizeof root; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        if (mkdir(path, 0755) != 0 && errno != EEXIST)
            fail_msg("%s: %s", path, strerror(errno));
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

#endif
