/*
 * Run-time compilation. The argument says what the environment makes the loader find:
 *
 *   real    the real NVRTC, of a wheel or the CUDA toolkit; skipped where there is none
 *   choice  simulated NVRTCs 13 and 12, and a driver of CUDA 12.4
 *   wheel   this program lies where a package for Python has its libraries; the other argument is
 * an NVRTC, which is put where the vendor's package has it none    no compiler: every name is a
 * file that is no library old     an NVRTC from before CUDA 11.1 only newer   NVRTC 13 only, and a
 * device of capability 7.0, which it does not know faults  NVRTC 12 and a device of capability 7.0:
 * a compilation that fails, in every way hip     hipRTC and a device without an image real_hip
 * ROCm's own hipRTC, which needs no card; skipped where there is none
 */
#include "gpu_compile.h"

#include <elf.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *mode = "real";

/* A test of a mode, with which its name begins. */
#define MODE_TEST(mode, name) TEST_NAMED(#mode "." #name, name, NULL, NULL, no_fixture)

static int in(const char *wanted)
{
    return strcmp(mode, wanted) == 0;
}

/* --- devices that need no driver ----------------------------------------------------------- */

/* A device, as far as the compiler looks at it. */
typedef struct made_device {
    mo_gpu_device gpu;
    mo_gpu_driver driver;
    mo_gpu_vendor vendor;
    mo_images images;
} made_device;

static mo_gpu_device *make_any(made_device *made, const mo_gpu_vendor *vendor, const char *target)
{
    memset(made, 0, sizeof *made);
    made->vendor = *vendor;
    made->images = *made->vendor.images;
    made->vendor.images = &made->images;
    made->driver.vendor = &made->vendor;
    made->gpu.driver = &made->driver;
    snprintf(made->gpu.target, sizeof made->gpu.target, "%s", target);
    memcpy(made->gpu.isa, made->gpu.target, sizeof made->gpu.isa);
    return &made->gpu;
}

/* One of CUDA's; `source` NULL: the embedded one. */
static mo_gpu_device *make_device(made_device *made, uint32_t capability, int version,
                                  const char *source)
{
    char target[16];
    snprintf(target, sizeof target, "sm_%u", capability);
    make_any(made, mo_cuda_driver.vendor, target);
    if (source != NULL) {
        made->images.source = source;
        made->images.source_bytes = strlen(source);
    }
    made->driver.version = version;
    made->gpu.capability = capability;
    return &made->gpu;
}

/* The n-th kernel of the embedded source, from the line that begins with MO_GLOBAL or a macro
 * around it; 0 behind the last. */
static int kernel_name(int n, char *out, size_t size)
{
    const char *at = mo_cuda_images.source;
    while ((at = strstr(at, "\nMO_")) != NULL) {
        at += 1;
        at += strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
        if (strncmp(at, "(mo_", 4) != 0)
            continue;
        if (n-- == 0) {
            snprintf(out, size, "%.*s", (int)strcspn(at + 1, ","), at + 1);
            return 1;
        }
    }
    return 0;
}

/* As a whole word: a symbol, or in front of a parenthesis. */
static int holds(const char *image, uint64_t bytes, const char *name)
{
    size_t length = strlen(name);
    for (uint64_t i = 1; i + length < bytes; i++)
        if (memcmp(image + i, name, length) == 0 && (image[i - 1] == '\0' || image[i - 1] == ' ') &&
            (image[i + length] == '\0' || image[i + length] == '('))
            return 1;
    return 0;
}

/* The kernel, and no other one. */
static void holds_only(const void *image, uint64_t bytes, const char *wanted)
{
    char name[64];
    for (int n = 0; kernel_name(n, name, sizeof name); n++)
        if (holds(image, bytes, name) != (strcmp(name, wanted) == 0))
            fail_msg("%s in the %llu bytes of %s", name, (unsigned long long)bytes, wanted);
}

/* --- the real NVRTC ------------------------------------------------------------------------ */

static int has_real_nvrtc(void)
{
    char file[MO_LIBRARY_FILE], problem[MO_LIBRARY_TEXT];
    mo_gpu_compiler_report(&mo_cuda_driver, file, problem);
    return file[0] != '\0' && compiler_says("cuda", "memopt_sim_rtc_compiled") < 0;
}

