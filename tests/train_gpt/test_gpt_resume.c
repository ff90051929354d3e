/*
 * The resume file: a run goes on with the same bits, and a file that is damaged, cut short or of
 * another run is refused without changing anything.
 */
#include "support.h"

#include "resume.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static corpus text;
static char path[64];

static options saving_options(int way)
{
    options o = tiny_options();
    o.dtype = way == 0 ? MEMOPT_DTYPE_F32 : way == 1 ? MEMOPT_DTYPE_BF16 : MEMOPT_DTYPE_F16;
    o.master = way == 2;
    o.adamw8bit = way != 0;
    o.accumulation = 2;
    o.init_scale = 1e6; /* fp16: some steps are skipped */
    o.scale_growth = 3; /* and the growth counter matters */
    return o;
}

static void steps(trainer *t, int count, double *losses)
{
    for (int i = 0; i < count; i++) {
        step_result r;
        assert_ok(trainer_step(t, &r));
        losses[i] = r.loss;
    }
}

TEST(goes_on_with_the_same_bits)
{
    for (int way = 0; way < 3; way++) {
        trainer one, two;
        double whole[12], rest[6];
        options o = saving_options(way);
        assert_ok(trainer_create(&one, &o, &text));
        steps(&one, 6, whole);
        assert_ok(resume_save(&one, path));
        steps(&one, 6, whole + 6);

        o.checkpoint = o.offload = o.stream = 1; /* what changes no bit may change */
        assert_ok(trainer_create(&two, &o, &text));
        assert_ok(resume_load(&two, path));
        assert_int_equal(two.step, 6);
        steps(&two, 6, rest);
        assert_memory_equal(whole + 6, rest, sizeof rest);
        bytes a = weight_bytes(&one), b = weight_bytes(&two);
        assert_same_bytes(&a, &b);
        free(a.data);
        free(b.data);
        assert_ok(trainer_destroy(&one));
        assert_ok(trainer_destroy(&two));
    }
}

/* --- what is refused ----------------------------------------------------------------------- */

static uint8_t *read_whole(size_t *out_length)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *out_length = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(*out_length);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *out_length, file), *out_length);
    fclose(file);
    return data;
}

static void write_whole(const uint8_t *data, size_t length)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

/* Loading must fail with this status and leave the next losses as they would have been. */
static void assert_refused(memopt_status expected, const char *word)
{
    trainer t;
    double with[2], without[2];
    options o = saving_options(0);
    assert_ok(trainer_create(&t, &o, &text));
    steps(&t, 2, without);
    assert_ok(trainer_destroy(&t));

    assert_ok(trainer_create(&t, &o, &text));
    assert_int_equal(resume_load(&t, path), expected);
    assert_non_null(strstr(gpt_error(), word));
    gpt_error_clear();
    assert_int_equal(t.step, 0);
    steps(&t, 2, with);
    assert_ok(trainer_destroy(&t));
    assert_memory_equal(with, without, sizeof with);
}

static void save_with(const options *o, int count)
{
    trainer t;
    double losses[8];
    assert_ok(trainer_create(&t, o, &text));
    steps(&t, count, losses);
    assert_ok(resume_save(&t, path));
    assert_ok(trainer_destroy(&t));
}

TEST(damage_is_refused)
{
    size_t length;
    options o = saving_options(0);
    save_with(&o, 3);
    uint8_t *good = read_whole(&length);
    for (size_t i = 0; i < 16; i++) {
        /* The head, the end, and places in between; one bit each. */
        size_t at = i < 8 ? 3 * i : i == 15 ? length - 1 : length / 15 * (i - 7);
        good[at] ^= 16;
        write_whole(good, length);
        good[at] ^= 16;
        assert_refused(MEMOPT_CORRUPT, path);
    }
    const size_t lengths[] = {0, 1, 15, 24, 300, length / 2, length - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        write_whole(good, lengths[i]);
        assert_refused(MEMOPT_CORRUPT, path);
    }
    free(good);
}

/* A file whose checksum is right but whose optimizer part is not: the library refuses that part,
 * and nothing has been changed by then. */
TEST(damage_under_a_right_checksum_is_refused)
{
    size_t length;
    options o = saving_options(0);
    save_with(&o, 3);
    uint8_t *data = read_whole(&length);
    data[length - 64] ^= 1;
    uint32_t crc = crc32_add(0, data, length - 4);
    memcpy(data + length - 4, &crc, 4);
    write_whole(data, length);
    free(data);
    assert_refused(MEMOPT_CORRUPT, "");
}

TEST(other_runs_are_refused)
{
    options o = saving_options(0);
    o.width = 64;
    save_with(&o, 1);
    assert_refused(MEMOPT_MISMATCH, "width=64");
    o = saving_options(0);
    o.lr = 1e-3;
    save_with(&o, 1);
    assert_refused(MEMOPT_MISMATCH, "lr=");
    o = saving_options(1);
    save_with(&o, 1);
    assert_refused(MEMOPT_MISMATCH, "dtype=bf16");
    unlink(path);
    assert_refused(MEMOPT_IO_ERROR, "No such file");
}

/* A place that cannot be written is told, and the old file stays. */
TEST(unwritable_places_are_told)
{
    trainer t;
    options o = saving_options(0);
    assert_ok(trainer_create(&t, &o, &text));
    assert_int_equal(resume_save(&t, "/nonexistent-folder/file"), MEMOPT_IO_ERROR);
    gpt_error_clear();
    assert_int_equal(resume_save(&t, "/dev/null/file"), MEMOPT_IO_ERROR);
    gpt_error_clear();
    assert_ok(trainer_destroy(&t));
}

int main(void)
{
    snprintf(path, sizeof path, "gpt_resume_%ld.bin", (long)getpid());
    tiny_text(&text);
    int failed = run_all_tests(NULL, NULL);
    unlink(path);
    text_free(&text);
    return failed;
}
