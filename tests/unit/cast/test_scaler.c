/* The loss scaler: GradScaler's semantics step by step, its state, and what it refuses. */
#include "support.h"

typedef struct fixture {
    memopt_device *device;
    memopt_scaler *scaler;
} fixture;

static void begin(fixture *f, const memopt_scaler_options *options)
{
    f->device = open_cpu(2);
    f->scaler = NULL;
    OK(memopt_scaler_create(f->device, options, &f->scaler));
}

static void end(fixture *f)
{
    OK(memopt_scaler_destroy(f->scaler));
    OK(memopt_device_close(f->device));
}

static memopt_scaler_state state_of(memopt_scaler *scaler)
{
    memopt_scaler_state state = {.struct_size = sizeof state};
    OK(memopt_scaler_get_state_sync(scaler, NULL, &state));
    return state;
}

static void expect_state(memopt_scaler *scaler, double scale, uint32_t tracker)
{
    memopt_scaler_state state = state_of(scaler);
    assert_true(state.scale == scale);
    assert_int_equal(state.growth_tracker, tracker);
    assert_true((double)*memopt_scaler_get_scale(scaler) == scale);
}

static void overflow(memopt_scaler *scaler)
{
    *memopt_scaler_get_found_inf(scaler) = 1.0f;
    OK(memopt_scaler_update(scaler, NULL));
    assert_true(*memopt_scaler_get_found_inf(scaler) == 0.0f);
}

TEST(defaults)
{
    fixture f;
    begin(&f, NULL);
    memopt_scaler_state state = state_of(f.scaler);
    assert_true(state.scale == 65536.0 && state.growth_factor == 2.0);
    assert_true(state.backoff_factor == 0.5 && state.growth_interval == 2000);
    assert_int_equal(state.growth_tracker, 0);
    assert_true(*memopt_scaler_get_found_inf(f.scaler) == 0.0f);
    for (int i = 0; i < 1999; i++)
        OK(memopt_scaler_update(f.scaler, NULL));
    expect_state(f.scaler, 65536.0, 1999);
    OK(memopt_scaler_update(f.scaler, NULL));
    expect_state(f.scaler, 131072.0, 0);
    end(&f);
}

TEST(growth_and_backoff)
{
    fixture f;
    memopt_scaler_options options = {sizeof options, 1024.0, 1.5, 0.25, 3, 0, NULL, 0};
    begin(&f, &options);
    OK(memopt_scaler_update(f.scaler, NULL));
    OK(memopt_scaler_update(f.scaler, NULL));
    expect_state(f.scaler, 1024.0, 2);
    overflow(f.scaler); /* shrinks and forgets the clean steps */
    expect_state(f.scaler, 256.0, 0);
    for (int i = 0; i < 3; i++)
        OK(memopt_scaler_update(f.scaler, NULL));
    expect_state(f.scaler, 384.0, 0);
    end(&f);
}

/* Growth beyond FLT_MAX does not happen; the interval starts again all the same. */
TEST(growth_stays_finite)
{
    fixture f;
    memopt_scaler_options options = {sizeof options, 0x1p127, 2.0, 0.5, 1, 0, NULL, 0};
    begin(&f, &options);
    for (int i = 0; i < 3; i++)
        OK(memopt_scaler_update(f.scaler, NULL));
    expect_state(f.scaler, 0x1p127, 0);
    overflow(f.scaler);
    expect_state(f.scaler, 0x1p126, 0);
    end(&f);
}

/* scale * factor is computed in double and rounded to f32 once. */
TEST(factors_are_doubles)
{
    fixture f;
    memopt_scaler_options options = {sizeof options, 3.0, 1.1, 0.7, 1, 0, NULL, 0};
    begin(&f, &options);
    OK(memopt_scaler_update(f.scaler, NULL));
    expect_state(f.scaler, (double)(float)(3.0 * 1.1), 0);
    overflow(f.scaler);
    expect_state(f.scaler, (double)(float)((double)(float)(3.0 * 1.1) * 0.7), 0);
    end(&f);
}

