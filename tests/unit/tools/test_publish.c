/* Publishers: what clients of every kind get, where sockets lie, and what fails. */
#define _GNU_SOURCE

#include "unit/allocator/support.h"

#include "base/lock.h"
#include "base/memory.h"
#include "memopt/tools/pluggable.h"
#include "tools/publish/publish.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- helpers ------------------------------------------------------------------------------- */

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/memopt-test-XXXXXX");
    return mkdtemp(folder) == NULL || setenv("XDG_RUNTIME_DIR", folder, 1) != 0;
}

/* Fails where anything but the folder of the sockets was left. */
static int remove_folder(void **state)
{
    char inner[100];
    (void)state;
    snprintf(inner, sizeof inner, "%s/memopt", folder);
    (void)rmdir(inner);
    return rmdir(folder);
}

static const char *in_folder(const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* A connection, or -1 with errno. */
static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* Everything up to the end of the file, as text. */
static const char *read_all(int fd)
{
    static char text[200000];
    size_t length = 0;
    ssize_t got;
    while ((got = read(fd, text + length, sizeof text - 1 - length)) > 0)
        length += (size_t)got;
    text[length] = '\0';
    close(fd);
    return text;
}

static const char *ask(memopt_publisher *publisher)
{
    uint64_t served = 0;
    int fd = connect_to(memopt_publisher_get_path(publisher));
    assert_true(fd >= 0);
    OK(memopt_publisher_serve(publisher, 1000, &served));
    assert_int_equal(served, 1);
    return read_all(fd);
}

static const char *expected(const char *allocators)
{
    static char text[2000];
    snprintf(text, sizeof text,
             "{\"memopt\": 1, \"version\": \"%s\", \"pid\": %d, \"allocators\": [%s]}\n",
             memopt_version_string(), (int)getpid(), allocators);
    return text;
}

static const char *entry_of(memopt_allocator *allocator)
{
    static char text[512];
    uint64_t v[4] = {0};
    static const char *const names[] = {"allocated_bytes.all.current", "allocated_bytes.all.peak",
                                        "reserved_bytes.all.current", "reserved_bytes.all.peak"};
    for (int i = 0; i < 4; i++)
        OK(memopt_allocator_get_stat(allocator, names[i], &v[i]));
    snprintf(text, sizeof text,
             "{\"device\": \"cpu:0\", \"allocated\": %llu, \"allocated_peak\": %llu, "
             "\"reserved\": %llu, \"reserved_peak\": %llu, \"ooms\": 0, \"retries\": 0}",
             (unsigned long long)v[0], (unsigned long long)v[1], (unsigned long long)v[2],
             (unsigned long long)v[3]);
    return text;
}

/* --- answers ------------------------------------------------------------------------------- */

static void test_figures(void **state)
{
    (void)state;
    memopt_device *device = open_cpu(64 * MIB, MEMOPT_STREAM_ORDER_EAGER, 1);
    memopt_allocator *allocator = new_allocator(device, "");
    memopt_publisher *publisher;
    void *small, *large;
    OK(memopt_publisher_open(NULL, &publisher));
    assert_string_equal(ask(publisher), expected(""));
    OK(memopt_publisher_add(publisher, allocator));
    OK(memopt_allocator_alloc(allocator, 1000, MEMOPT_TAG_OTHER, NULL, &small));
    OK(memopt_allocator_alloc(allocator, 4 * MIB, MEMOPT_TAG_OTHER, NULL, &large));
    OK(memopt_allocator_free(allocator, large));
    const char *text = ask(publisher);
    assert_non_null(strstr(text, "\"allocated\": 1024, \"allocated_peak\": 4195328, "));
    assert_string_equal(text, expected(entry_of(allocator)));
    OK(memopt_publisher_remove(publisher, allocator));
    assert_string_equal(ask(publisher), expected(""));
    OK(memopt_allocator_free(allocator, small));
    OK(memopt_publisher_close(publisher));
    OK(memopt_allocator_destroy(allocator));
    OK(memopt_device_close(device));
}

static void test_pluggable(void **state)
{
    (void)state;
    memopt_publisher *publisher;
    memopt_allocator *first, *graph;
    OK(memopt_publisher_open(NULL, &publisher));
    OK(memopt_publisher_add_pluggable(publisher));
    OK(memopt_publisher_add_pluggable(publisher));
    OK(memopt_pluggable_configure("cpu", "", NULL));
    assert_string_equal(ask(publisher), expected("")); /* asking makes none */
    void *block = memopt_pluggable_alloc(5 * MIB, 0, NULL);
    assert_non_null(block);
    OK(memopt_pluggable_get_allocator(0, 0, &first));
    assert_string_equal(ask(publisher), expected(entry_of(first)));
    memopt_pluggable_begin_pool(0, 1, 2, NULL); /* what graphs hold is added */
    memopt_pluggable_end_pool(0, 1, 2);
    OK(memopt_pluggable_get_allocator(0, 1, &graph));
    void *inside;
    OK(memopt_allocator_alloc(graph, 3 * MIB, MEMOPT_TAG_OTHER, NULL, &inside));
    assert_non_null(strstr(ask(publisher), "\"allocated\": 8388608, "));
    OK(memopt_allocator_free(graph, inside));
    memopt_pluggable_release_pool(0, 1, 2);
    memopt_pluggable_free(block, 0, 0, NULL);
    OK(memopt_publisher_close(publisher));
    OK(memopt_pluggable_end());
}

/* As many as are allowed, each with figures as long as they get: the answer is whole. */
static void test_longest_answer(void **state)
{
    (void)state;
    memopt_device *device = open_cpu(64 * MIB, MEMOPT_STREAM_ORDER_EAGER, 1);
    static memopt_allocator *all[MO_PUBLISH_LIST + 1];
    memopt_publisher *publisher;
    OK(memopt_publisher_open(NULL, &publisher));
    for (int i = 0; i <= MO_PUBLISH_LIST; i++) {
        all[i] = new_allocator(device, "");
        mo_stats *stats = &all[i]->stats;
        for (int id = 0; id < MO_STAT_COUNT; id++)
            stats->by_pool[MO_POOL_ALL][id].peak = UINT64_MAX - 1;
        stats->counter[MO_STAT_NUM_OOMS] = stats->counter[MO_STAT_NUM_ALLOC_RETRIES] = UINT64_MAX;
        if (i < MO_PUBLISH_LIST)
            OK(memopt_publisher_add(publisher, all[i]));
    }
    FAILS_SAYING(MEMOPT_LIMIT_REACHED, "256 allocators", memopt_publisher_add(publisher, all[256]));
    const char *text = ask(publisher);
    int entries = 0;
    for (const char *at = text; (at = strstr(at, "\"device\": \"cpu:0\"")) != NULL; at++)
        entries++;
    assert_int_equal(entries, MO_PUBLISH_LIST);
    assert_string_equal(text + strlen(text) - 4, "}]}\n");
    OK(memopt_publisher_close(publisher));
    for (int i = 0; i <= MO_PUBLISH_LIST; i++)
        OK(memopt_allocator_destroy(all[i]));
    OK(memopt_device_close(device));
}

/* --- clients ------------------------------------------------------------------------------- */

static void test_clients_of_every_kind(void **state)
{
    (void)state;
    memopt_publisher *publisher;
    uint64_t served = 7;
    int fd, talks;
    char garbage[4096];
    memset(garbage, '\xff', sizeof garbage);
    OK(memopt_publisher_open(NULL, &publisher));
    const char *path = memopt_publisher_get_path(publisher);
    OK(memopt_publisher_serve(publisher, 0, &served)); /* nobody */
    assert_int_equal(served, 0);
    OK(memopt_publisher_serve(publisher, 20, NULL));
    OK(memopt_publisher_get_fd(publisher, &fd));
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&waiting, 1, 0), 0);
    /* One that goes at once, one that never reads, one that talks, and one that reads. */
    close(connect_to(path));
    int mute = connect_to(path);
    talks = connect_to(path);
    assert_int_equal(write(talks, garbage, sizeof garbage), sizeof garbage);
    int good = connect_to(path);
    assert_int_equal(poll(&waiting, 1, 0), 1);
    OK(memopt_publisher_serve(publisher, -1, &served));
    assert_true(served >= 3);
    assert_string_equal(read_all(good), expected(""));
    assert_string_equal(read_all(talks), expected(""));
    for (int i = 0; i < 200; i++) /* the mute one is in nobody's way */
        assert_string_equal(ask(publisher), expected(""));
    close(mute);
    OK(memopt_publisher_close(publisher));
}

