/* Exporting and importing a block, with the n-th host allocation, then the n-th device operation
 * failing. */
#include "support/checks.h"
#include "support/torture.h"

#include "memopt/share.h"
#include "support/allocator_check.h"

#include <unistd.h>

#define BYTES ((5 << 20) + 512)

typedef struct fixture {
    memopt_allocator *allocator;
    void *block;
    memopt_export *shared;
    memopt_import *import;
    char message[MEMOPT_SHARE_MESSAGE_BYTES];
    int32_t files[8];
    uint64_t file_count;
} fixture;

static void make(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(memopt_allocator_create(device, "expandable_segments:True", NULL, &f->allocator));
    OK(memopt_allocator_alloc(f->allocator, BYTES, MEMOPT_TAG_OTHER, NULL, &f->block));
    OK(memopt_fill(device, f->block, 17, BYTES, NULL));
    OK(memopt_stream_sync(device, NULL));
}

static void check(memopt_device *device, void *context)
{
    fixture *f = context;
    (void)device;
    OK(mo_allocator_check(f->allocator));
    assert_true(all_bytes(f->block, 17, BYTES));
}

static void end(memopt_device *device, void *context)
{
    fixture *f = context;
    check(device, context);
    OK(memopt_allocator_free(f->allocator, f->block));
    OK(memopt_allocator_destroy(f->allocator)); /* no export is left */
}

TORTURE_CALL(run_export, memopt_export_create(f->allocator, f->block, &f->shared))
TORTURE_UNDO(undo_export, memopt_export_destroy(f->shared))

static void make_files(memopt_device *device, void *context)
{
    fixture *f = context;
    make(device, context);
    OK(run_export(device, context));
    OK(memopt_export_describe(f->shared, f->message, &f->file_count));
    assert_true(f->file_count > 2 && f->file_count <= 8);
    OK(memopt_export_open_files(f->shared, 0, f->file_count, f->files));
}

TORTURE_CALL(run_import, memopt_import_open(device, f->message, sizeof f->message, f->files,
                                            f->file_count, &f->import))
TORTURE_UNDO(undo_import, memopt_import_destroy(f->import))

static void end_files(memopt_device *device, void *context)
{
    fixture *f = context;
    for (uint64_t i = 0; i < f->file_count; i++)
        assert_int_equal(close(f->files[i]), 0);
    undo_export(device, context);
    end(device, context);
}

static const torture_scenario scenarios[] = {
    {"export_create", NULL, make, run_export, undo_export, check, end, 0, 0},
    {"import_open", NULL, make_files, run_import, undo_import, check, end_files, 0, 0},
};

static void test_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        fixture f = {0};
        int64_t struck = torture(&scenarios[i], &f);
        print_message("%s: %lld faults\n", scenarios[i].name, (long long)struck);
        assert_true(struck > 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
