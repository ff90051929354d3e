/* The log sink: levels, the environment, and callbacks replaced while threads log. */
#include "support/unit.h"

#include "base/lock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct receiver {
    atomic_int lines;
    memopt_log_level level;
    char last[256];
} receiver;

static void receive(void *user, memopt_log_level level, const char *message)
{
    receiver *to = user;
    atomic_fetch_add(&to->lines, 1);
    to->level = level;
    snprintf(to->last, sizeof to->last, "%s", message);
}

TEST(lines_above_the_level_are_dropped)
{
    receiver to = {0};
    assert_int_equal(memopt_set_log(receive, &to, MEMOPT_LOG_WARNING), MEMOPT_OK);
    mo_log(MEMOPT_LOG_INFO, "too quiet");
    assert_int_equal(to.lines, 0);
    mo_log(MEMOPT_LOG_WARNING, "number %d", 7);
    assert_int_equal(to.lines, 1);
    assert_int_equal(to.level, MEMOPT_LOG_WARNING);
    assert_string_equal(to.last, "number 7");
    memopt_set_log(receive, &to, MEMOPT_LOG_OFF);
    mo_log(MEMOPT_LOG_ERROR, "off is off");
    assert_int_equal(to.lines, 1);
    memopt_set_log(NULL, NULL, MEMOPT_LOG_OFF);
}

TEST(failures_are_lines_of_level_error)
{
    receiver to = {0};
    memopt_set_log(receive, &to, MEMOPT_LOG_ERROR);
    mo_fail(MEMOPT_BUSY, "allocator: %d blocks live", 3);
    assert_int_equal(to.lines, 1);
    assert_int_equal(to.level, MEMOPT_LOG_ERROR);
    assert_string_equal(to.last, "BUSY: allocator: 3 blocks live");
    memopt_set_log(NULL, NULL, MEMOPT_LOG_OFF);
}

TEST(a_bad_level_changes_nothing)
{
    receiver to = {0};
    memopt_set_log(receive, &to, MEMOPT_LOG_DEBUG);
    assert_int_equal(memopt_set_log(NULL, NULL, (memopt_log_level)5), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_set_log(NULL, NULL, (memopt_log_level)-1), MEMOPT_INVALID_ARGUMENT);
    int lines = to.lines;
    mo_log(MEMOPT_LOG_DEBUG, "still there");
    assert_int_equal(to.lines, lines + 1);
    memopt_set_log(NULL, NULL, MEMOPT_LOG_OFF);
}

/* What the default sink writes to standard error with MEMOPT_LOG set to `value`. */
static void default_sink_output(const char *value, char *text, size_t size)
{
    FILE *file = tmpfile();
    assert_non_null(file);
    int saved = dup(STDERR_FILENO);
    fflush(stderr);
    dup2(fileno(file), STDERR_FILENO);
    if (value != NULL)
        setenv("MEMOPT_LOG", value, 1);
    else
        unsetenv("MEMOPT_LOG");
    memopt_set_log(NULL, NULL, MEMOPT_LOG_OFF);
    mo_log(MEMOPT_LOG_ERROR, "e");
    mo_log(MEMOPT_LOG_INFO, "i");
    mo_log(MEMOPT_LOG_DEBUG, "d");
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
    unsetenv("MEMOPT_LOG");
    memopt_set_log(NULL, NULL, MEMOPT_LOG_OFF);
}

TEST(the_environment_turns_it_on)
{
    char text[256];
    default_sink_output(NULL, text, sizeof text);
    assert_string_equal(text, "");
    default_sink_output("error", text, sizeof text);
    assert_string_equal(text, "memopt error: e\n");
    default_sink_output("info", text, sizeof text);
    assert_string_equal(text, "memopt error: e\nmemopt info: i\n");
    default_sink_output("debug", text, sizeof text);
    assert_string_equal(text, "memopt error: e\nmemopt info: i\nmemopt debug: d\n");
}

TEST(a_line_of_any_length)
{
    receiver to = {0};
    char text[5000];
    memset(text, 'y', sizeof text);
    text[sizeof text - 1] = '\0';
    memopt_set_log(receive, &to, MEMOPT_LOG_DEBUG);
    mo_log(MEMOPT_LOG_DEBUG, "%s", text);
    assert_int_equal(to.lines, 1);
    assert_int_equal(to.last[0], 'y');
    memopt_set_log(NULL, NULL, MEMOPT_LOG_OFF);
}

/* --- replacing the callback while other threads log ---------------------------------------- */

typedef struct scope {
    atomic_int alive; /* set while set_log promises that it may be called */
    atomic_int late;  /* calls after the promise ended */
    atomic_long calls;
} scope;

static atomic_int stop;