static void test_many_wait(void **state)
{
    (void)state;
    memopt_publisher *publisher;
    enum { MANY = 60 };
    int clients[MANY];
    uint64_t served = 0;
    OK(memopt_publisher_open(NULL, &publisher));
    for (int i = 0; i < MANY; i++)
        assert_true((clients[i] = connect_to(memopt_publisher_get_path(publisher))) >= 0);
    OK(memopt_publisher_serve(publisher, 0, &served));
    assert_int_equal(served, MANY);
    for (int i = 0; i < MANY; i++)
        assert_string_equal(read_all(clients[i]), expected(""));
    OK(memopt_publisher_close(publisher));
}

/* With no file left to open, who asks waits; with one, he is answered. */
static void test_no_files_left(void **state)
{
    (void)state;
    memopt_publisher *publisher;
    struct rlimit old, none;
    uint64_t served = 7;
    OK(memopt_publisher_open(NULL, &publisher));
    int client = connect_to(memopt_publisher_get_path(publisher));
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = old;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    memopt_status status = memopt_publisher_serve(publisher, 1000, &served);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(status, MEMOPT_IO_ERROR);
    memopt_error_info info = {.struct_size = sizeof info};
    OK(memopt_last_error_info(&info));
    assert_int_equal(info.driver_code, EMFILE);
    assert_int_equal(served, 7);
    OK(memopt_publisher_serve(publisher, 0, &served));
    assert_int_equal(served, 1);
    assert_string_equal(read_all(client), expected(""));
    OK(memopt_publisher_close(publisher));
}

