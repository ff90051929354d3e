/* hipRTC: clang's options, and what clang says. */
#include "rtc.h"

#include "gfx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

RTC_CALL(hiprtcVersion, (int *major, int *minor))
{
    if (major == NULL || minor == NULL)
        return RTC_INVALID_INPUT;
    *major = 9; /* whatever ROCm's version is */
    *minor = 0;
    return RTC_OK;
}

RTC_PROGRAMS(hiprtc, "HIPRTC", "_ERROR_UNKNOWN")
RTC_PART(hiprtcGetCode, RTC_CODE)
