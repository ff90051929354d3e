/* Export and import: a resumed run is the run, bit for bit; a damaged export changes nothing. */
#include "fixture.h"

#include "optim/crc32.h"

#include <math.h>

enum { PARAMETERS = 4 };

static const uint64_t counts[PARAMETERS] = {3000, 1, 257, 4096};

typedef struct run {
    world w;
    memopt_optimizer *o;
    memopt_tensor p[PARAMETERS], g[PARAMETERS];
    uint64_t seed;
} run;

static run start(uint64_t min_8bit)
{
    run r = {.w = open_world(MEMOPT_STREAM_ORDER_EAGER, 1), .seed = 77};
    const memopt_optimizer_options options = {.state_format = MEMOPT_STATE_8BIT_DYNAMIC,
                                              .min_8bit_size = min_8bit,
                                              .stochastic_rounding = 1};
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    float ones[4096];
    uint32_t number;
    uint64_t index;
    r.o = make_optimizer(&r.w, options, &group);
    group.lr = 3e-4;
    OK(memopt_optimizer_add_group(r.o, &group, &number));
    for (int i = 0; i < 4096; i++)
        ones[i] = 1.0f;
    for (uint32_t i = 0; i < PARAMETERS; i++) {
        r.p[i] = new_tensor(&r.w, counts[i], MEMOPT_DTYPE_BF16, ones);
        r.g[i] = new_tensor(&r.w, counts[i], MEMOPT_DTYPE_F32, NULL);
        OK(memopt_optimizer_add_parameter(r.o, i % 2, &r.p[i], NULL, r.w.stream, &index));
    }
    return r;
}

static void go(run *r, int steps)
{
    float x[4096];
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < PARAMETERS; i++) {
            for (uint64_t k = 0; k < counts[i]; k++)
                x[k] = normal(&r->seed);
            write_tensor(&r->w, &r->g[i], x);
        }
        OK(memopt_optimizer_step(r->o, r->g, PARAMETERS, NULL, r->w.stream));
    }
}

TEST(test_crc)
{
    unsigned char bytes[1000];
    assert_int_equal(mo_crc32(0, "123456789", 9), 0xcbf43926u);
    assert_int_equal(mo_crc32(0, "", 0), 0);
    for (int i = 0; i < 1000; i++)
        bytes[i] = (unsigned char)(i * 7);
    for (uint64_t n = 0; n < 100; n++) { /* bit by bit */
        uint32_t crc = ~0u;
        for (uint64_t i = 0; i < n; i++)
            for (int bit = 0; bit < 8; bit++)
                crc = crc >> 1 ^ (((crc ^ bytes[i] >> bit) & 1) ? 0xedb88320u : 0);
        assert_int_equal(mo_crc32(0, bytes, n), ~crc);
    }
}

typedef struct pieces {
    unsigned char *bytes;
    uint64_t count, calls, last; /* last: the call that fails */
} pieces;

static memopt_status take(void *user, const void *piece, uint64_t bytes)
{
    pieces *p = user;
    if (++p->calls == p->last)
        return MEMOPT_STATUS_USER + 3;
    assert_true(bytes >= 1 && bytes <= MIB);
    memcpy(p->bytes + p->count, piece, bytes);
    p->count += bytes;
    return MEMOPT_OK;
}

/* States of several pieces; the same bytes as in one buffer. */
TEST(test_pieces)
{
    run r = start(100);
    memopt_tensor large = new_tensor(&r.w, 1200001, MEMOPT_DTYPE_BF16, NULL);
    memopt_memory_info info = MEMOPT_MEMORY_INFO_INIT;
    uint64_t bytes;
    go(&r, 3);
    (void)add_parameter(&r.w, r.o, &large);
    OK(memopt_optimizer_export_sync(r.o, 0, NULL, NULL, &bytes));
    unsigned char *whole = malloc(bytes);
    pieces p = {malloc(bytes), 0, 0, 0};
    assert_true(whole != NULL && p.bytes != NULL);
    OK(memopt_optimizer_export_sync(r.o, bytes, r.w.stream, whole, NULL));
    OK(memopt_optimizer_export_pieces_sync(r.o, take, &p, r.w.stream));
    assert_int_equal(p.count, bytes);
    assert_memory_equal(p.bytes, whole, bytes);
    OK(memopt_optimizer_import_sync(r.o, p.bytes, bytes, 0, r.w.stream));
    for (uint64_t last = p.calls; last > 0; last--) { /* the writer's own failure comes out */
        p = (pieces){p.bytes, 0, 0, last};
        FAILS_SAYING(MEMOPT_STATUS_USER + 3, "the writer returned status 65539",
                     memopt_optimizer_export_pieces_sync(r.o, take, &p, r.w.stream));
        assert_int_equal(p.calls, last);
    }
    OK(memopt_device_get_memory_info(r.w.device, &info));
    assert_int_equal(info.pinned, 0);
    REFUSED(memopt_optimizer_export_pieces_sync(r.o, NULL, NULL, NULL));
    free(whole);
    free(p.bytes);
    close_world(&r.w);
}

