/* The NCCL adapter, compiled against NCCL's own header. In place of its library, which needs a GPU: the four calls,
 * which check what NCCL leaves to its caller. */
#include "adapters/memopt_nccl.h"

#include "unit/allocator/support.h"

#include <stdlib.h>

/* A communicator is a number below COMMS. */
enum { MOST = 64, ROOM = 32, COMMS = 2 };

static struct piece {
    void *address; /* NULL: none */
    size_t bytes;
    int registered[COMMS];
} pieces[MOST];

static size_t held, room;
static int refuse; /* so many registrations more are taken, then one is refused */

static ncclComm_t comm(uintptr_t number)
{
    return (ncclComm_t)(number + 1);
}

static struct piece *find(const void *address)
{
    int i = 0;
    while (pieces[i].address != address)
        assert_true(++i < MOST);
    return &pieces[i];
}

static size_t registrations(uintptr_t number)
{
    size_t bytes = 0;
    for (int i = 0; i < MOST; i++)
        bytes += pieces[i].registered[number] ? pieces[i].bytes : 0;
    return bytes;
}

ncclResult_t ncclMemAlloc(void **pointer, size_t bytes)
{
    struct piece *p = find(NULL);
    if (held + bytes > room)
        return ncclUnhandledCudaError;
    assert_int_equal(posix_memalign(&p->address, 4096, bytes), 0);
    p->bytes = bytes;
    held += bytes;
    *pointer = p->address;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *pointer)
{
    struct piece *p = find(pointer);
    for (int c = 0; c < COMMS; c++) /* NCCL would go on to use it */
        assert_false(p->registered[c]);
    held -= p->bytes;
    free(pointer);
    p->address = NULL;
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t to, void *pointer, size_t bytes, void **handle)
{
    int *registered = &find(pointer)->registered[(uintptr_t)to - 1];
    if (refuse > 0 && --refuse == 0)
        return ncclSystemError;
    assert_int_equal(find(pointer)->bytes, bytes); /* whole segments */
    assert_false(*registered);
    *registered = 1;
    *handle = registered;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t from, void *handle)
{
    int *registered = handle, i = 0;
    while (registered != &pieces[i].registered[(uintptr_t)from - 1]) /* it has the handle */
        assert_true(++i < MOST);
    assert_true(*registered);
    *registered = 0;
    return ncclSuccess;
}

static memopt_allocator *allocator_of(memopt_device *device)
{
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_memory_provider provider = memopt_nccl_provider();
    memopt_allocator *allocator;
    room = ROOM * MIB;
    options.provider = &provider;
    OK(memopt_allocator_create(device, NULL, &options, &allocator));
    return allocator;
}

static void all_went_back(memopt_allocator *allocator)
{
    OK(memopt_allocator_trim_sync(allocator, 0, NULL));
    assert_int_equal(held, 0);
    assert_int_equal(registrations(0) + registrations(1), 0);
}

ALLOCATOR_TEST_OF(every_segment_is_registered_while_it_lives, allocator, eager(CAPACITY),
                  allocator_of(device), CLASSIC)
{
    memopt_nccl_registration *first, *second;
    void *early = alloc(allocator, 3 * MIB);
    OK(memopt_nccl_register(allocator, comm(0), &first));
    assert_int_equal(registrations(0), held);
    void *later = alloc(allocator, 12 * MIB), *small = alloc(allocator, 1000);
    assert_int_equal(registrations(0), held);
    OK(memopt_nccl_register(allocator, comm(1), &second));
    assert_int_equal(registrations(1), held);
    OK(memopt_allocator_free(allocator, later));
    OK(memopt_allocator_trim_sync(allocator, 0, NULL));
    assert_true(held < 24 * MIB && held > 3 * MIB);
    assert_int_equal(registrations(0), held);
    OK(memopt_nccl_deregister(first));
    assert_int_equal(registrations(0), 0);
    assert_int_equal(registrations(1), held);
    OK(memopt_allocator_free(allocator, early));
    OK(memopt_allocator_free(allocator, small));
    OK(memopt_nccl_deregister(second));
    all_went_back(allocator);
}

ALLOCATOR_TEST_OF(what_nccl_refuses_changes_nothing, allocator, eager(CAPACITY),
                  allocator_of(device), CLASSIC)
{
    memopt_nccl_registration *first, *second = NULL;
    void *pointer = NULL, *kept = alloc(allocator, 16 * MIB), *other = alloc(allocator, 1000);
    refuse = 2; /* of the two segments */
    assert_int_equal(memopt_nccl_register(allocator, comm(0), &second),
                     MEMOPT_STATUS_USER + ncclSystemError);
    assert_null(second);
    assert_int_equal(registrations(0), 0);
    OK(memopt_nccl_register(allocator, comm(0), &first));
    OK(memopt_nccl_register(allocator, comm(1), &second));
    uint64_t before = held;
    refuse = 2; /* the second communicator's */
    assert_int_equal(memopt_allocator_alloc(allocator, 10 * MIB, 0, NULL, &pointer),
                     MEMOPT_STATUS_USER + ncclSystemError);
    assert_int_equal(held, before);
    assert_int_equal(registrations(0), before);
    assert_int_equal(registrations(1), before);
    assert_int_equal(memopt_allocator_alloc(allocator, 2 * ROOM * MIB, 0, NULL, &pointer),
                     MEMOPT_OUT_OF_DEVICE_MEMORY);
    OK(memopt_allocator_free(allocator, kept));
    OK(memopt_allocator_free(allocator, other));
    pointer =
        alloc(allocator, ROOM * MIB); /* after what is free has gone back, and its registrations */
    assert_int_equal(registrations(1), held);
    OK(memopt_allocator_free(allocator, pointer));
    OK(memopt_nccl_deregister(second));
    OK(memopt_nccl_deregister(first));
    assert_int_equal(memopt_nccl_register(allocator, NULL, &first), MEMOPT_INVALID_ARGUMENT);
    all_went_back(allocator);
}
