/*
 * Writes the tables of the 8-bit and 4-bit codes as C, for the machine that builds:
 *
 *   make_tables tables | planes | lines >FILE
 *
 * tables: the dynamic maps, their thresholds, and the cells of the GPU's search; planes: the same
 * as byte planes, and the lines of AVX-512's search; lines: those of AVX2's, with the bound of
 * their error. Floats are rounded to f32 after every operation: that makes the maps the canonical
 * ones, which a checksum tells. Its status is 1 where it cannot make a table.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ONE = 0x3f80 }; /* upper half of 1.0f */

/* A map of 256 levels; those from 0 on have the codes that thresholds part. */
typedef struct map {
    const char *name;
    int is_signed;
    uint32_t least; /* upper halves of |x| below this need no cell of their own */
    uint32_t checksum;
    float all[256];
    const float *levels;
    uint32_t count; /* of levels */
    uint32_t
        threshold[256]; /* [g]: bits of the smallest f32 above the midpoint of levels g - 1 and g */
} map;

static void need(int condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "make_tables: %s\n", what);
    exit(1);
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double value_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double f32(double x)
{
    volatile float rounded = (float)x;
    return rounded;
}

/* --- maps ------------------------------------------------------------------------------------ */

/* 0.1 to 1 in n points, from both ends towards the middle, as torch.linspace computes it. */
static double edge(int j, int n)
{
    const double start = f32(0.1), step = f32(f32(1.0 - start) / (n - 1));
    return j < n / 2 ? f32(start + f32(step * j)) : f32(1.0 - f32(step * (n - 1 - j)));
}

static int compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static uint32_t checksum_of(const float values[256])
{
    uint32_t crc = ~0u;
    for (int i = 0; i < 256; i++)
        for (int k = 0; k < 32; k++) {
            const uint32_t bit = (bits_of(values[i]) >> k & 1) ^ (crc & 1);
            crc = crc >> 1 ^ (bit ? 0xedb88320u : 0);
        }
    return ~crc;
}

static void find_thresholds(map *m)
{
    m->threshold[0] = 0;
    for (uint32_t g = 1; g < m->count; g++) {
        const double middle = ((double)m->levels[g - 1] + (double)m->levels[g]) / 2;
        uint32_t bits = bits_of((float)middle);
        while (value_of(bits) > middle)
            bits--;
        while (value_of(bits) <= middle)
            bits++;
        m->threshold[g] = bits;
    }
    if (!m->is_signed)
        m->threshold[1] = 1; /* a positive value never gets code 0 */
}

static void fill_map(map *m)
{
    static const double decades[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
    int n = 0;
    m->all[n++] = 0.0f;
    m->all[n++] = 1.0f;
    for (int i = 0; i < 7; i++) {
        const int count = m->is_signed ? 1 << i : 2 << i;
        for (int j = 0; j < count; j++) {
            const double middle = f32(f32(edge(j, count + 1) + edge(j + 1, count + 1)) / 2);
            const float x = (float)(f32(decades[i]) * middle);
            m->all[n++] = x;
            if (m->is_signed)
                m->all[n++] = -x;
        }
    }
    qsort(m->all, 256, sizeof *m->all, compare);
    need(checksum_of(m->all) == m->checksum, "a map is not the canonical one");
    m->levels = m->all;
    while (*m->levels < 0)
        m->levels++;
    m->count = (uint32_t)(m->all + 256 - m->levels);
    find_thresholds(m);
}

static uint32_t code_of(const map *m, uint32_t bits)
{
    uint32_t code = 0;
    while (code + 1 < m->count && bits >= m->threshold[code + 1])
        code++;
    return code;
}

/* The first and the last code of the floats with an upper half. */
static void codes_of_cell(const map *m, uint32_t upper, uint32_t codes[2])
{
    codes[0] = code_of(m, upper == m->least ? 0 : upper << 16);
    codes[1] = code_of(m, upper << 16 | 0xffff);
    need(codes[1] - codes[0] <= 1, "a cell has two thresholds");
}

/* --- the GPU's steps ------------------------------------------------------------------------- */

typedef uint32_t (*code_function)(const map *m, uint32_t z);

/* The first z of the last code among `count` from `first` on; the code grows once at most. */
static uint32_t last_step(const map *m, code_function code, uint32_t first, uint32_t count)
{
    uint32_t low = 0, high = count - 1;
    const uint32_t last = code(m, first + high);
    need(last - code(m, first) <= 1, "a code grows by more than one");
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (code(m, first + middle) == last)
            high = middle;
        else
            low = middle + 1;
    }
    return first + low;
}

