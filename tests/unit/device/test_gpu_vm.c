/*
 * HIP's virtual memory as its drivers really have it: small granules, versions that refuse what
 * they promise, a file descriptor for each handle. The mode says which driver the environment has
 * set up.
 */
#include "support.h"

#include "device/gpu/gpu.h"
#include "memopt/allocator.h"
#include "support/simulated.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static const char *mode = "";
static const driver_hooks *sim;

static int is_mode(const char *name)
{
    return strcmp(mode, name) == 0;
}

/* Opens the device with MEMOPT_HIP_VIRTUAL_MEMORY set so, and closes it. */
static memopt_device_properties properties_with(const char *wanted)
{
    memopt_device *device = NULL;
    memopt_device_properties p = {.struct_size = sizeof p};
    if (wanted != NULL)
        setenv("MEMOPT_HIP_VIRTUAL_MEMORY", wanted, 1);
    else
        unsetenv("MEMOPT_HIP_VIRTUAL_MEMORY");
    OK(memopt_device_open("hip:0", NULL, &device));
    OK(memopt_device_get_properties(device, &p));
    OK(memopt_device_close(device));
    assert_int_equal(sim->used(0), 0);
    return p;
}

static void is_off(memopt_device_properties p, const char *why)
{
    assert_int_equal(p.virtual_memory, 0);
    assert_int_equal(p.granularity, 2 * MIB);
    if (strstr(p.limit, why) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", why, p.limit);
}

/* The driver says 4096. Where few files may be open, pages are larger: descriptors_are_spared. */
static void is_on(memopt_device_properties p)
{
    struct rlimit files;
    assert_string_equal(p.limit, "");
    assert_int_equal(p.virtual_memory, 1);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_cur >= 1024)
        assert_int_equal(p.granularity, 2 * MIB);
    else
        assert_int_equal(p.granularity % (2 * MIB), 0);
}

TEST(drivers_are_tried)
{
    if (is_mode("new")) {
        is_on(properties_with(NULL));
        is_off(properties_with("0"), "MEMOPT_HIP_VIRTUAL_MEMORY=0");
    } else if (is_mode("old")) {
        is_off(properties_with(NULL), "HIP 7.2 is older than 7.14");
        is_on(properties_with("1")); /* pages of one size are granted there */
    } else if (is_mode("rdna4")) {
        is_off(properties_with(NULL), "gfx1201 loses what is written");
        is_off(properties_with("1"),
               "test at open failed: what was written to a new mapping is lost");
    } else if (is_mode("tail")) {
        is_off(properties_with(NULL),
               "test at open failed: setting access on a grown range: hipErrorInvalidValue (1)");
    } else if (is_mode("ranges")) {
        is_off(properties_with(NULL), "test at open failed: setting access on a grown range beside "
                                      "another one: hipErrorInvalidValue (1)");
    } else if (is_mode("keeps")) {
        is_off(properties_with(NULL), "test at open failed: released memory stays in use");
        is_off(properties_with("1"), "test at open failed: released memory stays in use");
    } else if (is_mode("seams")) {
        is_off(properties_with(NULL), "test at open failed: filling across two mappings: "
                                      "hipErrorInvalidValue (1)");
    } else if (is_mode("unmap")) {
        is_on(properties_with(NULL)); /* each mapping is unmapped alone */
    }
}

/* --- falling back ---------------------------------------------------------------------------- */

enum { BLOCKS = 6, BLOCK = 6 << 20 };

static void fill_block(memopt_device *device, void *block, int number)
{
    OK(memopt_fill(device, block, (uint8_t)(number + 1), 1024, NULL));
    OK(memopt_fill(device, (char *)block + BLOCK - 1024, (uint8_t)(number + 1), 1024, NULL));
}

