/* The file's free space against a map of every block. */
#include "disk_support.h"

#include "offload/extents.h"
#include "support/random.h"

enum { BLOCKS = 200, ROUNDS = 20000 };

typedef struct model {
    mo_extents extents;
    int owner[BLOCKS]; /* 0: free */
    uint64_t offset[BLOCKS + 1], bytes[BLOCKS + 1];
} model;

static uint64_t random_bits = 7;

static void paint(model *m, int owner, uint64_t offset, uint64_t bytes, int from)
{
    assert_int_equal(offset % MO_DISK_BLOCK, 0);
    for (uint64_t block = offset / MO_DISK_BLOCK; block < (offset + bytes) / MO_DISK_BLOCK;
         block++) {
        assert_true(block < BLOCKS);
        assert_int_equal(m->owner[block], from);
        m->owner[block] = owner;
    }
}

/* What the header promises. */
static void check(const model *m)
{
    const mo_extents *e = &m->extents;
    uint64_t used = 0, end = 0, listed = 0, last = 0;
    for (uint64_t block = 0; block < BLOCKS; block++) {
        used += m->owner[block] != 0 ? MO_DISK_BLOCK : 0;
        end = m->owner[block] != 0 ? (block + 1) * MO_DISK_BLOCK : end;
    }
    for (uint64_t i = 0; i < e->count; i++) {
        assert_true(e->items[i].bytes > 0);
        assert_true(i == 0 || e->items[i].offset > last); /* a gap: none adjoin */
        last = e->items[i].offset + e->items[i].bytes;
        listed += e->items[i].bytes;
    }
    assert_int_equal(e->used, used);
    assert_int_equal(e->end, end);
    assert_true(e->count == 0 || last < end);
    assert_int_equal(used + listed, end);
    assert_true(e->capacity > e->in_use);
}

/* Room for `bytes`: a gap, or the end. */
static int fits(const model *m, uint64_t bytes)
{
    uint64_t run = 0;
    for (uint64_t block = 0; block < BLOCKS; block++) {
        run = m->owner[block] == 0 ? run + MO_DISK_BLOCK : 0;
        if (run >= bytes)
            return 1;
    }
    return 0;
}

TEST(test_against_a_map)
{
    static model m;
    memset(&m, 0, sizeof m);
    m.extents.limit = (uint64_t)BLOCKS * MO_DISK_BLOCK;
    int refused = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int owner = 1 + (int)random_below(&random_bits, BLOCKS / 4);
        if (m.bytes[owner] != 0) {
            paint(&m, 0, m.offset[owner], m.bytes[owner], owner);
            mo_extents_give(&m.extents, m.offset[owner], m.bytes[owner]);
            m.bytes[owner] = 0;
        } else {
            uint64_t bytes =
                (1 + random_below(&random_bits, random_below(&random_bits, 4) ? 5 : 60)) *
                MO_DISK_BLOCK;
            memopt_status status = mo_extents_take(&m.extents, bytes, &m.offset[owner]);
            assert_int_equal(status, fits(&m, bytes) ? MEMOPT_OK : MEMOPT_LIMIT_REACHED);
            refused += status != MEMOPT_OK;
            if (status == MEMOPT_OK) {
                m.bytes[owner] = bytes;
                paint(&m, owner, m.offset[owner], bytes, 0);
            }
        }
        check(&m);
    }
    assert_true(refused > 100);
    mo_extents_close(&m.extents);
}