static void check_for(mo_gpu_device *gpu, const mo_gpu_recipe *recipe, const char *kernel)
{
    void *binary = NULL;
    uint64_t bytes = 0;
    Elf64_Ehdr head;
    OK(mo_gpu_compile(gpu, recipe, kernel, &binary, &bytes));
    memcpy(&head, binary, sizeof head);
    assert_memory_equal(head.e_ident, ELFMAG, SELFMAG);
    assert_int_equal(head.e_machine, 190);
    assert_int_equal(head.e_flags >> (head.e_ident[EI_ABIVERSION] >= 8 ? 8 : 0) & 0xFF,
                     gpu->capability);
    holds_only(binary, bytes, kernel);
    mo_free(binary);
}

/* Compiled for each generation that this NVRTC knows: for one of them every kernel, for the others
 * some, not always the same. */
MODE_TEST(real, every_generation)
{
    enum { ALL = 90, EVERY = 10 };
    static const uint32_t capabilities[] = {75, 80, 86, 89, ALL, 100, 120};
    made_device made;
    mo_gpu_recipe recipe;
    char kernel[64];
    int compiled = 0;
    for (int i = 0; i < (int)(sizeof capabilities / sizeof capabilities[0]); i++) {
        mo_gpu_device *gpu = make_device(&made, capabilities[i], 0, NULL);
        OK(mo_gpu_find_recipe(gpu, &recipe));
        if (recipe.intermediate)
            continue; /* this one is newer than the toolkit */
        for (int n = 0; kernel_name(n, kernel, sizeof kernel); n++)
            if (capabilities[i] == ALL || n % EVERY == i)
                check_for(gpu, &recipe, kernel);
        compiled++;
    }
    assert_true(compiled >= 3);
}

/* The code of this NVRTC goes where the embedded image would: to a driver (a simulated one) of the
 * device that it was compiled for, and no other. */
MODE_TEST(real, loads_where_it_fits)
{
    static const uint32_t capabilities[] = {90, 80};
    memopt_device *device = open_device("cuda:0"); /* of capability 9.0 */
    mo_gpu_device *gpu = mo_gpu(device);
    mo_gpu_scope in;
    assert_int_equal(mo_gpu_enter(&in, device, "test", 0), 1);
    for (int i = 0; i < 2; i++) {
        made_device made;
        mo_gpu_recipe recipe;
        mo_gpu_module module = NULL;
        mo_gpu_function function = NULL;
        void *binary = NULL;
        uint64_t bytes = 0;
        make_device(&made, capabilities[i], 0, NULL);
        OK(mo_gpu_find_recipe(&made.gpu, &recipe));
        OK(mo_gpu_compile(&made.gpu, &recipe, "mo_sum", &binary, &bytes));
        int code = mo_gpu_call(gpu)->module_load(&module, binary);
        assert_int_equal(code, i == 0 ? MO_GPU_SUCCESS : MO_GPU_NO_BINARY);
        if (i == 0) {
            assert_int_equal(mo_gpu_call(gpu)->module_function(&function, module, "mo_sum"), 0);
            assert_int_equal(mo_gpu_call(gpu)->module_function(&function, module, "mo_cast"), 500);
            assert_int_equal(mo_gpu_call(gpu)->module_unload(module), 0);
        }
        mo_free(binary);
    }
    OK(mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY));
    OK(memopt_device_close(device));
}

/* A device that is newer than the compiler gets PTX for the newest target that it knows. */
MODE_TEST(real, newer_device)
{
    made_device made;
    mo_gpu_device *gpu = make_device(&made, 255, 0, NULL);
    mo_gpu_recipe recipe;
    void *text = NULL;
    uint64_t bytes = 0;
    OK(mo_gpu_find_recipe(gpu, &recipe));
    assert_true(recipe.intermediate);
    contains(recipe.target, "=compute_");
    OK(mo_gpu_compile(gpu, &recipe, "mo_sum", &text, &bytes));
    contains(text, ".version");
    holds_only(text, bytes, "mo_sum");
    mo_free(text);
}

/* The message ends in the first line that tells an error, not in a warning before it. */
MODE_TEST(real, wrong_source)
{
    static const char source[] = "#warning \"first\"\n"
                                 "extern \"C\" __global__ void f(int *x) { *x = wrong_name; }\n"
                                 "int other = other_wrong_name;\n";
    made_device made;
    mo_gpu_device *gpu = make_device(&made, 90, 0, source);
    mo_gpu_recipe recipe;
    void *binary = (void *)1;
    uint64_t bytes = 7;
    int64_t blocks = mo_memory_live_blocks();
    OK(mo_gpu_find_recipe(gpu, &recipe));
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "sm_90", mo_gpu_compile(gpu, &recipe, "f", &binary, &bytes));
    SAYS("NVRTC_ERROR_COMPILATION (6)");
    SAYS("memopt.cu(2): error");
    SAYS("wrong_name");
    assert_null(strstr(memopt_last_error(), "other_wrong_name"));
    assert_true(binary == (void *)1);
    assert_int_equal(bytes, 7);
    assert_int_equal(mo_memory_live_blocks(), blocks);
}

