/*
 * Two processes use one block: a trainer exports its weights, and a generator imports them, without
 * a copy. What the trainer writes, the generator reads.
 *
 * Build it with:  cc share.c $(pkg-config --cflags --libs memopt)
 */
#define _POSIX_C_SOURCE 200112L

#include <memopt/memopt.h>

#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Any status but OK ends the process with the library's own words. */
#define CHECK(call)                                                                                \
    do {                                                                                           \
        memopt_status status_ = (call);                                                            \
        if (status_ != MEMOPT_OK) {                                                                \
            fprintf(stderr, "%s\n  %s: %s\n", #call, memopt_status_name(status_),                  \
                    memopt_last_error());                                                          \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

enum { BYTES = 6 << 20 };

/* A message from one process to the other: "it is complete". Streams of two processes have no order
 * of their own. */
static int tell(int socket)
{
    return write(socket, "!", 1) == 1;
}

static int hear(int socket)
{
    char mark;
    return read(socket, &mark, 1) == 1;
}

static int open_small(memopt_device **out_device)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    options.capacity = (uint64_t)64 << 20;
    CHECK(memopt_device_open("cpu", &options, out_device));
    return 0;
}

static int generate(int socket)
{
    static unsigned char host[BYTES];
    memopt_device *device;
    memopt_import *import;
    void *weights;
    uint64_t bytes;
    if (open_small(&device) != 0)
        return 1;
    CHECK(memopt_import_receive(device, socket, &import));
    CHECK(memopt_import_get(import, &weights, &bytes));
    for (int step = 1; step <= 3 && hear(socket); step++) {
        CHECK(memopt_copy_sync(device, host, weights, BYTES, NULL));
        int right = host[0] == step && host[BYTES - 1] == step;
        printf("generator: step %d, the weights are %s\n", step, right ? "there" : "WRONG");
        if (!right || !tell(socket))
            return 1;
    }
    CHECK(memopt_import_destroy(import));
    CHECK(memopt_device_close(device));
    return 0;
}

static int train(int socket)
{
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_export *shared;
    void *weights;
    if (open_small(&device) != 0)
        return 1;
    CHECK(memopt_allocator_create(device, "expandable_segments:True", NULL, &allocator));
    CHECK(memopt_allocator_alloc(allocator, BYTES, MEMOPT_TAG_WEIGHTS, NULL, &weights));
    CHECK(memopt_export_create(allocator, weights, &shared));
    CHECK(memopt_export_send(shared, socket));
    for (int step = 1; step <= 3; step++) {
        CHECK(memopt_fill(device, weights, (uint8_t)step, BYTES, NULL));
        CHECK(memopt_stream_sync(device, NULL));
        if (!tell(socket) || !hear(socket))
            return 1;
    }
    CHECK(memopt_export_destroy(shared));
    CHECK(memopt_allocator_free(allocator, weights));
    CHECK(memopt_allocator_destroy(allocator));
    CHECK(memopt_device_close(device));
    return 0;
}

int main(void)
{
    int ends[2], status = 1;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        return 1;
    pid_t child = fork(); /* before a device is open */
    if (child < 0)
        return 1;
    close(ends[child == 0 ? 0 : 1]);
    if (child == 0)
        return generate(ends[1]);
    int failed = train(ends[0]);
    close(ends[0]);
    if (waitpid(child, &status, 0) != child)
        return 1;
    return failed || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}