TEST(resume)
{
    uint64_t bytes, again;
    run whole = start(100), first = start(100), second = start(100);
    go(&whole, 12);
    go(&first, 5);
    memopt_optimizer_group changed = MEMOPT_OPTIMIZER_GROUP_INIT;
    changed.lr = 7e-3; /* the import brings the exported values back */
    OK(memopt_optimizer_set_group(second.o, 0, &changed));
    go(&second, 1); /* and nothing of this step stays */
    unsigned char *middle = export_all(&first.w, first.o, &bytes);
    OK(memopt_optimizer_import_sync(second.o, middle, bytes, 0, second.w.stream));
    exports_as(&second.w, second.o, middle, bytes);
    for (int i = 0; i < PARAMETERS; i++) {
        float x[4096];
        read_floats(&first.w, &first.p[i], x);
        write_tensor(&second.w, &second.p[i], x);
    }
    second.seed = first.seed;
    go(&second, 7);
    unsigned char *a = everything_of(&whole.w, whole.o, whole.p, PARAMETERS, &bytes);
    unsigned char *b = everything_of(&second.w, second.o, second.p, PARAMETERS, &again);
    assert_int_equal(bytes, again);
    assert_memory_equal(a, b, bytes);
    free(a);
    free(b);
    close_world(&whole.w);
    close_world(&first.w);
    close_world(&second.w);
}

static void seal(unsigned char *b, uint64_t bytes)
{
    uint32_t crc = mo_crc32(0, b, bytes - 8);
    for (int i = 0; i < 4; i++)
        b[bytes - 8 + (uint64_t)i] = (unsigned char)(crc >> (8 * i));
}

static void refused(run *r, const unsigned char *bad, uint64_t bytes, memopt_status expected)
{
    uint64_t size;
    unsigned char *was = export_all(&r->w, r->o, &size);
    memopt_status status = memopt_optimizer_import_sync(r->o, bad, bytes, 0, r->w.stream);
    if (expected == MEMOPT_OK) /* any refusal will do */
        assert_true(status == MEMOPT_CORRUPT || status == MEMOPT_INVALID_ARGUMENT ||
                    status == MEMOPT_UNSUPPORTED);
    else
        assert_int_equal(status, expected);
    exports_as(&r->w, r->o, was, size);
}

TEST(damage)
{
    uint64_t bytes;
    run r = start(100), other = start(1);
    go(&r, 2);
    unsigned char *good = export_all(&r.w, r.o, &bytes), *bad = malloc(bytes + 8);
    for (uint64_t n = 0; n < bytes; n += 97) /* cut short */
        refused(&r, good, n, MEMOPT_CORRUPT);
    uint64_t seed = 6;
    for (uint64_t i = 0; i < 308; i++) { /* any one bit, also of the checksum and what follows it */
        uint64_t at = i < 150 ? i : i < 300 ? next_random(&seed) % bytes : bytes - 308 + i;
        memcpy(bad, good, bytes);
        bad[at] ^= (unsigned char)(1u << (next_random(&seed) % 8));
        refused(&r, bad, bytes, at >= 8 && at < 12 ? MEMOPT_OK : MEMOPT_CORRUPT);
    }
    for (int i = 0; i < 400; i++) { /* the front part scrambled under a valid checksum */
        uint64_t at = 8 + next_random(&seed) % (64 + 2 * 48 + PARAMETERS * 32 - 8);
        memcpy(bad, good, bytes);
        bad[at] = (unsigned char)(bad[at] + 1 + next_random(&seed) % 255);
        seal(bad, bytes);
        memopt_status status = memopt_optimizer_import_sync(r.o, bad, bytes, 0, r.w.stream);
        assert_true(status == MEMOPT_OK || status == MEMOPT_CORRUPT ||
                    status == MEMOPT_INVALID_ARGUMENT || status == MEMOPT_UNSUPPORTED);
    }
    OK(memopt_optimizer_import_sync(r.o, good, bytes, 0, r.w.stream));
    memcpy(bad, good, bytes);
    bad[8] = 8; /* a later version */
    refused(&r, bad, bytes, MEMOPT_UNSUPPORTED);
    refused(&other, good, bytes, MEMOPT_INVALID_ARGUMENT); /* parameter 1 is 8-bit there */
    assert_non_null(strstr(memopt_last_error(), "parameter 1"));
    memcpy(bad, good, bytes);
    memset(bad + 64, 0xff, 8); /* lr is NaN */
    seal(bad, bytes);
    refused(&r, bad, bytes, MEMOPT_CORRUPT);
    memcpy(bad, good, bytes);
    memset(bad + 64 + 96 + 16, 0xff, 8); /* 2^64 - 1 steps */
    seal(bad, bytes);
    refused(&r, bad, bytes, MEMOPT_CORRUPT);
    GIVES(MEMOPT_INVALID_ARGUMENT,
          memopt_optimizer_export_sync(r.o, bytes - 1, r.w.stream, bad, NULL));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_optimizer_import_sync(r.o, NULL, bytes, 0, r.w.stream));
    free(good);
    free(bad);
    close_world(&r.w);
    close_world(&other.w);
}
