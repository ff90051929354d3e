/* hipRTC: clang's options, and what clang says. */
#include "rtc.h"

#include "gfx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RTC_EXPORT __attribute__((visibility("default")))

const char *const rtc_environment = "MEMOPT_SIM_HIPRTC";

enum { EM_AMDGPU_ = 224, ABI_VERSION_OF_V4 = 2 };

/* Options go to clang as they are, which refuses what it does not know. */
int rtc_read_options(int count, const char *const *options, rtc_job *job)
{
    static const char *const clang[] = {
        "-x",        "hip",       "--offload-device-only", "--no-gpu-bundle-output", "-nogpulib",
        "-nogpuinc", "-nostdinc", "-nobuiltininc",         "-D__HIPCC_RTC__",        "-c",
        NULL};
    static const char *const host[] = {"-x",         "c++",          "-fsyntax-only",
                                       "-nostdinc",  "-DMO_GPU_SIM", "-D__HIPCC_RTC__",
                                       "-std=c++17", "-w",           NULL};
    int has_clang = RTC_CLANG[0] != '\0';
    rtc_argument(job, has_clang ? RTC_CLANG : RTC_HOST_COMPILER);
    for (const char *const *at = has_clang ? clang : host; *at != NULL; at++)
        rtc_argument(job, *at);
    for (int i = 0; i < count; i++) {
        int target = strncmp(options[i], "--offload-arch=", 15) == 0;
        if (target)
            snprintf(job->target, sizeof job->target, "%s", options[i] + 15);
        int definition = rtc_definition(job, options[i]);
        if (has_clang || definition)
            rtc_argument(job, options[i]);
        else if (!target && strncmp(options[i], "-std=c++", 8) != 0 &&
                 strncmp(options[i], "-O", 2) != 0 && strcmp(options[i], "-w") != 0 &&
                 strncmp(options[i], "-ffp-contract=", 14) != 0) {
            snprintf(job->problem, sizeof job->problem, "error: unknown argument: '%s'\n",
                     options[i]);
            return RTC_COMPILATION;
        }
    }
    job->target[strcspn(job->target, ":")] = '\0';
    if (job->target[0] == '\0' || (!has_clang && sim_gfx_machine(job->target) == 0)) {
        snprintf(job->problem, sizeof job->problem, "error: invalid target ID '%s'\n", job->target);
        return RTC_COMPILATION;
    }
    return RTC_OK;
}

int rtc_finish(rtc_program *p, const rtc_job *job, char *output, size_t bytes)
{
    size_t name_bytes = 0;
    free(p->code);
    p->code = NULL;
    if (output != NULL && bytes != 0) {
        p->code = malloc(bytes);
        if (p->code == NULL)
            return RTC_OUT_OF_MEMORY;
        memcpy(p->code, output, bytes);
        p->code_bytes = bytes;
        return RTC_OK;
    }
    char *names = rtc_names(p->source, "\nMO_", job->only, &name_bytes);
    if (names != NULL)
        p->code = rtc_container(EM_AMDGPU_, ABI_VERSION_OF_V4, sim_gfx_machine(job->target), names,
                                name_bytes, &p->code_bytes);
    free(names);
    return p->code != NULL ? RTC_OK : RTC_OUT_OF_MEMORY;
}

/* --- the interface ---------------------------------------------------------------------------- */

#define CALL(name, parameters)                                                                     \
    RTC_EXPORT int name parameters;                                                                \
    RTC_EXPORT int name parameters

CALL(hiprtcVersion, (int *major, int *minor))
{
    if (major == NULL || minor == NULL)
        return RTC_INVALID_INPUT;
    *major = 9; /* whatever ROCm's version is */
    *minor = 0;
    return RTC_OK;
}

CALL(hiprtcCreateProgram, (rtc_program * *out, const char *source, const char *name, int headers,
                           const char *const *texts, const char *const *names))
{
    (void)texts, (void)names;
    return rtc_create(out, source, name, headers);
}

CALL(hiprtcDestroyProgram, (rtc_program * *program))
{
    return rtc_destroy(program);
}

CALL(hiprtcCompileProgram, (rtc_program * program, int count, const char *const *options))
{
    return rtc_compile(program, count, options);
}

CALL(hiprtcGetProgramLogSize, (rtc_program * program, size_t *out))
{
    return rtc_size(program, RTC_LOG, out);
}

CALL(hiprtcGetProgramLog, (rtc_program * program, char *out))
{
    return rtc_get(program, RTC_LOG, out);
}

CALL(hiprtcGetCodeSize, (rtc_program * program, size_t *out))
{
    return rtc_size(program, RTC_CODE, out);
}

CALL(hiprtcGetCode, (rtc_program * program, char *out))
{
    return rtc_get(program, RTC_CODE, out);
}

RTC_EXPORT const char *hiprtcGetErrorString(int code);
RTC_EXPORT const char *hiprtcGetErrorString(int code)
{
    static const char *const names[] = {
        "HIPRTC_SUCCESS",
        "HIPRTC_ERROR_OUT_OF_MEMORY",
        "HIPRTC_ERROR_PROGRAM_CREATION_FAILURE",
        "HIPRTC_ERROR_INVALID_INPUT",
        "HIPRTC_ERROR_INVALID_PROGRAM",
        "HIPRTC_ERROR_INVALID_OPTION",
        "HIPRTC_ERROR_COMPILATION",
    };
    const char *name = rtc_error_name(code, names, sizeof names / sizeof names[0]);
    return name[0] != '\0' ? name : "HIPRTC_ERROR_UNKNOWN";
}
