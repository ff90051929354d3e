/* Blocks: sizes, best fit, splitting, joining, both kinds of segments. */
#include "support.h"

#include "allocator/allocator.h"

/* --- sizes ------------------------------------------------------------------------------------ */

static uint64_t usable(memopt_allocator *allocator, void *pointer)
{
    uint64_t bytes = 0;
    OK(memopt_allocator_get_block(allocator, pointer, NULL, &bytes));
    return bytes;
}

/* What a first allocation of a size takes, as a block and from the device. */
static void check_sizes(const char *config, uint64_t asked, uint64_t block, uint64_t reserved)
{
    memopt_device *device = eager(256 * MIB);
    memopt_allocator *allocator = new_allocator(device, config);
    void *pointer = alloc(allocator, asked);
    assert_int_equal((uintptr_t)pointer % 512, 0);
    assert_int_equal(usable(allocator, pointer), block);
    assert_int_equal(stat_of(allocator, "allocated_bytes.all.current"), block);
    assert_int_equal(stat_of(allocator, "requested_bytes.all.current"), asked);
    assert_int_equal(held_by(allocator), reserved);
    finish(allocator, device);
}

TEST(test_sizes)
{
    check_sizes("", 1, 512, 2 * MIB);
    check_sizes("", 513, 1024, 2 * MIB);
    check_sizes("", MIB, MIB, 2 * MIB);
    check_sizes("", MIB + 1, MIB + 512, 20 * MIB);
    check_sizes("", 10 * MIB - 512, 10 * MIB - 512, 20 * MIB);
    check_sizes("", 10 * MIB, 10 * MIB, 10 * MIB);
    check_sizes("", 11 * MIB, 12 * MIB, 12 * MIB); /* the rest, up to 1 MiB, is not split off */
    check_sizes("large_segment_size_mb:32", 3 * MIB, 3 * MIB, 32 * MIB);
    check_sizes(EXPANDABLE, 1, 512, 2 * MIB);
    check_sizes(EXPANDABLE, 3 * MIB, 3 * MIB, 4 * MIB);
    check_sizes(EXPANDABLE, 11 * MIB, 11 * MIB, 12 * MIB);
    check_sizes("roundup_power2_divisions:4", 1200, 1536, 2 * MIB);
    check_sizes("roundup_power2_divisions:4", 5 * MIB + 1, 6 * MIB, 20 * MIB);
    check_sizes("roundup_power2_divisions:[4:4,8:1,>:1]", 2 * MIB + 1, 5 * MIB / 2, 20 * MIB);
    check_sizes("roundup_power2_divisions:[4:4,8:1,>:1]", 9 * MIB + 1, 9 * MIB + 512, 20 * MIB);
}

/* --- fit -------------------------------------------------------------------------------------- */

/* Holes of several sizes between live blocks: the smallest that fits is taken, the lowest first. */
ALLOCATOR_TEST(best_fit, allocator, eager(64 * MIB), BOTH)
{
    static const uint64_t sizes[] = {8, 5, 3, 5, 9, 3};
    enum { HOLES = 6 };
    void *hole[HOLES], *wall[HOLES];
    for (int i = 0; i < HOLES; i++) {
        hole[i] = alloc(allocator, sizes[i] * KIB);
        wall[i] = alloc(allocator, KIB);
        assert_ptr_equal(wall[i], (char *)hole[i] + sizes[i] * KIB);
    }
    for (int i = 0; i < HOLES; i++)
        OK(memopt_allocator_free(allocator, hole[i]));
    assert_ptr_equal(alloc(allocator, 3 * KIB), hole[2]);
    assert_ptr_equal(alloc(allocator, 2 * KIB), hole[5]);
    assert_ptr_equal(alloc(allocator, 4 * KIB), hole[1]);
    assert_ptr_equal(alloc(allocator, 5 * KIB), hole[3]);
    assert_ptr_equal(alloc(allocator, 6 * KIB), hole[0]);
    assert_ptr_equal(alloc(allocator, 9 * KIB), hole[4]);
    assert_ptr_equal(alloc(allocator, KIB), (char *)hole[1] + 4 * KIB);
}

