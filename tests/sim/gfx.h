/* The machine number of a gfx target in an ELF's flags (LLVM's AMDGPU usage guide). */
#ifndef MEMOPT_SIM_GFX_H
#define MEMOPT_SIM_GFX_H

#include <stddef.h>
#include <string.h>

/* 0 for what is not known. */
static inline unsigned sim_gfx_machine(const char *gfx)
{
    static const struct {
        const char *name;
        unsigned machine;
    } known[] = {{"gfx900", 0x2C},  {"gfx902", 0x2D},  {"gfx904", 0x2E},  {"gfx906", 0x2F},
                 {"gfx908", 0x30},  {"gfx909", 0x31},  {"gfx90c", 0x32},  {"gfx90a", 0x3F},
                 {"gfx940", 0x40},  {"gfx941", 0x4B},  {"gfx942", 0x4C},  {"gfx950", 0x4F},
                 {"gfx1010", 0x33}, {"gfx1011", 0x34}, {"gfx1012", 0x35}, {"gfx1013", 0x42},
                 {"gfx1030", 0x36}, {"gfx1031", 0x37}, {"gfx1032", 0x38}, {"gfx1033", 0x39},
                 {"gfx1034", 0x3E}, {"gfx1035", 0x3D}, {"gfx1036", 0x45}, {"gfx1100", 0x41},
                 {"gfx1101", 0x46}, {"gfx1102", 0x47}, {"gfx1103", 0x44}, {"gfx1150", 0x43},
                 {"gfx1151", 0x4A}, {"gfx1152", 0x55}, {"gfx1200", 0x48}, {"gfx1201", 0x4E}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, gfx) == 0)
            return known[i].machine;
    return 0;
}

#endif
