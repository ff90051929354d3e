/*
 * Memory that a caller hands in is looked at before a kernel touches it: that of another device,
 * freed memory and pageable host memory are refused by name; on a simulated driver (cuda or hip, by
 * the argument). The simulator forbids the question while anything captures, which is stricter than
 * the drivers are.
 */
#include "support.h"

#include "offload/offload.h"

#include "device/gpu/gpu.h"
#include "memopt/cast.h"
#include "memopt/checkpoint.h"
#include "memopt/offload.h"
#include "memopt/optim.h"
#include "support/simulated.h"

#include <dlfcn.h>

enum { BYTES = 8192, COUNT = BYTES / 4 };

static const char *backend = "cuda", *question = "cuPointerGetAttributes";
static char second[16];
static const driver_hooks *sim;
static int (*begin_capture)(memopt_stream stream, int mode);
static int (*end_capture)(memopt_stream stream, void **graph);
static int (*destroy_graph)(void *graph);

static memopt_device *first_device, *second_device, *again;

static void *find(const char *cuda, const char *hip)
{
    void *address = dlsym(sim->library, backend[0] == 'c' ? cuda : hip);
    assert_non_null(address);
    return address;
}

static int open_devices(void **state)
{
    sim = driver_of(backend);
    *(void **)&begin_capture = find("cuStreamBeginCapture_v2", "hipStreamBeginCapture");
    *(void **)&end_capture = find("cuStreamEndCapture", "hipStreamEndCapture");
    *(void **)&destroy_graph = find("cuGraphDestroy", "hipGraphDestroy");
    OK(memopt_device_open(backend, NULL, &first_device));
    OK(memopt_device_open(second, NULL, &second_device));
    OK(memopt_device_open(backend, NULL, &again)); /* what is its own is foreign to the first */
    return 0;
}

static int close_devices(void **state)
{
    OK(memopt_device_close(first_device));
    OK(memopt_device_close(second_device));
    OK(memopt_device_close(again));
    assert_int_equal(sim->violations(), 0);
    return 0;
}

enum { MANY = 1 << 30 };

static void begin_counting(void)
{
    sim->fail_at(question, MANY, 0);
}

/* Questions asked since. */
static int64_t counted(void)
{
    int64_t asked = MANY - sim->pending();
    sim->fail_at(question, 0, 0);
    return asked;
}

static memopt_status ask(void *pointer, uint64_t bytes)
{
    return mo_reachable(first_device, "test: thing", 7, pointer, bytes);
}

TEST(own_memory_is_known)
{
    void *plain = NULL;
    OK(mo_mem_alloc(first_device, BYTES, &plain));
    mapped m = map_new(first_device, GRANULE);
    begin_counting();
    OK(ask(plain, BYTES));
    OK(ask((char *)plain + BYTES - 4, 4));
    OK(ask(m.address, GRANULE));
    assert_int_equal(counted(), 0);
    OK(ask(plain, 0));
    OK(ask(NULL, 0));
    unmap(first_device, &m);
    REFUSED(ask(m.address, GRANULE));
    OK(mo_mem_free(first_device, plain, BYTES));
    REFUSED_SAYING("test: thing 7", ask(plain, BYTES));
    SAYS("freed");
}

TEST(foreign_memory_is_asked_once)
{
    void *plain = NULL;
    OK(mo_mem_alloc(again, BYTES, &plain));
    mapped m = map_new(again, GRANULE);
    begin_counting();
    OK(ask(plain, BYTES));
    OK(ask(m.address, GRANULE));
    assert_int_equal(counted(), 4);
    begin_counting();
    OK(ask(plain, BYTES));
    OK(ask(plain, 4));
    OK(ask(m.address, GRANULE));
    assert_int_equal(counted(), 0);
    unmap(again, &m);
    REFUSED(ask(plain, 2 * BYTES)); /* beyond its end */
    OK(mo_mem_free(again, plain, BYTES));
}

TEST(another_devices_memory_is_refused)
{
    char message[32];
    void *plain = NULL;
    OK(mo_mem_alloc(second_device, BYTES, &plain));
    mapped m = map_new(second_device, GRANULE);
    snprintf(message, sizeof message, "memory of %s", second);
    for (int i = 0; i < 2; i++) { /* a refusal is not remembered as a pass */
        REFUSED_SAYING(message, ask(plain, BYTES));
        REFUSED_SAYING(message, ask(m.address, GRANULE));
    }
    unmap(second_device, &m);
    OK(mo_mem_free(second_device, plain, BYTES));
}

TEST(host_memory_must_be_page_locked)
{
    static _Alignas(4096) char bytes[BYTES];
    void *pinned = NULL;
    REFUSED_SAYING("page-locked", ask(bytes, BYTES));
    OK(memopt_host_register(first_device, bytes, BYTES));
    OK(ask(bytes, BYTES));
    OK(memopt_host_unregister(first_device, bytes));
    REFUSED(ask(bytes, BYTES));
    OK(memopt_host_alloc(first_device, BYTES, &pinned));
    OK(ask(pinned, BYTES));
    OK(memopt_host_free(first_device, pinned));
    REFUSED(ask(pinned, BYTES));
}

