/* Every public function of the optimizer under failing host allocations and device operations. */
#include "support/checks.h"
#include "support/torture.h"

#include "memopt/optim.h"

enum { N = 20000 };

/* What is tortured now. */
static uint32_t torture_kind, torture_format;
static uint64_t torture_page;
static int torn_steps;
static uint32_t torture_trust;

typedef struct fixture {
    memopt_allocator *allocator;
    memopt_scaler *scaler;
    memopt_optimizer *optimizer;
    memopt_tensor p[2], g[2], codes, absmax;
    float *norm;
    memopt_tensor states[3];
    uint64_t *steps;
    unsigned char *before, *buffer; /* host */
    unsigned char *foreign;         /* an export in another format */
    uint64_t bytes, index, foreign_bytes;
    uint32_t group;
    memopt_status status; /* of the last conversion */
} fixture;

static void *device_block(fixture *f, uint64_t bytes)
{
    void *block = NULL;
    OK(memopt_allocator_alloc(f->allocator, bytes, MEMOPT_TAG_OTHER, NULL, &block));
    memset(block, 0, bytes);
    return block;
}

static void make_allocator(memopt_device *device, void *context)
{
    fixture *f = context;
    memset(f, 0, sizeof *f);
    OK(memopt_allocator_create(device, NULL, NULL, &f->allocator));
    OK(memopt_scaler_create(device, NULL, &f->scaler));
    for (int i = 0; i < 2; i++) {
        uint64_t count = i == 0 ? N : 100;
        f->p[i] = (memopt_tensor){device_block(f, count * 4), count, MEMOPT_DTYPE_F32};
        f->g[i] = (memopt_tensor){device_block(f, count * 4), count, MEMOPT_DTYPE_F32};
        for (uint64_t k = 0; k < count; k++)
            ((float *)f->g[i].data)[k] = (float)(k % 13) - 6.0f;
    }
    f->codes = (memopt_tensor){device_block(f, N), N, MEMOPT_DTYPE_U8};
    f->absmax = (memopt_tensor){device_block(f, 400), (N + 255) / 256, MEMOPT_DTYPE_F32};
    f->norm = device_block(f, 4);
    for (int i = 0; i < 3; i++)
        f->states[i] = (memopt_tensor){device_block(f, N * 4), N, MEMOPT_DTYPE_F32};
    f->steps = device_block(f, 8);
}

static memopt_status create(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    options.kind = torture_kind;
    options.state_format = torture_format;
    options.page_bytes = torture_page;
    options.trust = torture_trust;
    return memopt_optimizer_create(f->allocator, &options, &f->optimizer);
}

static memopt_status add_group(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    group.momentum = 0.9;
    return memopt_optimizer_add_group(f->optimizer, &group, &f->group);
}

/* Adafactor's is a matrix. */
static const memopt_parameter_options *shape(void)
{
    static memopt_parameter_options matrix = MEMOPT_PARAMETER_OPTIONS_INIT;
    matrix.rows = 100;
    matrix.columns = N / 100;
    return torture_kind == MEMOPT_OPTIMIZER_ADAFACTOR ? &matrix : NULL;
}

TORTURE_CALL(add_parameter, memopt_optimizer_add_parameter(f->optimizer, f->group, &f->p[0],
                                                           shape(), NULL, &f->index))

static memopt_status add_parameter_with_state(memopt_device *device, void *context)
{
    fixture *f = context;
    int single = torture_kind == MEMOPT_OPTIMIZER_LION || torture_kind == MEMOPT_OPTIMIZER_SGD ||
                 torture_kind == MEMOPT_OPTIMIZER_RMSPROP ||
                 torture_kind == MEMOPT_OPTIMIZER_ADAFACTOR;
    uint64_t moments = single ? 1 : torture_kind == MEMOPT_OPTIMIZER_ADEMAMIX ? 3 : 2;
    return memopt_optimizer_add_parameter(
        f->optimizer, f->group, &f->p[0],
        &(memopt_parameter_options){sizeof(memopt_parameter_options),
                                    {NULL, 0, 0},
                                    f->states,
                                    moments,
                                    f->steps,
                                    0,
                                    0,
                                    {0, 0}},
        NULL, &f->index);
}

