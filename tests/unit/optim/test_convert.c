/* Imports of other state formats: the bits are those of the public casts and quantisers. */
#include "fixture.h"
#include "optim/crc32.h"
#include "optim/layout.h"

#include <math.h>

enum { PARAMETERS = 3, LARGE = 262144 + 4096 + 33 };

/* The last of a test's counts reaches into a second run of blocks. */
typedef struct setup {
    uint32_t kind, format, split, paged;
} setup;

typedef struct trainer {
    world w;
    memopt_optimizer *o;
    memopt_tensor p[PARAMETERS], g[PARAMETERS];
    setup is;
} trainer;

static const uint64_t usual[PARAMETERS] = {1, 4097, 3000}, large[PARAMETERS] = {33, 256, LARGE};

static trainer make(setup is, const uint64_t *counts, uint64_t min_8bit_size, uint64_t seed)
{
    trainer t;
    const memopt_optimizer_options options = {.kind = is.kind,
                                              .state_format = is.format,
                                              .min_8bit_size = min_8bit_size,
                                              .split_weights = is.split,
                                              .page_bytes = is.paged};
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    float *x = malloc(LARGE * sizeof *x);
    t.w = open_world(MEMOPT_STREAM_ORDER_EAGER, 1);
    t.is = is;
    group.momentum = 0.9;
    t.o = make_optimizer(&t.w, options, &group);
    memopt_dtype dtype = is.split ? MEMOPT_DTYPE_BF16 : MEMOPT_DTYPE_F32;
    for (int i = 0; i < PARAMETERS; i++) {
        for (uint64_t k = 0; k < counts[i]; k++)
            x[k] = normal(&seed) * (float)(1 + k % 7);
        t.p[i] = new_tensor(&t.w, counts[i], dtype, x);
        t.g[i] = new_tensor(&t.w, counts[i], MEMOPT_DTYPE_F32, x);
        (void)add_parameter(&t.w, t.o, &t.p[i]);
    }
    OK(memopt_optimizer_step(t.o, t.g, PARAMETERS, NULL, t.w.stream));
    free(x);
    return t;
}

static memopt_state_view view_of(const trainer *t, uint64_t parameter, uint64_t index)
{
    memopt_state_view view = MEMOPT_STATE_VIEW_INIT;
    OK(memopt_optimizer_get_state(t->o, parameter, index, &view));
    return view;
}

static uint64_t views(const trainer *t, uint64_t parameter)
{
    memopt_state_view view = MEMOPT_STATE_VIEW_INIT;
    uint64_t count = 0;
    while (memopt_optimizer_get_state(t->o, parameter, count, &view) == MEMOPT_OK)
        count++;
    return count - (t->is.split != 0);
}

/* The view's format; its scales follow the moments. */
static uint32_t format_of(const trainer *t, const memopt_state_view *view)
{
    return view->tensor.dtype == MEMOPT_DTYPE_F32 ? (uint32_t)MEMOPT_STATE_F32 : t->is.format;
}

static uint64_t moments_of(const trainer *t, uint64_t parameter)
{
    memopt_state_view first = view_of(t, parameter, 0);
    int scales = mo_format_has_scales(format_of(t, &first));
    return views(t, parameter) / (scales ? 2 : 1);
}

/* What a conversion must give: floats of one moment, by the public functions. */
static void decode(const trainer *t, uint64_t parameter, uint64_t k, int is_signed,
                   const memopt_tensor *out)
{
    memopt_state_view view = view_of(t, parameter, k);
    uint32_t format = format_of(t, &view);
    if (!mo_format_has_scales(format)) {
        OK(memopt_cast(t->w.device, out, &view.tensor, 1, NULL, NULL));
        return;
    }
    memopt_state_view scales = view_of(t, parameter, k + moments_of(t, parameter));
    OK(memopt_dequantize(t->w.device, format, out, &view.tensor, &scales.tensor, is_signed, NULL));
}

static void same_bytes(const memopt_tensor *a, const memopt_tensor *b)
{
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->data, b->data, a->count * memopt_dtype_size(a->dtype));
}

