/* States in files: a path has a whole file at any time, the old one or the new one. */
#include "fixture.h"

#include "base/unnamed_file.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/memopt-save-XXXXXX", path[64], part[64];

typedef struct run {
    world w;
    memopt_optimizer *o;
    memopt_tensor p, g;
} run;

static run start(void)
{
    run r = {.w = open_world(MEMOPT_STREAM_ORDER_EAGER, 1)};
    r.p = new_tensor(&r.w, 20000, MEMOPT_DTYPE_F32, noise(1, 1.0f));
    r.g = new_tensor(&r.w, 20000, MEMOPT_DTYPE_F32, noise(2, 1.0f));
    r.o = new_optimizer(&r.w, MEMOPT_STATE_8BIT, NULL);
    (void)add_parameter(&r.w, r.o, &r.p);
    return r;
}

static void step(run *r)
{
    OK(memopt_optimizer_step(r->o, &r->g, 1, NULL, r->w.stream));
}

static memopt_status load(run *r)
{
    const char *const paths[] = {path};
    return memopt_optimizer_load_sync(r->o, paths, 1, 0, r->w.stream);
}

/* The file is the export, and nothing is beside it. */
static void check_file(run *r)
{
    struct stat about;
    uint64_t bytes;
    unsigned char *wanted = export_all(&r->w, r->o, &bytes), *found = malloc(bytes + 1);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(found, 1, bytes + 1, file), bytes);
    assert_memory_equal(wanted, found, bytes);
    fclose(file);
    free(wanted);
    free(found);
    assert_int_equal(stat(part, &about), -1);
}

static void make_folder(void)
{
    strcpy(folder, "/tmp/memopt-save-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/states", folder);
    snprintf(part, sizeof part, "%s/states.part", folder);
}

