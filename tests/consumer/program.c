/*
 * A program of someone else: C99 and C++11 alike, public headers only. It uses a device (the
 * argument, or "cpu"), an allocator and a kernel, and looks at an error.
 */
#include <memopt/memopt.h>

#include <stdio.h>
#include <string.h>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        memopt_status status_ = (call);                                                            \
        if (status_ != MEMOPT_OK) {                                                                \
            fprintf(stderr, "%s: %s: %s\n", #call, memopt_status_name(status_),                    \
                    memopt_last_error());                                                          \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static int use(memopt_allocator *allocator, memopt_device *device)
{
    unsigned char host[1000];
    void *block = NULL;
    void *none = NULL;
    memopt_tensor from, to;
    size_t i;
    CHECK(memopt_allocator_alloc(allocator, sizeof host, MEMOPT_TAG_OTHER, NULL, &block));
    CHECK(memopt_fill(device, block, 0x5a, sizeof host, NULL));
    /* Rounded to bfloat16, the float of four equal bytes has two of them. */
    memset(&from, 0, sizeof from);
    from.data = block;
    from.count = 100;
    from.dtype = MEMOPT_DTYPE_F32;
    to = from;
    to.data = (unsigned char *)block + 512;
    to.dtype = MEMOPT_DTYPE_BF16;
    CHECK(memopt_fill(device, to.data, 0, 200, NULL));
    CHECK(memopt_cast(device, &to, &from, 1, NULL, NULL));
    memset(host, 0, sizeof host);
    CHECK(memopt_copy(device, host, block, sizeof host, NULL));
    CHECK(memopt_stream_sync(device, NULL));
    for (i = 0; i < sizeof host; i++)
        if (host[i] != 0x5a)
            return 1;
    if (memopt_allocator_alloc(allocator, (uint64_t)1 << 40, MEMOPT_TAG_OTHER, NULL, &none) !=
            MEMOPT_OUT_OF_DEVICE_MEMORY ||
        none != NULL || memopt_last_error()[0] == '\0')
        return 1;
    CHECK(memopt_allocator_free(allocator, block));
    return 0;
}

int main(int argc, char **argv)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device = NULL;
    memopt_allocator *allocator = NULL;
    int failed;
    if (memopt_version() / 10000 != MEMOPT_VERSION_MAJOR)
        return 1;
    if (argc < 2)
        CHECK(memopt_parse_size("64MiB", &options.capacity));
    CHECK(memopt_device_open(argc < 2 ? "cpu" : argv[1], &options, &device));
    CHECK(memopt_allocator_create(device, "expandable_segments:True", NULL, &allocator));
    failed = use(allocator, device);
    CHECK(memopt_allocator_destroy(allocator));
    CHECK(memopt_device_close(device));
    printf("libmemopt %s\n", memopt_version_string());
    return failed;
}
