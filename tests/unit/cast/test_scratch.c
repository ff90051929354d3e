/* The device's scratch (lib/device/front/scratch.c), as norms use it: a piece of each stream. Those of
 * recorded graphs: tests/conformance/graph_cases.c. */
#include "support.h"

#include <pthread.h>

/* One piece for each stream, used again; after the stream's end by another one. Calls that do not
 * wait for each other do not share one. */
TEST_WITH(is_the_streams, begin_norm, end_norm)
{
    norm_fixture *f = *state;
    const uint64_t before = info_of(f->device).used;
    memopt_stream streams[2];
    f->data[0] = 3;
    f->data[1] = -4;
    for (int i = 0; i < 3; i++)
        OK(memopt_norm(f->device, f->norm, &f->tensor, 1, 0, NULL));
    assert_int_equal(info_of(f->device).used, before + 4096);
    for (int i = 0; i < 2; i++) {
        OK(memopt_stream_create(f->device, &streams[i]));
        OK(memopt_norm(f->device, f->norm, &f->tensor, 1, 0, streams[i]));
        assert_int_equal(info_of(f->device).used, before + (uint64_t)(i + 2) * 4096);
    }
    OK(memopt_stream_destroy(f->device, streams[0]));
    OK(memopt_stream_create(f->device, &streams[0]));
    OK(memopt_norm(f->device, f->norm, &f->tensor, 1, 100.0, streams[0]));
    assert_int_equal(info_of(f->device).used, before + 3 * 4096);
    for (int i = 0; i < 2; i++)
        OK(memopt_stream_destroy(f->device, streams[i]));
    assert_true(*f->norm == 5.0f);
}

/* The sums of a longer list have a piece twice as large. */
TEST_WITH(grows, begin_norm, end_norm)
{
    norm_fixture *f = *state;
    const uint64_t before = info_of(f->device).used;
    memopt_tensor list[512];
    for (int i = 0; i < 512; i++)
        list[i] = tensor_of(f->data, 4, MEMOPT_DTYPE_F32);
    f->data[0] = 1;
    OK(memopt_norm(f->device, f->norm, list, 1, 0, NULL));
    OK(memopt_norm(f->device, f->norm, list, 512, 0, NULL));
    assert_int_equal(info_of(f->device).used, before + 4096 + 8192);
    OK(memopt_norm(f->device, f->norm, list, 400, 0, NULL));
    assert_int_equal(info_of(f->device).used, before + 4096 + 8192);
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
TEST_WITH(threads_share_a_stream, begin_norm, end_norm)
{
    norm_fixture *f = *state;
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