/* The word with ((z << shift) + word) >> 24 = code(z). */
static uint32_t step_word(const map *m, code_function code, uint32_t first, int bits, int shift)
{
    const uint32_t count = (uint32_t)1 << bits;
    return (code(m, first + count - 1) << 24) - (last_step(m, code, first, count) << shift);
}

static uint32_t signed_code(const map *m, uint32_t z)
{
    const uint32_t bits = z ^ 0x3f800000u;
    if (bits >> 31 == 0)
        return 127 + code_of(m, bits);
    const uint32_t magnitude = code_of(m, ~bits & 0x7fffffffu);
    return magnitude < 127 ? 127 - magnitude : 0;
}

static uint32_t unsigned_code(const map *m, uint32_t bits)
{
    const uint32_t code = code_of(m, bits);
    return code > 1 ? code : 1;
}

/* By (z >> 17) + 1472, with the bits of 1.0 inverted in z, which is otherwise the bits of a
 * magnitude from the first cell to 1, all inverted for negative numbers: within a cell the number
 * grows with z, and all cells are between -1472 and 1471. */
static void signed_steps(const map *m, uint32_t steps[2944])
{
    for (uint32_t cell = m->least >> 1; cell <= ONE >> 1; cell++) {
        const uint32_t both[] = {cell ^ 0x1fc0, cell ^ 0x603f};
        for (int k = 0; k < 2; k++)
            steps[(both[k] + 1472) % 32768] = step_word(m, signed_code, both[k] << 17, 17, 7);
    }
}

/* --- the lines of AVX-512 -------------------------------------------------------------------- */

typedef struct sure_line {
    int64_t slope, offset, room;
} sure_line;

/* Bounds of a code, of 128 cells or one. */
typedef struct bound {
    int64_t low, high;
} bound;

/* low * 256 <= slope * k + offset < (high + 1) * 256 for all k from first to end, with the most
 * room; returns 0 if there is none. */
static int line_for(const bound *bounds, int first, int end, sure_line *line)
{
    line->room = -1;
    for (int64_t slope = 0; slope < 1024; slope++) {
        int64_t low = INT64_MIN, high = INT64_MAX;
        for (int k = first; k < end && low <= high; k++) {
            const int64_t least = bounds[k].low * 256 - slope * k;
            const int64_t most = bounds[k].high * 256 + 255 - slope * k;
            low = least > low ? least : low;
            high = most < high ? most : high;
        }
        if (low <= high && high - low > line->room)
            *line = (sure_line){slope, (int64_t)floor((double)(low + high) / 2), high - low};
    }
    return line->room >= 0;
}

/* Two lines whose minimum lies within the bounds for each cell. */
static void lines_of_octave(const bound *bounds, int count, sure_line two[2])
{
    two[1] = (sure_line){0, 0xffff, 0};
    if (line_for(bounds, 0, count, &two[0]))
        return;
    for (int split = 1; split < count; split++) {
        int fits = line_for(bounds, 0, split, &two[0]) && line_for(bounds, split, count, &two[1]);
        for (int k = 0; k < count && fits; k++) {
            const int64_t a = two[0].slope * k + two[0].offset,
                          b = two[1].slope * k + two[1].offset;
            const int64_t least = a < b ? a : b;
            fits = (a > b ? a : b) < 65536 && least >= 0 && bounds[k].low <= least >> 8 &&
                   least >> 8 <= bounds[k].high;
        }
        if (fits)
            return;
    }
    need(0, "no two lines fit an octave");
}

