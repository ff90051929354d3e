/*
 * The processor: its name, its instruction sets, and which of them kernels use. This file is
 * compiled without extra instruction sets.
 */
#include "device/cpu/cpu.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#if defined(__aarch64__)
#define NAMES "scalar or neon"
static const char *const isa_names[MO_ISA_COUNT] = {"scalar", "neon"};
#else
#define NAMES "scalar, avx2, avx512, avx512-base, avx512-vbmi or avx512-bf16"
static const char *const isa_names[MO_ISA_COUNT] = {"scalar", "avx2", "avx512-base", "avx512-vbmi",
                                                    "avx512-bf16"};
#endif

const char *mo_isa_name(mo_isa isa)
{
    return isa_names[isa];
}

const char *mo_isa_family(mo_isa isa)
{
    return strncmp(isa_names[isa], "avx512", 6) == 0 ? "avx512" : isa_names[isa];
}

#if defined(__x86_64__)
typedef struct feature {
    const char *name;
    mo_isa isa; /* the lowest that needs it */
    int found;  /* the processor has it, and the system keeps its registers */
} feature;

enum { FEATURES = 10 };

/* The registers that the system keeps, by the bits of XCR0. */
enum { KEEPS_YMM = 0x6, KEEPS_ZMM = 0xe6 };

static unsigned kept_registers(unsigned has)
{
    unsigned low = 0, high;
    if ((has & bit_OSXSAVE) != 0)
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Read here, since what __builtin_cpu_supports reads is filled by a part of the compiler's own
 * library: a linker of another compiler leaves it empty. */
static void find_features(feature features[FEATURES])
{
    unsigned a, b, c, d, has1c = 0, has7b = 0, has7c = 0, has71a = 0;
    if (__get_cpuid(1, &a, &b, &c, &d))
        has1c = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        has7b = b;
        has7c = c;
        if (a > 0 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
            has71a = a;
    }
    unsigned kept = kept_registers(has1c);
    if ((kept & KEEPS_YMM) != KEEPS_YMM)
        has1c = has7b = 0;
    if ((kept & KEEPS_ZMM) != KEEPS_ZMM) {
        has7b &= (unsigned)(bit_AVX2 | bit_BMI2);
        has7c = has71a = 0;
    }
    const feature found[FEATURES] = {
        {"avx2", MO_ISA_AVX2, (has7b & bit_AVX2) != 0},
        {"fma", MO_ISA_AVX2, (has1c & bit_FMA) != 0},
        {"f16c", MO_ISA_AVX2, (has1c & bit_F16C) != 0},
        {"bmi2", MO_ISA_AVX2, (has7b & bit_BMI2) != 0},
        {"avx512f", MO_ISA_AVX512, (has7b & bit_AVX512F) != 0},
        {"avx512bw", MO_ISA_AVX512, (has7b & bit_AVX512BW) != 0},
        {"avx512dq", MO_ISA_AVX512, (has7b & bit_AVX512DQ) != 0},
        {"avx512vl", MO_ISA_AVX512, (has7b & bit_AVX512VL) != 0},
        {"avx512vbmi", MO_ISA_AVX512_VBMI, (has7c & bit_AVX512VBMI) != 0},
        {"avx512bf16", MO_ISA_AVX512_BF16, (has71a & bit_AVX512BF16) != 0},
    };
    memcpy(features, found, sizeof found);
}

/* The best set that has all it needs. Writes what the next one lacks, "" if there is no next
 * one. */
static mo_isa detect(char *why, size_t size)
{
    feature features[FEATURES];
    mo_isa best = (mo_isa)(MO_ISA_COUNT - 1);
    char lacking[96] = "";
    size_t length = 0;
    find_features(features);
    for (int i = FEATURES - 1; i >= 0; i--)
        if (!features[i].found)
            best = (mo_isa)(features[i].isa - 1);
    for (int i = 0; i < FEATURES; i++)
        if (!features[i].found && (int)features[i].isa == (int)best + 1)
            length += (size_t)snprintf(lacking + length, sizeof lacking - length, "%s%s",
                                       length > 0 ? ", " : "", features[i].name);
    if (length > 0)
        snprintf(why, size, "%s needs %s, which this machine lacks", isa_names[best + 1], lacking);
    return best;
}
#elif defined(__aarch64__)
static mo_isa detect(char *why, size_t size)
{
    snprintf(why, size, "%s", "");
    return MO_ISA_NEON;
}
#else
static mo_isa detect(char *why, size_t size)
{
    snprintf(why, size, "other forms are for x86-64 and AArch64");
    return MO_ISA_SCALAR;
}
#endif

/* What MEMOPT_ISA means where `best` is the best there is, or -1. A family's name is the best of
 * it that runs, else its lowest. */
static int isa_by_name(const char *name, mo_isa best)
{
    int found = -1;
    for (int isa = MO_ISA_SCALAR; isa < MO_ISA_COUNT; isa++) {
        if (strcmp(name, isa_names[isa]) == 0)
            return isa;
        if (strcmp(name, mo_isa_family((mo_isa)isa)) == 0 && (found < 0 || isa <= (int)best))
            found = isa;
    }
    return found;
}

mo_isa mo_cpu_choose_isa(char *why, size_t size)
{
    char limit[MO_ISA_WHY] = "";
    mo_isa best = detect(limit, sizeof limit);
    const char *name = getenv("MEMOPT_ISA");
    int wanted = name != NULL && name[0] != '\0' ? isa_by_name(name, best) : (int)best;
    if (wanted < 0)
        mo_log(MEMOPT_LOG_WARNING, "cpu: MEMOPT_ISA=%s is not " NAMES "; %s is used", name,
               isa_names[best]);
    else if (wanted > (int)best)
        mo_log(MEMOPT_LOG_WARNING, "cpu: MEMOPT_ISA=%s cannot run here (%s); %s is used", name,
               limit, isa_names[best]);
    else if (wanted < (int)best) {
        snprintf(limit, sizeof limit, "MEMOPT_ISA=%s; this machine has %s", name, isa_names[best]);
        best = (mo_isa)wanted;
    }
    snprintf(why, size, "%s", limit);
    return best;
}

mo_isa mo_cpu_best_isa(void)
{
    char why[MO_ISA_WHY];
    return mo_cpu_choose_isa(why, sizeof why);
}

mo_cpu_kernel mo_cpu_form(const mo_kernel *kernel, mo_isa isa)
{
    int best = (int)isa;
    while (kernel->cpu[best] == NULL)
        best--;
    return kernel->cpu[best];
}

/* The processor's own name, 48 characters from three leaves. */
void mo_cpu_model(char *name, size_t size)
{
    char text[49] = "";
#if defined(__x86_64__)
    unsigned words[12] = {0};
    if ((unsigned)__get_cpuid_max(0x80000000U, NULL) >= 0x80000004U)
        for (unsigned leaf = 0; leaf < 3; leaf++)
            __get_cpuid(0x80000002U + leaf, &words[4 * leaf], &words[4 * leaf + 1],
                        &words[4 * leaf + 2], &words[4 * leaf + 3]);
    memcpy(text, words, sizeof words);
    text[sizeof words] = '\0';
#endif
    const char *start = text + strspn(text, " ");
    size_t length = strlen(start);
    while (length > 0 && start[length - 1] == ' ')
        length--;
    if (length == 0) {
        start = "CPU";
        length = 3;
    }
    length = length < size - 1 ? length : size - 1;
    memcpy(name, start, length);
    name[length] = '\0';
}
