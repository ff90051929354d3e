/* Which image is loaded; images in files beside the library: found, missing, and others than the
 * library was built with. */
#include "gpu_compile.h"

#include "base/sha256.h"
#include "support/simulated.h"

#include <sys/stat.h>
#include <unistd.h>

static const char ptx[] = ".version 7.5\n.target sm_75\n.visible .entry mo_cast(\n";
static char folder[] = "/tmp/memopt-test-kernels-XXXXXX";
static char digest[MO_SHA256_TEXT];
static const char *path;

static void digest_of(const char *data, uint64_t bytes, char *text)
{
    mo_sha256 sha;
    mo_sha256_begin(&sha);
    mo_sha256_add(&sha, data, bytes);
    mo_sha256_end(&sha, text);
}

/* The examples of FIPS 180-4, one of them in parts. */
TEST(digests)
{
    char text[MO_SHA256_TEXT];
    mo_sha256 sha;
    digest_of("abc", 3, text);
    assert_string_equal(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, text);
    assert_string_equal(text, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    char part[125];
    memset(part, 'a', sizeof part);
    mo_sha256_begin(&sha);
    for (int i = 0; i < 1000000; i += 125)
        mo_sha256_add(&sha, part, sizeof part);
    mo_sha256_end(&sha, text);
    assert_string_equal(text, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void write_file(const char *data, uint64_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

/* What a launch says on a device whose images lie in files. */
static memopt_status launch_once(void)
{
    int64_t before = mo_memory_live_blocks();
    memopt_device *device = open_device("cuda:0");
    memopt_status status = launch(device);
    char message[1024];
    snprintf(message, sizeof message, "%s", memopt_last_error());
    OK(memopt_device_close(device));
    assert_int_equal(mo_memory_live_blocks(), before);
    device = open_device("cpu");
    OK(launch(device));
    OK(memopt_device_close(device));
    if (status != MEMOPT_OK)
        mo_fail(status, "%s", message);
    return status;
}

TEST(found)
{
    write_file(ptx, sizeof ptx - 1);
    OK(launch_once());
}

TEST(missing)
{
    unlink(path);
    FAILS_SAYING(MEMOPT_UNSUPPORTED, path, launch_once());
    SAYS(digest);
}

TEST(damaged)
{
    char other[MO_SHA256_TEXT], data[sizeof ptx + 1];
    const uint64_t bytes = sizeof ptx - 1, sizes[] = {0, bytes - 1, bytes, bytes + 1};
    for (int i = 0; i < 4; i++) {
        memcpy(data, ptx, sizeof ptx);
        data[20] ^= (char)(sizes[i] == bytes);
        digest_of(data, sizes[i], other);
        write_file(data, sizes[i]);
        FAILS_SAYING(MEMOPT_CORRUPT, path, launch_once());
        SAYS(digest);
        SAYS(other);
    }
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    FAILS_SAYING(MEMOPT_CORRUPT, path, launch_once());
    assert_int_equal(rmdir(path), 0);
}

/* A device that could not load its kernels loads them when the reason has gone. */
TEST(later)
{
    write_file("x", 1);
    memopt_device *device = open_device("cuda:0");
    FAILS_SAYING(MEMOPT_CORRUPT, path, launch(device));
    write_file(ptx, sizeof ptx - 1);
    mo_memory_fail_at(1);
    assert_int_equal(launch(device), MEMOPT_OUT_OF_HOST_MEMORY);
    OK(launch(device));
    OK(memopt_device_close(device));
}

/* An image that the driver does not take is followed by the next, also where it calls it a source
 * of the wrong kind. */
TEST(next_image)
{
    static const int32_t codes[] = {200, 209, 218, 300, 303};
    const mo_gpu_vendor *only = mo_cuda_driver.vendor;
    const mo_image two[] = {{"sm_80", ptx, sizeof ptx - 1, NULL, NULL}, only->images->images[0]};
    const mo_images images = {two, 2, NULL, 0};
    mo_gpu_vendor vendor = *only;
    vendor.images = &images;
    mo_cuda_driver.vendor = &vendor;
    write_file(ptx, sizeof ptx - 1);
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        memopt_device *device = open_device("cuda:0");
        driver_of("cuda")->fail_at("cuModuleLoadData", 1, codes[i]);
        OK(launch(device));
        OK(memopt_device_close(device));
    }
    mo_cuda_driver.vendor = only;
}

/* Of PTX the driver gets one kernel, with what is outside of kernels. */
TEST(part_of_text)
{
    static const char text[] = ".version 6.3\n.global .b8 t[2] = {1, 2};\n"
                               ".visible .entry mo_cast_amax(\n)\n{\n{ ret;\n\t}\n}\n// one\n"
                               ".visible .entry mo_cast(\n)\n{\nbra.uni\n}\n// two\n"
                               ".visible .entry mo_sum(\n)\n{\n ret;\n}";
    static const char part[] = ".version 6.3\n.global .b8 t[2] = {1, 2};\n// one\n"
                               ".visible .entry mo_cast(\n)\n{\nbra.uni\n}\n// two\n";
    mo_gpu_recipe recipe;
    OK(mo_gpu_part_recipe(text, sizeof text - 1, "mo_cast", &recipe));
    assert_string_equal(recipe.text, part);
    assert_int_equal(recipe.bytes, sizeof part - 1);
    assert_true(recipe.quick);
    mo_free(recipe.part);
}

/* Of an image that is no text, every kernel is looked up at once: none in a capture. */
TEST(whole_image)
{
    static const char both[] = ".version 7.5\n.target sm_75\n.visible .entry mo_cast(\n"
                               ".visible .entry mo_accumulate(\n";
    const mo_gpu_vendor *only = mo_cuda_driver.vendor;
    const mo_image image = {"sm_80", both, sizeof both - 1, NULL, NULL};
    const mo_images images = {&image, 1, NULL, 0};
    mo_gpu_vendor vendor = *only;
    vendor.images = &images;
    mo_cuda_driver.vendor = &vendor;
    memopt_device *device = open_device("cuda:0");
    OK(launch(device));
    assert_int_equal(mo_gpu(device)->kernel_count, 2);
    OK(memopt_device_close(device));
    mo_cuda_driver.vendor = only;
}

static char line[1200];
static int lines;

static void hear(void *user, memopt_log_level level, const char *message)
{
    snprintf(line, sizeof line, "%s", message);
    lines++;
}

/* A kernel that takes the driver long is announced, by itself, and only the first time. */
TEST(long_text)
{
    enum { LONG = 450000 }; /* of which mo_cast has most */
    static char text[LONG + 100], cache[sizeof folder + 16];
    const mo_gpu_vendor *only = mo_cuda_driver.vendor;
    mo_gpu_vendor vendor = *only;
    int start = snprintf(text, sizeof text, "%s)\n{\n", ptx);
    memset(text + start, ' ', LONG - (size_t)start);
    strcpy(text + LONG, "\n}\n.visible .entry mo_accumulate()\n{\n}\n");
    const mo_image image = {"ptx75", text, strlen(text), NULL, NULL};
    const mo_images images = {&image, 1, NULL, 0};
    snprintf(cache, sizeof cache, "%s/cache", folder);
    setenv("MEMOPT_CACHE_DIR", cache, 1);
    vendor.images = &images;
    mo_cuda_driver.vendor = &vendor;
    OK(memopt_set_log(hear, NULL, MEMOPT_LOG_WARNING));
    for (int i = 0; i < 2; i++) {
        memopt_device *device = open_device("cuda:0");
        OK(launch(device));
        OK(launch(device));
        assert_int_equal(mo_gpu(device)->kernel_count, 1);
        assert_int_equal(lines, 1);
        OK(memopt_device_close(device));
    }
    OK(memopt_set_log(NULL, NULL, MEMOPT_LOG_OFF));
    contains(line,
             "the driver (version 13000) compiles the kernel mo_cast for sm_80, about 1.5 sec");
    contains(line, cache);
    mo_cuda_driver.vendor = only;
    unsetenv("MEMOPT_CACHE_DIR");
    snprintf(text, sizeof text, "rm -r %s", cache);
    assert_int_equal(system(text), 0);
}

/* A device's own image is better than its family's, which the families' other devices lack. */
TEST(generic_images)
{
    static const struct {
        const char *device, *family;
    } known[] = {{"gfx906", "gfx9-generic"},
                 {"gfx908", NULL},
                 {"gfx90a", NULL},
                 {"gfx1032", "gfx10-3-generic"},
                 {"gfx942", "gfx9-4-generic"},
                 {"gfx1010", "gfx10-1-generic"},
                 {"gfx103", NULL},
                 {"gfx1151", "gfx11-generic"},
                 {"gfx1201", "gfx12-generic"}};
    static const char *const families[] = {"gfx9-generic",    "gfx9-4-generic", "gfx10-1-generic",
                                           "gfx10-3-generic", "gfx11-generic",  "gfx12-generic"};
    const mo_gpu_vendor *hip = mo_hip_driver.vendor;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        mo_gpu_device gpu = {.driver = &mo_hip_driver};
        snprintf(gpu.target, sizeof gpu.target, "%s", known[i].device);
        assert_int_equal(hip->rate_image(&gpu, known[i].device), 2);
        for (size_t k = 0; k < sizeof families / sizeof families[0]; k++)
            assert_int_equal(hip->rate_image(&gpu, families[k]),
                             known[i].family != NULL && strcmp(known[i].family, families[k]) == 0);
    }
}

int main(void)
{
    const mo_image image = {"ptx75", NULL, sizeof ptx - 1, "kernels.ptx", digest};
    const mo_images images = {&image, 1, NULL, 0};
    mo_gpu_vendor vendor = *mo_cuda_driver.vendor;
    char name[sizeof folder + 16];
    if (mkdtemp(folder) == NULL || setenv("MEMOPT_KERNELS_DIR", folder, 1) != 0)
        return 1;
    snprintf(name, sizeof name, "%s/kernels.ptx", folder);
    path = name;
    digest_of(ptx, sizeof ptx - 1, digest);
    vendor.images = &images;
    mo_cuda_driver.vendor = &vendor;
    int failed = run_all_tests(NULL, NULL);
    unlink(path);
    rmdir(folder);
    return failed;
}
