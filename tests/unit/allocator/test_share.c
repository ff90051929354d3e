/*
 * Blocks that two processes use. The other process is this program once more, started by an exec.
 * The first argument is the device; on a GPU the driver is a simulated one.
 */
#define _GNU_SOURCE /* RTLD_NOLOAD */

#include "support.h"

#include "memopt/share.h"
#include "support/simulated.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 4, MESSAGE = MEMOPT_SHARE_MESSAGE_BYTES };

static const uint64_t sizes[BLOCKS] = {512, 70144, 5 * MIB + 512, 9 * MIB};
static const char *device_name = "cpu";

/* Small pages on "cpu", so that there are more than fit one message. */
static memopt_device *open_here(void)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device = NULL;
    int cpu = strcmp(device_name, "cpu") == 0;
    options.capacity = CAPACITY;
    options.granularity = 64 << 10;
    options.threads = 1;
    OK(memopt_device_open(device_name, cpu ? &options : NULL, &device));
    return device;
}

static int open_files(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static void fill(memopt_device *device, void *data, int value, uint64_t bytes)
{
    OK(memopt_fill(device, data, (uint8_t)value, bytes, NULL));
    OK(memopt_stream_sync(device, NULL));
}

static int has(memopt_device *device, const void *data, int value, uint64_t bytes)
{
    unsigned char *host = malloc(bytes);
    assert_non_null(host);
    OK(memopt_copy(device, host, data, bytes, NULL));
    OK(memopt_stream_sync(device, NULL));
    int right = host[0] == value && memcmp(host, host + 1, bytes - 1) == 0;
    free(host);
    return right;
}

typedef struct scene {
    memopt_device *device;
    memopt_allocator *allocator;
    void *blocks[BLOCKS];
    memopt_export *shared[BLOCKS];
} scene;

static scene begin_some(int count)
{
    scene s = {.device = open_here()};
    s.allocator = new_allocator(s.device, EXPANDABLE);
    for (int i = 0; i < count; i++) {
        s.blocks[i] = alloc(s.allocator, sizes[i]);
        fill(s.device, s.blocks[i], i + 1, sizes[i]);
    }
    return s;
}

static scene begin(void)
{
    return begin_some(BLOCKS);
}

static void export_all(scene *s)
{
    for (int i = 0; i < BLOCKS; i++)
        OK(memopt_export_create(s->allocator, s->blocks[i], &s->shared[i]));
}

static void end(scene *s)
{
    for (int i = 0; i < BLOCKS; i++) {
        OK(memopt_export_destroy(s->shared[i]));
        OK(memopt_allocator_free(s->allocator, s->blocks[i]));
    }
    OK(memopt_allocator_trim_sync(s->allocator, 0, NULL));
    assert_int_equal(info_of(s->device).used, 0);
    assert_int_equal(info_of(s->device).free, info_of(s->device).total);
    finish(s->allocator, s->device);
}

/* --- the other process ------------------------------------------------------------------------ */

static char *program;

static void say(int socket, char what)
{
    assert_int_equal(write(socket, &what, 1), 1);
}

/* 0: the other one has gone. */
static char hear(int socket)
{
    char what = 0;
    return read(socket, &what, 1) == 1 ? what : 0;
}

/* Imports, checks and changes every block, and waits for its end. */
static int peer(int socket)
{
    memopt_device *device = open_here();
    memopt_import *import = NULL;
    void *data = NULL;
    uint64_t bytes = 0;
    uint64_t before = info_of(device).reserved_va;
    for (int i = 0; i < BLOCKS; i++) {
        if (memopt_import_receive(device, socket, &data, &bytes, &import) != MEMOPT_OK)
            return fprintf(stderr, "peer: %s\n", memopt_last_error()), 1;
        if (bytes != sizes[i] || !has(device, data, i + 1, bytes))
            return fprintf(stderr, "peer: block %d is wrong\n", i), 2;
        fill(device, data, 100 + i, bytes);
        uint64_t page = mo_device_granularity(device), more = info_of(device).reserved_va - before;
        if (more > (bytes + page - 1) / page * page + page)
            return fprintf(stderr, "peer: %llu bytes reserved for block %d\n",
                           (unsigned long long)more, i),
                   3;
        before += more;
    }
    say(socket, 'd');
    (void)hear(socket);
    return 4;
}

static pid_t start_peer(int *out_socket)
{
    int ends[2];
    char number[16];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    pid_t child = fork();
    if (child == 0) {
        snprintf(number, sizeof number, "%d", fcntl(ends[1], F_DUPFD, 10));
        execl(program, program, device_name, number, (char *)NULL);
        _exit(77);
    }
    assert_true(child > 0);
    close(ends[1]);
    *out_socket = ends[0];
    return child;
}

static int end_of(pid_t child)
{
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void send_all(scene *s, int socket)
{
    for (int i = 0; i < BLOCKS; i++)
        OK(memopt_export_send(s->shared[i], socket));
}

/* Each sees what the other one writes (what outlives the exporter: conformance/share_cases.c). A peer
 * that is killed leaves nothing behind, also with descriptors that it never took. */
TEST(killed)
{
    for (int early = 0; early < 2; early++) {
        int socket, files = open_files();
        scene s = begin();
        export_all(&s);
        pid_t child = start_peer(&socket);
        if (early) {
            kill(child, SIGSTOP);
            OK(memopt_export_send(s.shared[1], socket));
        } else {
            send_all(&s, socket);
            assert_int_equal(hear(socket), 'd');
        }
        kill(child, SIGKILL);
        assert_int_equal(end_of(child), -SIGKILL);
        for (int i = 0; i < BLOCKS; i++)
            assert_true(has(s.device, s.blocks[i], early ? i + 1 : 100 + i, sizes[i]));
        GIVES(MEMOPT_IO_ERROR, memopt_export_send(s.shared[3], socket));
        close(socket);
        end(&s);
        assert_int_equal(open_files(), files);
    }
}

/* --- in one process --------------------------------------------------------------------------- */

static memopt_status pass(memopt_export *shared, memopt_device *device, void **out_data,
                          memopt_import **out)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    memopt_status status = memopt_export_send(shared, ends[0]);
    shutdown(ends[0], SHUT_WR);
    memopt_status received = memopt_import_receive(device, ends[1], out_data, NULL, out);
    close(ends[0]);
    close(ends[1]);
    return status != MEMOPT_OK ? status : received;
}

/* While it is exported, a block's memory is nobody else's, whatever happens. */
TEST(pinned)
{
    scene s = begin();
    memopt_import *import = NULL;
    void *data = NULL;
    export_all(&s);
    OK(pass(s.shared[3], s.device, &data, &import));
    uint64_t held = held_by(s.allocator);
    memopt_pause_report report = MEMOPT_PAUSE_REPORT_INIT;
    OK(memopt_pool_pause_sync(s.allocator, NULL, &report));
    assert_int_equal(report.shared_bytes, held);
    assert_int_equal(held_by(s.allocator), held);
    assert_true(has(s.device, s.blocks[3], 4, sizes[3])); /* all are exported: none went */
    OK(memopt_pool_resume_sync(s.allocator, 0));
    OK(memopt_export_destroy(s.shared[2]));
    s.shared[2] = NULL;
    OK(pause_pool(s.allocator, MEMOPT_PAUSE_KEEP, NULL));
    assert_true(held_by(s.allocator) < held);
    FAILS(MEMOPT_BUSY, memopt_export_create(s.allocator, s.blocks[2], &s.shared[2]));
    assert_true(has(s.device, data, 4, sizes[3]));
    OK(mo_allocator_check(s.allocator));
    OK(memopt_pool_resume_sync(s.allocator, 0));
    assert_true(has(s.device, s.blocks[2], 3, sizes[2]));

    OK(memopt_allocator_free(s.allocator, s.blocks[3]));
    REFUSED(memopt_allocator_free(s.allocator, s.blocks[3]));
    OK(mo_allocator_check(s.allocator));
    OK(memopt_allocator_trim_sync(s.allocator, 0, NULL));
    void *other = alloc(s.allocator, sizes[3]);
    assert_ptr_not_equal(other, s.blocks[3]);
    fill(s.device, other, 50, sizes[3]);
    assert_true(has(s.device, data, 4, sizes[3]));
    OK(memopt_allocator_free(s.allocator, other));
    for (int i = 0; i < 3; i++)
        OK(memopt_allocator_free(s.allocator, s.blocks[i]));
    FAILS_SAYING(MEMOPT_BUSY, "3 exports", memopt_allocator_destroy(s.allocator));
    OK(memopt_import_destroy(import));
    memset(s.blocks, 0, sizeof s.blocks);
    end(&s);
}

TEST(forced_end)
{
    scene s = begin();
    memopt_import *import = NULL;
    void *data = NULL;
    char message[MESSAGE];
    uint64_t count = 0;
    int32_t file;
    export_all(&s);
    OK(pass(s.shared[2], s.device, &data, &import));
    OK(memopt_allocator_free(s.allocator, s.blocks[2]));
    OK(memopt_allocator_destroy_force(s.allocator));
    REFUSED_SAYING("by force", memopt_export_describe(s.shared[1], 1, message, &file, &count));
    assert_true(has(s.device, data, 3, sizes[2]));
    FAILS(MEMOPT_BUSY, memopt_device_close(s.device));
    OK(memopt_import_destroy(import));
    OK(memopt_device_close(s.device));
    for (int i = 0; i < BLOCKS; i++)
        OK(memopt_export_destroy(s.shared[i]));
}

TEST(statuses)
{
    scene s = begin();
    memopt_export *shared = NULL;
    memopt_allocator *classic = new_allocator(s.device, "");
    void *block = alloc(classic, 4096);
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "classic segment",
                 memopt_export_create(classic, block, &shared));
    REFUSED_SAYING("not the start of a live block",
                   memopt_export_create(s.allocator, (char *)s.blocks[2] + 512, &shared));
    REFUSED(memopt_export_create(s.allocator, NULL, &shared));
    REFUSED(memopt_export_send(NULL, 0));
    REFUSED(memopt_import_receive(NULL, 0, NULL, NULL, NULL));
    OK(memopt_export_destroy(NULL));
    OK(memopt_import_destroy(NULL));
    OK(memopt_allocator_free(classic, block));
    OK(memopt_allocator_destroy(classic));
    end(&s);
}

