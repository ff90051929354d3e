/*
 * Letting a monitor see what an allocator caches.
 *
 * The driver knows how much memory a process has, not how much of it is kept for later. A publisher
 * tells it over a socket of this user's. Nothing runs by itself: the program's own loop serves who
 * asks, or a thread that the program makes for it.
 */
#include "example.h"
#include <memopt/tools/publish.h>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* What `memopt monitor` does: connect, and read a line to its end. */
static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (client < 0 || connect(client, (struct sockaddr *)&address, sizeof address) != 0) {
        perror(path);
        exit(1);
    }
    return client;
}

static void read_answer(int client, char *text, size_t size)
{
    size_t length = 0;
    ssize_t got;
    while (length < size - 1 && (got = read(client, text + length, size - 1 - length)) > 0)
        length += (size_t)got;
    text[length] = '\0';
    close(client);
}

int main(int count, char **words)
{
    memopt_device *device = open_device(device_argument(count, words, "cpu"), 64 * MIB);
    memopt_allocator *allocator;
    memopt_publisher *publisher;
    void *kept, *dropped;
    int32_t fd;
    uint64_t served;
    char answer[1024];

    CHECK(memopt_allocator_create(device, NULL, NULL, &allocator));
    CHECK(memopt_publisher_open(NULL, &publisher));
    CHECK(memopt_publisher_add(publisher, allocator));
    CHECK(memopt_publisher_get_fd(publisher, &fd));
    printf("published at %s\n", memopt_publisher_get_path(publisher));

    CHECK(memopt_allocator_alloc(allocator, 6 * MIB, MEMOPT_TAG_OTHER, NULL, &kept));
    CHECK(memopt_allocator_alloc(allocator, 20 * MIB, MEMOPT_TAG_OTHER, NULL, &dropped));
    CHECK(memopt_allocator_free(allocator, dropped));

    int client = connect_to(memopt_publisher_get_path(publisher)); /* somebody asks */
    struct pollfd loop = {.fd = fd, .events = POLLIN};             /* the program's own loop */
    while (poll(&loop, 1, 1000) == 0)
        printf("nobody asks\n");
    CHECK(memopt_publisher_serve(publisher, 0, &served));
    read_answer(client, answer, sizeof answer);
    printf("%d asked and got: %s", (int)served, answer);

    CHECK(memopt_publisher_remove(publisher, allocator)); /* before the allocator ends */
    CHECK(memopt_publisher_close(publisher));
    CHECK(memopt_allocator_free(allocator, kept));
    CHECK(memopt_allocator_destroy(allocator));
    CHECK(memopt_device_close(device));
    return served == 1 && strstr(answer, "\"allocated\": 6291456,") != NULL ? 0 : 1;
}
