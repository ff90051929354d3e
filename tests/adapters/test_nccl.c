/* The NCCL adapter, compiled against NCCL's own header. In place of its library, which needs a GPU: the four calls,
 * which check what NCCL leaves to its caller. */
#include "adapters/memopt_nccl.h"

#include "memopt/memopt.h"
#include "support/checks.h"
#include "support/unit.h"

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