/* Moment k of `to` is what the floats become in its format. */
static void check_moment(const trainer *to, uint64_t parameter, uint64_t k, int is_signed,
                         const memopt_tensor *values)
{
    memopt_state_view view = view_of(to, parameter, k);
    uint32_t format = format_of(to, &view);
    uint64_t size = memopt_dtype_size(view.tensor.dtype);
    memopt_tensor wanted = view.tensor, scales = {NULL, 0, MEMOPT_DTYPE_F32};
    wanted.data = calloc(wanted.count, size);
    if (mo_format_has_scales(format)) {
        memopt_state_view is = view_of(to, parameter, k + moments_of(to, parameter));
        scales.count = is.tensor.count;
        scales.data = calloc(scales.count, 4);
        OK(memopt_quantize(to->w.device, format, &wanted, &scales, values, is_signed, NULL));
        same_bytes(&scales, &is.tensor);
    } else {
        OK(memopt_cast(to->w.device, &wanted, values, 1, NULL, NULL));
    }
    same_bytes(&wanted, &view.tensor);
    free(wanted.data);
    free(scales.data);
}

/* States that need no conversion keep their bits: an absmax from a code may be smaller. */
static int same_format(const trainer *from, const trainer *to, uint64_t i)
{
    memopt_state_view was = view_of(from, i, 0), is = view_of(to, i, 0);
    uint32_t format = format_of(from, &was);
    return format == format_of(to, &is);
}

static void check_parameter(const trainer *from, const trainer *to, uint64_t i)
{
    uint64_t steps, taken;
    OK(memopt_optimizer_get_steps_sync(to->o, i, to->w.stream, &steps));
    OK(memopt_optimizer_get_steps_sync(from->o, i, from->w.stream, &taken));
    assert_int_equal(steps, taken);
    memopt_tensor values = {malloc(from->p[i].count * 4), from->p[i].count, MEMOPT_DTYPE_F32};
    for (uint64_t k = 0; same_format(from, to, i) && k < views(from, i); k++) {
        memopt_state_view was = view_of(from, i, k), is = view_of(to, i, k);
        same_bytes(&was.tensor, &is.tensor);
    }
    for (uint64_t k = 0; !same_format(from, to, i) && k < moments_of(from, i); k++) {
        const char *name = view_of(from, i, k).name;
        int is_signed = strcmp(name, "exp_avg_sq") != 0 && strcmp(name, "square_avg") != 0;
        decode(from, i, k, is_signed, &values);
        check_moment(to, i, k, is_signed, &values);
    }
    if (from->is.split) {
        memopt_state_view was = view_of(from, i, views(from, i));
        memopt_state_view is = view_of(to, i, views(to, i));
        same_bytes(&was.tensor, &is.tensor);
    }
    free(values.data);
}

static void convert(trainer *from, trainer *to)
{
    uint64_t bytes;
    OK(memopt_optimizer_step(from->o, from->g, PARAMETERS, NULL, from->w.stream));
    unsigned char *saved = export_all(&from->w, from->o, &bytes);
    OK(memopt_optimizer_import_sync(to->o, saved, bytes, 1, to->w.stream));
    for (uint64_t i = 0; i < PARAMETERS; i++)
        check_parameter(from, to, i);
    OK(memopt_optimizer_step(to->o, to->g, PARAMETERS, NULL, to->w.stream)); /* and it goes on */
    free(saved);
}

TEST(each_to_each)
{
    for (uint32_t a = 1; a < MO_STATE_FORMATS; a++)
        for (uint32_t b = 1; b < MO_STATE_FORMATS; b++) {
            if (mo_format_is_old(a) || mo_format_is_old(b))
                continue;
            trainer from = make((setup){MEMOPT_OPTIMIZER_ADAMW, a, 0, 0}, usual, 2, 5);
            trainer to = make((setup){MEMOPT_OPTIMIZER_ADAMW, b, 0, 0}, usual, 3001, 6);
            convert(&from, &to); /* of 3000 elements to 32-bit */
            close_world(&from.w);
            close_world(&to.w);
        }
}

TEST(rules_and_places)
{
    enum { CODED = MEMOPT_STATE_8BIT_DYNAMIC, F32 = MEMOPT_STATE_F32, C8 = MEMOPT_STATE_8BIT };
    enum { ADAMW = MEMOPT_OPTIMIZER_ADAMW, MIX = MEMOPT_OPTIMIZER_ADEMAMIX };
    enum { SGD = MEMOPT_OPTIMIZER_SGD, RMSPROP = MEMOPT_OPTIMIZER_RMSPROP };
    static const setup pairs[][2] = {
        {{ADAMW, CODED, 2, 0}, {ADAMW, C8, 2, 0}},
        {{ADAMW, CODED, 0, 1}, {ADAMW, C8, 0, 1 << 20}},
        {{MIX, CODED, 0, 0}, {MIX, F32, 0, 0}},
        {{MIX, F32, 0, 0}, {MIX, CODED, 0, 0}},
        {{SGD, F32, 0, 0}, {SGD, CODED, 0, 0}},
        {{RMSPROP, CODED, 0, 0}, {RMSPROP, F32, 0, 0}},
        {{RMSPROP, F32, 0, 0}, {RMSPROP, CODED, 0, 0}},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        trainer from = make(pairs[i][0], large, 1, 7), to = make(pairs[i][1], large, 1, 8);
        convert(&from, &to);
        close_world(&from.w);
        close_world(&to.w);
    }
}