TEST(disabled_never_changes)
{
    fixture f;
    memopt_scaler_options options = {sizeof options, 1024.0, 2.0, 0.5, 1, 1, NULL, 0};
    begin(&f, &options);
    expect_state(f.scaler, 1.0, 0);
    OK(memopt_scaler_update(f.scaler, NULL));
    overflow(f.scaler);
    expect_state(f.scaler, 1.0, 0);
    memopt_scaler_state state = {sizeof state, 512.0, 2.0, 0.5, 7, 3};
    OK(memopt_scaler_set_state_sync(f.scaler, &state, NULL));
    expect_state(f.scaler, 1.0, 3);
    end(&f);
}

TEST(state_round_trip)
{
    fixture f, g;
    begin(&f, NULL);
    begin(&g, NULL);
    OK(memopt_scaler_update(f.scaler, NULL));
    overflow(f.scaler);
    for (int i = 0; i < 5; i++)
        OK(memopt_scaler_update(f.scaler, NULL));
    memopt_scaler_state saved = state_of(f.scaler);
    *memopt_scaler_get_found_inf(g.scaler) = 1.0f;
    OK(memopt_scaler_set_state_sync(g.scaler, &saved, NULL));
    memopt_scaler_state loaded = state_of(g.scaler);
    assert_memory_equal(&saved, &loaded, sizeof saved);
    assert_true(*memopt_scaler_get_found_inf(g.scaler) == 1.0f); /* not part of the state */
    struct { /* an older caller's struct ends early: the rest stays as it is */
        size_t struct_size;
        double scale, next;
    } old = {sizeof(size_t) + sizeof(double), 0.0, 42.0};
    OK(memopt_scaler_get_state_sync(f.scaler, NULL, (memopt_scaler_state *)(void *)&old));
    assert_true(old.scale == 32768.0 && old.next == 42.0);
    end(&f);
    end(&g);
}

/* --- unscale and check ----------------------------------------------------------------------- */

/* Whichever call finds it; clean tensors do not clear the note. (kernels_reduce has every place and kind.) */
TEST(non_finite_is_noted)
{
    enum { TENSORS = 130, COUNT = 301 };
    fixture f;
    begin(&f, NULL);
    float *memory = device_memory(f.device, TENSORS * COUNT * 4);
    memopt_tensor tensors[TENSORS];
    for (int i = 0; i < TENSORS; i++)
        tensors[i] = tensor_of(memory + i * COUNT, COUNT, MEMOPT_DTYPE_F32);
    float *flag = memopt_scaler_get_found_inf(f.scaler), *last = &memory[TENSORS * COUNT - 1];
    OK(memopt_fill(f.device, memory, 0, TENSORS * COUNT * 4, NULL));
    OK(memopt_check_finite(f.device, tensors, TENSORS, memopt_scaler_get_found_inf(f.scaler),
                           NULL));
    assert_true(*flag == 0.0f);
    *last = NAN;
    OK(memopt_check_finite(f.device, tensors, TENSORS, memopt_scaler_get_found_inf(f.scaler),
                           NULL));
    assert_true(*flag == 1.0f);
    *flag = 0.0f;
    OK(memopt_scaler_unscale(f.scaler, tensors, TENSORS, NULL));
    assert_true(*flag == 1.0f);
    OK(memopt_check_finite(f.device, tensors, 1, memopt_scaler_get_found_inf(f.scaler), NULL));
    assert_true(*flag == 1.0f);
    OK(mo_mem_free(f.device, memory, TENSORS * COUNT * 4));
    end(&f);
}

/* Overflow caused by the multiplication itself is not noted, as in torch: the input counts. */
TEST(unscale_judges_the_input)
{
    fixture f;
    memopt_scaler_options options = {sizeof options, 0x1p-100, 0, 0, 0, 0, NULL, 0};
    begin(&f, &options);
    float *memory = device_memory(f.device, 4096);
    memory[0] = 1e30f;
    memopt_tensor tensor = tensor_of(memory, 1, MEMOPT_DTYPE_F32);
    OK(memopt_scaler_unscale(f.scaler, &tensor, 1, NULL));
    assert_true(isinf(memory[0]));
    assert_true(*memopt_scaler_get_found_inf(f.scaler) == 0.0f);
    OK(mo_mem_free(f.device, memory, 4096));
    end(&f);
}