static void check_block(memopt_device *device, const void *block, int number)
{
    unsigned char ends[2] = {0};
    OK(memopt_copy(device, &ends[0], block, 1, NULL));
    OK(memopt_copy(device, &ends[1], (const char *)block + BLOCK - 1, 1, NULL));
    OK(memopt_stream_sync(device, NULL));
    assert_int_equal(ends[0], number + 1);
    assert_int_equal(ends[1], number + 1);
}

/* The n-th call of `call` is refused once while blocks of three pages are allocated. Every block
 * is had, none loses its contents, and all memory goes back. */
static int survives(const char *call, int64_t n)
{
    memopt_device *device = NULL;
    memopt_allocator *allocator = NULL;
    void *blocks[BLOCKS];
    uint64_t released = 0;
    OK(memopt_device_open("hip:0", NULL, &device));
    OK(memopt_allocator_create(device, "expandable_segments:True", NULL, &allocator));
    sim->fail_at(call, n, 1);
    for (int i = 0; i < BLOCKS; i++) {
        OK(memopt_allocator_alloc(allocator, BLOCK, MEMOPT_TAG_OTHER, NULL, &blocks[i]));
        fill_block(device, blocks[i], i);
    }
    int struck = sim->pending() == 0;
    sim->fail_at(call, 0, 0);
    for (int i = 0; i < BLOCKS; i++)
        check_block(device, blocks[i], i);
    for (int i = 0; i < BLOCKS; i++)
        OK(memopt_allocator_free(allocator, blocks[i]));
    OK(memopt_allocator_trim_sync(allocator, 0, &released));
    assert_true(released >= (uint64_t)BLOCKS * BLOCK);
    assert_int_equal(sim->used(0), 0);
    OK(memopt_allocator_destroy(allocator));
    OK(memopt_device_close(device));
    return struck;
}

TEST(a_refusal_loses_nothing)
{
    static const char *const calls[] = {"hipMemAddressReserve", "hipMemCreate", "hipMemMap",
                                        "hipMemSetAccess"};
    if (!is_mode("new"))
        return;
    (void)properties_with(NULL);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        int64_t n = 1;
        while (survives(calls[i], n))
            n++;
        assert_true(n > (i == 0 ? 1 : BLOCKS / 2));
    }
    assert_int_equal(sim->violations(), 0);
}

/* --- descriptors ------------------------------------------------------------------------------ */

/* 4 of 68 descriptors may be handles. Larger pages make the most of them, the next handle is
 * refused with the numbers, the allocator goes on without, and the program can open files. */
TEST(descriptors_are_spared)
{
    struct rlimit before, few;
    memopt_device *device = NULL;
    memopt_allocator *allocator = NULL;
    memopt_device_properties p = {.struct_size = sizeof p};
    void *blocks[5];
    mo_vm_handle handle = NULL;
    if (!is_mode("new"))
        return;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 68;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    OK(memopt_device_open("hip:0", NULL, &device));
    OK(memopt_device_get_properties(device, &p));
    assert_int_equal(p.granularity, 16 * MIB);
    OK(memopt_allocator_create(device, "expandable_segments:True", NULL, &allocator));
    for (int i = 0; i < 5; i++) {
        OK(memopt_allocator_alloc(allocator, 16 * MIB, MEMOPT_TAG_OTHER, NULL, &blocks[i]));
        fill_block(device, blocks[i], i);
    }
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "each of 4 pages", mo_vm_create(device, 16 * MIB, &handle));
    SAYS("may have 68; raise ulimit -n");
    int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(file >= 0);
    (void)close(file);
    for (int i = 0; i < 5; i++) {
        check_block(device, blocks[i], i);
        OK(memopt_allocator_free(allocator, blocks[i]));
    }
    OK(memopt_allocator_destroy(allocator));
    OK(memopt_device_close(device));
    assert_int_equal(sim->used(0), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

int main(int count, char **values)
{
    if (count > 1)
        mode = values[1];
    sim = driver_of("hip");
    return run_all_tests(NULL, NULL);
}