/* All that must not change, through public functions. */
static void remember(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_int_equal(memopt_optimizer_export_sync(f->optimizer, 0, NULL, NULL, &f->bytes),
                     MEMOPT_OK);
    uint64_t all = f->bytes + (N + 100) * 4;
    f->before = calloc(1, all);
    f->buffer = calloc(1, all);
    assert_int_equal(memopt_optimizer_export_sync(f->optimizer, f->bytes, NULL, f->before, NULL),
                     MEMOPT_OK);
    memcpy(f->before + f->bytes, f->p[0].data, N * 4);
    memcpy(f->before + f->bytes + N * 4, f->p[1].data, 400);
}

static void check_unchanged(memopt_device *device, void *context)
{
    fixture *f = context;
    uint64_t bytes;
    assert_int_equal(memopt_optimizer_export_sync(f->optimizer, 0, NULL, NULL, &bytes), MEMOPT_OK);
    assert_int_equal(bytes, f->bytes);
    assert_int_equal(memopt_optimizer_export_sync(f->optimizer, bytes, NULL, f->buffer, NULL),
                     MEMOPT_OK);
    assert_memory_equal(f->buffer, f->before, bytes);
    assert_memory_equal(f->before + bytes, f->p[0].data, N * 4);
    assert_memory_equal(f->before + bytes + N * 4, f->p[1].data, 400);
}

/* A paged step may end in part; then it says so, until an import. */
static void check_whole(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_status status =
        memopt_optimizer_export_sync(f->optimizer, f->bytes, NULL, f->buffer, NULL);
    if (status != MEMOPT_OK) {
        assert_int_equal(status, MEMOPT_CORRUPT);
        assert_int_equal(memopt_optimizer_step(f->optimizer, f->g, 2, NULL, NULL), MEMOPT_CORRUPT);
        assert_int_equal(memopt_optimizer_import_sync(f->optimizer, f->before, f->bytes, 0, NULL),
                         MEMOPT_OK);
        memcpy(f->p[0].data, f->before + f->bytes, N * 4);
        memcpy(f->p[1].data, f->before + f->bytes + N * 4, 400);
        torn_steps++;
    }
    check_unchanged(device, f);
}

static void make_optimizer(memopt_device *device, void *context)
{
    fixture *f = context;
    make_allocator(device, f);
    OK(create(device, f));
    remember(device, f);
}

static void make_group(memopt_device *device, void *context)
{
    fixture *f = context;
    make_allocator(device, f);
    OK(create(device, f));
    OK(add_group(device, f));
    remember(device, f);
}

static void make_parameters(memopt_device *device, void *context)
{
    fixture *f = context;
    make_allocator(device, f);
    OK(create(device, f));
    OK(add_group(device, f));
    OK(add_parameter(device, f));
    OK(memopt_optimizer_add_parameter(f->optimizer, 0, &f->p[1], NULL, NULL, &f->index));
    remember(device, f);
}

/* SGD's parameters were added without a momentum, which is there now: the step makes buffers. */
static void make_late(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    make_allocator(device, f);
    OK(create(device, f));
    OK(memopt_optimizer_add_group(f->optimizer, &group, &f->group));
    for (int i = 0; i < 2; i++)
        OK(memopt_optimizer_add_parameter(f->optimizer, 0, &f->p[i], NULL, NULL, &f->index));
    remember(device, f);
    group.momentum = 0.9;
    OK(memopt_optimizer_set_group(f->optimizer, 0, &group));
}

/* Buffers of zeros are no change. */
static void check_parameters(memopt_device *device, void *context)
{
    fixture *f = context;
    uint64_t steps;
    assert_memory_equal(f->before + f->bytes, f->p[0].data, N * 4);
    assert_memory_equal(f->before + f->bytes + N * 4, f->p[1].data, 400);
    for (uint64_t i = 0; i < 2; i++) {
        OK(memopt_optimizer_get_steps_sync(f->optimizer, i, NULL, &steps));
        assert_int_equal(steps, 0);
    }
}

static void make_stepped(memopt_device *device, void *context)
{
    fixture *f = context;
    make_parameters(device, f);
    assert_int_equal(memopt_optimizer_step(f->optimizer, f->g, 2, NULL, NULL), MEMOPT_OK);
    assert_int_equal(memopt_optimizer_export_sync(f->optimizer, f->bytes, NULL, f->before, NULL),
                     MEMOPT_OK);
    memcpy(f->before + f->bytes, f->p[0].data, N * 4);
    memcpy(f->before + f->bytes + N * 4, f->p[1].data, 400);
}

