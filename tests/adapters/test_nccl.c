/* The NCCL adapter, compiled against NCCL's own header. In place of its library, which needs a GPU: the four calls,
 * which check what NCCL leaves to its caller. */
#include "adapters/memopt_nccl.h"

#include "memopt/memopt.h"
#include "support/checks.h"
#include "support/unit.h"

#include <stdlib.h>

enum { MOST = 64, ROOM = 32 };

/* A communicator is a number below COMMS; what it has registered is a list. */
enum { COMMS = 2 };

static struct {
    void *address;
    size_t bytes;
} memory[MOST];

static struct {
    void *address;
    size_t bytes;
} registered[COMMS][MOST];

static size_t held, room;
static int refuse; /* so many registrations more are taken, then one is refused */

static ncclComm_t comm(uintptr_t number)
{
    return (ncclComm_t)(number + 1);
}

static size_t registrations(uintptr_t number)
{
    size_t bytes = 0;
    for (int i = 0; i < MOST; i++)
        bytes += registered[number][i].address != NULL ? registered[number][i].bytes : 0;
    return bytes;
}

ncclResult_t ncclMemAlloc(void **pointer, size_t bytes)
{
    int i = 0;
    if (held + bytes > room)
        return ncclUnhandledCudaError;
    while (memory[i].address != NULL)
        assert_true(++i < MOST);
    assert_int_equal(posix_memalign(&memory[i].address, 4096, bytes), 0);
    memory[i].bytes = bytes;
    held += bytes;
    *pointer = memory[i].address;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *pointer)
{
    int i = 0;
    while (memory[i].address != pointer)
        assert_true(++i < MOST);
    for (int c = 0; c < COMMS; c++) /* NCCL would go on to use it */
        for (int k = 0; k < MOST; k++)
            assert_true(registered[c][k].address != pointer);
    held -= memory[i].bytes;
    free(pointer);
    memory[i].address = NULL;
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t to, void *pointer, size_t bytes, void **handle)
{
    const uintptr_t c = (uintptr_t)to - 1;
    int i = 0, k = 0;
    if (refuse > 0 && --refuse == 0)
        return ncclSystemError;
    while (memory[i].address != pointer)
        assert_true(++i < MOST);
    assert_int_equal(memory[i].bytes, bytes); /* whole segments */
    while (registered[c][k].address != NULL)
        assert_true(registered[c][k].address != pointer && ++k < MOST);
    registered[c][k].address = pointer;
    registered[c][k].bytes = bytes;
    *handle = &registered[c][k];
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t from, void *handle)
{
    const uintptr_t c = (uintptr_t)from - 1;
    for (int k = 0; k < MOST; k++)
        if (handle == &registered[c][k] && registered[c][k].address != NULL) {
            registered[c][k].address = NULL;
            return ncclSuccess;
        }
    fail_msg("a handle that this communicator does not have");
    return ncclInvalidArgument;
}

typedef struct world {
    memopt_device *device;
    memopt_allocator *allocator;
} world;

static int begin(void **state)
{
    static world w;
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_memory_provider provider = memopt_nccl_provider();
    room = ROOM * MIB;
    refuse = 0;
    options.provider = &provider;
    OK(memopt_device_open("cpu", NULL, &w.device));
    OK(memopt_allocator_create(w.device, NULL, &options, &w.allocator));
    *state = &w;
    return 0;
}

static int end(void **state)
{
    world *w = *state;
    OK(memopt_allocator_destroy(w->allocator));
    OK(memopt_device_close(w->device));
    assert_int_equal(held, 0);
    assert_int_equal(registrations(0) + registrations(1), 0);
    return 0;
}

static void *alloc(const world *w, uint64_t bytes)
{
    void *pointer = NULL;
    OK(memopt_allocator_alloc(w->allocator, bytes, MEMOPT_TAG_GRADIENTS, NULL, &pointer));
    return pointer;
}

TEST_WITH(every_segment_is_registered_while_it_lives, begin, end)
{
    world *w = *state;
    memopt_nccl_registration *first, *second;
    void *early = alloc(w, 3 * MIB);
    OK(memopt_nccl_register(w->allocator, comm(0), &first));
    assert_int_equal(registrations(0), held);
    void *later = alloc(w, 12 * MIB), *small = alloc(w, 1000);
    assert_int_equal(registrations(0), held);
    OK(memopt_nccl_register(w->allocator, comm(1), &second));
    assert_int_equal(registrations(1), held);
    OK(memopt_allocator_free(w->allocator, later));
    OK(memopt_allocator_trim_sync(w->allocator, 0, NULL));
    assert_true(held < 24 * MIB && held > 3 * MIB);
    assert_int_equal(registrations(0), held);
    OK(memopt_nccl_deregister(first));
    assert_int_equal(registrations(0), 0);
    assert_int_equal(registrations(1), held);
    OK(memopt_allocator_free(w->allocator, early));
    OK(memopt_allocator_free(w->allocator, small));
    OK(memopt_allocator_trim_sync(w->allocator, 0, NULL));
    OK(memopt_nccl_deregister(second));
}

TEST_WITH(what_nccl_refuses_changes_nothing, begin, end)
{
    world *w = *state;
    memopt_nccl_registration *first, *second = NULL;
    void *pointer = NULL, *kept = alloc(w, 16 * MIB), *other = alloc(w, 1000);
    refuse = 2; /* of the two segments */
    assert_int_equal(memopt_nccl_register(w->allocator, comm(0), &second),
                     MEMOPT_STATUS_USER + ncclSystemError);
    assert_null(second);
    assert_int_equal(registrations(0), 0);
    OK(memopt_nccl_register(w->allocator, comm(0), &first));
    OK(memopt_nccl_register(w->allocator, comm(1), &second));
    uint64_t before = held;
    refuse = 2; /* the second communicator's */
    assert_int_equal(memopt_allocator_alloc(w->allocator, 10 * MIB, 0, NULL, &pointer),
                     MEMOPT_STATUS_USER + ncclSystemError);
    assert_int_equal(held, before);
    assert_int_equal(registrations(0), before);
    assert_int_equal(registrations(1), before);
    assert_int_equal(memopt_allocator_alloc(w->allocator, 2 * ROOM * MIB, 0, NULL, &pointer),
                     MEMOPT_OUT_OF_DEVICE_MEMORY);
    OK(memopt_allocator_free(w->allocator, kept));
    OK(memopt_allocator_free(w->allocator, other));
    pointer = alloc(w, ROOM * MIB); /* after what is free has gone back, and its registrations */
    assert_int_equal(registrations(1), held);
    OK(memopt_allocator_free(w->allocator, pointer));
    OK(memopt_nccl_deregister(second));
    OK(memopt_nccl_deregister(first));
    assert_int_equal(memopt_nccl_register(w->allocator, NULL, &first), MEMOPT_INVALID_ARGUMENT);
}