/* --- the real hipRTC ------------------------------------------------------------------------ */

/* Compiles for a target, unless an earlier run did and kept it. */
static void *compile_or_read(mo_gpu_device *gpu, const char *kernel, uint64_t *out_bytes)
{
    char key[MO_GPU_KEY_BYTES];
    mo_gpu_recipe recipe;
    void *binary = NULL;
    OK(mo_gpu_find_recipe(gpu, &recipe));
    mo_gpu_cache_key(gpu, &recipe, kernel, key);
    if (mo_gpu_cache_read(key, &binary, out_bytes))
        return binary;
    OK(mo_gpu_compile(gpu, &recipe, kernel, &binary, out_bytes));
    mo_gpu_cache_write(key, binary, *out_bytes);
    return binary;
}

/* A generation with warps of 64 threads, and one of 32. */
MODE_TEST(real_hip, real_hiprtc)
{
    static const struct {
        const char *target;
        uint32_t machine; /* in the ELF's flags: LLVM's AMDGPU usage guide */
    } wanted[] = {{"gfx906", 0x2F}, {"gfx1032", 0x38}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        made_device made;
        char kernel[64];
        mo_gpu_device *gpu = make_any(&made, mo_hip_driver.vendor, wanted[i].target);
        for (int n = 0; kernel_name(n, kernel, sizeof kernel); n++) {
            uint64_t bytes = 0;
            Elf64_Ehdr head;
            void *binary = compile_or_read(gpu, kernel, &bytes);
            memcpy(&head, binary, sizeof head);
            assert_memory_equal(head.e_ident, ELFMAG, SELFMAG);
            assert_int_equal(head.e_machine, 224);
            assert_int_equal(head.e_flags & 0xFF, wanted[i].machine);
            holds_only(binary, bytes, kernel);
            mo_free(binary);
        }
    }
}

static int has_real_hiprtc(void)
{
    char file[MO_LIBRARY_FILE], problem[MO_LIBRARY_TEXT];
    mo_gpu_compiler_report(&mo_hip_driver, file, problem);
    if (file[0] == '\0')
        printf("no hipRTC: %s\n", problem);
    return file[0] != '\0' && compiler_says("hip", "memopt_sim_rtc_compiled") < 0;
}

/* --- which compiler ------------------------------------------------------------------------ */

static void chosen(uint32_t capability, int driver, const char *file, const char *target)
{
    made_device made;
    mo_gpu_recipe recipe;
    char name[2 * MO_LIBRARY_FILE], identity[MO_GPU_IDENTITY_BYTES];
    OK(mo_gpu_find_recipe(make_device(&made, capability, driver, NULL), &recipe));
    mo_gpu_recipe_name(&made.gpu, &recipe, name, sizeof name);
    contains(name, file);
    assert_string_equal(recipe.target, target);
    assert_int_equal(recipe.intermediate, strstr(target, "compute") != NULL);
    mo_gpu_recipe_identity(&made.gpu, &recipe, identity);
    contains(identity, target);
    contains(identity, "--fmad=false");
}

MODE_TEST(choice, best_compiler)
{
    chosen(90, 13000, "nvrtc13/libnvrtc.so.13 (version 13.0)", "--gpu-architecture=sm_90");
    chosen(70, 13000, "nvrtc12/libnvrtc.so.12 (version 12.8)", "--gpu-architecture=sm_70");
    chosen(90, 12040, "nvrtc12/libnvrtc.so.12 (version 12.8)", "--gpu-architecture=sm_90");
    chosen(120, 12040, "nvrtc12/libnvrtc.so.12", "--gpu-architecture=compute_90");
    chosen(120, 13000, "nvrtc13/libnvrtc.so.13", "--gpu-architecture=sm_120");
    chosen(131, 13000, "nvrtc13/libnvrtc.so.13", "--gpu-architecture=compute_121");
    chosen(80, 11040, "nvrtc13/libnvrtc.so.13", "--gpu-architecture=sm_80"); /* both are newer */
    made_device made;
    mo_gpu_recipe recipe;
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "compiles for sm_75 and newer, not for sm_35",
                 mo_gpu_find_recipe(make_device(&made, 35, 13000, NULL), &recipe));
    SAYS("compiles for sm_50 and newer, not for sm_35");
}