/* Slope and offset of both lines by the low five bits of the exponent; signed: for code G - 1. */
static void find_lines(const map *m, uint32_t out[4][32])
{
    for (uint32_t exponent = m->least >> 7; exponent < 128; exponent++) {
        const int count = exponent < 127 ? 128 : 1;
        bound bounds[128];
        sure_line two[2];
        for (int k = 0; k < count; k++) {
            uint32_t codes[2];
            codes_of_cell(m, (exponent << 7) + (uint32_t)k, codes);
            const uint32_t next = codes[0] + 1 < m->count ? codes[0] + 1 : m->count - 1;
            bounds[k] = (bound){(codes[1] > 1 ? codes[1] : 1) - m->is_signed,
                                (next > 1 ? next : 1) - m->is_signed};
        }
        lines_of_octave(bounds, count, two);
        for (int n = 0; n < 2; n++) {
            out[2 * n][exponent & 31] = (uint32_t)two[n].slope;
            out[2 * n + 1][exponent & 31] =
                (uint32_t)(two[n].offset - two[n].slope * (int64_t)(exponent << 7)) & 0xffff;
        }
    }
}

/* --- the code as a real number, for AVX2 -------------------------------------------------------
 *
 * A decade i (0 to 6) of the map has K codes from c0 on at distances of d, so its inner thresholds
 * lie on a line: t_i(y) = c0 - K / 9 + y / d is c at the threshold of code c. The threshold of c0
 * itself, between two decades, lies at 10^(i-7) + d_(i-1): where the line of decade i - 1 reaches
 * c0 + 1. With i added to the line of each decade ("shifted" codes) that is the shifted c0, the
 * lines form a concave curve, and the smallest of them all, rounded down, is the shifted code; two
 * shifted codes mean c0 - 1. Unit of what follows: 2^-16 of a code.
 */

#define UNIT 65536.0

typedef struct real_line {
    double slope, offset;
} real_line;

/* One map's lines: `fast` from decade `lowest` on and of the top code, `low` below and of code 1.
 */
typedef struct real_lines {
    const map *m;
    int lowest, bias; /* of the shifted codes of fast lines, so that they fit into a byte */
    int top, low_top; /* the last code of all, and of the low lines */
} real_lines;

static int codes_of_decade(const map *m, int i)
{
    return m->is_signed ? 1 << i : 2 << i;
}

static int first_of_decade(const map *m, int i)
{
    return codes_of_decade(m, i) - (m->is_signed ? 0 : 1);
}

static real_line line_of_decade(const map *m, int i, int shift)
{
    const double k = codes_of_decade(m, i);
    return (real_line){UNIT * k * pow(10, 7 - i) / 9,
                       (first_of_decade(m, i) - k / 9 + i - shift) * UNIT};
}

/* Reaches the top code at its threshold, and half a code more at 1. */
static real_line top_line(const map *m, int shift)
{
    const double k = codes_of_decade(m, 6), slope = UNIT / 2 * k / 0.225;
    return (real_line){slope,
                       (first_of_decade(m, 6) + k + 6 - shift) * UNIT - slope + slope * 0.225 / k};
}

/* From 0.1 at 0 to 1 at the threshold of code 1 of the signed map. */
static real_line zero_line(const map *m)
{
    return (real_line){0.9 / value_of(m->threshold[1]) * UNIT, UNIT / 10};
}

static int decade_of(const map *m, int code)
{
    int i = 6;
    while (i > 0 && first_of_decade(m, i) > code)
        i--;
    return i;
}

/* Of the line that has the threshold of a code. */
static real_line line_of_code(const real_lines *r, int code, int fast)
{
    const int shift = fast ? r->lowest + r->bias : 0;
    int i = decade_of(r->m, code);
    if (fast && code == r->top)
        return top_line(r->m, shift);
    if (!fast && r->m->is_signed && code == 1)
        return zero_line(r->m);
    if (i > 0 && first_of_decade(r->m, i) == code)
        i--;
    return line_of_decade(r->m, i, shift);
}

static double ulp(double x)
{
    int exponent;
    frexp(x, &exponent);
    return ldexp(1.0, exponent - 24);
}