static void end_optimizer(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(memopt_optimizer_destroy(f->optimizer));
    f->optimizer = NULL;
}

static void end_all(memopt_device *device, void *context)
{
    fixture *f = context;
    if (f->optimizer != NULL)
        end_optimizer(device, f);
    OK(memopt_scaler_destroy(f->scaler));
    OK(memopt_allocator_destroy_force(f->allocator));
    free(f->before);
    free(f->buffer);
    free(f->foreign);
    memset(f, 0, sizeof *f);
}

TORTURE_CALL(plain_step, memopt_optimizer_step(f->optimizer, f->g, 2, NULL, NULL))

static memopt_status full_step(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_step_options options = MEMOPT_STEP_OPTIONS_INIT;
    options.scaler = f->scaler;
    options.max_norm = 1.0;
    options.out_norm = f->norm;
    return memopt_optimizer_step(f->optimizer, f->g, 2, &options, NULL);
}

TORTURE_CALL(get_steps, memopt_optimizer_get_steps_sync(f->optimizer, 0, NULL, &f->index))
TORTURE_CALL(export_all,
             memopt_optimizer_export_sync(f->optimizer, f->bytes, NULL, f->buffer, NULL))

/* The export of the state as it is: an import that fails half-way has changed nothing either. */

TORTURE_CALL(import_all, memopt_optimizer_import_sync(f->optimizer, f->before, f->bytes, 0, NULL))

/* The export of another run, in another format. */
static void make_foreign(memopt_device *device, void *context)
{
    fixture *f = context;
    uint32_t format = torture_format;
    torture_format =
        format == MEMOPT_STATE_8BIT_DYNAMIC ? MEMOPT_STATE_F32 : MEMOPT_STATE_8BIT_DYNAMIC;
    if (torture_kind == MEMOPT_OPTIMIZER_SCHEDULE_FREE ||
        torture_kind == MEMOPT_OPTIMIZER_ADAFACTOR)
        torture_format = MEMOPT_STATE_F32;
    make_stepped(device, f);
    torture_format = format;
    unsigned char *foreign = f->before;
    uint64_t bytes = f->bytes;
    f->before = NULL;
    end_all(device, f);
    make_parameters(device, f);
    f->foreign = foreign;
    f->foreign_bytes = bytes;
}

static memopt_status import_foreign(memopt_device *device, void *context)
{
    fixture *f = context;
    return f->status =
               memopt_optimizer_import_sync(f->optimizer, f->foreign, f->foreign_bytes, 1, NULL);
}

/* Only a device that fails leaves a part. */
static void check_foreign(memopt_device *device, void *context)
{
    fixture *f = context;
    if (f->status != MEMOPT_OUT_OF_HOST_MEMORY && f->status != MEMOPT_OUT_OF_DEVICE_MEMORY)
        assert_int_equal(memopt_optimizer_import_sync(f->optimizer, f->before, f->bytes, 0, NULL),
                         MEMOPT_OK);
    check_unchanged(device, f);
}

TORTURE_CALL(quantize, memopt_quantize(device, MEMOPT_STATE_8BIT_DYNAMIC, &f->codes, &f->absmax,
                                       &f->g[0], 1, NULL))

static memopt_status quantize_state(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_tensor codes = f->codes;
    return memopt_quantize(device, MEMOPT_STATE_8BIT, &codes, &f->absmax, &f->g[0], 1, NULL);
}

TORTURE_CALL(dequantize, memopt_dequantize(device, MEMOPT_STATE_8BIT_DYNAMIC, &f->g[0], &f->codes,
                                           &f->absmax, 1, NULL))

