/* The device's scratch (lib/device/front/scratch.c), as norms use it: a piece of each stream. Those of
 * recorded graphs: tests/conformance/graph_cases.c. */
#include "support.h"

#include <pthread.h>

typedef struct fixture {
    memopt_device *device;
    float *data; /* 1024 floats, 0; norm is the last but one */
    float *norm;
    memopt_tensor tensor; /* four elements */
} fixture;

static int begin(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->device = open_cpu(2);
    f->data = device_memory(f->device, 4096);
    memset(f->data, 0, 4096);
    f->norm = f->data + 1022;
    f->tensor = tensor_of(f->data, 4, MEMOPT_DTYPE_F32);
    *state = f;
    return 0;
}

static int end(void **state)
{
    fixture *f = *state;
    OK(mo_mem_free(f->device, f->data, 4096));
    OK(memopt_device_close(f->device));
    free(f);
    return 0;
}

static uint64_t used(memopt_device *device)
{
    memopt_memory_info info = MEMOPT_MEMORY_INFO_INIT;
    OK(memopt_device_get_memory_info(device, &info));
    return info.used;
}

/* One piece for each stream, used again; after the stream's end by another one. Calls that do not
 * wait for each other do not share one. */
TEST_WITH(is_the_streams, begin, end)
{
    fixture *f = *state;
    const uint64_t before = used(f->device);
    memopt_stream streams[2];
    f->data[0] = 3;
    f->data[1] = -4;
    for (int i = 0; i < 3; i++)
        OK(memopt_norm(f->device, f->norm, &f->tensor, 1, 0, NULL));
    assert_int_equal(used(f->device), before + 4096);
    for (int i = 0; i < 2; i++) {
        OK(memopt_stream_create(f->device, &streams[i]));
        OK(memopt_norm(f->device, f->norm, &f->tensor, 1, 0, streams[i]));
        assert_int_equal(used(f->device), before + (uint64_t)(i + 2) * 4096);
    }
    OK(memopt_stream_destroy(f->device, streams[0]));
    OK(memopt_stream_create(f->device, &streams[0]));
    OK(memopt_norm(f->device, f->norm, &f->tensor, 1, 100.0, streams[0]));
    assert_int_equal(used(f->device), before + 3 * 4096);
    for (int i = 0; i < 2; i++)
        OK(memopt_stream_destroy(f->device, streams[i]));
    assert_true(*f->norm == 5.0f);
}

/* The sums of a longer list have a piece twice as large. */
TEST_WITH(grows, begin, end)
{
    fixture *f = *state;
    const uint64_t before = used(f->device);
    memopt_tensor list[512];
    for (int i = 0; i < 512; i++)
        list[i] = tensor_of(f->data, 4, MEMOPT_DTYPE_F32);
    f->data[0] = 1;
    OK(memopt_norm(f->device, f->norm, list, 1, 0, NULL));
    OK(memopt_norm(f->device, f->norm, list, 512, 0, NULL));
    assert_int_equal(used(f->device), before + 4096 + 8192);
    OK(memopt_norm(f->device, f->norm, list, 400, 0, NULL));
    assert_int_equal(used(f->device), before + 4096 + 8192);
    OK(memopt_stream_sync(f->device, NULL));
    assert_true(*f->norm == 20.0f);
}

enum { CALLS = 1000, LIST = 200, PART = 40 };

typedef struct caller {
    memopt_device *device;
    const float *values; /* PART each */
    float *norm, wanted;
    int wrong;
} caller;

static void *call_norms(void *given)
{
    caller *c = given;
    memopt_tensor list[LIST];
    for (int i = 0; i < LIST; i++)
        list[i] = tensor_of((void *)(uintptr_t)c->values, PART, MEMOPT_DTYPE_F32);
    for (int i = 0; i < CALLS; i++) {
        c->wrong += memopt_norm(c->device, c->norm, list, LIST, 0, NULL) != MEMOPT_OK;
        c->wrong += memopt_stream_sync(c->device, NULL) != MEMOPT_OK || *c->norm != c->wanted;
    }
    return NULL;
}

/* A call has its scratch to itself until all its work is enqueued. */
TEST_WITH(threads_share_a_stream, begin, end)
{
    fixture *f = *state;
    caller callers[2];
    pthread_t threads[2];
    for (int k = 0; k < 2; k++) {
        const float value = k == 0 ? 1.0f : 3.0f;
        for (int i = 0; i < PART; i++)
            f->data[100 * k + i] = value;
        callers[k] = (caller){f->device, f->data + 100 * k, f->data + 1000 + k,
                              (float)sqrt(LIST * PART * (double)(value * value)), 0};
    }
    for (int k = 0; k < 2; k++)
        assert_int_equal(pthread_create(&threads[k], NULL, call_norms, &callers[k]), 0);
    for (int k = 0; k < 2; k++)
        assert_int_equal(pthread_join(threads[k], NULL), 0);
    assert_int_equal(callers[0].wrong, 0);
    assert_int_equal(callers[1].wrong, 0);
}