/* How far the number computed for a y may be on the wrong side of the threshold of a code from
 * first to last: where the threshold really lies, three roundings of the slope's part (the slope,
 * its product with the inverse, and y itself, which is not computed), and those of the offset, the
 * fused addition and the conversion to an integer, all but the first at most half a unit together
 * with the distance of numbers there. */
static double error_bound(const real_lines *r, int first, int last, int fast)
{
    double worst = 0;
    for (int c = first; c <= last; c++) {
        const real_line l = line_of_code(r, c, fast);
        const double above = value_of(r->m->threshold[c]), below = value_of(r->m->threshold[c] - 1);
        const int shift = fast ? r->lowest + r->bias : 0;
        const double goal = (c + decade_of(r->m, c) - shift) * UNIT;
        const double over = goal - (l.slope * above + l.offset),
                     under = l.slope * below + l.offset - goal;
        const double rounded = l.slope * above * 3.01 / 16777216 + (ulp(l.offset) + ulp(goal)) / 2;
        worst = fmax(worst, fmax(over, under) + rounded + 0.5);
    }
    return ceil(worst);
}

/* --- text ------------------------------------------------------------------------------------ */

static void put_words(const char *kind, const char *name, const uint32_t *words, uint32_t count,
                      uint32_t room)
{
    printf("MO_LOOKUP_TABLE %s %s[%u] = {", kind, name, (unsigned)room);
    for (uint32_t i = 0; i < room; i++)
        printf("%s0x%x,", i % 8 ? " " : "\n    ", (unsigned)(i < count ? words[i] : 0));
    printf("\n};\n\n");
}

static const char *named(const char *what, const map *m)
{
    static char name[64];
    snprintf(name, sizeof name, "mo_%s_%s", what, m->name);
    return name;
}

static void put_tables(const map *m)
{
    static uint32_t words[2944];
    for (int i = 0; i < 256; i++)
        words[i] = bits_of(m->all[i]);
    printf("/* The map, as f32 bits; by magnitude code: the smallest f32 that gets it; by the "
           "upper half "
           "of |x| - 0x%04x: the\n * only magnitude code whose threshold may lie in the cell; the "
           "same "
           "cells as one word each. */\n",
           (unsigned)m->least);
    put_words("uint32_t", named("map", m), words, 256, 256);
    put_words("uint32_t", named("threshold", m), m->threshold, m->count, (m->count + 3) / 4 * 4);
    const uint32_t cells = ONE - m->least + 1;
    for (uint32_t i = 0; i < cells; i++) {
        uint32_t codes[2];
        codes_of_cell(m, m->least + i, codes);
        words[i] = codes[1] > 1 ? codes[1] : 1;
    }
    put_words("uint8_t", named("cell", m), words, cells, (cells + 15) / 16 * 16);
    memset(words, 0, sizeof words);
    if (m->is_signed)
        signed_steps(m, words);
    for (uint32_t i = 0; i < cells && !m->is_signed; i++)
        words[i] = step_word(m, unsigned_code, (m->least + i) << 16, 16, 8);
    const uint32_t steps = m->is_signed ? 2944 : (cells + 3) / 4 * 4;
    put_words("uint32_t", named("steps", m), words, steps, steps);
}

/* Four planes of the bytes of some words, or rows of words. */
static void put_rows(const char *kind, const char *name, const uint32_t *words, int count, int row)
{
    printf("MO_PLANES const %s %s[4][%d] = {\n", kind, name, count);
    for (int p = 0; p < 4; p++) {
        printf("    {");
        for (int i = 0; i < count; i++)
            printf("%s0x%x,", i % 16 ? " " : "\n     ",
                   (unsigned)(row ? words[p * row + i] : words[i] >> 8 * p & 0xff));
        printf("\n    },\n");
    }
    printf("};\n\n");
}

static void put_planes(const map *m)
{
    uint32_t words[256], lines[4][32] = {{0}};
    const int count = m->is_signed ? 128 : 256;
    for (int i = 0; i < count; i++)
        words[i] = bits_of(m->levels[i]);
    put_rows("uint8_t", named("plane_map", m), words, count, 0);
    put_rows("uint8_t", named("plane_threshold", m), m->threshold + m->is_signed, count, 0);
    find_lines(m, lines);
    put_rows("uint16_t", named("lines", m), lines[0], 32, 32);
}

