/*
 * Every call of the driver fails once: a scenario over the whole library is run with the n-th call
 * of any entry point failing, n = 1, 2, … until it comes through. Each failure must come out as a
 * status with a message, leave handles that can be ended, and give all device memory back. Then the
 * device is lost at each of these points for good: nothing may hang, and handles still end. A quick
 * run takes every fourth call.
 *
 * torture_driver cuda:0|hip:0; exits with 77 where the back end cannot be opened.
 */
#include "memopt/memopt.h"
#include "memopt/offload.h"
#include "memopt/optim.h"

#include "base/memory.h"
#include "support/pausing.h"
#include "support/simulated.h"
#include "support/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const driver_hooks *sim;
static const char *device_name;

typedef struct world {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_pool *pool;
    unsigned char *kept[2]; /* blocks of the pool */
    memopt_stream stream;
    memopt_event *event;
    memopt_optimizer *optimizer;
    void *pinned, *block, *gradient;
} world;

#define TRY(call)                                                                                  \
    do {                                                                                           \
        memopt_status try_status_ = (call);                                                        \
        if (try_status_ != MEMOPT_OK)                                                              \
            return try_status_;                                                                    \
    } while (0)

static memopt_status train(world *w)
{
    enum { COUNT = 1000 };
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_tensor parameter = {w->block, COUNT, MEMOPT_DTYPE_F32};
    memopt_tensor gradient = {w->gradient, COUNT, MEMOPT_DTYPE_F32};
    uint32_t number = 0;
    uint64_t index = 0;
    options.kind = MEMOPT_OPTIMIZER_ADAMW;
    options.state_format = MEMOPT_STATE_F32;
    TRY(memopt_optimizer_create(w->allocator, &options, &w->optimizer));
    TRY(memopt_optimizer_add_group(w->optimizer, &group, &number));
    TRY(memopt_optimizer_add_parameter(w->optimizer, number, &parameter, NULL, w->stream, &index));
    return memopt_optimizer_step(w->optimizer, &gradient, 1, NULL, w->stream);
}

enum { KEPT = (1 << 20) + 512 };

static memopt_status fill_pool(world *w)
{
    TRY(memopt_pool_create(w->allocator, NULL, &w->pool));
    for (int i = 0; i < 2; i++) {
        void *block = NULL, *gap = NULL;
        TRY(memopt_allocator_alloc(w->pool, KEPT, MEMOPT_TAG_OTHER, w->stream, &block));
        memopt_status status = memopt_fill(w->device, block, (uint8_t)(40 + i), KEPT, w->stream);
        if (status != MEMOPT_OK) {
            (void)memopt_allocator_free(w->pool, block);
            return status;
        }
        w->kept[i] = block;
        TRY(memopt_allocator_alloc(w->pool, KEPT, MEMOPT_TAG_OTHER, w->stream, &gap));
        TRY(memopt_allocator_free(w->pool, gap));
    }
    return MEMOPT_OK;
}

/* 1 if the pool is not paused afterwards, and its blocks hold what they should. */
static int kept_contents(const world *w)
{
    unsigned char *host = malloc(KEPT);
    int right = host != NULL;
    if (right && pool_is_paused(w->pool))
        right = memopt_pool_resume_sync(w->pool, 0) == MEMOPT_OK;
    for (int i = 0; i < 2 && right; i++) {
        if (w->kept[i] == NULL)
            continue;
        right = memopt_copy(w->device, host, w->kept[i], KEPT, w->stream) == MEMOPT_OK &&
                memopt_stream_sync(w->device, w->stream) == MEMOPT_OK;
        for (int k = 0; k < KEPT && right; k++)
            right = host[k] == 40 + i;
    }
    free(host);
    return right;
}

static memopt_status pause_and_resume(world *w)
{
    TRY(fill_pool(w));
    TRY(pause_pool(w->pool, MEMOPT_PAUSE_KEEP, NULL));
    return memopt_pool_resume_sync(w->pool, 0);
}

static memopt_status scenario(world *w)
{
    memset(w, 0, sizeof *w);
    TRY(memopt_device_open(device_name, NULL, &w->device));
    TRY(memopt_allocator_create(w->device, "expandable_segments:True", NULL, &w->allocator));
    TRY(memopt_stream_create(w->device, &w->stream));
    TRY(memopt_event_create(w->device, 1, &w->event));
    TRY(memopt_host_alloc(w->device, 4096, &w->pinned));
    memset(w->pinned, 0, 4096);
    TRY(memopt_allocator_alloc(w->allocator, 4096, MEMOPT_TAG_OTHER, w->stream, &w->block));
    TRY(memopt_allocator_alloc(w->allocator, 4096, MEMOPT_TAG_OTHER, w->stream, &w->gradient));
    TRY(memopt_fill(w->device, w->block, 0, 4096, w->stream));
    TRY(memopt_fill(w->device, w->gradient, 1, 4096, w->stream));
    TRY(pause_and_resume(w));
    TRY(train(w));
    TRY(memopt_copy(w->device, w->pinned, w->block, 4096, w->stream));
    TRY(memopt_event_record(w->event, w->stream));
    TRY(memopt_stream_wait_event(w->device, w->stream, w->event));
    TRY(memopt_event_sync(w->event));
    return memopt_stream_sync(w->device, w->stream);
}

