/*
 * Pausing by tag, and to a file: what goes, what stays usable, what comes back, and what is left
 * after each failure. The argument is the device; on a GPU the driver is a simulated one.
 */
#include "support.h"

#include "base/unnamed_file.h"
#include "device/front/handle.h"
#include "support/pausing.h"
#include "support/random.h"
#include "support/sweep.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum { TAGS = 3, BLOCKS = 30, NOTHING = -1 };

static const char *device_name = "cpu";
static char folder[] = "/tmp/memopt-pause-test-XXXXXX";

static memopt_device *open_here(void)
{
    memopt_device *device = NULL;
    if (strcmp(device_name, "cpu") == 0)
        return eager(CAPACITY);
    OK(memopt_device_open(device_name, NULL, &device));
    return device;
}

static int make_folder(void **state)
{
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    return rmdir(folder); /* fails if a file is left */
}

/* --- a model ---------------------------------------------------------------------------------- */

typedef struct block {
    unsigned char *data; /* NULL: none */
    uint64_t bytes;
    int tag, value; /* NOTHING: its contents were discarded */
    int freed;      /* while paused: its memory sleeps */
} block;

typedef struct scene {
    memopt_device *device;
    memopt_allocator *allocator;
    uint64_t random;
    block blocks[BLOCKS];
    uint64_t paused, with[TAGS]; /* the tags that a tag was paused with */
} scene;

static uint64_t below(scene *s, uint64_t limit)
{
    return next_random(&s->random) % limit;
}

static scene begin(uint64_t seed)
{
    scene s = {.device = open_here(), .random = seed};
    s.allocator = new_allocator(s.device, EXPANDABLE);
    return s;
}

static void fill(scene *s, block *b, int value)
{
    OK(memopt_fill(s->device, b->data, (uint8_t)value, b->bytes, NULL));
    b->value = value;
}

static void check_block(const scene *s, const block *b)
{
    unsigned char *host = malloc(b->bytes);
    assert_non_null(host);
    OK(memopt_copy(s->device, host, b->data, b->bytes, NULL));
    OK(memopt_stream_sync(s->device, NULL));
    assert_int_equal(host[0], b->value);
    assert_memory_equal(host, host + 1, b->bytes - 1);
    free(host);
}

static int is_paused(const scene *s, const block *b)
{
    return s->paused >> b->tag & 1;
}

/* Every block whose tag is not paused is there, with its contents. */
static void check_all(scene *s)
{
    OK(mo_allocator_check(s->allocator));
    assert_int_equal(paused_tags_of(s->allocator), s->paused);
    for (int i = 0; i < BLOCKS; i++)
        if (s->blocks[i].data != NULL && !s->blocks[i].freed && !is_paused(s, &s->blocks[i]))
            check_block(s, &s->blocks[i]);
}

static void note_pause(scene *s, uint64_t tags, memopt_pause how)
{
    s->paused |= tags;
    for (int t = 0; t < TAGS; t++)
        if (tags >> t & 1)
            s->with[t] = tags;
    for (int i = 0; i < BLOCKS && how == MEMOPT_PAUSE_DISCARD; i++)
        if (tags >> s->blocks[i].tag & 1)
            s->blocks[i].value = NOTHING;
}

static memopt_status try_resume(const scene *s, int tag)
{
    return memopt_pool_resume_sync(s->allocator, MEMOPT_TAG_BIT((memopt_tag)tag));
}

/* What was paused together with the tag has come back. */
static void note_resume(scene *s, int tag)
{
    uint64_t back = s->with[tag];
    s->paused &= ~back;
    for (int i = 0; i < BLOCKS; i++) {
        block *b = &s->blocks[i];
        if (b->data == NULL || (back >> b->tag & 1) == 0)
            continue;
        if (b->freed)
            *b = (block){0};
        else if (b->value == NOTHING)
            fill(s, b, 1 + i);
    }
}

static memopt_status resume(scene *s, int tag)
{
    memopt_status status = try_resume(s, tag);
    if ((s->paused >> tag & 1) == 0) {
        assert_int_equal(status, MEMOPT_BUSY);
        return MEMOPT_OK;
    }
    if (status == MEMOPT_OK)
        note_resume(s, tag);
    return status;
}

