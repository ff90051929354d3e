/* The last error: one per thread, written by failures only. */
#include "support/unit.h"

#include "base/error.h"
#include "memopt/experimental/hooks.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static memopt_error_info info_of_this_thread(void)
{
    memopt_error_info info = {sizeof info, 0, 0, NULL, NULL};
    assert_int_equal(memopt_last_error_info(&info), MEMOPT_OK);
    return info;
}

TEST(a_failure_is_told_in_parts)
{
    assert_int_equal(mo_fail_driver(MEMOPT_IO_ERROR, ENOSPC, "ENOSPC", "disk: %d bytes asked", 7),
                     MEMOPT_IO_ERROR);
    memopt_error_info info = info_of_this_thread();
    assert_int_equal(info.status, MEMOPT_IO_ERROR);
    assert_int_equal(info.driver_code, ENOSPC);
    assert_string_equal(info.message, "disk: 7 bytes asked");
    assert_string_equal(info.driver_message, "ENOSPC");
    assert_ptr_equal(info.message, memopt_last_error());
    mo_fail(MEMOPT_BUSY, "plain");
    info = info_of_this_thread();
    assert_int_equal(info.driver_code, 0);
    assert_string_equal(info.driver_message, "");
    assert_int_equal(memopt_set_error(MEMOPT_BUSY, 5, NULL, NULL), MEMOPT_BUSY);
    info = info_of_this_thread();
    assert_int_equal(info.driver_code, 5);
    assert_string_equal(info.message, "");
    assert_string_equal(info.driver_message, "");
}

TEST(success_does_not_clear_it)
{
    uint64_t bytes;
    mo_fail(MEMOPT_BUSY, "still here");
    assert_int_equal(memopt_parse_size("1", &bytes), MEMOPT_OK);
    assert_string_equal(memopt_last_error(), "still here");
}

/* A status of the caller's own is told of; one that the library has just told of keeps its text. */
TEST(a_callback_gets_a_line)
{
    mo_fail(MEMOPT_BUSY, "of another call");
    assert_int_equal(mo_callback_status(MEMOPT_OK, "x: it"), MEMOPT_OK);
    assert_string_equal(memopt_last_error(), "of another call");
    assert_int_equal(mo_callback_status(MEMOPT_BUSY, "x: it"), MEMOPT_BUSY);
    assert_string_equal(memopt_last_error(), "of another call");
    assert_int_equal(mo_callback_status(MEMOPT_IO_ERROR, "%s: it", "x"), MEMOPT_IO_ERROR);
    assert_string_equal(memopt_last_error(), "x: it returned status 14 (IO_ERROR)");
    for (int i = 0; i < 2; i++) {
        const char *who = i == 0 ? "one" : "two";
        mo_callback_status(MEMOPT_STATUS_USER + 1, "%s", who);
        assert_int_equal(info_of_this_thread().status, MEMOPT_STATUS_USER + 1);
        assert_non_null(strstr(memopt_last_error(), who));
        assert_non_null(strstr(memopt_last_error(), " returned status 65537 (USER)"));
    }
}

TEST(a_message_may_quote_the_one_before)
{
    mo_fail(MEMOPT_INTERNAL, "inner");
    mo_fail(MEMOPT_INTERNAL, "outer (%s)", memopt_last_error());
    assert_string_equal(memopt_last_error(), "outer (inner)");
}

TEST(an_endless_message_is_cut)
{
    char *text = malloc(100000);
    assert_non_null(text);
    memset(text, 'x', 99999);
    text[99999] = '\0';
    mo_fail_driver(MEMOPT_INTERNAL, 1, text, "%s", text);
    memopt_error_info info = info_of_this_thread();
    assert_in_range(strlen(info.message), 500, 5000);
    assert_in_range(strlen(info.driver_message), 50, 500);
    free(text);
}

static void *fail_elsewhere(void *argument)
{
    int number = *(int *)argument;
    char expected[64];
    if (strcmp(memopt_last_error(), "") != 0)
        return (void *)1; /* a new thread has no error */
    snprintf(expected, sizeof expected, "thread %d", number);
    for (int i = 0; i < 1000; i++) {
        mo_fail(MEMOPT_STATUS_USER + number, "thread %d", number);
        memopt_error_info info = {sizeof info, 0, 0, NULL, NULL};
        memopt_last_error_info(&info);
        if (info.status != MEMOPT_STATUS_USER + number || strcmp(info.message, expected) != 0)
            return (void *)2;
    }
    return NULL;
}

TEST(threads_do_not_see_each_other)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    int numbers[THREADS];
    mo_fail(MEMOPT_BUSY, "mine");
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, fail_elsewhere, &numbers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_null(result);
    }
    assert_string_equal(memopt_last_error(), "mine");
}

/* A program compiled against an older header has a shorter struct. */
TEST(an_older_caller_gets_its_part)
{
    memopt_error_info info;
    mo_fail_driver(MEMOPT_DRIVER_ERROR, 42, "name", "text");
    memset(&info, 0x5a, sizeof info);
    info.struct_size = offsetof(memopt_error_info, message);
    assert_int_equal(memopt_last_error_info(&info), MEMOPT_OK);
    assert_int_equal(info.struct_size, offsetof(memopt_error_info, message));
    assert_int_equal(info.driver_code, 42);
    for (size_t i = offsetof(memopt_error_info, message); i < sizeof info; i++)
        assert_int_equal(((unsigned char *)&info)[i], 0x5a);
}

TEST(a_newer_caller_keeps_its_tail)
{
    struct {
        memopt_error_info known;
        uint64_t later;
    } info = {{sizeof info, 0, 0, NULL, NULL}, 1234};
    mo_fail(MEMOPT_BUSY, "text");
    assert_int_equal(memopt_last_error_info(&info.known), MEMOPT_OK);
    assert_int_equal(info.known.status, MEMOPT_BUSY);
    assert_int_equal(info.later, 1234);
}

TEST(bad_structs)
{
    memopt_error_info info = {sizeof(size_t) - 1, -5, -5, NULL, NULL};
    assert_int_equal(memopt_last_error_info(NULL), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_last_error_info(&info), MEMOPT_INVALID_ARGUMENT);
    assert_non_null(strstr(memopt_last_error(), "struct_size is 7"));
    assert_int_equal(info.status, -5);
}
