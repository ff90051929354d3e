/*
 * Choosing OpenBLAS's kernels (blas.h).
 */
#include "blas.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cblas.h>

static int has_avx512(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    return 0;
#endif
}

void blas_choose_kernels(char **argv)
{
    const char *core = openblas_get_corename();
    int falls_back = core && (strcmp(core, "Haswell") == 0 || strcmp(core, "Zen") == 0);
    if (!falls_back || !has_avx512() || getenv("OPENBLAS_CORETYPE"))
        return; /* the variable is also what ends this: the new program finds it set */
    if (setenv("OPENBLAS_CORETYPE", "SkylakeX", 1) == 0)
        execv("/proc/self/exe", argv);
    unsetenv("OPENBLAS_CORETYPE"); /* no /proc: go on as we are */
}