/* MEMOPT_NVRTC: a file, a folder, several of them; nothing else is looked at. */
MODE_TEST(choice, named_compiler)
{
    char path[1024], place[1200], wrong[64] = "/tmp/memopt-no-nvrtc-XXXXXX";
    snprintf(path, sizeof path, "%s", getenv("MEMOPT_DRIVER_PATH"));
    const char *nvrtc13 = strtok(path, ":"), *nvrtc12 = strtok(NULL, ":");
    made_device made;
    mo_gpu_recipe recipe;
    snprintf(place, sizeof place, "%s/libnvrtc.so.12", nvrtc12);
    setenv("MEMOPT_NVRTC", place, 1);
    chosen(90, 13000, "nvrtc12/libnvrtc.so.12", "--gpu-architecture=sm_90");
    setenv("MEMOPT_NVRTC", nvrtc12, 1);
    chosen(90, 13000, "nvrtc12/libnvrtc.so.12", "--gpu-architecture=sm_90");
    snprintf(place, sizeof place, ":%s:%s", nvrtc13, nvrtc12);
    setenv("MEMOPT_NVRTC", place, 1);
    chosen(90, 13000, "nvrtc13/libnvrtc.so.13", "--gpu-architecture=sm_90");
    chosen(70, 13000, "nvrtc12/libnvrtc.so.12", "--gpu-architecture=sm_70");
    setenv("MEMOPT_NVRTC", "/nowhere/libnvrtc.so.12", 1);
    make_device(&made, 90, 13000, NULL);
    FAILS_SAYING(
        MEMOPT_UNSUPPORTED,
        "MEMOPT_NVRTC is \"/nowhere/libnvrtc.so.12\"; /nowhere/libnvrtc.so.12: cannot open",
        mo_gpu_find_recipe(&made.gpu, &recipe));
    assert_non_null(mkdtemp(wrong));
    setenv("MEMOPT_NVRTC", wrong, 1);
    FAILS(MEMOPT_UNSUPPORTED, mo_gpu_find_recipe(&made.gpu, &recipe));
    strcat(wrong, " has no libnvrtc.so.13");
    SAYS(wrong);
    *strchr(wrong, ' ') = '\0';
    assert_int_equal(rmdir(wrong), 0);
    setenv("MEMOPT_NVRTC", "", 1); /* as if it were not set */
    chosen(90, 13000, "nvrtc13/libnvrtc.so.13", "--gpu-architecture=sm_90");
    unsetenv("MEMOPT_NVRTC");
}

/* The file of the chosen compiler, where this program lies in site-packages/memopt/lib. */
static const char *wheel_nvrtc;
MODE_TEST(in_wheel, beside_the_library)
{
    made_device made;
    mo_gpu_recipe recipe;
    char name[2 * MO_LIBRARY_FILE];
    OK(mo_gpu_find_recipe(make_device(&made, 70, 12040, NULL), &recipe));
    mo_gpu_recipe_name(&made.gpu, &recipe, name, sizeof name);
    contains(name, wheel_nvrtc);
}

/* Starts this program anew from there. 0 as it should be. */
static int from_a_wheel(const char *nvrtc)
{
    char top[] = "/tmp/memopt-test-wheel-XXXXXX", command[4096];
    if (mkdtemp(top) == NULL)
        return 1;
    snprintf(command, sizeof command,
             "cd %s && mkdir -p memopt/lib nvidia/cuda_nvrtc/lib &&"
             "cp /proc/%d/exe memopt/lib/program && cp %s nvidia/cuda_nvrtc/lib/libnvrtc.so.12 &&"
             "memopt/lib/program in_wheel %s/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
             top, (int)getpid(), nvrtc, top);
    int failed = system(command);
    snprintf(command, sizeof command, "rm -r %s", top);
    return system(command) != 0 || failed;
}

/* --- a launch without kernels -------------------------------------------------------------- */

