/* ONNX Runtime's own library with our memory: a model of two layers, whose weights, hidden values and results are ours. */
#include "adapters/memopt_onnxruntime.h"

#include "memopt/memopt.h"
#include "support/checks.h"
#include "support/unit.h"

enum { ROWS = 128, IN = 96, HIDDEN = 160, OUT = 64 };

/* --- a model as bytes: ONNX's protocol buffers, by hand ---------------------------------------- */

typedef struct bytes {
    unsigned char data[1 << 18];
    size_t count;
} bytes;

static void add_number(bytes *to, uint64_t value)
{
    do
        to->data[to->count++] = (unsigned char)((value & 127) | (value > 127 ? 128 : 0));
    while (value >>= 7);
}

static void add_field(bytes *to, unsigned field, uint64_t value)
{
    add_number(to, field << 3);
    add_number(to, value);
}

static void add_bytes(bytes *to, unsigned field, const void *data, size_t count)
{
    add_number(to, field << 3 | 2);
    add_number(to, count);
    memcpy(to->data + to->count, data, count);
    to->count += count;
}

static void add_text(bytes *to, unsigned field, const char *text)
{
    add_bytes(to, field, text, strlen(text));
}

static void add_message(bytes *to, unsigned field, const bytes *message)
{
    add_bytes(to, field, message->data, message->count);
}

static void add_node(bytes *graph, const char *name, const char *a, const char *b, const char *out)
{
    static bytes node;
    node.count = 0;
    add_text(&node, 1, a);
    if (b != NULL)
        add_text(&node, 1, b);
    add_text(&node, 2, out);
    add_text(&node, 4, name);
    add_message(graph, 1, &node);
}

static void add_weights(bytes *graph, const char *name, int rows, int columns)
{
    static bytes tensor;
    static float values[HIDDEN * IN];
    for (int i = 0; i < rows * columns; i++)
        values[i] = (float)(i % 7 - 3) / 16;
    tensor.count = 0;
    add_field(&tensor, 1, (uint64_t)rows);
    add_field(&tensor, 1, (uint64_t)columns);
    add_field(&tensor, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
    add_text(&tensor, 8, name);
    add_bytes(&tensor, 9, values, (size_t)rows * (size_t)columns * sizeof *values);
    add_message(graph, 5, &tensor);
}

static void add_value(bytes *graph, unsigned field, const char *name, int columns)
{
    static bytes dim, shape, tensor, type, value;
    dim.count = shape.count = tensor.count = type.count = value.count = 0;
    add_field(&dim, 1, ROWS);
    add_message(&shape, 1, &dim);
    dim.count = 0;
    add_field(&dim, 1, (uint64_t)columns);
    add_message(&shape, 1, &dim);
    add_field(&tensor, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
    add_message(&tensor, 2, &shape);
    add_message(&type, 1, &tensor);
    add_text(&value, 1, name);
    add_message(&value, 2, &type);
    add_message(graph, field, &value);
}

/* y = relu(x W) V */
static const bytes *make_model(void)
{
    static bytes model, graph, version;
    model.count = graph.count = version.count = 0;
    add_node(&graph, "MatMul", "x", "W", "h");
    add_node(&graph, "Relu", "h", NULL, "r");
    add_node(&graph, "MatMul", "r", "V", "y");
    add_text(&graph, 2, "two layers");
    add_weights(&graph, "W", IN, HIDDEN);
    add_weights(&graph, "V", HIDDEN, OUT);
    add_value(&graph, 11, "x", IN);
    add_value(&graph, 12, "y", OUT);
    add_field(&model, 1, 8);
    add_message(&model, 7, &graph);
    add_field(&version, 2, 17);
    add_message(&model, 8, &version);
    return &model;
}

/* --- the test ----------------------------------------------------------------------------------- */

typedef struct world {
    OrtEnv *env;
    memopt_device *device;
    memopt_allocator *allocator;
    OrtAllocator *memory;
} world;

static const OrtApi *api;

static void done(OrtStatus *status)
{
    if (status != NULL)
        fail_msg("%s", api->GetErrorMessage(status));
}

static int begin(void **state)
{
    static world w;
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    options.capacity = 16 * MIB;
    api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    assert_non_null(api); /* NULL: the library is older than the header */
    OK(memopt_device_open("cpu", &options, &w.device));
    OK(memopt_allocator_create(w.device, NULL, NULL, &w.allocator));
    done(api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "test", &w.env));
    done(memopt_onnxruntime_create(api, w.allocator, MEMOPT_TAG_ACTIVATIONS, NULL, &w.memory));
    done(api->RegisterAllocator(w.env, w.memory));
    *state = &w;
    return 0;
}

static int end(void **state)
{
    world *w = *state;
    done(api->UnregisterAllocator(w->env, w->memory->Info(w->memory)));
    memopt_onnxruntime_destroy(w->memory);
    api->ReleaseEnv(w->env);
    OK(memopt_allocator_destroy(w->allocator)); /* everything went back */
    OK(memopt_device_close(w->device));
    return 0;
}

static uint64_t stat_of(const world *w, const char *name)
{
    uint64_t value;
    OK(memopt_allocator_get_stat(w->allocator, name, &value));
    return value;
}

static OrtSession *open_session(const world *w)
{
    OrtSessionOptions *options;
    OrtSession *session;
    const bytes *model = make_model();
    done(api->CreateSessionOptions(&options));
    done(api->AddSessionConfigEntry(options, "session.use_env_allocators", "1"));
    done(api->SetIntraOpNumThreads(options, 1));
    done(api->CreateSessionFromArray(w->env, model->data, model->count, options, &session));
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

TEST_WITH(a_session_s_memory_is_ours, begin, end)
{
    const world *w = *state;
    static float x[ROWS * IN];
    OrtSession *session = open_session(w);
    OrtValue *y = NULL;
    float *values;
    void *block;
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = (float)(i % 5 - 2);
    const uint64_t kept = stat_of(w, "allocated_bytes.all.current");
    done(run(session, x, &y));
    done(api->GetTensorMutableData(y, (void **)&values));
    OK(memopt_allocator_get_block(w->allocator, values, &block, NULL)); /* the result is a block */
    assert_true(stat_of(w, "allocated_bytes.all.peak") >=
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
    assert_int_equal(stat_of(w, "allocated_bytes.all.current"), 0);
}

TEST_WITH(what_does_not_fit_is_a_status, begin, end)
{
    enum { MOST = 4096, BYTES = 4096 };
    const world *w = *state;
    static float x[ROWS * IN];
    static void *taken[MOST];
    OrtSession *session = open_session(w);
    OrtValue *y = NULL;
    int count = 0;
    OK(memopt_allocator_set_limit(w->allocator, 1)); /* what it holds now, and no more */
    while (memopt_allocator_alloc(w->allocator, BYTES, 0, NULL, &taken[count]) == MEMOPT_OK)
        assert_true(++count < MOST);
    OrtStatus *status = run(session, x, &y);
    assert_non_null(status);
    assert_non_null(strstr(api->GetErrorMessage(status), "asked for activations"));
    api->ReleaseStatus(status);
    OK(memopt_allocator_set_limit(w->allocator, 0));
    done(run(session, x, &y)); /* it goes on */
    api->ReleaseValue(y);
    api->ReleaseSession(session);
    while (count > 0)
        OK(memopt_allocator_free(w->allocator, taken[--count]));
}
