/*
 * What an NVRTC answers to right and wrong calls: the simulated one and, where it is there, the
 * real one, which the argument names. Both must say the same.
 */
#include "support/unit.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *program;

static int (*create)(program *, const char *, const char *, int, const char *const *,
                     const char *const *);
static int (*compile)(program, int, const char *const *);
static int (*destroy)(program *);
static int (*log_size)(program, size_t *);
static int (*get_log)(program, char *);
static int (*code_size)(program, size_t *);
static int (*get_code)(program, char *);
static int (*text_size)(program, size_t *);
static int (*target_count)(int *);
static int (*targets)(int *);

static const char kernel[] =
    "#define MO_GLOBAL(n, a, t) extern \"C\" __attribute__((global)) void n(a x)\n"
    "MO_GLOBAL(probe, int *, 64) { *x = 1; }\n";

static program new_program(const char *source)
{
    program p = NULL;
    assert_int_equal(create(&p, source, "a.cu", 0, NULL, NULL), 0);
    return p;
}

TEST(programs)
{
    program p = NULL, none = NULL;
    size_t size = 77;
    assert_int_equal(create(&p, NULL, "x", 0, NULL, NULL), 3);
    assert_int_equal(create(NULL, "", "x", 0, NULL, NULL), 4);
    assert_int_equal(compile(NULL, 0, NULL), 4);
    assert_int_equal(code_size(NULL, &size), 4);
    assert_int_equal(destroy(&none), 4);
    p = new_program(kernel);
    assert_int_equal(code_size(p, NULL), 3);
    assert_int_equal(code_size(p, &size), 0);
    assert_int_equal(size, 0);
    assert_int_equal(text_size(p, &size), 0);
    assert_int_equal(size, 1);
    assert_int_equal(log_size(p, &size), 0);
    assert_int_equal(size, 1);
    assert_int_equal(destroy(&p), 0);
    assert_null(p);
}

static void option(const char *text, int code, const char *says)
{
    const char *const options[] = {text};
    char log[4096] = "";
    size_t size = 0;
    program p = new_program(kernel);
    int got = compile(p, 1, options);
    if (got != code)
        fail_msg("%s: %d, not %d", text, got, code);
    assert_int_equal(log_size(p, &size), 0);
    assert_true(size >= 1 && size <= sizeof log);
    assert_int_equal(get_log(p, log), 0);
    assert_int_equal(strlen(log) + 1, size);
    if (strstr(log, says) == NULL)
        fail_msg("%s: \"%s\" is not in \"%s\"", text, says, log);
    assert_int_equal(destroy(&p), 0);
}

TEST(options)
{
    static const char *const good[] = {"--gpu-architecture=sm_90",
                                       "-arch=sm_80",
                                       "--gpu-architecture=compute_75",
                                       "--std=c++17",
                                       "-std=c++14",
                                       "--fmad=false",
                                       "--prec-div=true",
                                       "--prec-sqrt=true",
                                       "--ftz=false",
                                       "-DMO_ONLY",
                                       "-DMO_ONLY_mo_cast",
                                       "--disable-warnings"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        option(good[i], 0, "");
    option("--offload-arch=gfx900", 5, "unrecognized option --offload-arch=gfx900 found");
    option("-O3", 5, "unrecognized option -O3 found");
    option("-ffp-contract=off", 5, "unrecognized option");
    option("--foo", 5, "unrecognized option --foo found");
    option("--std=c++99", 5, "invalid value for --std");
    option("--fmad=maybe", 5, "expects true or false");
    option("--gpu-architecture=sm_999", 5, "invalid value for --gpu-architecture");
    option("--gpu-architecture=sm_70", 5, "invalid value for --gpu-architecture");
    option("--gpu-architecture=gfx900", 5, "invalid value for --gpu-architecture");
}

TEST(results)
{
    const char *const code[] = {"--gpu-architecture=sm_90"};
    const char *const text[] = {"--gpu-architecture=compute_80"};
    size_t size = 0;
    program p = new_program(kernel);
    assert_int_equal(compile(p, 1, code), 0);
    assert_int_equal(code_size(p, &size), 0);
    assert_true(size > 64);
    char *binary = malloc(size);
    assert_non_null(binary);
    assert_int_equal(get_code(p, binary), 0);
    assert_memory_equal(binary, "\177ELF", 4);
    assert_int_equal(binary[49], 90); /* the target, in the flags */
    free(binary);
    assert_int_equal(destroy(&p), 0);

    p = new_program(kernel);
    assert_int_equal(compile(p, 1, text), 0);
    assert_int_equal(code_size(p, &size), 0);
    assert_int_equal(size, 0);
    assert_int_equal(text_size(p, &size), 0);
    assert_true(size > 1);
    assert_int_equal(destroy(&p), 0);

    /* There is no header, and what is wrong is refused and told with its line. */
    static const char *const wrong[] = {"#include <stdint.h>\n",
                                        "\nstatic int x = what_is_this;\n"};
    for (int i = 0; i < 2; i++) {
        char log[8192] = "";
        p = new_program(wrong[i]);
        assert_int_equal(compile(p, 1, code), 6);
        assert_int_equal(log_size(p, &size), 0);
        assert_true(size <= sizeof log);
        assert_int_equal(get_log(p, log), 0);
        assert_non_null(strstr(log, i == 0 ? "stdint.h" : "what_is_this"));
        assert_non_null(strstr(log, "error"));
        assert_int_equal(code_size(p, &size), 0);
        assert_int_equal(size, 0);
        assert_int_equal(destroy(&p), 0);
    }
}

TEST(known_targets)
{
    int count = 0, known[64] = {0};
    assert_int_equal(target_count(&count), 0);
    assert_true(count > 0 && count <= 64);
    assert_int_equal(targets(known), 0);
    for (int i = 1; i < count; i++)
        assert_true(known[i - 1] < known[i]);
}

static void look_up(void *library, const char *name, void *out)
{
    void *address = dlsym(library, name);
    if (address == NULL) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    memcpy(out, &address, sizeof address);
}

int main(int count, char **values)
{
    void *library = count > 1 ? dlopen(values[1], RTLD_NOW) : NULL;
    if (library == NULL) {
        printf("skipped: %s\n", dlerror());
        return 77;
    }
    look_up(library, "nvrtcCreateProgram", &create);
    look_up(library, "nvrtcCompileProgram", &compile);
    look_up(library, "nvrtcDestroyProgram", &destroy);
    look_up(library, "nvrtcGetProgramLogSize", &log_size);
    look_up(library, "nvrtcGetProgramLog", &get_log);
    look_up(library, "nvrtcGetCUBINSize", &code_size);
    look_up(library, "nvrtcGetCUBIN", &get_code);
    look_up(library, "nvrtcGetPTXSize", &text_size);
    look_up(library, "nvrtcGetNumSupportedArchs", &target_count);
    look_up(library, "nvrtcGetSupportedArchs", &targets);
    return run_all_tests(NULL, NULL);
}