/* Refused, with the words in the message, and nothing has changed. */
static void refused(trainer *t, int converted, const unsigned char *saved, uint64_t bytes,
                    memopt_status status, const char *word, const char *other)
{
    uint64_t size;
    unsigned char *was = export_all(&t->w, t->o, &size);
    GIVES(status, converted ? memopt_optimizer_import_sync(t->o, saved, bytes, 1, NULL)
                            : memopt_optimizer_import_sync(t->o, saved, bytes, 0, NULL));
    assert_non_null(strstr(memopt_last_error(), word));
    assert_non_null(strstr(memopt_last_error(), other));
    exports_as(&t->w, t->o, was, size);
}

/* --- exports of older libraries -------------------------------------------------------------- */

/* An element's value before the multiplication by its scale. */
static float old_value(uint32_t format, int is_signed, const unsigned char *codes, uint64_t e)
{
    static const float dynamic4[] = {0.0f,    0.0055f, 0x1.0a3d72p-5f, 0.0775f, 0x1.b33332p-3f,
                                     0.4375f, 0.6625f, 0.8875f,        1.0f};
    float map[256];
    const uint32_t pair = codes[e / 2];
    const int code = (int)(e % 2 ? pair & 15 : pair >> 4);
    if (format == MO_STATE_OLD_F8)
        return mo_e4m3_to_f32(codes[e]);
    if (format == MO_STATE_OLD_COMPANDED) { /* codes are at most 126 here */
        const float c = (float)codes[e];
        return is_signed
                   ? c * fmaf(fmaf(fmaf(0x1.b8b4fep-31f, c, 0x1.521964p-26f), c, 0x1.fcd448p-17f),
                              c, 0x1.0566aep-8f)
                   : c * c * 0x1.020304p-16f;
    }
    if (format == MO_STATE_OLD_4BIT && !is_signed)
        return (float)(code + 1) / 16.0f;
    if (format == MO_STATE_OLD_4BIT)
        return code < 7 ? -dynamic4[7 - code] : dynamic4[code - 7];
    OK(memopt_state_map(format, is_signed, map));
    return map[mo_format_is_4bit(format) ? code : codes[e]];
}

/* An export as a library with other blocks wrote it: that of an AdamW with companded states, whose
 * records and states are written anew, from random codes and scales. values: what it means, of both
 * moments of each parameter. */
static unsigned char *older(const unsigned char *head, const uint64_t *counts, uint32_t format,
                            uint32_t block, float *(*values)[2], uint64_t *out_bytes)
{
    const uint64_t prefix = 64 + 72 + 32 * PARAMETERS;
    uint64_t room = prefix + 8, seed = block + format;
    for (int i = 0; i < PARAMETERS; i++)
        room += 4 * (counts[i] * 4 + 16);
    unsigned char *bytes = calloc(room, 1), *at = bytes + prefix;
    memcpy(bytes, head, prefix);
    mo_put_u32(bytes + 28, block);
    for (int i = 0; i < PARAMETERS; i++) {
        unsigned char *codes[2];
        mo_put_u32(bytes + 64 + 72 + 32 * i + 8, format);
        for (int k = 0; k < 2; k++) {
            codes[k] = at;
            at += (mo_format_bytes(format, counts[i]) + 7) / 8 * 8;
            for (uint64_t e = 0; e < mo_format_bytes(format, counts[i]); e++)
                codes[k][e] = (unsigned char)(next_random(&seed) % 127); /* no NaN of e4m3 */
        }
        for (int k = 0; k < 2; k++) {
            const uint64_t blocks = (counts[i] + block - 1) / block;
            values[i][k] = calloc(counts[i], sizeof(float));
            for (uint64_t b = 0; b < blocks; b++) {
                float scale = fabsf(normal(&seed));
                mo_put_u32(at + 4 * b, mo_f32_bits(scale));
                for (uint64_t e = b * block; e < counts[i] && e < (b + 1) * block; e++)
                    values[i][k][e] = old_value(format, k == 0, codes[k], e) * scale;
            }
            at += (4 * blocks + 7) / 8 * 8;
        }
    }
    *out_bytes = (uint64_t)(at - bytes) + 8;
    mo_put_u64(bytes + 16, *out_bytes);
    mo_put_u32(at, mo_crc32(0, bytes, *out_bytes - 8));
    return bytes;
}