MODE_TEST(missing, says_what_is_missing)
{
    memopt_device *device = open_device("cuda:0");
    char first[1024];
    int64_t blocks = mo_memory_live_blocks();
    FAILS(MEMOPT_UNSUPPORTED, launch(device));
    snprintf(first, sizeof first, "%s", memopt_last_error());
    contains(first, "no kernels for sm_70");
    contains(first, "install");
    if (in("none"))
        contains(first, "libnvrtc.so.13: in no folder of MEMOPT_DRIVER_PATH");
    if (in("old"))
        contains(first, "libnvrtc.so has no nvrtcGetCUBINSize");
    if (in("newer"))
        contains(first, "(version 13.0) compiles for sm_75 and newer, not for sm_70");
    FAILS(MEMOPT_UNSUPPORTED, launch(device));
    assert_string_equal(memopt_last_error(), first);
    assert_int_equal(mo_memory_live_blocks(), blocks);
    OK(memopt_device_close(device));
}

/* --- a compilation that fails -------------------------------------------------------------- */

static int compiled(void)
{
    return compiler_says("cuda", "memopt_sim_rtc_compiled");
}

static void fail_with(const char *fault, memopt_status status, const char *says, int remembered)
{
    char first[1024];
    int before = compiled();
    memopt_device *device = open_device("cuda:0");
    int64_t blocks = mo_memory_live_blocks();
    assert_int_equal(setenv("MEMOPT_SIM_NVRTC_FAIL", fault, 1), 0);
    FAILS_SAYING(status, says, launch(device));
    snprintf(first, sizeof first, "%s", memopt_last_error());
    assert_int_equal(mo_memory_live_blocks(), blocks);
    assert_int_equal(compiler_says("cuda", "memopt_sim_rtc_programs"), 0);
    int once = compiled();
    assert_true(once <= before + 1);
    assert_int_equal(unsetenv("MEMOPT_SIM_NVRTC_FAIL"), 0);
    if (remembered) { /* without asking the compiler again, word by word */
        memopt_error_info info = {.struct_size = sizeof info};
        FAILS(status, launch(device));
        assert_string_equal(memopt_last_error(), first);
        OK(memopt_last_error_info(&info));
        assert_int_not_equal(info.driver_code, 0);
        contains(info.driver_message, "NVRTC_ERROR");
        assert_int_equal(compiled(), once);
        OK(memopt_device_close(device));
        device = open_device("cuda:0"); /* which asks again */
    }
    OK(launch(device));
    assert_int_equal(compiled(), once + 1);
    OK(launch(device));
    assert_int_equal(compiled(), once + 1);
    OK(memopt_device_close(device));
}

MODE_TEST(faults, compile_faults)
{
    fail_with("create=2", MEMOPT_UNSUPPORTED, "NVRTC_ERROR_PROGRAM_CREATION_FAILURE (2)", 1);
    fail_with("compile=6", MEMOPT_UNSUPPORTED, "NVRTC_ERROR_COMPILATION (6)", 1);
    fail_with("compile=5", MEMOPT_UNSUPPORTED, "NVRTC_ERROR_INVALID_OPTION (5)", 1);
    fail_with("code_size=4", MEMOPT_UNSUPPORTED, "NVRTC_ERROR_INVALID_PROGRAM (4)", 1);
    fail_with("code=4", MEMOPT_UNSUPPORTED, "NVRTC_ERROR_INVALID_PROGRAM (4)", 1);
    fail_with("compile=1", MEMOPT_OUT_OF_HOST_MEMORY, "NVRTC_ERROR_OUT_OF_MEMORY (1)", 0);
}

/* The n-th allocation fails, n = 1, 2, …: a status, nothing kept, and the next launch works. */
MODE_TEST(faults, no_host_memory)
{
    int failures = 0;
    for (int64_t n = 1; n < 100; n++) {
        memopt_device *device = open_device("cuda:0");
        void *memory = NULL;
        OK(mo_mem_alloc(device, 1024, &memory));
        OK(memopt_fill(device, memory, 0, 1024, NULL));
        memopt_tensor from = {memory, 64, MEMOPT_DTYPE_F32};
        memopt_tensor to = {(char *)memory + 512, 64, MEMOPT_DTYPE_BF16};
        int64_t blocks = mo_memory_live_blocks();
        mo_memory_fail_at(n);
        memopt_status status = memopt_cast(device, &to, &from, 1, NULL, NULL);
        mo_memory_fail_at(0);
        if (status != MEMOPT_OK) {
            failures++;
            assert_int_equal(status, MEMOPT_OUT_OF_HOST_MEMORY);
            assert_int_equal(mo_memory_live_blocks(), blocks);
            OK(memopt_cast(device, &to, &from, 1, NULL, NULL));
        }
        OK(mo_mem_free(device, memory, 1024));
        OK(memopt_device_close(device));
        if (status == MEMOPT_OK)
            break;
    }
    assert_true(failures > 0);
}

