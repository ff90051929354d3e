/* ONNX Runtime's own library with our memory: a model of two layers, whose weights, hidden values and results are ours. */
#include "adapters/memopt_onnxruntime.h"

#include "unit/allocator/support.h"

enum { ROWS = 128, IN = 96, HIDDEN = 160, OUT = 64 };

/* --- y = relu(x W) V as bytes: ONNX's protocol buffers, by hand -------------------------------- */

/* A field is its number * 8, plus 2 if a length and as many bytes follow. Numbers have seven bits a byte. */
#define NUMBER(n) 128 | ((n)&127), (n) >> 7
#define LENGTH(n) 128 | ((n)&127), 128 | ((n) >> 7 & 127), (n) >> 14

/* Version and operators; a graph of three nodes, a name, x of 128 x 96 and y of 128 x 64 floats. */
static const char GRAPH[] = "\x08\x08\x42\x02\x10\x11\x3a\x65"
                            "\x0a\x11\x0a\x01x\x0a\x01W\x12\x01h\x22\x06MatMul"
                            "\x0a\x0c\x0a\x01h\x12\x01r\x22\x04Relu"
                            "\x0a\x11\x0a\x01r\x0a\x01V\x12\x01y\x22\x06MatMul"
                            "\x12\x01g"
                            "\x5a\x15\x0a\x01x\x12\x10\x0a\x0e\x08\x01\x12\x0a"
                            "\x0a\x03\x08\x80\x01\x0a\x03\x08\xe0\x00"
                            "\x62\x15\x0a\x01y\x12\x10\x0a\x0e\x08\x01\x12\x0a"
                            "\x0a\x03\x08\x80\x01\x0a\x03\x08\xc0\x00";

/* More of the graph: an initial value. */
static size_t add_weights(unsigned char *to, char name, int rows, int columns)
{
    const int count = rows * columns, bytes = 4 * count, tensor = bytes + 15;
    const unsigned char head[] = {
        58, LENGTH(tensor + 4),  42, LENGTH(tensor), 8, NUMBER(rows), 8, NUMBER(columns), 16, 1, 66,
        1,  (unsigned char)name, 74, LENGTH(bytes)};
    memcpy(to, head, sizeof head);
    for (int i = 0; i < count; i++)
        memcpy(to + sizeof head + 4 * i, &(float){(float)(i % 7 - 3) / 16}, 4);
    return sizeof head + (size_t)bytes;
}

static size_t make_model(unsigned char *model)
{
    size_t length = sizeof GRAPH - 1;
    memcpy(model, GRAPH, length);
    length += add_weights(model + length, 'W', IN, HIDDEN);
    return length + add_weights(model + length, 'V', HIDDEN, OUT);
}

/* --- the test ----------------------------------------------------------------------------------- */

static const OrtApi *api;

static void done(OrtStatus *status)
{
    if (status != NULL)
        fail_msg("%s", api->GetErrorMessage(status));
}

typedef struct world {
    OrtEnv *env;
    OrtAllocator *memory;
} world;

static world begin(memopt_allocator *allocator)
{
    world w;
    api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    assert_non_null(api); /* NULL: the library is older than the header */
    done(api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "test", &w.env));
    done(memopt_onnxruntime_create(api, allocator, MEMOPT_TAG_ACTIVATIONS, NULL, &w.memory));
    done(api->RegisterAllocator(w.env, w.memory));
    return w;
}

static void end(const world *w)
{
    done(api->UnregisterAllocator(w->env, w->memory->Info(w->memory)));
    memopt_onnxruntime_destroy(w->memory);
    api->ReleaseEnv(w->env);
}

static OrtSession *open_session(const world *w)
{
    OrtSessionOptions *options;
    OrtSession *session;
    static unsigned char model[1 << 18];
    const size_t length = make_model(model);
    done(api->CreateSessionOptions(&options));
    done(api->AddSessionConfigEntry(options, "session.use_env_allocators", "1"));
    done(api->SetIntraOpNumThreads(options, 1));
    done(api->CreateSessionFromArray(w->env, model, length, options, &session));
    api->ReleaseSessionOptions(options);
    return session;
}

static OrtStatus *run(OrtSession *session, float *x, OrtValue **out_y)
{
    const int64_t shape[] = {ROWS, IN};
    const char *inputs[] = {"x"}, *outputs[] = {"y"};
    OrtMemoryInfo *host;
    OrtValue *value;
    done(api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &host));
    done(api->CreateTensorWithDataAsOrtValue(host, x, ROWS * IN * sizeof *x, shape, 2,
                                             ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    OrtStatus *status =
        api->Run(session, NULL, inputs, (const OrtValue *const *)&value, 1, outputs, 1, out_y);
    api->ReleaseValue(value);
    api->ReleaseMemoryInfo(host);
    return status;
}

ALLOCATOR_TEST(a_session_s_memory_is_ours, allocator, eager(16 * MIB), CLASSIC)
{
    const world w = begin(allocator);
    static float x[ROWS * IN];
    OrtSession *session = open_session(&w);
    OrtValue *y = NULL;
    float *values;
    void *block;
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = (float)(i % 5 - 2);
    const uint64_t kept = stat_of(allocator, "allocated_bytes.all.current");
    done(run(session, x, &y));
    done(api->GetTensorMutableData(y, (void **)&values));
    OK(memopt_allocator_get_block(allocator, values, &block, NULL)); /* the result is a block */
    assert_true(stat_of(allocator, "allocated_bytes.all.peak") >=
                kept + ROWS * (HIDDEN + OUT) * sizeof(float));
    for (int i = 0; i < OUT; i++) { /* the last row; every product and sum is exact */
        float sum = 0;
        for (int h = 0; h < HIDDEN; h++) {
            float hidden = 0;
            for (int k = 0; k < IN; k++)
                hidden += x[(ROWS - 1) * IN + k] * (float)((k * HIDDEN + h) % 7 - 3) / 16;
            sum += (hidden > 0 ? hidden : 0) * (float)((h * OUT + i) % 7 - 3) / 16;
        }
        assert_true(values[(ROWS - 1) * OUT + i] == sum);
    }
    api->ReleaseValue(y);
    api->ReleaseSession(session);
    end(&w);
    assert_int_equal(stat_of(allocator, "allocated_bytes.all.current"), 0);
}

ALLOCATOR_TEST(what_does_not_fit_is_a_status, allocator, eager(16 * MIB), CLASSIC)
{
    enum { MOST = 4096, BYTES = 4096 };
    const world w = begin(allocator);
    static float x[ROWS * IN];
    static void *taken[MOST];
    OrtSession *session = open_session(&w);
    OrtValue *y = NULL;
    int count = 0;
    OK(memopt_allocator_set_limit(allocator, 1)); /* what it holds now, and no more */
    while (memopt_allocator_alloc(allocator, BYTES, 0, NULL, &taken[count]) == MEMOPT_OK)
        assert_true(++count < MOST);
    OrtStatus *status = run(session, x, &y);
    assert_non_null(status);
    assert_non_null(strstr(api->GetErrorMessage(status), "asked for activations"));
    api->ReleaseStatus(status);
    OK(memopt_allocator_set_limit(allocator, 0));
    done(run(session, x, &y)); /* it goes on */
    api->ReleaseValue(y);
    api->ReleaseSession(session);
    end(&w);
    while (count > 0)
        OK(memopt_allocator_free(allocator, taken[--count]));
    assert_int_equal(stat_of(allocator, "allocated_bytes.all.current"), 0);
}