TEST(test_older)
{
    static const uint32_t formats[][3] = {
        /* of the export, its block, the optimizer's */
        {MEMOPT_STATE_8BIT_DYNAMIC, 64, MEMOPT_STATE_8BIT_DYNAMIC},
        {MEMOPT_STATE_4BIT, 4096, MEMOPT_STATE_F32},
        {MEMOPT_STATE_8BIT, 2048, MEMOPT_STATE_8BIT},
        {MO_STATE_OLD_4BIT, 128, MEMOPT_STATE_4BIT},
        {MO_STATE_OLD_F8, 64, MEMOPT_STATE_F32},
        {MO_STATE_OLD_COMPANDED, 256, MEMOPT_STATE_8BIT},
    };
    trainer from = make((setup){MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT, 0, 0}, large, 1, 3);
    uint64_t bytes;
    unsigned char *head = export_all(&from.w, from.o, &bytes);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        float *values[PARAMETERS][2];
        trainer to = make((setup){MEMOPT_OPTIMIZER_ADAMW, formats[i][2], 0, 0}, large, 1, 4);
        unsigned char *saved = older(head, large, formats[i][0], formats[i][1], values, &bytes);
        refused(&to, 0, saved, bytes, MEMOPT_INVALID_ARGUMENT, "was exported with", "converts");
        OK(memopt_optimizer_import_sync(to.o, saved, bytes, 1, to.w.stream));
        for (uint64_t p = 0; p < PARAMETERS; p++)
            for (uint64_t k = 0; k < 2; k++) {
                const memopt_tensor wanted = {values[p][k], large[p], MEMOPT_DTYPE_F32};
                check_moment(&to, p, k, k == 0, &wanted);
                free(values[p][k]);
            }
        free(saved);
        close_world(&to.w);
    }
    free(head);
    close_world(&from.w);
}

/* An import that does not convert names both formats; another rule or other residuals are never
 * converted. */
TEST(refusals)
{
    uint64_t bytes;
    trainer from =
        make((setup){MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT_DYNAMIC, 0, 0}, usual, 2, 1);
    unsigned char *saved = export_all(&from.w, from.o, &bytes);
    static const struct {
        setup to;
        int converted;
        const char *word, *other;
    } rows[] = {
        {{MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT, 0, 0},
         0,
         "8-bit states (2)",
         "companded ones (8)"},
        {{MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_4BIT, 0, 0},
         0,
         "8-bit states (2)",
         "companded 4-bit ones (7)"},
        {{MEMOPT_OPTIMIZER_ADAM, MEMOPT_STATE_8BIT_DYNAMIC, 0, 0}, 1, "kind 1", "kind 4"},
        {{MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT_DYNAMIC, 1, 0},
         1,
         "split_weights 0",
         "weights 1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        trainer to = make(rows[i].to, usual, 2, 2);
        refused(&to, rows[i].converted, saved, bytes, MEMOPT_INVALID_ARGUMENT, rows[i].word,
                rows[i].other);
        close_world(&to.w);
    }
    free(saved);
    close_world(&from.w);
}

/* There must be room for the conversion; the import needs none. */
TEST(no_room)
{
    uint64_t bytes;
    void *all = NULL, *one = NULL;
    trainer from =
        make((setup){MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT_DYNAMIC, 0, 0}, usual, 2, 1);
    trainer to = make((setup){MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_F32, 0, 0}, usual, 2, 2);
    unsigned char *saved = export_all(&from.w, from.o, &bytes);
    for (uint64_t size = 512 * MIB; size >= 512; size /= 2)
        while (memopt_allocator_alloc(to.w.allocator, size, 0, to.w.stream, &all) == MEMOPT_OK)
            one = one == NULL ? all : one;
    refused(&to, 1, saved, bytes, MEMOPT_OUT_OF_DEVICE_MEMORY, "allocator", "free");
    OK(memopt_allocator_free(to.w.allocator, one));
    OK(memopt_optimizer_import_sync(to.o, saved, bytes, 1, to.w.stream));
    free(saved);
    close_world(&from.w);
    close_world(&to.w);
}