TEST(a_capture_is_not_disturbed)
{
    const mo_gpu_vendor *vendor = mo_gpu(first_device)->driver->vendor;
    void *plain = NULL, *graph = NULL, *saved = NULL;
    OK(mo_mem_alloc(again, BYTES, &plain));
    memopt_stream stream = stream_on(first_device);
    assert_int_equal(vendor->enter_context(mo_gpu(first_device), &saved), 0);
    assert_int_equal(begin_capture(stream, 0), 0);
    begin_counting();
    OK(ask(plain, BYTES));
    assert_int_equal(counted(), 2);
    OK(memopt_fill(first_device, plain, 1, BYTES, stream));
    assert_int_equal(end_capture(stream, &graph), 0);
    assert_int_equal(destroy_graph(graph), 0);
    vendor->leave_context(mo_gpu(first_device), saved);
    OK(memopt_stream_destroy(first_device, stream));
    OK(mo_mem_free(again, plain, BYTES));
}

TEST(a_failing_question_is_told)
{
    void *plain = NULL;
    OK(mo_mem_alloc(again, BYTES, &plain));
    sim->fail_at(question, 1, 46);
    FAILS(MEMOPT_DRIVER_ERROR, ask(plain, BYTES));
    sim->fail_at(question, 2, 46);
    FAILS(MEMOPT_DRIVER_ERROR, ask(plain, BYTES));
    OK(ask(plain, BYTES));
    OK(mo_mem_free(again, plain, BYTES));
}

/* --- every call that takes memory ----------------------------------------------------------- */

typedef struct things {
    void *mine, *gone, *theirs;
    memopt_allocator *allocator;
    memopt_scaler *scaler, *other_scaler;
    memopt_optimizer *optimizer;
    memopt_offloader *offloader;
} things;

static memopt_tensor tensor(void *data, memopt_dtype dtype)
{
    return (memopt_tensor){data, 256, dtype};
}

static void refuse_casts(const things *t, void *bad)
{
    memopt_tensor good = tensor(t->mine, MEMOPT_DTYPE_F32), f16 = tensor(bad, MEMOPT_DTYPE_F16);
    memopt_tensor byte = tensor(bad, MEMOPT_DTYPE_U8), one = {t->mine, 1, MEMOPT_DTYPE_F32};
    REFUSED_SAYING("cast: destination 0", memopt_cast(first_device, &f16, &good, 1, NULL, NULL));
    REFUSED_SAYING("cast: source 0", memopt_cast(first_device, &good, &f16, 1, NULL, NULL));
    REFUSED(memopt_scaler_unscale(t->scaler, &f16, 1, NULL));
    REFUSED(
        memopt_check_finite(first_device, &f16, 1, memopt_scaler_get_found_inf(t->scaler), NULL));
    REFUSED(memopt_norm(first_device, t->mine, &f16, 1, 0, NULL));
    REFUSED(memopt_norm(first_device, bad, &good, 1, 0, NULL));
    REFUSED(memopt_norm(first_device, NULL, &f16, 1, 1.0, NULL));
    REFUSED(memopt_norm(first_device, bad, &good, 1, 1.0, NULL));
    one.data = (char *)t->mine + 4096;
    REFUSED(memopt_quantize(first_device, MEMOPT_STATE_8BIT_DYNAMIC, &byte, &one, &good, 1, NULL));
    byte.data = (char *)t->mine + 2048;
    one.data = bad;
    REFUSED(
        memopt_dequantize(first_device, MEMOPT_STATE_8BIT_DYNAMIC, &good, &byte, &one, 1, NULL));
    REFUSED(memopt_content_hash(first_device, t->mine, &f16, NULL));
    REFUSED(memopt_content_hash(first_device, bad, &good, NULL));
}

static void refuse_optimizers(const things *t, void *bad)
{
    memopt_tensor good = tensor((char *)t->mine + 4096, MEMOPT_DTYPE_F32);
    memopt_tensor f16 = tensor(bad, MEMOPT_DTYPE_F16), gradient = tensor(bad, MEMOPT_DTYPE_F32);
    memopt_tensor mine = tensor((char *)t->mine + 6144, MEMOPT_DTYPE_F32);
    memopt_step_options options = MEMOPT_STEP_OPTIONS_INIT;
    uint64_t index = 99;
    REFUSED(memopt_optimizer_add_parameter(t->optimizer, 0, &f16, NULL, NULL, &index));
    SAYS("optimizer: parameter 1");
    REFUSED(memopt_optimizer_add_parameter(
        t->optimizer, 0, &good,
        &(memopt_parameter_options){
            sizeof(memopt_parameter_options), f16, NULL, 0, NULL, 0, 0, {0, 0}},
        NULL, &index));
    assert_int_equal(index, 99);
    REFUSED_SAYING("optimizer step: gradient 0",
                   memopt_optimizer_step(t->optimizer, &gradient, 1, NULL, NULL));
    options.out_norm = bad;
    REFUSED(memopt_optimizer_step(t->optimizer, &mine, 1, &options, NULL));
}

