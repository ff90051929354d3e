/*
 * Two processes use one block: a trainer exports its weights, and a generator imports them, without
 * a copy. What the trainer writes, the generator reads.
 *
 * Build it with:  cc share.c $(pkg-config --cflags --libs memopt)
 */
#define _POSIX_C_SOURCE 200112L

#include "example.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

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

static int generate(const char *name, int socket)
{
    static unsigned char host[BYTES];
    memopt_device *device = open_device(name, 64 * MIB);
    memopt_import *import;
    void *weights;
    uint64_t bytes;
    CHECK(memopt_import_receive(device, socket, &weights, &bytes, &import));
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

static int train(const char *name, int socket)
{
    memopt_device *device = open_device(name, 64 * MIB);
    memopt_allocator *allocator;
    memopt_export *shared;
    void *weights;
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

int main(int count, char **words)
{
    const char *name = device_argument(count, words, "cpu");
    int ends[2], status = 1;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        return 1;
    pid_t child = fork(); /* before a device is open */
    if (child < 0)
        return 1;
    close(ends[child == 0 ? 0 : 1]);
    if (child == 0)
        return generate(name, ends[1]);
    int failed = train(name, ends[0]);
    close(ends[0]);
    if (waitpid(child, &status, 0) != child)
        return 1;
    return failed || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}