/* On a stream of its own under the adversarial order: nothing waits, all in order. */
TEST(stream_order)
{
    memopt_device *device =
        bench_open_cpu(&(bench_device){MEMOPT_STREAM_ORDER_ADVERSARIAL, 0, 64 * MIB, 2});
    memopt_scaler *scaler = NULL;
    memopt_scaler_options scaler_options = {sizeof scaler_options, 8.0, 2.0, 0.5, 1, 0, NULL, 0};
    memopt_scaler_state state = {.struct_size = sizeof state};
    memopt_stream stream = stream_on(device);
    OK(memopt_scaler_create(device, &scaler_options, &scaler));
    float *memory = device_memory(device, 4096), norm[2];
    norm[0] = norm[1] = -1;
    OK(memopt_fill(device, memory, 0, 4096, stream));
    memopt_tensor tensor = tensor_of(memory, 1000, MEMOPT_DTYPE_F32);
    float eight = 8.0f;
    OK(memopt_copy(device, memory + 7, &eight, sizeof eight, stream));
    OK(memopt_scaler_unscale(scaler, &tensor, 1, stream));
    OK(memopt_norm(device, memory + 1020, &tensor, 1, 0, stream));
    OK(memopt_scaler_update(scaler, stream));
    OK(memopt_copy(device, norm, memory + 1020, sizeof *norm, stream));
    OK(memopt_scaler_get_state_sync(scaler, stream, &state));
    assert_true(norm[0] == 1.0f);
    assert_true(state.scale == 16.0);
    OK(mo_mem_free(device, memory, 4096));
    OK(memopt_scaler_destroy(scaler));
    end_device(device);
}

TEST(memory_of_an_allocator)
{
    memopt_device *device = open_cpu(1), *other = open_cpu(1);
    memopt_allocator *allocator = NULL;
    memopt_scaler_options options = MEMOPT_SCALER_OPTIONS_INIT;
    memopt_scaler *scaler = NULL;
    memopt_tag tag = 0;
    OK(memopt_allocator_create(device, NULL, NULL, &allocator));
    OK(memopt_allocator_register_tag(allocator, "scaler", &tag));
    options.tag = tag;
    REFUSED_SAYING("tag", memopt_scaler_create(device, &options, &scaler));
    options.allocator = allocator;
    REFUSED_SAYING("another", memopt_scaler_create(other, &options, &scaler));
    OK(memopt_scaler_create(device, &options, &scaler));
    assert_true(bench_active_bytes(allocator, tag, tag + 1) > 0);
    expect_state(scaler, 65536.0, 0);
    OK(memopt_scaler_destroy(scaler));
    assert_int_equal(bench_active_bytes(allocator, tag, tag + 1), 0);
    bench_close_device(device, allocator);
    OK(memopt_device_close(other));
}

/* --- what is refused ------------------------------------------------------------------------- */

DEVICE_TEST(refuses_options, device, open_cpu(1))
{
    memopt_scaler *scaler = NULL;
    const memopt_scaler_options good = MEMOPT_SCALER_OPTIONS_INIT;
    memopt_scaler_options bad;
#define REFUSE(field, value)                                                                       \
    do {                                                                                           \
        bad = good;                                                                                \
        bad.field = value;                                                                         \
        REFUSED_SAYING("scale", memopt_scaler_create(device, &bad, &scaler));                      \
        assert_null(scaler);                                                                       \
    } while (0)
    REFUSE(init_scale, -1.0);
    REFUSE(init_scale, INFINITY);
    REFUSE(init_scale, NAN);
    REFUSE(init_scale, 1e39);
    REFUSE(init_scale, 1e-60);
    REFUSE(growth_factor, 1.0);
    REFUSE(growth_factor, NAN);
    REFUSE(growth_factor, INFINITY);
    REFUSE(backoff_factor, 1.0);
    REFUSE(backoff_factor, -0.5);
    REFUSE(backoff_factor, NAN);
    REFUSE(disabled, 2);
    REFUSE(struct_size, 4);
    REFUSED_SAYING("device", memopt_scaler_create(NULL, NULL, &scaler));
    REFUSED_SAYING("out_scaler", memopt_scaler_create(device, NULL, NULL));
    OK(memopt_scaler_destroy(NULL));
    assert_null(memopt_scaler_get_scale(NULL));
    assert_null(memopt_scaler_get_found_inf(NULL));
}