static void refuse_offload(const things *t, void *bad)
{
    memopt_ticket ticket = 0;
    int32_t kept = 7;
    REFUSED(mo_offloader_pack_borrowed(t->offloader, bad, 1024, NULL, &ticket, &kept));
    assert_true(ticket == 0 && kept == 7);
    OK(mo_offloader_pack_borrowed(t->offloader, t->mine, 1024, NULL, &ticket, &kept));
    REFUSED(mo_offloader_unpack_into(t->offloader, ticket, bad, 1024, NULL));
    OK(mo_offloader_unpack_into(t->offloader, ticket, t->mine, 1024, NULL));
    OK(memopt_offloader_release(t->offloader, ticket, NULL));
}

static void begin_things(things *t)
{
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    uint32_t number = 0;
    uint64_t index = 0;
    OK(memopt_allocator_create(first_device, NULL, NULL, &t->allocator));
    OK(memopt_allocator_alloc(t->allocator, BYTES, MEMOPT_TAG_OTHER, NULL, &t->mine));
    OK(memopt_fill(first_device, t->mine, 0, BYTES, NULL));
    OK(mo_mem_alloc(second_device, BYTES, &t->theirs));
    OK(mo_mem_alloc(again, BYTES, &t->gone));
    OK(mo_mem_free(again, t->gone, BYTES));
    OK(memopt_scaler_create(first_device, NULL, &t->scaler));
    OK(memopt_scaler_create(second_device, NULL, &t->other_scaler));
    OK(memopt_optimizer_create(t->allocator, NULL, &t->optimizer));
    OK(memopt_optimizer_add_group(t->optimizer, &group, &number));
    memopt_tensor parameter = tensor(t->mine, MEMOPT_DTYPE_F32);
    OK(memopt_optimizer_add_parameter(t->optimizer, 0, &parameter, NULL, NULL, &index));
    OK(memopt_offloader_create(first_device, t->allocator, NULL, &t->offloader));
}

static void end_things(things *t)
{
    OK(memopt_device_sync(first_device));
    OK(memopt_offloader_destroy(t->offloader));
    OK(memopt_optimizer_destroy(t->optimizer));
    OK(memopt_scaler_destroy(t->scaler));
    OK(memopt_scaler_destroy(t->other_scaler));
    OK(memopt_allocator_free(t->allocator, t->mine));
    OK(memopt_allocator_destroy(t->allocator));
    OK(mo_mem_free(second_device, t->theirs, BYTES));
}

TEST(every_call_refuses)
{
    static _Alignas(4096) char host[BYTES];
    things t;
    begin_things(&t);
    void *const bad[] = {t.theirs, t.gone, host};
    for (int i = 0; i < 3; i++) {
        refuse_casts(&t, bad[i]);
        refuse_optimizers(&t, bad[i]);
        refuse_offload(&t, bad[i]);
    }
    memopt_step_options options = MEMOPT_STEP_OPTIONS_INIT;
    memopt_tensor gradient = tensor((char *)t.mine + 4096, MEMOPT_DTYPE_F32);
    options.scaler = t.other_scaler;
    REFUSED_SAYING("scaler", memopt_optimizer_step(t.optimizer, &gradient, 1, &options, NULL));
    options.scaler = t.scaler;
    OK(memopt_optimizer_step(t.optimizer, &gradient, 1, &options, NULL));
    OK(memopt_device_sync(first_device)); /* nothing was enqueued that ends the context */
    OK(memopt_device_sync(second_device));
    end_things(&t);
}

/* Gradients of a framework: asked for when they are new, and no more while they stay. */
TEST(an_unchanged_step_asks_nothing)
{
    things t;
    void *foreign = NULL;
    begin_things(&t);
    OK(mo_mem_alloc(again, BYTES, &foreign));
    OK(memopt_fill(again, foreign, 0, BYTES, NULL));
    OK(memopt_device_sync(again));
    memopt_tensor gradient = tensor(foreign, MEMOPT_DTYPE_F32);
    for (int step = 0; step < 3; step++) {
        begin_counting();
        OK(memopt_optimizer_step(t.optimizer, &gradient, 1, NULL, NULL));
        assert_int_equal(counted(), step == 0 ? 2 : 0);
    }
    end_things(&t);
    OK(mo_mem_free(again, foreign, BYTES));
}

/* A driver without the question, or a device that reaches any memory: nothing is refused that it
 * might reach. */
static void what_cannot_be_told_is_let_pass(void **state)
{
    static char host[BYTES];
    OK(ask(host, BYTES));
}

int main(int count, char **values)
{
    const struct CMUnitTest lenient[] = {cmocka_unit_test(what_cannot_be_told_is_let_pass)};
    if (count > 1)
        backend = values[1];
    if (backend[0] == 'h')
        question = "hipPointerGetAttributes";
    snprintf(second, sizeof second, "%s:1", backend);
    return count > 2 ? cmocka_run_group_tests(lenient, open_devices, close_devices)
                     : run_all_tests(open_devices, close_devices);
}
