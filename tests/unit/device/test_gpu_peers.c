/*
 * test_gpu_peers cuda|hip [strangers]: mapped memory of one device in copies of another one, on the
 * simulated drivers. strangers: with MEMOPT_SIM_PEERS=0, where no device can use another one's.
 */
#include "support.h"

#include "device/gpu/gpu.h"
#include "memopt/allocator.h"

#include <pthread.h>
#include <stdio.h>

enum { BYTES = 3 << 20, ENDS = 1024 };

static const char *backend = "cuda";
static int strangers;
static char names[3][16];

typedef struct side {
    memopt_device *device;
    memopt_allocator *allocator;
} side;

static side open_side(int number)
{
    side s = {NULL, NULL};
    OK(memopt_device_open(names[number], NULL, &s.device));
    OK(memopt_allocator_create(s.device, "expandable_segments:True", NULL, &s.allocator));
    return s;
}

static void close_side(side *s)
{
    OK(memopt_allocator_destroy(s->allocator));
    OK(memopt_device_close(s->device));
}

static void *block_of(const side *s, uint8_t value)
{
    void *block = NULL;
    OK(memopt_allocator_alloc(s->allocator, BYTES, MEMOPT_TAG_OTHER, NULL, &block));
    OK(memopt_fill(s->device, block, value, BYTES, NULL));
    OK(memopt_stream_sync(s->device, NULL));
    return block;
}

static void holds(const side *s, const void *block, uint8_t value)
{
    uint8_t ends[2] = {0};
    OK(memopt_copy(s->device, &ends[0], block, 1, NULL));
    OK(memopt_copy(s->device, &ends[1], (const char *)block + BYTES - 1, 1, NULL));
    OK(memopt_stream_sync(s->device, NULL));
    assert_int_equal(ends[0], value);
    assert_int_equal(ends[1], value);
}

/* Each of the two copies, in both directions. */
static void copies_work(const side *a, void *in_a, const side *b, void *in_b)
{
    const side *const by[] = {a, b};
    for (uint8_t i = 0; i < 2; i++) {
        OK(memopt_fill(a->device, in_a, (uint8_t)(3 + i), BYTES, NULL));
        OK(memopt_device_sync(a->device));
        OK(memopt_copy(by[i]->device, in_b, in_a, BYTES, NULL));
        OK(memopt_device_sync(by[i]->device));
        holds(b, in_b, (uint8_t)(3 + i));
        OK(memopt_fill(b->device, in_b, (uint8_t)(5 + i), BYTES, NULL));
        OK(memopt_device_sync(b->device));
        OK(memopt_copy(by[i]->device, in_a, in_b, BYTES, NULL));
        OK(memopt_device_sync(by[i]->device));
        holds(a, in_a, (uint8_t)(5 + i));
    }
}

static uint64_t calls, described;
static int (*real_set_access)(void *, size_t, const mo_gpu_access *, size_t);

static int counted_set_access(void *address, size_t bytes, const mo_gpu_access *access,
                              size_t count)
{
    calls++;
    described += count;
    return real_set_access(address, bytes, access, count);
}

/* Memory that is there already stays the owner's alone. */
static int refusing_set_access(void *address, size_t bytes, const mo_gpu_access *access,
                               size_t count)
{
    return count > 1 ? MO_GPU_NOT_SUPPORTED : real_set_access(address, bytes, access, count);
}

static mo_gpu_calls *use_set_access(int (*function)(void *, size_t, const mo_gpu_access *, size_t))
{
    mo_gpu_calls *driver =
        strcmp(backend, "cuda") == 0 ? &mo_cuda_driver.calls : &mo_hip_driver.calls;
    real_set_access = driver->vm_set_access;
    driver->vm_set_access = function;
    return driver;
}

/* A new block of the side takes one call, which gives access to so many devices. */
static void *counted_block(const side *s, uint8_t value, uint64_t devices)
{
    calls = described = 0;
    void *block = block_of(s, value);
    assert_int_equal(calls, 1);
    assert_int_equal(described, devices);
    return block;
}

TEST(mapped_memory_is_for_all)
{
    if (strangers)
        return;
    side a = open_side(0);
    mo_gpu_calls *driver = use_set_access(counted_set_access);
    void *before = counted_block(&a, 1, 1);
    void *more = block_of(&a, 1);
    side b = open_side(1); /* gets access to what is there */
    void *there = counted_block(&b, 2, 2);
    copies_work(&a, before, &b, there);
    copies_work(&a, more, &b, there);
    void *later = counted_block(&a, 1, 2);
    copies_work(&a, later, &b, there);
    side again = open_side(1); /* another handle of the same device */
    OK(memopt_allocator_free(b.allocator, there));
    close_side(&b);
    void *other = counted_block(&again, 2, 2);
    OK(memopt_allocator_free(a.allocator, later));
    OK(memopt_allocator_trim_sync(a.allocator, 0, NULL));
    later = counted_block(&a, 1, 2);
    copies_work(&a, later, &again, other);
    OK(memopt_allocator_free(again.allocator, other));
    close_side(&again);
    void *last = counted_block(&a, 1, 1); /* nobody else is there */
    driver->vm_set_access = real_set_access;
    void *const blocks[] = {before, more, later, last};
    for (size_t i = 0; i < 4; i++)
        OK(memopt_allocator_free(a.allocator, blocks[i]));
    close_side(&a);
}