static const torture_scenario scenarios[] = {
    {"create", NULL, make_allocator, create, end_optimizer, NULL, end_all, 0, 0},
    {"add_group", NULL, make_optimizer, add_group, NULL, check_unchanged, end_all, 0, 1},
    {"add_parameter", NULL, make_group, add_parameter, NULL, check_unchanged, end_all, 1, 1},
    {"add_parameter_with_state", NULL, make_group, add_parameter_with_state, NULL, check_unchanged,
     end_all, 0, 1},
    {"first step", NULL, make_parameters, plain_step, NULL, check_unchanged, end_all, 1, 1},
    {"first full step", NULL, make_parameters, full_step, NULL, check_unchanged, end_all, 1, 1},
    {"step with a late momentum", NULL, make_late, plain_step, NULL, check_parameters, end_all, 1,
     1},
    {"later step", NULL, make_stepped, plain_step, NULL, check_unchanged, end_all, 0, 1},
    {"later full step", NULL, make_stepped, full_step, NULL, check_unchanged, end_all, 1, 1},
    {"get_steps", NULL, make_stepped, get_steps, NULL, check_unchanged, end_all, 0, 0},
    {"export", NULL, make_stepped, export_all, NULL, NULL, end_all, 0, 0},
    {"import", NULL, make_stepped, import_all, NULL, check_unchanged, end_all, 0, 0},
    {"converted import", NULL, make_foreign, import_foreign, NULL, check_foreign, end_all, 0, 1},
    {"quantize", NULL, make_allocator, quantize, NULL, NULL, end_all, 0, 0},
    {"quantize_state", NULL, make_allocator, quantize_state, NULL, NULL, end_all, 0, 0},
    {"dequantize", NULL, make_allocator, dequantize, NULL, NULL, end_all, 0, 0},
};

static const torture_scenario paged_scenarios[] = {
    {"add_parameter", NULL, make_group, add_parameter, NULL, check_unchanged, end_all, 1, 1},
    {"first step", NULL, make_parameters, plain_step, NULL, check_whole, end_all, 1, 1},
    {"later full step", NULL, make_stepped, full_step, NULL, check_whole, end_all, 1, 1},
    {"import", NULL, make_stepped, import_all, NULL, check_unchanged, end_all, 0, 0},
};

TEST(paged_states)
{
    static const uint32_t kinds[] = {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_OPTIMIZER_SGD,
                                     MEMOPT_OPTIMIZER_ADEMAMIX};
    torture_format = MEMOPT_STATE_8BIT_DYNAMIC;
    torture_page = 1;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t i = 0; i < sizeof paged_scenarios / sizeof *paged_scenarios; i++) {
            fixture f;
            memset(&f, 0, sizeof f);
            torture_kind = kinds[k];
            int64_t faults = torture(&paged_scenarios[i], &f);
            print_message("  paged, kind %u, %s: %d faults\n", torture_kind,
                          paged_scenarios[i].name, (int)faults);
            assert_true(faults > 0);
        }
    assert_true(torn_steps > 0);
    torture_page = 0;
}

/* So may a step whose updates are bounded. */
TEST(trust)
{
    torture_trust = 1;
    torn_steps = 0;
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < sizeof paged_scenarios / sizeof *paged_scenarios; i++) {
            fixture f;
            memset(&f, 0, sizeof f);
            torture_kind = k == 0 ? MEMOPT_OPTIMIZER_ADAMW : MEMOPT_OPTIMIZER_SGD;
            torture_format = k == 0 ? MEMOPT_STATE_8BIT_DYNAMIC : MEMOPT_STATE_F32;
            assert_true(torture(&paged_scenarios[i], &f) > 0);
        }
    assert_true(torn_steps > 0);
    torture_trust = 0;
}

TEST(every_function)
{
    static const uint32_t all[][2] = {{MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT_DYNAMIC},
                                      {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_4BIT},
                                      {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT},
                                      {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_BF16},
                                      {MEMOPT_OPTIMIZER_SCHEDULE_FREE, MEMOPT_STATE_F32},
                                      {MEMOPT_OPTIMIZER_ADAFACTOR, MEMOPT_STATE_F32},
                                      {MEMOPT_OPTIMIZER_RMSPROP, MEMOPT_STATE_8BIT_DYNAMIC},
                                      {MEMOPT_OPTIMIZER_ADEMAMIX, MEMOPT_STATE_8BIT_DYNAMIC},
                                      {MEMOPT_OPTIMIZER_LION, MEMOPT_STATE_8BIT_DYNAMIC},
                                      {MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_8BIT_DYNAMIC}};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        torture_kind = all[k][0];
        torture_format = all[k][1];
        for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
            fixture f;
            memset(&f, 0, sizeof f);
            int64_t faults = torture(&scenarios[i], &f);
            print_message("  kind %u, format %u, %s: %d faults\n", torture_kind, torture_format,
                          scenarios[i].name, (int)faults);
            assert_true(faults > 0);
        }
    }
}