/* Makes room where a resume needs it. */
static void resume_all(scene *s)
{
    while (s->paused != 0) {
        int tag = 0;
        while ((s->paused >> tag & 1) == 0)
            tag++;
        memopt_status status = resume(s, tag);
        for (int i = 0; status != MEMOPT_OK && i < BLOCKS; i++)
            if (s->blocks[i].data != NULL && !is_paused(s, &s->blocks[i])) {
                OK(memopt_allocator_free(s->allocator, s->blocks[i].data));
                s->blocks[i] = (block){0};
            }
    }
}

static void end(scene *s)
{
    resume_all(s);
    check_all(s);
    finish(s->allocator, s->device);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void fill_blocks(scene *s)
{
    for (int i = 0; i < BLOCKS; i++) {
        block *b = &s->blocks[i];
        *b = (block){NULL, 512 * (1 + below(s, 2048)), i % TAGS, 0, 0};
        void *data = NULL;
        OK(memopt_allocator_alloc(s->allocator, b->bytes, (memopt_tag)b->tag, NULL, &data));
        b->data = data;
        fill(s, b, i + 1);
    }
}

enum { TWO = 1 | 4 };

static memopt_status pause_two(const scene *s, memopt_pause how)
{
    memopt_pause_options options = MEMOPT_PAUSE_OPTIONS_INIT;
    options.tags = TWO;
    options.how = how;
    options.path = how == MEMOPT_PAUSE_FILE ? folder : NULL;
    return memopt_pool_pause_sync(s->allocator, &options, NULL);
}

static int64_t io_left;
static int io_code; /* an errno; 0: a write of nothing, a read of less */

static int io_fails(void)
{
    return io_left > 0 && --io_left == 0;
}

static ssize_t faulty_write(int file, const void *from, size_t bytes, off_t offset)
{
    if (!io_fails())
        return pwrite(file, from, bytes, offset);
    errno = io_code;
    return io_code == 0 ? 0 : -1;
}

static ssize_t faulty_read(int file, void *to, size_t bytes, off_t offset)
{
    if (!io_fails())
        return pread(file, to, bytes, offset);
    errno = io_code;
    return io_code == 0 ? 0 : -1;
}

static int faulty_sync(int file)
{
    if (!io_fails())
        return fdatasync(file);
    errno = io_code == 0 ? EIO : io_code;
    return -1;
}

TEST(io_faults)
{
    const mo_file_system real = mo_file_calls;
    mo_file_calls = (mo_file_system){faulty_write, faulty_read, faulty_sync, 0};
    for (int code = 0; code < 2; code++)
        for (int64_t n = 1, struck = 1; struck; n++) {
            scene s = begin(4);
            fill_blocks(&s);
            io_left = n;
            io_code = code == 0 ? 0 : ENOSPC;
            memopt_status status = pause_two(&s, MEMOPT_PAUSE_FILE);
            if (status == MEMOPT_OK) {
                note_pause(&s, TWO, MEMOPT_PAUSE_FILE);
                status = resume(&s, 2);
            }
            struck = io_left == 0;
            io_left = 0;
            assert_int_equal(status, struck ? MEMOPT_IO_ERROR : MEMOPT_OK);
            check_all(&s);
            end(&s);
            assert_true(n < 40);
        }
    mo_file_calls = real;
}

/* What comes back wrong is not taken, and is taken once it is right. The file has no name. */
TEST(damage)
{
    for (int way = 0; way < 2; way++) {
        scene s = begin(5);
        unsigned char byte = 0, wrong;
        fill_blocks(&s);
        OK(pause_two(&s, MEMOPT_PAUSE_FILE));
        note_pause(&s, TWO, MEMOPT_PAUSE_FILE);
        DIR *names = opendir(folder);
        for (const struct dirent *name = readdir(names); name != NULL; name = readdir(names))
            assert_true(name->d_name[0] == '.');
        closedir(names);
        int file = s.allocator->pauses->kept.file;
        off_t end_of_file = lseek(file, 0, SEEK_END), place = end_of_file / 3;
        assert_true(end_of_file >= (off_t)mo_device_granularity(s.device));
        assert_int_equal(pread(file, &byte, 1, place), 1);
        wrong = byte ^ 0x10;
        if (way == 0)
            assert_int_equal(pwrite(file, &wrong, 1, place), 1);
        else
            assert_int_equal(ftruncate(file, end_of_file - 1), 0);
        uint64_t before = held_by(s.allocator);
        FAILS_SAYING(way == 0 ? MEMOPT_CORRUPT : MEMOPT_IO_ERROR,
                     way == 0 ? "damaged" : "too short", resume(&s, 0));
        assert_int_equal(held_by(s.allocator), before);
        check_all(&s);
        if (way == 0)
            assert_int_equal(pwrite(file, &byte, 1, place), 1);
        else
            assert_int_equal(ftruncate(file, end_of_file), 0);
        end(&s);
    }
}

TEST(statuses)
{
    scene s = begin(6);
    memopt_pause_options options = MEMOPT_PAUSE_OPTIONS_INIT;
    memopt_pause_report report = MEMOPT_PAUSE_REPORT_INIT;
    void *data = NULL;
    fill_blocks(&s);
    options.tags = MEMOPT_TAG_BIT(40);
    REFUSED_SAYING("tag 40 is not registered",
                   memopt_pool_pause_sync(s.allocator, &options, &report));
    options.tags = MEMOPT_TAG_BIT(1);
    options.how = 3;
    REFUSED_SAYING("how is 3", memopt_pool_pause_sync(s.allocator, &options, &report));
    options.how = MEMOPT_PAUSE_FILE;
    REFUSED_SAYING("path is NULL", memopt_pool_pause_sync(s.allocator, &options, &report));
    options.path = "/nowhere/at/all";
    FAILS_SAYING(MEMOPT_IO_ERROR, "/nowhere/at/all",
                 memopt_pool_pause_sync(s.allocator, &options, &report));
    options.path = folder;
    report.struct_size = 4;
    REFUSED(memopt_pool_pause_sync(s.allocator, &options, &report));
    REFUSED(memopt_pool_pause_sync(NULL, &options, NULL));
    REFUSED(memopt_pool_resume_sync(NULL, 1));
    check_all(&s);
    OK(memopt_pool_pause_sync(s.allocator, &options, NULL));
    note_pause(&s, options.tags, MEMOPT_PAUSE_FILE);
    assert_int_equal(pool_is_paused(s.allocator), 0);
    FAILS_SAYING(MEMOPT_BUSY, "tag 1 (weights)",
                 memopt_pool_pause_sync(s.allocator, &options, NULL));
    FAILS_SAYING(MEMOPT_BUSY, "tag weights",
                 memopt_allocator_alloc(s.allocator, 512, 1, NULL, &data));
    FAILS_SAYING(MEMOPT_BUSY, "tag 2 (gradients)", memopt_pool_resume_sync(s.allocator, 6));
    check_all(&s);
    OK(pause_pool(s.allocator, MEMOPT_PAUSE_KEEP, NULL)); /* the others as well */
    assert_int_equal(pool_is_paused(s.allocator), 1);
    FAILS(MEMOPT_BUSY, pause_pool(s.allocator, MEMOPT_PAUSE_KEEP, NULL));
    OK(memopt_pool_resume_sync(s.allocator, 0));
    s.paused = 0;
    end(&s);
}

static mo_device_ops ops;
static const mo_device_ops *real_ops;
static scene *moving;

/* As other threads would while contents move: a block of a tag that moves is freed, and blocks of
 * the other tag come and go, within what is cached. */
static memopt_status copy(memopt_device *device, void *destination, const void *source,
                          uint64_t bytes, memopt_stream stream)
{
    scene *s = moving;
    void *more[4];
    moving = NULL;
    if (s != NULL) {
        OK(memopt_allocator_free(s->allocator, s->blocks[s->paused != 0 ? 0 : 3].data));
        OK(memopt_allocator_free(s->allocator, s->blocks[s->paused != 0 ? 1 : 4].data));
        FAILS(MEMOPT_BUSY, memopt_allocator_alloc(s->allocator, 512, 0, NULL, &more[0]));
        for (int i = 0; i < 4; i++) {
            OK(memopt_allocator_alloc(s->allocator, 2048, 1, NULL, &more[i]));
            OK(real_ops->fill(device, more[i], 77, 2048, NULL));
        }
        for (int i = 0; i < 4; i++)
            OK(memopt_allocator_free(s->allocator, more[i]));
    }
    return real_ops->copy(device, destination, source, bytes, stream);
}

TEST(calls_while_contents_move)
{
    for (int how = MEMOPT_PAUSE_KEEP; how <= MEMOPT_PAUSE_FILE; how++) {
        scene s = begin(8);
        fill_blocks(&s);
        real_ops = s.device->ops;
        ops = *real_ops;
        ops.copy = copy;
        s.device->ops = &ops;
        moving = &s;
        OK(pause_two(&s, (memopt_pause)how));
        s.blocks[3].freed = 1;
        s.blocks[4] = (block){0};
        note_pause(&s, TWO, (memopt_pause)how);
        check_all(&s);
        moving = &s;
        OK(resume(&s, 0));
        s.blocks[0] = s.blocks[1] = (block){0};
        s.device->ops = real_ops;
        assert_null(s.blocks[3].data);
        check_all(&s);
        end(&s);
    }
}

/* One tag's memory serves the others while it is paused, and an end needs no resume. */
TEST(others_use_the_memory)
{
    scene s = begin(7);
    void *large = NULL, *more = NULL;
    OK(memopt_allocator_set_limit(s.allocator, 40 * MIB));
    OK(memopt_allocator_alloc(s.allocator, 30 * MIB, MEMOPT_TAG_WEIGHTS, NULL, &large));
    OK(memopt_fill(s.device, large, 9, 30 * MIB, NULL));
    memopt_pause_options options = MEMOPT_PAUSE_OPTIONS_INIT;
    options.tags = MEMOPT_TAG_BIT(MEMOPT_TAG_WEIGHTS);
    options.how = MEMOPT_PAUSE_FILE;
    options.path = folder;
    OK(memopt_pool_pause_sync(s.allocator, &options, NULL));
    OK(memopt_allocator_alloc(s.allocator, 36 * MIB, MEMOPT_TAG_OTHER, NULL, &more));
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, memopt_pool_resume_sync(s.allocator, 0));
    OK(memopt_allocator_free(s.allocator, more)); /* cached: the resume takes it */
    OK(memopt_pool_resume_sync(s.allocator, 0));
    const block kept = {large, 30 * MIB, MEMOPT_TAG_WEIGHTS, 9, 0};
    check_block(&s, &kept);
    OK(memopt_pool_pause_sync(s.allocator, &options, NULL));
    FAILS(MEMOPT_BUSY, memopt_allocator_destroy(s.allocator));
    OK(memopt_allocator_destroy_force(s.allocator));
    OK(memopt_device_close(s.device));
}