/* --- what does not fit ------------------------------------------------------------------------ */

/* It fails with one of two statuses, and nothing is left. */
static void refuse(memopt_device *device, const void *message, uint64_t bytes, const int32_t *files,
                   uint64_t count)
{
    memopt_import *import = NULL;
    void *data = NULL;
    int before = open_files();
    memopt_memory_info was = info_of(device);
    memopt_status status =
        memopt_import_open(device, message, bytes, files, count, &data, NULL, &import);
    assert_true(status == MEMOPT_INVALID_ARGUMENT || status == MEMOPT_UNSUPPORTED);
    assert_true(memopt_last_error()[0] != '\0' && import == NULL);
    assert_int_equal(info_of(device).reserved_va, was.reserved_va);
    assert_int_equal(info_of(device).used, was.used);
    assert_int_equal(open_files(), before);
}

TEST(bad_messages)
{
    scene s = begin();
    char message[MESSAGE], wrong[MESSAGE];
    int32_t files[256];
    uint64_t count = 0;
    export_all(&s);
    OK(memopt_export_describe(s.shared[2], 0, message, NULL, &count));
    assert_true(count >= 2 && count < 256);
    REFUSED_SAYING("room for",
                   memopt_export_describe(s.shared[2], count - 1, message, files, &count));
    OK(memopt_export_describe(s.shared[2], count, message, files, &count));
    for (uint64_t n = 0; n < MESSAGE; n += n < 8 ? 1 : 17)
        refuse(s.device, message, n, files, count);
    for (int i = 0; i < MESSAGE; i++) {
        memcpy(wrong, message, sizeof wrong);
        wrong[i] ^= 0x21;
        refuse(s.device, wrong, sizeof wrong, files, count);
    }
    refuse(s.device, message, sizeof message, files, count - 1);
    refuse(s.device, message, sizeof message, files, count + 1);
    int kept = files[count - 1], ends[2];
    assert_int_equal(pipe(ends), 0);
    const int32_t bad[] = {-1, 9999, ends[0], open("/dev/null", O_RDWR), open("/etc/hostname", 0)};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        files[count - 1] = bad[i];
        refuse(s.device, message, sizeof message, files, count);
    }
    close(ends[0]);
    close(ends[1]);
    close(bad[3]);
    close(bad[4]);
    files[count - 1] = kept;
    memopt_import *import = NULL;
    void *data = NULL;
    OK(memopt_import_open(s.device, message, sizeof message, files, count, &data, NULL, &import));
    for (uint64_t i = 0; i < count; i++)
        close(files[i]);
    assert_true(has(s.device, data, 3, sizes[2]));
    OK(memopt_import_destroy(import));
    end(&s);
}