/* Ends what is there. The first failing call of a kind is tried once more: a fault strikes once. */
#define END(handle, call)                                                                          \
    do {                                                                                           \
        if (handle) {                                                                              \
            memopt_status end_status_ = (call);                                                    \
            if (end_status_ != MEMOPT_OK)                                                          \
                end_status_ = (call);                                                              \
            if (end_status_ != MEMOPT_OK) {                                                        \
                fprintf(stderr, "%s: %s: %s\n", #call, memopt_status_name(end_status_),            \
                        memopt_last_error());                                                      \
                return 0;                                                                          \
            }                                                                                      \
        }                                                                                          \
    } while (0)

static int end(world *w, int lost)
{
    if (w->pool != NULL && !lost && !kept_contents(w)) {
        fprintf(stderr, "what a pool kept is not there: %s\n", memopt_last_error());
        return 0;
    }
    if (w->device != NULL)
        (void)memopt_device_sync(w->device);
    if (w->optimizer != NULL)
        (void)memopt_optimizer_destroy(w->optimizer);
    for (int i = 0; i < 2; i++)
        END(w->kept[i] != NULL, memopt_allocator_free(w->pool, w->kept[i]));
    if (w->pool != NULL && memopt_allocator_destroy(w->pool) == MEMOPT_BUSY) {
        fprintf(stderr, "%s\n", memopt_last_error());
        return 0;
    }
    END(w->gradient != NULL, memopt_allocator_free(w->allocator, w->gradient));
    END(w->block != NULL, memopt_allocator_free(w->allocator, w->block));
    END(w->pinned != NULL, memopt_host_free(w->device, w->pinned));
    if (w->event != NULL)
        (void)memopt_event_destroy(w->event); /* gone whatever it returns */
    if (w->allocator != NULL && memopt_allocator_destroy(w->allocator) == MEMOPT_BUSY) {
        fprintf(stderr, "%s\n", memopt_last_error());
        return 0;
    }
    if (w->stream != NULL)
        (void)memopt_stream_destroy(w->device, w->stream); /* as well */
    if (w->device != NULL && memopt_device_close(w->device) == MEMOPT_BUSY) {
        fprintf(stderr, "%s\n", memopt_last_error());
        return 0;
    }
    return 1;
}

/* One run with the fault armed. *out_status: of the scenario. 0: a rule is broken. */
static int run(int64_t n, int lost, memopt_status *out_status)
{
    world w;
    if (lost)
        sim->fail_at("*", n, 719);
    else if (n > 0)
        sim->fail_at("*", n, 0);
    *out_status = scenario(&w);
    int struck = sim->pending() == 0;
    sim->fail_at("*", 0, 0);
    if (*out_status != MEMOPT_OK && memopt_last_error()[0] == '\0') {
        fprintf(stderr, "call %lld: no message\n", (long long)n);
        return 0;
    }
    if (lost && struck)
        sim->lose(719);
    int ended = end(&w, lost && struck);
    sim->lose(0);
    return ended;
}

/* The same with the device lost from then on, in a process of its own: what was under way on a lost
 * device never runs, and its memory is gone. 1 if the scenario told; below 0: a rule is broken. */
static int run_lost(int64_t n)
{
    int ended = 0;
    pid_t child = fork();
    if (child == 0) {
        memopt_status status = MEMOPT_OK;
        int right = run(n, 1, &status) && sim->violations() == 0;
        _exit(!right ? 2 : status != MEMOPT_OK);
    }
    if (child < 0 || waitpid(child, &ended, 0) != child || !WIFEXITED(ended) ||
        WEXITSTATUS(ended) > 1)
        return -1;
    return WEXITSTATUS(ended);
}

int main(int count, char **words)
{
    memopt_status status = MEMOPT_OK;
    memopt_device *probe = NULL;
    if (count != 2)
        return 2;
    device_name = words[1];
    if (memopt_device_open(device_name, NULL, &probe) != MEMOPT_OK) {
        fprintf(stderr, "%s: %s\n", device_name, memopt_last_error());
        return 77;
    }
    sim = driver_of(device_name);
    if (memopt_device_close(probe) != MEMOPT_OK || !run(0, 0, &status) || status != MEMOPT_OK) {
        fprintf(stderr, "the scenario fails by itself: %s\n", memopt_last_error());
        return 1;
    }
    int64_t before = sim->calls();
    if (!run(0, 0, &status))
        return 1;
    int64_t calls = sim->calls() - before, failures = 0, losses = 0;
    int64_t blocks = mo_memory_live_blocks();
    FOR_PLACES(n, calls)
    {
        if (!run(n, 0, &status))
            return fprintf(stderr, "failing call %lld\n", (long long)n), 1;
        failures += status != MEMOPT_OK;
        if (sim->used(0) != 0 || mo_memory_live_blocks() != blocks)
            return fprintf(stderr, "call %lld leaks: %llu device bytes, %lld host blocks\n",
                           (long long)n, (unsigned long long)sim->used(0),
                           (long long)(mo_memory_live_blocks() - blocks)),
                   1;
    }
    FOR_PLACES(n, calls)
    {
        int told = run_lost(n);
        if (told < 0)
            return fprintf(stderr, "device lost at call %lld\n", (long long)n), 1;
        losses += told;
    }
    if (!run(0, 0, &status) || status != MEMOPT_OK || failures == 0) {
        fprintf(stderr, "afterwards: %s\n", memopt_last_error());
        return 1;
    }
    printf("%s: %lld calls, %lld failures told, %lld losses told\n", device_name, (long long)calls,
           (long long)failures, (long long)losses);
    return sim->violations() == 0 ? 0 : 1;
}