static void check_alive(void *user, memopt_log_level level, const char *message)
{
    scope *to = user;
    if (!atomic_load(&to->alive))
        atomic_fetch_add(&to->late, 1);
    atomic_fetch_add(&to->calls, 1);
    if (!atomic_load(&to->alive)) /* and it has not ended meanwhile */
        atomic_fetch_add(&to->late, 1);
}

static void *log_all_the_time(void *argument)
{
    while (!atomic_load(&stop))
        mo_log(MEMOPT_LOG_INFO, "line");
    return NULL;
}

TEST(a_replaced_callback_is_not_called_again)
{
    enum { THREADS = 3, ROUNDS = 200 };
    pthread_t threads[THREADS];
    static scope scopes[ROUNDS];
    atomic_store(&stop, 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, log_all_the_time, NULL), 0);
    for (int i = 0; i < ROUNDS; i++) {
        atomic_store(&scopes[i].alive, 1);
        memopt_set_log(check_alive, &scopes[i], MEMOPT_LOG_INFO);
        while (i % 20 == 0 && atomic_load(&scopes[i].calls) == 0)
            usleep(100);
        if (i > 0)
            atomic_store(&scopes[i - 1].alive, 0);
    }
    memopt_set_log(NULL, NULL, MEMOPT_LOG_OFF);
    atomic_store(&scopes[ROUNDS - 1].alive, 0);
    usleep(2000);
    atomic_store(&stop, 1);
    long calls = 0;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < ROUNDS; i++) {
        assert_int_equal(scopes[i].late, 0);
        calls += scopes[i].calls;
    }
    assert_true(calls > 0);
}

/* --- callbacks that call the library, and locks ---------------------------------------------- */

typedef struct caller {
    char lines[16][256];
    int count, locks[16];
} caller;

static void call_back(void *user, memopt_log_level level, const char *message)
{
    caller *c = user;
    memopt_dtype none;
    c->locks[c->count] = mo_log_held.locks;
    snprintf(c->lines[c->count++], sizeof c->lines[0], "%s", message);
    assert_int_equal(memopt_dtype_parse("none such", &none), MEMOPT_NOT_FOUND);
    assert_int_equal(memopt_set_log(NULL, NULL, MEMOPT_LOG_OFF), MEMOPT_BUSY);
}

/* What it fails at is neither logged nor left as the last error. */
TEST(a_callback_may_call_the_library)
{
    caller c = {.count = 0};
    memopt_set_log(call_back, &c, MEMOPT_LOG_ERROR);
    mo_fail(MEMOPT_BUSY, "first");
    assert_int_equal(c.count, 1);
    assert_string_equal(memopt_last_error(), "first");
    mo_fail(MEMOPT_BUSY, "second");
    assert_int_equal(c.count, 2);
    memopt_set_log(NULL, NULL, MEMOPT_LOG_OFF);
}

TEST(lines_wait_for_the_last_unlock)
{
    pthread_mutex_t outer = PTHREAD_MUTEX_INITIALIZER, inner = PTHREAD_MUTEX_INITIALIZER;
    caller c = {.count = 0};
    memopt_set_log(call_back, &c, MEMOPT_LOG_WARNING);
    mo_lock(&outer);
    mo_fail(MEMOPT_BUSY, "one");
    mo_lock(&inner);
    mo_log(MEMOPT_LOG_INFO, "too quiet");
    mo_log(MEMOPT_LOG_WARNING, "two");
    mo_unlock(&inner);
    assert_int_equal(c.count, 0);
    mo_unlock(&outer);
    assert_int_equal(c.count, 2);
    assert_string_equal(c.lines[0], "BUSY: one");
    assert_string_equal(c.lines[1], "two");
    assert_true(c.locks[0] == 0 && c.locks[1] == 0);
    assert_string_equal(memopt_last_error(), "one");
    mo_lock(&outer);
    mo_unlock(&outer);
    assert_int_equal(c.count, 2);
    memopt_set_log(NULL, NULL, MEMOPT_LOG_OFF);
}

TEST(lines_without_room_are_counted)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    caller c = {.count = 0};
    memopt_set_log(call_back, &c, MEMOPT_LOG_WARNING);
    mo_lock(&mutex);
    for (int i = 0; i < 10; i++)
        mo_log(MEMOPT_LOG_WARNING, "line %d", i);
    mo_unlock(&mutex);
    assert_int_equal(c.count, 5);
    assert_string_equal(c.lines[3], "line 3");
    assert_non_null(strstr(c.lines[4], "6 more lines"));
    mo_log(MEMOPT_LOG_WARNING, "again");
    assert_string_equal(c.lines[5], "again");
    memopt_set_log(NULL, NULL, MEMOPT_LOG_OFF);
}

int main(void)
{
    unsetenv("MEMOPT_LOG");
    return run_all_tests(NULL, NULL);
}