typedef struct server {
    memopt_publisher *publisher;
    pthread_barrier_t begun; /* all threads run before the first round */
    atomic_int stop;
    atomic_uint_fast64_t served;
} server;

static void *serve(void *user)
{
    server *s = user;
    uint64_t served;
    pthread_barrier_wait(&s->begun);
    while (!atomic_load(&s->stop))
        if (memopt_publisher_serve(s->publisher, 10, &served) == MEMOPT_OK)
            atomic_fetch_add(&s->served, served);
    return NULL;
}

typedef struct spender {
    memopt_allocator *allocator;
    server *server;
    uint64_t blocks;
} spender;

static void *spend(void *user)
{
    spender *s = user;
    void *block;
    uint64_t i = 0;
    pthread_barrier_wait(&s->server->begun);
    do { /* the rounds may be over before this thread is given the processor again */
        if (memopt_allocator_alloc(s->allocator, 512 << i++ % 12, MEMOPT_TAG_OTHER, NULL, &block) ==
            MEMOPT_OK) {
            s->blocks++;
            memopt_allocator_free(s->allocator, block);
        }
    } while (!atomic_load(&s->server->stop));
    return NULL;
}

/* Two threads serve, two allocate, allocators come and go, and every answer is whole. */
static void test_serving_while_allocating(void **state)
{
    (void)state;
    memopt_device *device = open_cpu(64 * MIB, MEMOPT_STREAM_ORDER_EAGER, 1);
    memopt_allocator *steady = new_allocator(device, ""), *guest;
    server s = {0};
    spender spenders[2] = {{steady, &s, 0}, {steady, &s, 0}};
    pthread_t threads[4];
    assert_int_equal(pthread_barrier_init(&s.begun, NULL, 5), 0);
    OK(memopt_publisher_open(NULL, &s.publisher));
    OK(memopt_publisher_add(s.publisher, steady));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, spend, &spenders[i]), 0);
        assert_int_equal(pthread_create(&threads[2 + i], NULL, serve, &s), 0);
    }
    pthread_barrier_wait(&s.begun);
    for (int round = 0; round < 150; round++) {
        guest = new_allocator(device, "");
        OK(memopt_publisher_add(s.publisher, guest));
        int fd = connect_to(memopt_publisher_get_path(s.publisher));
        assert_true(fd >= 0);
        const char *text = read_all(fd);
        assert_non_null(strstr(text, "\"device\": \"cpu:0\""));
        assert_string_equal(text + strlen(text) - 3, "]}\n");
        OK(memopt_publisher_remove(s.publisher, guest));
        OK(memopt_allocator_destroy(guest));
    }
    atomic_store(&s.stop, 1);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    pthread_barrier_destroy(&s.begun);
    assert_true(spenders[0].blocks > 0 && spenders[1].blocks > 0);
    assert_true(atomic_load(&s.served) == 150);
    OK(memopt_publisher_close(s.publisher));
    OK(memopt_allocator_destroy(steady));
    OK(memopt_device_close(device));
}

/* --- forks --------------------------------------------------------------------------------- */