/* The message has the first error, not the warning in front of it. */
MODE_TEST(faults, first_error)
{
    made_device made;
    mo_gpu_recipe recipe;
    void *binary = NULL;
    uint64_t bytes = 0;
    make_device(&made, 70, 0, "int good;\nint bad = first_name;\nint worse = other_name;\n");
    OK(mo_gpu_find_recipe(&made.gpu, &recipe));
    FAILS_SAYING(MEMOPT_UNSUPPORTED,
                 "memopt.cu:2:", mo_gpu_compile(&made.gpu, &recipe, "mo_cast", &binary, &bytes));
    SAYS("first_name");
    assert_null(strstr(memopt_last_error(), "other_name"));
    assert_null(strstr(memopt_last_error(), "warning"));
}

/* --- kernel by kernel ---------------------------------------------------------------------- */

typedef struct call {
    memopt_device *device;
    const memopt_tensor *tensor;
    float *found; /* of the device */
    int kind;
    memopt_status status;
} call;

static void *call_it(void *user)
{
    call *c = user;
    if (c->kind == 0)
        c->status = memopt_accumulate(c->device, c->tensor, c->tensor + 1, 1, 1.0f, NULL);
    else if (c->kind == 1)
        c->status = memopt_check_finite(c->device, c->tensor, 1, c->found, NULL);
    else
        c->status = memopt_scale(c->device, c->tensor, 1, c->found, c->found, NULL);
    return NULL;
}

/* Each kernel is compiled once, when it is first needed, also where threads need it at once. */
MODE_TEST(faults, threads)
{
    enum { COUNT = 6, KINDS = 3 };
    pthread_t ids[COUNT];
    call calls[COUNT];
    void *memory = NULL;
    memopt_device *device = open_device("cuda:0");
    OK(mo_mem_alloc(device, 1024, &memory));
    OK(memopt_fill(device, memory, 0, 1024, NULL));
    const memopt_tensor tensors[] = {{memory, 64, MEMOPT_DTYPE_F32},
                                     {(float *)memory + 64, 64, MEMOPT_DTYPE_F32}};
    int before = compiled();
    for (int i = 0; i < COUNT; i++) {
        float *found = (float *)memory + 128 + i;
        calls[i] = (call){device, tensors, found, i % KINDS, MEMOPT_INTERNAL};
        assert_int_equal(pthread_create(&ids[i], NULL, call_it, &calls[i]), 0);
    }
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(pthread_join(ids[i], NULL), 0);
        assert_int_equal(calls[i].status, MEMOPT_OK);
    }
    assert_int_equal(compiled(), before + KINDS);
    OK(memopt_device_sync(device));
    OK(mo_mem_free(device, memory, 1024));
    OK(memopt_device_close(device));
}

MODE_TEST(hip, hip_device)
{
    memopt_device *device = open_device("hip:0");
    int before = compiler_says("hip", "memopt_sim_rtc_compiled");
    OK(launch(device));
    OK(launch(device));
    assert_int_equal(compiler_says("hip", "memopt_sim_rtc_compiled"), before + 1);
    assert_int_equal(compiler_says("hip", "memopt_sim_rtc_programs"), 0);
    OK(memopt_device_close(device));
}

MODE_TEST(hip_unknown, hip_unknown)
{
    memopt_device *device = open_device("hip:0");
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "no kernels for gfx1999", launch(device));
    SAYS("HIPRTC_ERROR_COMPILATION (6)");
    SAYS("invalid target ID 'gfx1999'");
    OK(memopt_device_close(device));
}

int main(int count, char **values)
{
    char wanted[24];
    if (count > 1)
        mode = values[1];
    if (in("wheel"))
        return count > 2 ? from_a_wheel(values[2]) : 1;
    wheel_nvrtc = count > 2 ? values[2] : "";
    if ((in("real") && !has_real_nvrtc()) || (in("real_hip") && !has_real_hiprtc())) {
        printf("no run-time compiler here\n");
        return 77;
    }
    snprintf(wanted, sizeof wanted, "%s.",
             in("none") || in("old") || in("newer") ? "missing" : mode);
    return run_tests_named(wanted, NULL, NULL);
}