/* Where the driver refuses a device access when it is opened, its copies of what is mapped are
 * refused; all else works, and the next one that opens it is asked again. */
TEST(a_refused_device_is_a_stranger)
{
    if (strangers)
        return;
    side a = open_side(0);
    void *in_a = block_of(&a, 1);
    mo_gpu_calls *driver = use_set_access(refusing_set_access);
    side b = open_side(1);
    driver->vm_set_access = real_set_access;
    void *in_b = block_of(&b, 2);
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "has refused it", memopt_copy(b.device, in_b, in_a, 1, NULL));
    OK(memopt_copy_sync(a.device, in_b, in_a, BYTES, NULL));
    holds(&b, in_b, 1);
    OK(memopt_allocator_free(b.allocator, in_b));
    close_side(&b);
    b = open_side(1);
    in_b = block_of(&b, 2);
    copies_work(&a, in_a, &b, in_b);
    OK(memopt_allocator_free(a.allocator, in_a));
    OK(memopt_allocator_free(b.allocator, in_b));
    close_side(&a);
    close_side(&b);
}

/* One device maps and unmaps while the other one comes and goes. */
static side mapping;
static memopt_status outcome;

static void *map_and_unmap(void *unused)
{
    for (int i = 0; i < 20 && outcome == MEMOPT_OK; i++) {
        void *block = NULL;
        outcome = memopt_allocator_alloc(mapping.allocator, BYTES, MEMOPT_TAG_OTHER, NULL, &block);
        (void)memopt_allocator_free(mapping.allocator, block);
        (void)memopt_allocator_trim_sync(mapping.allocator, 0, NULL);
    }
    return unused;
}

TEST(devices_come_while_others_map)
{
    pthread_t thread;
    mapping = open_side(0);
    assert_int_equal(pthread_create(&thread, NULL, map_and_unmap, NULL), 0);
    for (uint8_t i = 0; i < 5; i++) {
        side b = open_side(1);
        void *in_a = block_of(&mapping, i), *in_b = block_of(&b, 0);
        if (!strangers)
            OK(memopt_copy_sync(b.device, in_b, in_a, BYTES, NULL));
        holds(&b, in_b, strangers ? 0 : i);
        OK(memopt_allocator_free(mapping.allocator, in_a));
        OK(memopt_allocator_free(b.allocator, in_b));
        close_side(&b);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    OK(outcome);
    close_side(&mapping);
}

/* Copies are refused with the reason, and nothing has happened; by way of the host they work, and
 * so do those of plain memory. */
TEST(strangers_are_refused)
{
    static char host[BYTES];
    void *plain = NULL;
    if (!strangers)
        return;
    side a = open_side(0), b = open_side(1);
    void *in_a = block_of(&a, 1), *in_b = block_of(&b, 2);
    char words[96];
    snprintf(words, sizeof words, "is mapped memory of %s, which %s cannot use", names[1],
             names[0]);
    FAILS_SAYING(MEMOPT_UNSUPPORTED, words, memopt_copy(a.device, in_b, in_a, BYTES, NULL));
    FAILS_SAYING(MEMOPT_UNSUPPORTED, words, memopt_copy(a.device, in_a, in_b, BYTES, NULL));
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "cannot be peers",
                 memopt_copy(b.device, in_b, in_a, BYTES, NULL));
    FAILS(MEMOPT_UNSUPPORTED, memopt_copy(b.device, in_b, (char *)in_a + BYTES - 1, 1, NULL));
    holds(&a, in_a, 1);
    holds(&b, in_b, 2);
    OK(memopt_copy_sync(a.device, host, in_a, BYTES, NULL));
    OK(memopt_copy_sync(b.device, in_b, host, BYTES, NULL));
    holds(&b, in_b, 1);
    OK(mo_mem_alloc(b.device, 2 * MIB, &plain));
    OK(memopt_copy_sync(a.device, plain, in_a, 2 * MIB, NULL));
    OK(mo_mem_free(b.device, plain, 2 * MIB));
    OK(memopt_allocator_free(a.allocator, in_a));
    OK(memopt_allocator_free(b.allocator, in_b));
    close_side(&a);
    close_side(&b);
}

int main(int count, char **values)
{
    if (count > 1)
        backend = values[1];
    strangers = count > 2;
    for (int i = 0; i < 3; i++)
        snprintf(names[i], sizeof names[i], "%s:%d", backend, i);
    return run_all_tests(NULL, NULL);
}