static int in_the_child(memopt_publisher *publisher, memopt_allocator *allocator)
{
    int32_t fd;
    int good = memopt_publisher_serve(publisher, 0, NULL) == MEMOPT_UNSUPPORTED &&
               strstr(memopt_last_error(), "is a fork") != NULL &&
               memopt_publisher_add(publisher, allocator) == MEMOPT_UNSUPPORTED &&
               memopt_publisher_add_pluggable(publisher) == MEMOPT_UNSUPPORTED &&
               memopt_publisher_remove(publisher, allocator) == MEMOPT_UNSUPPORTED &&
               memopt_publisher_get_fd(publisher, &fd) == MEMOPT_UNSUPPORTED &&
               memopt_publisher_close(publisher) == MEMOPT_OK;
    memopt_publisher *own;
    good = good && memopt_publisher_open(NULL, &own) == MEMOPT_OK &&
           memopt_publisher_serve(own, 0, NULL) == MEMOPT_OK &&
           memopt_publisher_close(own) == MEMOPT_OK;
    return good ? 0 : 1;
}

static void test_fork(void **state)
{
    (void)state;
    memopt_device *device = open_cpu(64 * MIB, MEMOPT_STREAM_ORDER_EAGER, 1);
    memopt_allocator *allocator = new_allocator(device, "");
    memopt_publisher *publisher;
    int status;
    OK(memopt_publisher_open(NULL, &publisher));
    OK(memopt_publisher_add(publisher, allocator));
    mo_lock(&publisher->lock); /* as if another thread were serving when it forks */
    pid_t child = fork();
    if (child == 0)
        _exit(in_the_child(publisher, allocator));
    mo_unlock(&publisher->lock);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_string_equal(ask(publisher), expected(entry_of(allocator)));
    OK(memopt_publisher_close(publisher));
    OK(memopt_allocator_destroy(allocator));
    OK(memopt_device_close(device));
}

/* --- places -------------------------------------------------------------------------------- */

static void test_the_place(void **state)
{
    (void)state;
    memopt_publisher *first, *second;
    struct stat info;
    char path[160];
    OK(memopt_publisher_open(NULL, &first));
    snprintf(path, sizeof path, "%s/memopt/%d.sock", folder, (int)getpid());
    assert_string_equal(memopt_publisher_get_path(first), path);
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISSOCK(info.st_mode) && (info.st_mode & 0077) == 0);
    assert_int_equal(lstat(in_folder("memopt"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    OK(memopt_publisher_open(NULL, &second)); /* a second one lies beside it */
    assert_non_null(strstr(memopt_publisher_get_path(second), "-1.sock"));
    FAILS_SAYING(MEMOPT_BUSY, "another publisher listens", memopt_publisher_open(path, &second));
    OK(memopt_publisher_close(second));
    OK(memopt_publisher_close(first));
    assert_int_equal(lstat(path, &info), -1);
    assert_null(memopt_publisher_get_path(NULL));
}

static void test_what_is_left_is_replaced(void **state)
{
    (void)state;
    memopt_publisher *publisher;
    char path[160];
    int status;
    snprintf(path, sizeof path, "%s", in_folder("left.sock"));
    pid_t child = fork();
    if (child == 0) {
        if (memopt_publisher_open(path, &publisher) != MEMOPT_OK)
            _exit(1);
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(connect_to(path), -1);
    assert_int_equal(errno, ECONNREFUSED);
    OK(memopt_publisher_open(path, &publisher));
    assert_string_equal(ask(publisher), expected(""));
    /* What another one has put into its place is not removed. */
    assert_int_equal(unlink(path), 0);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    OK(memopt_publisher_close(publisher));
    assert_int_equal(access(path, F_OK), 0);
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "is not a socket",
                 memopt_publisher_open(path, &publisher));
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(unlink(path), 0);
}

static void test_folders_that_others_reach(void **state)
{
    (void)state;
    memopt_publisher *publisher;
    char inner[160], other[160];
    snprintf(inner, sizeof inner, "%s", in_folder("memopt"));
    (void)rmdir(inner);
    assert_int_equal(mkdir(inner, 0755), 0);
    assert_int_equal(chmod(inner, 0755), 0); /* whatever the umask */
    FAILS_SAYING(MEMOPT_IO_ERROR, "must be owned by uid", memopt_publisher_open(NULL, &publisher));
    assert_int_equal(rmdir(inner), 0);
    snprintf(other, sizeof other, "%s", in_folder("other"));
    assert_int_equal(mkdir(other, 0700), 0);
    assert_int_equal(symlink(other, inner), 0);
    FAILS_SAYING(MEMOPT_IO_ERROR, "must be owned by uid", memopt_publisher_open(NULL, &publisher));
    assert_int_equal(unlink(inner), 0);
    assert_int_equal(rmdir(other), 0);
    assert_int_equal(chmod(folder, 0777), 0); /* then it is not taken: /tmp is */
    OK(memopt_publisher_open(NULL, &publisher));
    assert_int_equal(strncmp(memopt_publisher_get_path(publisher), "/tmp/memopt-", 12), 0);
    assert_null(strstr(memopt_publisher_get_path(publisher), folder));
    OK(memopt_publisher_close(publisher));
    assert_int_equal(chmod(folder, 0700), 0);
}

static void test_arguments(void **state)
{
    (void)state;
    memopt_device *device = open_cpu(64 * MIB, MEMOPT_STREAM_ORDER_EAGER, 1);
    memopt_allocator *allocator = new_allocator(device, "");
    memopt_publisher *publisher;
    char longest[200];
    memset(longest, 'x', sizeof longest);
    longest[99] = '\0';
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "out_publisher", memopt_publisher_open(NULL, NULL));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "1 to 99", memopt_publisher_open("", &publisher));
    longest[99] = 'x';
    longest[100] = '\0';
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "not 100", memopt_publisher_open(longest, &publisher));
    FAILS_SAYING(MEMOPT_IO_ERROR, "/nowhere/s", memopt_publisher_open("/nowhere/s", &publisher));
    OK(memopt_publisher_close(NULL));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "NULL", memopt_publisher_serve(NULL, 0, NULL));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "NULL", memopt_publisher_add(NULL, allocator));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "NULL", memopt_publisher_add_pluggable(NULL));
    OK(memopt_publisher_open(NULL, &publisher));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "allocator is NULL",
                 memopt_publisher_add(publisher, NULL));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "allocator is NULL",
                 memopt_publisher_remove(publisher, NULL));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "out_fd", memopt_publisher_get_fd(publisher, NULL));
    FAILS_SAYING(MEMOPT_NOT_FOUND, "not published", memopt_publisher_remove(publisher, allocator));
    OK(memopt_publisher_add(publisher, allocator));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "already", memopt_publisher_add(publisher, allocator));
    OK(memopt_publisher_close(publisher));
    OK(memopt_allocator_destroy(allocator));
    OK(memopt_device_close(device));
}

