/*
 * NVRTC as its version RTC_MAJOR.RTC_MINOR is: which targets it knows, which options it takes, what
 * it says to others. With RTC_WITHOUT_CUBIN it is one from before CUDA 11.1.
 */
#include "rtc.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const rtc_environment = "MEMOPT_SIM_NVRTC";

static const int targets[] = {RTC_TARGETS};
enum { TARGET_COUNT = sizeof targets / sizeof targets[0], EM_CUDA_ = 190 };

static int knows(int target)
{
    for (int i = 0; i < TARGET_COUNT; i++)
        if (targets[i] == target)
            return 1;
    return 0;
}

/* The value of "--long=value" or "-short=value", or NULL. */
static const char *value_of(const char *option, const char *longer, const char *shorter)
{
    const char *at = option + (strncmp(option, "--", 2) == 0 ? 2 : 1);
    const char *name = at - option == 2 ? longer : shorter;
    size_t length = strlen(name);
    if (option[0] != '-')
        return NULL;
    if (strncmp(at, name, length) == 0 && at[length] == '=')
        return at + length + 1;
    /* the long names with one dash are taken too */
    length = strlen(longer);
    return strncmp(at, longer, length) == 0 && at[length] == '=' ? at + length + 1 : NULL;
}

static int read_target(const char *value, rtc_job *job)
{
    const char *number = strncmp(value, "sm_", 3) == 0        ? value + 3
                         : strncmp(value, "compute_", 8) == 0 ? value + 8
                                                              : "";
    if (!isdigit((unsigned char)number[0]) || strlen(number) != strspn(number, "0123456789") ||
        !knows(atoi(number))) {
        snprintf(job->problem, sizeof job->problem,
                 "nvrtc: error: invalid value for --gpu-architecture (-arch)\n");
        return RTC_INVALID_OPTION;
    }
    job->no_code = value[0] == 'c';
    snprintf(job->target, sizeof job->target, "%s", value);
    return RTC_OK;
}

static int read_flag(const char *option, const char *value, rtc_job *job)
{
    if (strcmp(value, "true") == 0 || strcmp(value, "false") == 0)
        return RTC_OK;
    snprintf(job->problem, sizeof job->problem, "nvrtc: error: %s expects true or false\n", option);
    return RTC_INVALID_OPTION;
}

static int read_option(const char *option, rtc_job *job)
{
    static const char *const flags[] = {"fmad", "prec-div", "prec-sqrt", "ftz"};
    static const char *const standards[] = {"c++03", "c++11", "c++14", "c++17", "c++20"};
    const char *value = value_of(option, "gpu-architecture", "arch");
    if (value != NULL)
        return read_target(value, job);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if ((value = value_of(option, flags[i], flags[i])) != NULL)
            return read_flag(option, value, job);
    if ((value = value_of(option, "std", "std")) != NULL) {
        for (size_t i = 0; i < sizeof standards / sizeof standards[0]; i++)
            if (strcmp(value, standards[i]) == 0)
                return RTC_OK;
        snprintf(job->problem, sizeof job->problem,
                 "nvrtc: error: invalid value for --std(-std)\n");
        return RTC_INVALID_OPTION;
    }
    if (rtc_definition(job, option) || strcmp(option, "--disable-warnings") == 0 ||
        strcmp(option, "-w") == 0)
        return RTC_OK;
    snprintf(job->problem, sizeof job->problem, "nvrtc: error: unrecognized option %s found\n",
             option);
    return RTC_INVALID_OPTION;
}

