/* Blocks that two processes use; the other one is this program with --peer. */
#define _GNU_SOURCE /* SOCK_CLOEXEC */

#include "driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHARED_BYTES (5 * MIB + 512)

static memopt_status has(memopt_device *device, const void *data, int value, int *out_right)
{
    unsigned char *host = malloc(SHARED_BYTES);
    if (host == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = memopt_copy_sync(device, host, data, SHARED_BYTES, NULL);
    *out_right = host[0] == value && memcmp(host, host + 1, SHARED_BYTES - 1) == 0;
    free(host);
    return status;
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        memopt_status try_status_ = (call);                                                        \
        if (try_status_ != MEMOPT_OK)                                                              \
            return try_status_;                                                                    \
    } while (0)

/* Checks the block and writes to it; when it hears that the other process has given its own up, it
 * looks once more. */
static memopt_status use(memopt_device *device, int socket, int *out_right)
{
    memopt_import *import = NULL;
    void *data = NULL;
    uint64_t bytes = 0;
    char word = 'd';
    int first = 0, second = 0;
    TRY(memopt_import_receive(device, socket, &data, &bytes, &import));
    TRY(has(device, data, 17, &first));
    TRY(memopt_fill(device, data, 23, SHARED_BYTES, NULL));
    TRY(memopt_stream_sync(device, NULL));
    if (write(socket, &word, 1) != 1 || read(socket, &word, 1) != 1)
        return MEMOPT_IO_ERROR;
    TRY(has(device, data, 23, &second));
    *out_right = first && second && bytes == SHARED_BYTES;
    return memopt_import_destroy(import);
}

int share_peer(memopt_device *device, int socket)
{
    int right = 0;
    memopt_status status = use(device, socket, &right);
    memopt_status closed = memopt_device_close(device);
    if (status != MEMOPT_OK || closed != MEMOPT_OK || !right)
        fprintf(stderr, "peer: %s, %s: %s\n", right ? "right" : "wrong contents",
                memopt_status_name(status), memopt_last_error());
    return !(right && status == MEMOPT_OK && closed == MEMOPT_OK);
}

static pid_t start_peer(const world *w, int *out_socket)
{
    int ends[2];
    char number[16], capacity[32];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        snprintf(number, sizeof number, "%d", fcntl(ends[1], F_DUPFD, 10));
        snprintf(capacity, sizeof capacity, "%llu", (unsigned long long)w->options->capacity);
        execl("/proc/self/exe", "conformance", "--device", w->options->device, "--capacity",
              capacity, "--peer", number, (char *)NULL);
        _exit(1);
    }
    CHECK(child > 0);
    (void)close(ends[1]);
    *out_socket = ends[0];
    return child;
}

/* Each process sees what the other one writes, and the importer's memory outlives the exporter's.
 */
static void two_processes_share_a_block(world *w)
{
    memopt_memory_info before = info_of(w);
    memopt_allocator *allocator = NULL;
    memopt_export *shared = NULL;
    void *block = NULL;
    int socket = -1, right = 0, status = 0;
    char word = 0;
    if (!w->properties.virtual_memory)
        skip("the device has no virtual memory");
    OK(memopt_allocator_create(w->device, "expandable_segments:True", NULL, &allocator));
    OK(memopt_allocator_alloc(allocator, SHARED_BYTES, MEMOPT_TAG_OTHER, w->stream, &block));
    OK(memopt_fill(w->device, block, 17, SHARED_BYTES, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    memopt_status made = memopt_export_create(allocator, block, &shared);
    if (made != MEMOPT_UNSUPPORTED) {
        OK(made);
        pid_t child = start_peer(w, &socket);
        OK(memopt_export_send(shared, socket));
        CHECK(read(socket, &word, 1) == 1 && word == 'd');
        OK(has(w->device, block, 23, &right));
        CHECK(right);
        OK(memopt_export_destroy(shared));
        OK(memopt_allocator_free(allocator, block));
        OK(memopt_allocator_destroy(allocator));
        CHECK(info_of(w).used == before.used);
        CHECK(write(socket, &word, 1) == 1);
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        (void)close(socket);
        return;
    }
    OK(memopt_allocator_free(allocator, block));
    OK(memopt_allocator_destroy(allocator));
    skip("%s", memopt_last_error());
}

const conformance_case share_cases[] = {
    {"share_processes", two_processes_share_a_block, 0, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
