/*
 * A log callback that calls into the handle whose call logs: every failure of host memory, also
 * those behind a lock of the allocator or of an optimizer, reaches it when no lock is held. A lock
 * that is held all the same is a thread that waits for itself, which the alarm ends.
 */
#include "support.h"

#include "base/memory.h"
#include "memopt/optim.h"

#include <unistd.h>

enum { PATIENCE = 60 };

typedef struct world {
    memopt_device *device;
    memopt_allocator *allocator;
    int lines, struck;
} world;

/* Takes every lock that the work below can hold: the allocator's, the device's, the listeners' and
 * through those the optimizer's. */
static void call_back(void *user, memopt_log_level level, const char *message)
{
    world *w = user;
    memopt_stream stream = NULL;
    w->lines++;
    if (w->allocator != NULL)
        OK(memopt_allocator_trim_sync(w->allocator, 0, NULL));
    if (memopt_stream_create(w->device, &stream) == MEMOPT_OK)
        OK(memopt_stream_destroy(w->device, stream));
}

static memopt_status use_allocator(world *w, memopt_stream stream)
{
    void *blocks[40] = {NULL};
    memopt_status status = MEMOPT_OK;
    for (int i = 0; i < 40 && status == MEMOPT_OK; i++)
        status = memopt_allocator_alloc(w->allocator, (uint64_t)(i + 1) * 3000, MEMOPT_TAG_OTHER,
                                        i % 2 ? stream : NULL, &blocks[i]);
    for (int i = 0; i < 40; i++) {
        if (blocks[i] != NULL && status == MEMOPT_OK)
            status = memopt_allocator_record_stream(w->allocator, blocks[i], stream);
        if (memopt_allocator_free(w->allocator, blocks[i]) != MEMOPT_OK) /* the fault struck here */
            OK(memopt_allocator_free(w->allocator, blocks[i]));
    }
    return status;
}

static memopt_status use_optimizer(world *w, memopt_stream stream)
{
    static float values[256], gradients[256];
    memopt_optimizer *optimizer = NULL;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_tensor parameter = {values, 256, MEMOPT_DTYPE_F32};
    memopt_tensor gradient = {gradients, 256, MEMOPT_DTYPE_F32};
    uint32_t number = 0;
    uint64_t index = 0;
    memopt_status status = memopt_optimizer_create(w->allocator, NULL, &optimizer);
    if (status == MEMOPT_OK)
        status = memopt_optimizer_add_group(optimizer, &group, &number);
    if (status == MEMOPT_OK)
        status = memopt_optimizer_add_parameter(optimizer, 0, &parameter, NULL, NULL, &index);
    if (status == MEMOPT_OK)
        status = memopt_optimizer_step(optimizer, &gradient, 1, NULL, stream);
    w->struck = mo_memory_fault_struck();
    mo_memory_fail_at(0); /* ending it is not the matter */
    OK(memopt_device_sync(w->device));
    OK(memopt_optimizer_destroy(optimizer));
    return status;
}

/* One run with the n-th host allocation failing; 0 once none fails. */
static int run(int64_t n, const char *config, memopt_status (*use)(world *, memopt_stream))
{
    world w = {open_cpu(64 * MIB, 0, 0), NULL, 0, 0};
    memopt_stream stream = stream_on(w.device);
    OK(memopt_set_log(call_back, &w, MEMOPT_LOG_DEBUG));
    OK(memopt_allocator_create(w.device, config, NULL, &w.allocator));
    mo_memory_fail_at(n);
    memopt_status status = use(&w, stream);
    int struck = w.struck | mo_memory_fault_struck();
    mo_memory_fail_at(0);
    OK(memopt_set_log(NULL, NULL, MEMOPT_LOG_OFF));
    assert_true(status == MEMOPT_OK || (struck && w.lines > 0));
    OK(memopt_stream_destroy(w.device, stream));
    OK(memopt_allocator_destroy(w.allocator));
    OK(memopt_device_close(w.device));
    return struck;
}

static void through(memopt_status (*use)(world *, memopt_stream))
{
    alarm(PATIENCE);
    for (int c = 0; c < 2; c++) {
        int64_t n = 1;
        while (run(n, configs[c], use))
            n++;
        assert_true(n > 3);
    }
    alarm(0);
}

TEST(the_allocator_is_called_back)
{
    through(use_allocator);
}

TEST(the_optimizer_holds_no_lock)
{
    through(use_optimizer);
}