/* What NVRTC takes is checked here; what clang gets for it is fixed. */
int rtc_read_options(int count, const char *const *options, rtc_job *job)
{
    static const char *const clang[] = {"-x",
                                        "cuda",
                                        "--cuda-device-only",
                                        "-nocudainc",
                                        "-nocudalib",
                                        "-nostdinc",
                                        "-nobuiltininc",
                                        "-Wno-unknown-cuda-version",
                                        "-D__CUDACC_RTC__",
                                        "-std=c++17",
                                        "-ffp-contract=off",
                                        "-w",
                                        "-S",
                                        NULL};
    static const char *const host[] = {
        "-x", "c++", "-fsyntax-only", "-nostdinc", "-D__CUDACC_RTC__", "-DMO_GPU_SIM", "-std=c++17",
        "-w", NULL};
    snprintf(job->target, sizeof job->target, "sm_%d", targets[0]);
    for (int i = 0; i < count; i++) {
        int code = read_option(options[i], job);
        if (code != RTC_OK)
            return code;
    }
    int has_clang = RTC_CLANG[0] != '\0';
    rtc_argument(job, has_clang ? RTC_CLANG : RTC_HOST_COMPILER);
    for (const char *const *at = has_clang ? clang : host; *at != NULL; at++)
        rtc_argument(job, *at);
    /* clang may not know the newest: this is a proof of the source, not code that runs. */
    int old = atoi(strchr(job->target, '_') + 1) < 75;
    if (old && RTC_MAJOR == 12) /* which --disable-warnings does not silence */
        snprintf(job->problem, sizeof job->problem,
                 "nvrtc: warning: Architectures prior to '<compute/sm>_75' are deprecated and may "
                 "be removed in a future release\n");
    if (has_clang) {
        rtc_argument(job, old ? "--cuda-gpu-arch=sm_70" : "--cuda-gpu-arch=sm_75");
        rtc_argument(job, "--cuda-feature=+ptx63");
    }
    for (int i = 0; i < count; i++)
        if (strncmp(options[i], "-D", 2) == 0)
            rtc_argument(job, options[i]);
    return RTC_OK;
}

/* Without clang: as much of a PTX text as the simulated driver reads. */
static char *make_text(const char *target, const char *names, size_t name_bytes)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (file == NULL)
        return NULL;
    fprintf(file, ".version 6.3\n.target sm_%s\n", strchr(target, '_') + 1);
    for (const char *name = names; name < names + name_bytes; name += strlen(name) + 1)
        fprintf(file, ".visible .entry %s()\n", name);
    fclose(file);
    return text;
}

int rtc_finish(rtc_program *p, const rtc_job *job, char *output, size_t bytes)
{
    size_t name_bytes = 0;
    char *names = output != NULL && bytes != 0
                      ? rtc_names(output, ".entry ", NULL, &name_bytes)
                      : rtc_names(p->source, "\nMO_", job->only, &name_bytes);
    if (names == NULL)
        return RTC_OUT_OF_MEMORY;
    free(p->text);
    p->text =
        output != NULL && bytes != 0 ? strdup(output) : make_text(job->target, names, name_bytes);
    p->text_bytes = p->text != NULL ? strlen(p->text) + 1 : 0;
    if (!job->no_code) {
        uint32_t flags = (uint32_t)atoi(job->target + 3) << 8;
        free(p->code);
        p->code = rtc_container(EM_CUDA_, 8, flags, names, name_bytes, &p->code_bytes);
    }
    free(names);
    return p->text == NULL || (!job->no_code && p->code == NULL) ? RTC_OUT_OF_MEMORY : RTC_OK;
}

/* --- the interface ---------------------------------------------------------------------------- */

RTC_CALL(nvrtcVersion, (int *major, int *minor))
{
    if (major == NULL || minor == NULL)
        return RTC_INVALID_INPUT;
    *major = RTC_MAJOR;
    *minor = RTC_MINOR;
    return RTC_OK;
}

RTC_PROGRAMS(nvrtc, "NVRTC", "_ERROR unknown")
RTC_PART(nvrtcGetPTX, RTC_TEXT)

#if !defined(RTC_WITHOUT_CUBIN)
RTC_PART(nvrtcGetCUBIN, RTC_CODE)

RTC_CALL(nvrtcGetNumSupportedArchs, (int *out))
{
    if (out == NULL)
        return RTC_INVALID_INPUT;
    *out = TARGET_COUNT;
    return RTC_OK;
}

RTC_CALL(nvrtcGetSupportedArchs, (int *out))
{
    if (out == NULL)
        return RTC_INVALID_INPUT;
    memcpy(out, targets, sizeof targets);
    return RTC_OK;
}
#endif