TEST(refuses_states)
{
    fixture f;
    const memopt_scaler_state good = {sizeof good, 8.0, 2.0, 0.5, 10, 9};
    memopt_scaler_state bad;
    begin(&f, NULL);
#define REFUSE_STATE(field, value)                                                                 \
    do {                                                                                           \
        bad = good;                                                                                \
        bad.field = value;                                                                         \
        REFUSED_SAYING("scale", memopt_scaler_set_state_sync(f.scaler, &bad, NULL));               \
        expect_state(f.scaler, 65536.0, 0);                                                        \
    } while (0)
    REFUSE_STATE(scale, 0.0);
    REFUSE_STATE(scale, NAN);
    REFUSE_STATE(growth_factor, 0.5);
    REFUSE_STATE(backoff_factor, 0.0);
    REFUSE_STATE(growth_interval, 0);
    REFUSE_STATE(growth_tracker, 10);
    REFUSE_STATE(struct_size, 1);
    REFUSED_SAYING("state", memopt_scaler_set_state_sync(f.scaler, NULL, NULL));
    REFUSED_SAYING("scaler", memopt_scaler_set_state_sync(NULL, &good, NULL));
    REFUSED_SAYING("scaler", memopt_scaler_get_state_sync(NULL, NULL, &bad));
    REFUSED_SAYING("state", memopt_scaler_get_state_sync(f.scaler, NULL, NULL));
    bad.struct_size = 2;
    REFUSED_SAYING("struct_size", memopt_scaler_get_state_sync(f.scaler, NULL, &bad));
    REFUSED_SAYING("scaler", memopt_scaler_update(NULL, NULL));
    end(&f);
}

TEST(refuses_tensors)
{
    fixture f;
    begin(&f, NULL);
    float *memory = device_memory(f.device, 4096);
    memset(memory, 0x11, 4096);
    memopt_tensor t[2] = {tensor_of(memory, 10, MEMOPT_DTYPE_F32),
                          tensor_of(memory + 100, 10, MEMOPT_DTYPE_F8_E4M3)};
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "tensors[1]", memopt_scaler_unscale(f.scaler, t, 2, NULL));
    t[1].dtype = -5;
    REFUSED_SAYING("dtype -5", memopt_scaler_unscale(f.scaler, t, 2, NULL));
    t[1] = tensor_of((char *)memory + 2, 10, MEMOPT_DTYPE_F32);
    REFUSED_SAYING("tensors[1]", memopt_scaler_unscale(f.scaler, t, 2, NULL));
    t[1] = tensor_of(NULL, 10, MEMOPT_DTYPE_F32);
    REFUSED_SAYING("NULL", memopt_scaler_unscale(f.scaler, t, 2, NULL));
    t[1] = tensor_of(memory, UINT64_MAX / 2, MEMOPT_DTYPE_F32);
    REFUSED_SAYING("address space", memopt_scaler_unscale(f.scaler, t, 2, NULL));
    REFUSED_SAYING("NULL", memopt_scaler_unscale(f.scaler, NULL, 1, NULL));
    REFUSED_SAYING("2^32", memopt_scaler_unscale(f.scaler, t, (uint64_t)1 << 32, NULL));
    REFUSED_SAYING("scaler is NULL", memopt_scaler_unscale(NULL, t, 1, NULL));
    t[1] = tensor_of(memory + 9, 10, MEMOPT_DTYPE_F32);
    REFUSED_SAYING("tensors 0 and 1 overlap", memopt_scaler_unscale(f.scaler, t, 2, NULL));
    OK(memopt_scaler_unscale(f.scaler, NULL, 0, NULL));
    for (int i = 0; i < 1024; i++)
        assert_int_equal(((uint32_t *)(void *)memory)[i], 0x11111111);
    OK(mo_mem_free(f.device, memory, 4096));
    end(&f);
}