/* Many equal holes: always the lowest. */
ALLOCATOR_TEST(ties_go_to_the_lowest_address, allocator, eager(64 * MIB), EXPANDABLE)
{
    enum { BLOCKS = 600 };
    void *block[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        block[i] = alloc(allocator, 700);
    for (int i = 0; i < BLOCKS / 2; i++) /* every second, in a scattered order */
        OK(memopt_allocator_free(allocator, block[(i * 77 % (BLOCKS / 2)) * 2]));
    OK(mo_allocator_check(allocator));
    for (int i = 0; i < BLOCKS / 2; i++)
        assert_ptr_equal(alloc(allocator, 700), block[i * 2]);
}

/* --- expandable segments ---------------------------------------------------------------------- */

/* 8 × 16 MiB freed, then 4 × 32 MiB: the same memory serves both. */
ALLOCATOR_TEST(expandable_reuses_what_classic_cannot, allocator, eager(512 * MIB), BOTH)
{
    static const uint64_t wanted[] = {256, 128};
    void *block[8];
    for (int i = 0; i < 8; i++)
        block[i] = alloc(allocator, 16 * MIB);
    for (int i = 0; i < 8; i++)
        OK(memopt_allocator_free(allocator, block[i]));
    for (int i = 0; i < 4; i++)
        block[i] = alloc(allocator, 32 * MIB);
    assert_int_equal(stat_of(allocator, "reserved_bytes.all.peak"), wanted[c] * MIB);
}

/* Trim gives back every whole free page and no other; what stays keeps its bytes; growth fills the
 * hole again at the same addresses. */
ALLOCATOR_TEST(trim_of_pages, allocator, eager(64 * MIB), EXPANDABLE)
{
    uint64_t released = 0;
    unsigned char *low = alloc(allocator, 5 * MIB), *hole = alloc(allocator, 10 * MIB);
    unsigned char *high = alloc(allocator, 5 * MIB);
    memset(low, 1, 5 * MIB);
    memset(high, 2, 5 * MIB);
    OK(memopt_allocator_free(allocator, hole));
    OK(memopt_allocator_trim_sync(allocator, 0, &released));
    assert_int_equal(released, 8 * MIB); /* [5, 15) MiB holds the pages of [6, 14) */
    assert_int_equal(held_by(allocator), 12 * MIB);
    OK(mo_allocator_check(allocator));
    for (uint64_t i = 0; i < 5 * MIB; i += 4096)
        assert_true(low[i] == 1 && high[i] == 2);
    assert_ptr_equal(alloc(allocator, 10 * MIB), hole);
    memset(hole, 3, 10 * MIB);
    assert_true(low[5 * MIB - 1] == 1 && high[0] == 2);
    OK(mo_allocator_check(allocator));
    OK(memopt_allocator_free(allocator, low));
    OK(memopt_allocator_free(allocator, hole));
    OK(memopt_allocator_free(allocator, high));
    OK(memopt_allocator_trim_sync(allocator, 0, &released));
    assert_int_equal(released, 20 * MIB);
}

typedef struct cached {
    char *address;
    uint64_t bytes; /* free ones of the 12 MiB from there */
} cached;

static memopt_status count_cached(void *user, const memopt_block_info *block)
{
    cached *one = user;
    char *from = block->address, *to = from + block->bytes;
    char *end = one->address + 12 * MIB;
    from = from > one->address ? from : one->address;
    to = to < end ? to : end;
    if (block->state == MEMOPT_BLOCK_INACTIVE && from < to)
        one->bytes += (uint64_t)(to - from);
    return MEMOPT_OK;
}

static uint64_t cached_at(memopt_allocator *allocator, void *address)
{
    cached one = {address, 0};
    OK(memopt_allocator_snapshot(allocator, count_cached, &one));
    return one.bytes;
}

/* A trim to a target gives back what was freed longest ago, whatever its address or the age of its
 * segment; a page of a block, where that suffices. */
ALLOCATOR_TEST(trim_gives_back_the_oldest_first, allocator, eager(256 * MIB), BOTH)
{
    static const int order[4] = {2, 0, 3, 1};
    void *block[4], *between[4], *small[4];
    uint64_t released = 0;
    for (int i = 0; i < 4; i++) {
        block[i] = alloc(allocator, 12 * MIB);
        between[i] = alloc(allocator, 12 * MIB);
    }
    for (int i = 0; i < 4; i++) {
        OK(memopt_allocator_free(allocator, block[order[i]]));
        small[i] = alloc(allocator, 1000); /* time goes by */
    }
    uint64_t held = held_by(allocator);
    for (int i = 0; i < 4; i++) {
        uint64_t first = c ? 6 * MIB : 12 * MIB;
        OK(memopt_allocator_trim_sync(allocator, held - 6 * MIB, &released));
        assert_int_equal(released, first);
        assert_int_equal(cached_at(allocator, block[order[i]]), 12 * MIB - first);
        held -= 12 * MIB;
        OK(memopt_allocator_trim_sync(allocator, held, &released));
        assert_int_equal(released, 12 * MIB - first);
        for (int k = 0; k < 4; k++)
            assert_int_equal(cached_at(allocator, block[order[k]]), k > i ? 12 * MIB : 0);
        OK(mo_allocator_check(allocator));
    }
    for (int i = 0; i < 4; i++) {
        OK(memopt_allocator_free(allocator, between[i]));
        OK(memopt_allocator_free(allocator, small[i]));
    }
}

/* --- bad input -------------------------------------------------------------------------------- */

ALLOCATOR_TEST(bad_pointers, allocator, eager(64 * MIB), BOTH)
{
    char *block = alloc(allocator, 1000), *live = alloc(allocator, 1000);
    int foreign;
    void *base = &foreign;
    mo_taken *taken;
    REFUSED_SAYING("lies 100 bytes inside the live block",
                   memopt_allocator_free(allocator, live + 100));
    REFUSED_SAYING("does not come from this allocator", memopt_allocator_free(allocator, &foreign));
    OK(memopt_allocator_free(allocator, block));
    REFUSED_SAYING("a double free?", memopt_allocator_free(allocator, block));
    REFUSED_SAYING("a double free?", memopt_allocator_record_stream(allocator, block, NULL));
    REFUSED_SAYING("does not come from this allocator",
                   memopt_allocator_record_stream(allocator, NULL, NULL));
    REFUSED_SAYING("does not come from this allocator",
                   mo_allocator_take(allocator, NULL, 1, &taken));
    REFUSED_SAYING("inside the live block", mo_allocator_take(allocator, live + 1, 1, &taken));
    REFUSED_SAYING("1025 bytes of a block of 1024 bytes",
                   mo_allocator_take(allocator, live, 1025, &taken));
    REFUSED_SAYING("a double free?", memopt_allocator_get_block(allocator, block, &base, NULL));
    assert_ptr_equal(base, &foreign);
    OK(memopt_allocator_get_block(allocator, live + 1023, &base, NULL));
    assert_ptr_equal(base, live);
    OK(memopt_allocator_free(allocator, NULL));
}

TEST(bad_arguments)
{
    struct {
        memopt_allocator_options known;
        uint64_t tail;
    } newer = {{sizeof newer, 0, NULL, NULL, NULL, NULL, 0, NULL}, 1};
    memopt_device *device = eager(64 * MIB);
    memopt_allocator *allocator = NULL, *untouched = NULL;
    void *pointer = device;
    REFUSED_SAYING("device", memopt_allocator_create(NULL, "", NULL, &allocator));
    REFUSED_SAYING("out_", memopt_allocator_create(device, "", NULL, NULL));
    REFUSED_SAYING("expandable_segments",
                   memopt_allocator_create(device, "expandable:True", NULL, &untouched));
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "is set",
                 memopt_allocator_create(device, "", &newer.known, &untouched));
    newer.known.struct_size = 3;
    REFUSED_SAYING("struct_size", memopt_allocator_create(device, "", &newer.known, &untouched));
    assert_null(untouched);
    allocator = new_allocator(device, "");
    REFUSED_SAYING("NULL", memopt_allocator_alloc(NULL, 1, 0, NULL, &pointer));
    REFUSED_SAYING("NULL", memopt_allocator_alloc(allocator, 1, 0, NULL, NULL));
    REFUSED_SAYING("allocator_get_stat: out_value is NULL",
                   memopt_allocator_get_stat(allocator, "active.all.current", NULL));
    REFUSED_SAYING("tag 5 is not registered",
                   memopt_allocator_alloc(allocator, 1, 5, NULL, &pointer));
    REFUSED_SAYING("overflow", memopt_allocator_alloc(allocator, UINT64_MAX, 0, NULL, &pointer));
    FAILS_SAYING(MEMOPT_OUT_OF_DEVICE_MEMORY, "asked",
                 memopt_allocator_alloc(allocator, UINT64_MAX / 8, 0, NULL, &pointer));
    assert_ptr_equal(pointer, device);
    OK(memopt_allocator_alloc(allocator, 0, 0, NULL, &pointer));
    assert_null(pointer);
    REFUSED_SAYING("NULL", memopt_allocator_free(NULL, device));
    REFUSED_SAYING("NULL", memopt_allocator_record_stream(NULL, device, NULL));
    REFUSED_SAYING("NULL", mo_allocator_record_taken(NULL, NULL, NULL, 0));
    assert_false(mo_allocator_owns(NULL, device) || mo_allocator_owns(allocator, NULL));
    REFUSED_SAYING("NULL", memopt_allocator_get_block(NULL, device, NULL, NULL));
    REFUSED_SAYING("NULL", memopt_allocator_trim_sync(NULL, 0, NULL));
    REFUSED_SAYING("NULL", memopt_allocator_set_limit(NULL, 1));
    REFUSED_SAYING("NULL", memopt_allocator_reset_peaks(NULL));
    REFUSED_SAYING("NULL", memopt_allocator_get_stats(allocator, 1, NULL, NULL, NULL));
    REFUSED_SAYING("NULL", memopt_allocator_snapshot(allocator, NULL, NULL));
    OK(memopt_allocator_destroy(NULL));
    OK(memopt_allocator_destroy_force(NULL));
    finish(allocator, device);
}

TEST(destroy_with_live_blocks)
{
    memopt_tag mine;
    void *pointer;
    memopt_device *device = eager(64 * MIB);
    memopt_allocator *allocator = new_allocator(device, "");
    OK(memopt_allocator_register_tag(allocator, "cache", &mine));
    OK(memopt_allocator_alloc(allocator, 3 * MIB, mine, NULL, &pointer));
    (void)alloc(allocator, 100);
    FAILS_SAYING(MEMOPT_BUSY,
                 "2 blocks are still allocated (cache 3.00 MiB in 1, other 100 B in 1)",
                 memopt_allocator_destroy(allocator));
    OK(memopt_allocator_free(allocator, pointer)); /* nothing was changed */
    OK(memopt_allocator_destroy_force(allocator));
    OK(memopt_device_close(device));
}
