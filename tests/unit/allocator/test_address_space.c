/* Expandable segments where the process may map few addresses (ulimit -v), on the default device:
 * its capacity is the machine's memory. */
#include "support.h"

#include "base/address_space.h"

#include <stdlib.h>
#include <sys/resource.h>

#define ROOM (1024 * MIB)

/* Of what is mapped now, so much more may be. */
static void limit_addresses(uint64_t more)
{
    struct rlimit limit;
    uint64_t all, huge = UINT64_C(1) << 50;
    assert_int_equal(getrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = huge;
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = huge - mo_address_space_left(&all) + more;
    assert_int_equal(all, huge);
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
}

TEST(segments_fit_the_limit)
{
    memopt_device *device = NULL;
    memopt_device_properties p = MEMOPT_DEVICE_PROPERTIES_INIT;
    void *none = NULL;
    OK(memopt_device_open("cpu", NULL, &device));
    OK(memopt_device_get_properties(device, &p));
    memopt_stream stream = stream_on(device);
    if (p.total_memory < 4 * ROOM) { /* a small machine */
        OK(memopt_stream_destroy(device, stream));
        OK(memopt_device_close(device));
        skip();
    }
    limit_addresses(ROOM);
    memopt_allocator *allocator = new_allocator(device, EXPANDABLE);
    (void)alloc(allocator, KIB);
    (void)alloc(allocator, 200 * KIB);
    (void)alloc(allocator, 40 * MIB);
    (void)alloc_on(allocator, 40 * MIB, stream);
    (void)alloc(allocator, 300 * MIB); /* more than an eighth */
    void *own = malloc(100 * MIB);
    assert_non_null(own);
    free(own);
    FAILS_SAYING(MEMOPT_OUT_OF_HOST_MEMORY, "vm_reserve: 2.00 GiB of addresses asked, ",
                 memopt_allocator_alloc(allocator, 2 * ROOM, MEMOPT_TAG_OTHER, NULL, &none));
    SAYS("raise ulimit -v");
    finish(allocator, device);
}