/* A block beside one that sleeps is freed in the order of its stream: its page goes at the end of
 * the allocator, and not before that work. */
TEST(end_beside_sleep)
{
    for (uint64_t seed = 1; seed < 5; seed++) {
        memopt_device *device = open_cpu(CAPACITY, MEMOPT_STREAM_ORDER_ADVERSARIAL, seed);
        memopt_allocator *allocator = new_allocator(device, EXPANDABLE);
        memopt_pause_options some = MEMOPT_PAUSE_OPTIONS_INIT;
        memopt_pause_report report = MEMOPT_PAUSE_REPORT_INIT;
        void *sleeper = NULL;
        memopt_stream stream = stream_on(device);
        OK(memopt_allocator_alloc(allocator, 5000, MEMOPT_TAG_WEIGHTS, stream, &sleeper));
        void *used = alloc_on(allocator, 9000, stream);
        some.tags = MEMOPT_TAG_BIT(MEMOPT_TAG_WEIGHTS);
        some.how = MEMOPT_PAUSE_DISCARD;
        OK(memopt_pool_pause_sync(allocator, &some, &report));
        assert_true(report.shared_bytes > 0);
        OK(memopt_fill(device, used, 7, 9000, stream));
        OK(memopt_allocator_free(allocator, used));
        OK(memopt_allocator_free(allocator, sleeper));
        OK(memopt_allocator_destroy(allocator));
        OK(memopt_device_sync(device)); /* tells what ran where nothing was mapped */
        OK(memopt_stream_destroy(device, stream));
        OK(memopt_device_close(device));
    }
}

int main(int count, char **values)
{
    if (count > 1)
        device_name = values[1];
    return run_all_tests(make_folder, remove_folder);
}