/* The n-th allocation of each call fails, n = 1, 2, …: nothing is left, and the next call works. */
static void test_no_host_memory(void **state)
{
    (void)state;
    memopt_device *device = open_cpu(64 * MIB, MEMOPT_STREAM_ORDER_EAGER, 1);
    memopt_allocator *all[20];
    memopt_publisher *publisher = NULL;
    int64_t before = mo_memory_live_blocks(), n = 0;
    memopt_status status;
    do {
        mo_memory_fail_at(++n);
        status = memopt_publisher_open(NULL, &publisher);
        mo_memory_fail_at(0);
        if (status != MEMOPT_OK) {
            assert_int_equal(status, MEMOPT_OUT_OF_HOST_MEMORY);
            assert_int_equal(mo_memory_live_blocks(), before);
        }
    } while (status != MEMOPT_OK);
    assert_true(n > 3);
    for (int i = 0; i < 20; i++) {
        all[i] = new_allocator(device, "");
        uint64_t listed = publisher->count;
        mo_memory_fail_at(1);
        status = i == 10 ? memopt_publisher_add_pluggable(publisher)
                         : memopt_publisher_add(publisher, all[i]);
        mo_memory_fail_at(0);
        if (status != MEMOPT_OK) {
            assert_int_equal(status, MEMOPT_OUT_OF_HOST_MEMORY);
            assert_true(publisher->count == listed && publisher->pluggable == 0);
            OK(memopt_publisher_add(publisher, all[i]));
        }
    }
    mo_memory_fail_at(1); /* answering allocates nothing */
    assert_non_null(strstr(ask(publisher), "cpu:0"));
    mo_memory_fail_at(0);
    OK(memopt_publisher_close(publisher));
    for (int i = 0; i < 20; i++)
        OK(memopt_allocator_destroy(all[i]));
    OK(memopt_device_close(device));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_pluggable),
        cmocka_unit_test(test_longest_answer),
        cmocka_unit_test(test_clients_of_every_kind),
        cmocka_unit_test(test_many_wait),
        cmocka_unit_test(test_no_files_left),
        cmocka_unit_test(test_serving_while_allocating),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_the_place),
        cmocka_unit_test(test_what_is_left_is_replaced),
        cmocka_unit_test(test_folders_that_others_reach),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_no_host_memory),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
