/* Translated kernels (tests/ptx, tests/gcn) are one text, compiled in parts or, without PART,
 * whole. BY_WARP: a run is a whole warp's. */
#ifndef MEMOPT_TEST_SIM_PARTS_H
#define MEMOPT_TEST_SIM_PARTS_H

#include "../sim/kernels.h"

#include <stdio.h>
#include <stdlib.h>

#define HIDDEN __attribute__((visibility("hidden")))
#if !defined PART || PART == 0
#define MO_FIRST_PART 1
#define SHARED HIDDEN
#else
#define MO_FIRST_PART 0
#define SHARED extern HIDDEN
#endif

SHARED const mo_sim_calls *calls;
SHARED int approximation; /* of results that a device only approximates: how far they are off */

extern HIDDEN const char __ehdr_start, _end;
extern HIDDEN char translated_ran[];
extern HIDDEN const mo_sim_kernel translated_kernels[];
extern HIDDEN const uint64_t translated_digests[];

#if MO_FIRST_PART
__attribute__((visibility("default"))) const mo_sim_loaded *mo_sim_load(const mo_sim_calls *given);
const mo_sim_loaded *mo_sim_load(const mo_sim_calls *given)
{
    static mo_sim_loaded loaded;
    const char *away = getenv("MEMOPT_SIM_APPROXIMATION");
    loaded = (mo_sim_loaded){translated_kernels, &__ehdr_start, &_end, translated_digests, BY_WARP};
    approximation = away == NULL ? 0 : atoi(away);
    calls = given;
    return &loaded;
}

/* The names of the kernels that ran, into the file that MEMOPT_SIM_RAN names. */
__attribute__((destructor)) static void tell_what_ran(void)
{
    const char *path = getenv("MEMOPT_SIM_RAN");
    FILE *file = path != NULL ? fopen(path, "w") : NULL;
    for (int i = 0; file != NULL && translated_kernels[i].name != NULL; i++)
        if (translated_ran[i])
            fprintf(file, "%s\n", translated_kernels[i].name);
    if (file != NULL)
        fclose(file);
}
#endif

#endif