static void put_floats(const double *values, int count)
{
    for (int i = 0; i < count; i++)
        printf("%s%.9g%s", i ? ", " : "    {", f32(values[i]),
               f32(values[i]) == floor(f32(values[i])) && fabs(f32(values[i])) < 1e9 ? ".0f" : "f");
    printf("},\n");
}

/* Shifted codes from which on one is to be taken off, in a comparison of bytes: 256 is never met.
 */
static void put_falls(const real_lines *r, int first, int last, int shift)
{
    for (int n = 0; n < 4; n++) {
        const int i = first + 1 + n;
        printf("%s%d", n ? ", " : "    {",
               i <= last ? first_of_decade(r->m, i) + i - 1 - shift : 256);
    }
    printf("},\n");
}

static void put_lines(const map *m)
{
    real_lines r = {.m = m, .lowest = m->is_signed ? 3 : 2, .bias = m->is_signed ? 4 : 5};
    r.top = (int)m->count - 1;
    r.low_top = first_of_decade(m, r.lowest);
    const double fast_bound = error_bound(&r, r.low_top + 1, r.top, 1);
    const double low_bound = error_bound(&r, m->is_signed ? 1 : 2, r.low_top, 0);
    const double epsilon = fmax(fast_bound, low_bound);
    const int fast = 8 - r.lowest, shift = r.lowest + r.bias;
    double slope[6], offset[6], low_slope[4], low_offset[4];
    for (int n = 0; n < fast; n++) {
        const real_line l =
            n + 1 < fast ? line_of_decade(m, r.lowest + n, shift) : top_line(m, shift);
        slope[n] = l.slope;
        offset[n] = l.offset + epsilon;
        need(l.slope < 0x1p38 && l.slope > 0x1p22, "a slope times an inverse leaves f32");
    }
    for (int n = 0; n < 4; n++) {
        const real_line l = n < r.lowest   ? line_of_decade(m, n, 0)
                            : m->is_signed ? zero_line(m)
                                           : line_of_decade(m, 0, 0);
        low_slope[n] = l.slope;
        low_offset[n] = l.offset + epsilon;
        need(l.slope < 0x1p38 && l.slope > 0x1p22, "a slope times an inverse leaves f32");
    }
    printf("static const mo_lines mo_lines_%s = {\n    %d,\n", m->name, fast - 1);
    put_floats(slope, fast);
    put_floats(offset, fast);
    put_floats(low_slope, 4);
    put_floats(low_offset, 4);
    printf("    %.1ff,\n    %d, %d, %d,\n", (r.low_top + decade_of(m, r.low_top)) * UNIT + UNIT / 2,
           (int)epsilon, r.bias, r.low_top - r.bias);
    put_falls(&r, r.lowest, 6, shift);
    put_falls(&r, 0, r.lowest, 0);
    printf("};\n\n");
}

int main(int argc, char **argv)
{
    map maps[2] = {{.name = "signed", .is_signed = 1, .least = 105 << 7, .checksum = 0x416941e6},
                   {.name = "unsigned", .least = 106 << 7, .checksum = 0x9495592e}};
    const char *what = argc == 2 ? argv[1] : "";
    const int tables = strcmp(what, "tables") == 0, planes = strcmp(what, "planes") == 0;
    need(tables || planes || strcmp(what, "lines") == 0, "tables, planes or lines");
    printf("/* Made by cmake/make_tables.c. */\n\n");
    if (tables)
        printf("#ifndef MO_BLOCKCODE_TABLES\n#define MO_BLOCKCODE_TABLES\n\n");
    if (planes)
        printf("#define MO_PLANES static __attribute__((aligned(64), unused))\n\n");
    for (int i = 0; i < 2; i++) {
        fill_map(&maps[i]);
        tables ? put_tables(&maps[i]) : planes ? put_planes(&maps[i]) : put_lines(&maps[i]);
    }
    if (tables)
        printf("#endif\n");
    return 0;
}