/* The stream of bytes ends after each of its parts; then without descriptors. */
TEST(cut_streams)
{
    scene s = begin();
    char message[MESSAGE];
    uint64_t count = 0;
    export_all(&s);
    OK(memopt_export_describe(s.shared[2], 0, message, NULL, &count));
    for (uint64_t part = 0; part < MESSAGE + 9; part += part < MESSAGE - 1 ? 63 : 1) {
        int ends[2], before = open_files();
        uint64_t told = count < 64 ? count : 64;
        memopt_import *import = NULL;
        void *data = NULL;
        memopt_memory_info was = info_of(s.device);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
        size_t whole = part < MESSAGE ? (size_t)part : MESSAGE;
        assert_int_equal(write(ends[0], message, whole), whole);
        size_t more = part > MESSAGE ? (size_t)part - MESSAGE : 0;
        assert_int_equal(write(ends[0], &told, more), more);
        shutdown(ends[0], SHUT_WR);
        memopt_status status = memopt_import_receive(s.device, ends[1], &data, NULL, &import);
        assert_int_equal(status, more == 8 ? MEMOPT_INVALID_ARGUMENT : MEMOPT_IO_ERROR);
        close(ends[0]);
        close(ends[1]);
        assert_int_equal(info_of(s.device).reserved_va, was.reserved_va);
        assert_int_equal(open_files(), before);
    }
    memopt_import *import = NULL;
    GIVES(MEMOPT_IO_ERROR, memopt_import_receive(s.device, -1, &(void *){NULL}, NULL, &import));
    end(&s);
}

int main(int count, char **values)
{
    program = "/proc/self/exe";
    if (count > 1)
        device_name = values[1];
    if (count > 2)
        return peer(atoi(values[2]));
    (void)driver_of(device_name); /* it is loaded before open files are counted */
    return run_all_tests(NULL, NULL);
}
