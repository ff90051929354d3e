/* Which instruction set kernels use, and what the device tells of it. With the name of a set as its
 * argument: that set is forced, its forms run, and where the machine lacks it the test is skipped.
 */
#include "support.h"

#include "device/cpu/cpu.h"

#if defined(__aarch64__)
static const char *const sets[MO_ISA_COUNT] = {"scalar", "neon"};
#else
static const char *const sets[MO_ISA_COUNT] = {"scalar", "avx2", "avx512-base", "avx512-vbmi",
                                               "avx512-bf16"};
#endif
static const char *asked; /* the argument */

/* The properties of a device that is opened with MEMOPT_ISA as given, NULL for none. */
static memopt_device_properties opened_with(const char *isa)
{
    memopt_device_properties p = {.struct_size = sizeof p};
    if (isa != NULL)
        setenv("MEMOPT_ISA", isa, 1);
    else
        unsetenv("MEMOPT_ISA");
    memopt_device *device = open_cpu(GRANULE, MEMOPT_STREAM_ORDER_EAGER, 0);
    OK(memopt_device_get_properties(device, &p));
    OK(memopt_device_close(device));
    return p;
}

static int rank(const char *kernels)
{
    for (int isa = 0; isa < MO_ISA_COUNT; isa++)
        if (strcmp(kernels, sets[isa]) == 0)
            return isa;
    fail_msg("the set \"%s\" has no name", kernels);
    return 0;
}

static int best_here(void)
{
    return rank(opened_with(NULL).kernels);
}

/* The best set is limited by the machine, a lower one by the variable, both with the reason. */
TEST(what_limits_it_is_told)
{
    int best = best_here();
    memopt_device_properties p = opened_with(NULL);
    if (best == MO_ISA_COUNT - 1) {
        assert_string_equal(p.limit, "");
    } else {
        char needs[40];
        snprintf(needs, sizeof needs, "%s needs ", sets[best + 1]);
#if defined(__x86_64__)
        assert_non_null(strstr(p.limit, needs));
        assert_non_null(strstr(p.limit, ", which this machine lacks"));
#else
        assert_string_equal(p.limit, "other forms are for x86-64 and AArch64");
#endif
    }
    assert_string_equal(opened_with(sets[best]).limit, p.limit);
    assert_string_equal(opened_with("").limit, p.limit);
    assert_string_equal(opened_with("sse9").limit, p.limit);
    assert_string_equal(opened_with("sse9").kernels, sets[best]);
    for (int isa = 0; isa < best; isa++) {
        char limit[80];
        snprintf(limit, sizeof limit, "MEMOPT_ISA=%s; this machine has %s", sets[isa], sets[best]);
        assert_string_equal(opened_with(sets[isa]).limit, limit);
        assert_string_equal(opened_with(sets[isa]).kernels, sets[isa]);
    }
    for (int isa = best + 1; isa < MO_ISA_COUNT; isa++)
        assert_string_equal(opened_with(sets[isa]).kernels, sets[best]);
}

#if defined(__x86_64__)
/* The compiler's library finds the same, where it is linked as it should be. */
TEST(the_best_set_is_what_the_compiler_finds)
{
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("bmi2");
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    int vbmi = avx512 && __builtin_cpu_supports("avx512vbmi");
    int bf16 = vbmi && __builtin_cpu_supports("avx512bf16");
    assert_int_equal(best_here(), avx2 + avx512 + vbmi + bf16);
}
#endif

/* "avx512" is the best of the family, and what the device calls its instruction set. */
TEST(a_family_has_one_name)
{
    int best = best_here();
#if !defined(__aarch64__)
    assert_string_equal(opened_with("avx512").kernels, sets[best]);
#endif
    for (int isa = 0; isa <= best; isa++)
        assert_string_equal(opened_with(sets[isa]).isa, isa < 2 ? sets[isa] : "avx512");
}

static int ran;

#define FORM(number)                                                                               \
    static void form_##number(const void *args, uint64_t begin, uint64_t end)                      \
    {                                                                                              \
        (void)args, (void)begin, (void)end;                                                        \
        ran = number;                                                                              \
    }
FORM(0)
FORM(1)
FORM(2)
FORM(3)
FORM(4)

/* A set runs its own form of a kernel, or that of the next lower set that has one. */
TEST(the_best_form_runs)
{
    static const mo_cpu_kernel forms[] = {form_0, form_1, form_2, form_3, form_4};
    static const int steps[] = {1, 2, 5}; /* of the sets that have a form */
    int best = best_here();
    for (int isa = 0; isa <= best; isa++) {
        setenv("MEMOPT_ISA", sets[isa], 1);
        memopt_device *device = open_cpu(GRANULE, MEMOPT_STREAM_ORDER_EAGER, 0);
        for (int k = 0; k < 3; k++) {
            mo_kernel kernel = {"forms", 0, 1, {NULL}, NULL, NULL, NULL};
            for (int i = 0; i < MO_ISA_COUNT; i += steps[k])
                kernel.cpu[i] = forms[i];
            OK(mo_launch(device, NULL, &kernel, &kernel, 1));
            assert_int_equal(ran, isa / steps[k] * steps[k]);
        }
        OK(memopt_device_close(device));
    }
}

static int one_set(void)
{
    memopt_device_properties p = opened_with(asked), best = opened_with(NULL);
    if (strcmp(p.kernels, asked) == 0)
        return 0;
    printf("no form for %s ran: this machine has %s (%s)\n", asked, best.kernels, best.limit);
    return 77;
}

int main(int argc, char **argv)
{
    asked = argc > 1 ? argv[1] : NULL;
    return asked != NULL ? one_set() : run_all_tests(NULL, NULL);
}
