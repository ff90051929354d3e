/* The forms of a kernel that this machine runs, MEMOPT_ISA permitting. */
#ifndef TEST_SUPPORT_FORMS_H
#define TEST_SUPPORT_FORMS_H

#include "device/cpu/cpu.h"

/* The lowest set above `isa` that the kernel has a form for, or MO_ISA_COUNT. */
static inline int form_above(const mo_kernel *kernel, int isa)
{
    static atomic_int best = -1; /* asking the processor is slow under some hypervisors */
    if (best < 0)
        best = (int)mo_cpu_best_isa();
    while (++isa <= best)
        if (kernel->cpu[isa] != NULL)
            return isa;
    return MO_ISA_COUNT;
}

#define FOR_EACH_FORM(isa, kernel)                                                                 \
    for (int isa = MO_ISA_SCALAR; isa < MO_ISA_COUNT; isa = form_above(kernel, isa))
/* All but the scalar form. */
#define FOR_EACH_WIDE_FORM(isa, kernel)                                                            \
    for (int isa = form_above(kernel, MO_ISA_SCALAR); isa < MO_ISA_COUNT;                          \
         isa = form_above(kernel, isa))

#endif