static void end_folder(void)
{
    (void)unlink(part);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

TEST(save_and_load)
{
    uint64_t bytes;
    run a = start(), b = start();
    make_folder();
    step(&a);
    OK(memopt_optimizer_save_sync(a.o, path, a.w.stream));
    check_file(&a);
    step(&a);
    OK(memopt_optimizer_save_sync(a.o, path, a.w.stream)); /* over the old one */
    check_file(&a);
    OK(load(&b));
    unsigned char *x = export_all(&a.w, a.o, &bytes);
    exports_as(&b.w, b.o, x, bytes);
    assert_int_equal(chdir(folder), 0); /* a name without a folder */
    OK(memopt_optimizer_save_sync(b.o, "states", b.w.stream));
    check_file(&b);
    assert_int_equal(chdir("/"), 0);
    REFUSED(memopt_optimizer_save_sync(a.o, "", NULL));
    REFUSED(memopt_optimizer_save_sync(NULL, path, NULL));
    REFUSED(memopt_optimizer_load_sync(a.o, NULL, 1, 0, NULL));
    FAILS_SAYING(MEMOPT_IO_ERROR, "No such file",
                 memopt_optimizer_save_sync(a.o, "/nowhere/states", NULL));
    end_folder();
    close_world(&a.w);
    close_world(&b.w);
}

static uint64_t room; /* of the disk, in bytes */

static ssize_t write_some(int file, const void *from, size_t bytes, off_t offset)
{
    errno = ENOSPC;
    if ((uint64_t)offset >= room)
        return -1;
    return pwrite(file, from, bytes < room - (uint64_t)offset ? bytes : room - (uint64_t)offset,
                  offset);
}

static int sync_fails(int file)
{
    (void)file;
    errno = EIO;
    return -1;
}

/* A disk that is full, or fails at the last: the old file is there, and the new one's part is not. */
TEST(full_disk)
{
    const mo_file_system calls = mo_file_calls;
    run old = start(), new = start();
    make_folder();
    OK(memopt_optimizer_save_sync(old.o, path, old.w.stream));
    step(&new);
    mo_file_calls.write = write_some;
    for (room = 0; room < 40000; room += 13000) {
        FAILS_SAYING(MEMOPT_IO_ERROR, "No space left on device, behind",
                     memopt_optimizer_save_sync(new.o, path, new.w.stream));
        check_file(&old);
    }
    mo_file_calls = calls;
    mo_file_calls.sync = sync_fails;
    FAILS_SAYING(MEMOPT_IO_ERROR, "cannot write",
                 memopt_optimizer_save_sync(new.o, path, new.w.stream));
    mo_file_calls = calls;
    check_file(&old);
    OK(memopt_optimizer_save_sync(new.o, path, new.w.stream));
    check_file(&new);
    end_folder();
    close_world(&old.w);
    close_world(&new.w);
}

static ssize_t write_and_end(int file, const void *from, size_t bytes, off_t offset)
{
    if (offset >= 4096)
        (void)kill(getpid(), SIGKILL);
    return pwrite(file, from, bytes < 4096 ? bytes : 4096, offset);
}

/* A process that is killed in the middle of a write. */
static void killed_child(void)
{
    run r = start();
    step(&r);
    mo_file_calls.write = write_and_end;
    (void)memopt_optimizer_save_sync(r.o, path, r.w.stream);
    _exit(1);
}

TEST(killed_process)
{
    struct stat about;
    int status;
    make_folder();
    pid_t first = fork(); /* before this process has a device */
    if (first == 0) {
        run r = start();
        _exit(memopt_optimizer_save_sync(r.o, path, r.w.stream) != MEMOPT_OK);
    }
    assert_int_equal(waitpid(first, &status, 0), first);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    pid_t killed = fork();
    if (killed == 0)
        killed_child();
    assert_int_equal(waitpid(killed, &status, 0), killed);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(stat(part, &about), 0);
    assert_true(about.st_size > 0);
    run r = start();
    OK(load(&r));
    uint64_t steps;
    OK(memopt_optimizer_get_steps_sync(r.o, 0, r.w.stream, &steps));
    assert_int_equal(steps, 0);
    step(&r);
    OK(memopt_optimizer_save_sync(r.o, path, r.w.stream)); /* over what the other left */
    check_file(&r);
    end_folder();
    close_world(&r.w);
}

static void overwrite(long at, const char *bytes, size_t count)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static ssize_t read_nothing(int file, void *to, size_t bytes, off_t offset)
{
    (void)file, (void)to, (void)bytes, (void)offset;
    errno = EIO;
    return -1;
}

/* What is not such a file is refused, and nothing changes. */
TEST(bad_files)
{
    const mo_file_system calls = mo_file_calls;
    const char *const two[] = {path, NULL}, *const none[] = {folder};
    uint64_t bytes;
    run r = start();
    make_folder();
    FAILS_SAYING(MEMOPT_IO_ERROR, "cannot open", load(&r));
    OK(memopt_optimizer_save_sync(r.o, path, r.w.stream));
    step(&r);
    unsigned char *before = export_all(&r.w, r.o, &bytes);
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "not a regular file",
                 memopt_optimizer_load_sync(r.o, none, 1, 0, r.w.stream));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "a path is NULL",
                 memopt_optimizer_load_sync(r.o, two, 2, 0, r.w.stream));
    mo_file_calls.read = read_nothing;
    FAILS_SAYING(MEMOPT_IO_ERROR, "cannot read", load(&r));
    mo_file_calls = calls;
    overwrite(30000, "damage", 6);
    FAILS_SAYING(MEMOPT_CORRUPT, "the checksum is", load(&r));
    assert_int_equal(truncate(path, 30000), 0);
    FAILS_SAYING(MEMOPT_CORRUPT, "there are 30000; the export is cut short", load(&r));
    overwrite(0, "foreign", 7);
    FAILS_SAYING(MEMOPT_CORRUPT, "30000 bytes that are not an export", load(&r));
    assert_int_equal(truncate(path, 0), 0);
    FAILS_SAYING(MEMOPT_CORRUPT, "0 bytes that are not an export", load(&r));
    exports_as(&r.w, r.o, before, bytes);
    end_folder();
    close_world(&r.w);
}
