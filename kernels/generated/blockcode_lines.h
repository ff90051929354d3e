/* Written by make_blockcode_tables.py; do not edit. See kernels/optim/state_codes_avx2.h. */
#ifndef MO_KERNELS_GENERATED_BLOCKCODE_LINES_H
#define MO_KERNELS_GENERATED_BLOCKCODE_LINES_H

#include "kernels/core/host_device.h"

/* clang-format off */
/* Lines in units of 2^-16 of a shifted code, y = 1 being the absmax; each offset includes
 * epsilon. */
typedef struct mo_lines {
    int decades;                         /* of the fast lines: 4 if signed, else 5 */
    float fast_slope[6], fast_offset[6]; /* decades up to 6, and behind them the top code: the larger */
    float low_slope[4], low_offset[4];   /* the decades below, and zero if signed */
    float low_most;                      /* the most that the low lines give */
    int epsilon;                         /* bound of the error, in the same unit */
    int bias;                            /* shifted code 0 of the fast lines means this */
    int low_top; /* the fast lines tell codes above this one (less the bias) */
    int fast_step[4], low_step[4]; /* shifted codes from which on one is to be taken off */
} mo_lines;

static const mo_lines mo_lines_signed = {
    4,
    {582542208.0f, 116508448.0f, 23301688.0f, 4660338.0f, 9320676.0f},
    {203892.781f, 735462.562f, 1733066.12f, 3662737.25f, -964832.562f},
    {72817778688.0f, 14563555328.0f, 2912711168.0f, 214481420288.0f},
    {58257.2227f, 182047.438f, 364091.875f, 6556.6001f},
    753664.0f,
    3, 4, 4,
    {12, 29, 62, 256},
    {2, 5, 10, 256},
};

static const mo_lines mo_lines_unsigned = {
    5,
    {5825422336.0f, 1165084416.0f, 233016896.0f, 46603376.0f, 9320676.0f, 18641352.0f},
    {72822.7812f, 604392.562f, 1601996.12f, 3531667.25f, 7325473.5f, -1962434.12f},
    {145635557376.0f, 29127110656.0f, 145635557376.0f, 145635557376.0f},
    {50977.4453f, 233021.891f, 50977.4453f, 50977.4453f},
    622592.0f,
    5, 5, 2,
    {10, 27, 60, 125},
    {3, 8, 256, 256},
};

/* clang-format on */
#endif
