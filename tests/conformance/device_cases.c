/* Memory, virtual memory, streams, events, copies, pinned memory and launches of a device. */
#include "conformance.h"

#include "device/device.h"
#include "kernels/hash/hash.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static void properties_make_sense(world *w)
{
    const memopt_device_properties *p = &w->properties;
    CHECK(p->name[0] != '\0' && p->backend[0] != '\0' && p->isa[0] != '\0');
    CHECK(p->warp_size == 1 || p->warp_size == 32 || p->warp_size == 64);
    CHECK(p->total_memory > 0 && p->threads > 0);
    CHECK(p->virtual_memory == 0 || (p->granularity & (p->granularity - 1)) == 0);
    memopt_memory_info info = info_of(w);
    CHECK(info.free <= info.total && info.used <= info.total);
}

static void plain_memory_comes_and_goes(world *w)
{
    uint64_t before = info_of(w).used;
    void *p = NULL, *q = NULL;
    OK(mo_mem_alloc(w->device, 4 * MIB, &p));
    OK(mo_mem_alloc(w->device, 512, &q));
    CHECK((uintptr_t)p % 512 == 0 && (uintptr_t)q % 512 == 0);
    CHECK(info_of(w).used == before + 4 * MIB + 512);
    OK(mo_mem_free(w->device, p, 4 * MIB));
    OK(mo_mem_free(w->device, q, 512));
    CHECK(info_of(w).used == before);
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY,
          mo_mem_alloc(w->device, (info_of(w).total / 512 + 1) * 512, &p));
    CHECK(info_of(w).used == before);
}

/* Two handles side by side, moved to other addresses with what they hold. */
static void virtual_memory_moves(world *w)
{
    uint64_t granule = mo_device_granularity(w->device);
    unsigned char sent[64], back[64];
    mo_vm_handle handles[2] = {NULL, NULL};
    char *address = NULL;
    if (!mo_vm_supported(w->device))
        skip("the device has no virtual memory");
    uint64_t before = info_of(w).used;
    OK(mo_vm_reserve(w->device, 8 * granule, (void **)&address));
    CHECK((uintptr_t)address % granule == 0);
    for (int i = 0; i < 2; i++) {
        OK(mo_vm_create(w->device, granule, &handles[i]));
        OK(mo_vm_map(w->device, address + (uint64_t)i * granule, granule, handles[i]));
    }
    OK(mo_vm_set_access(w->device, address, 2 * granule));
    CHECK(info_of(w).used == before + 2 * granule);
    fill_bytes(sent, sizeof sent, 5);
    OK(memopt_copy(w->device, address + granule - 32, sent, sizeof sent, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    for (int i = 0; i < 2; i++)
        OK(mo_vm_unmap(w->device, address + (uint64_t)i * granule, granule));
    for (int i = 0; i < 2; i++) {
        OK(mo_vm_map(w->device, address + (uint64_t)(4 + i) * granule, granule, handles[i]));
        OK(mo_vm_set_access(w->device, address + (uint64_t)(4 + i) * granule, granule));
    }
    OK(memopt_copy(w->device, back, address + 5 * granule - 32, sizeof back, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    CHECK(memcmp(sent, back, sizeof sent) == 0);
    for (int i = 0; i < 2; i++) {
        OK(mo_vm_unmap(w->device, address + (uint64_t)(4 + i) * granule, granule));
        OK(mo_vm_release(w->device, handles[i], granule));
    }
    OK(mo_vm_unreserve(w->device, address, 8 * granule));
    CHECK(info_of(w).used == before);
}

/* Odd sizes and offsets, device to device included. */
static void copies_carry_every_byte(world *w)
{
    enum { MOST = 70000 };
    static const uint64_t sizes[] = {1, 3, 17, 512, 4097, 65536, 69999};
    unsigned char *sent = malloc(MOST), *back = malloc(MOST);
    void *p = NULL, *q = NULL;
    CHECK(sent != NULL && back != NULL);
    fill_bytes(sent, MOST, 1);
    OK(mo_mem_alloc(w->device, MOST / 512 * 512 + 512, &p));
    OK(mo_mem_alloc(w->device, MOST / 512 * 512 + 512, &q));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t n = sizes[i], at = i % 2;
        memset(back, 0, MOST);
        OK(memopt_copy(w->device, (char *)p + at, sent + at, n, w->stream));
        OK(memopt_copy(w->device, q, (char *)p + at, n, w->stream));
        OK(memopt_copy(w->device, back, q, n, w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
        CHECK(memcmp(back, sent + at, n) == 0);
        CHECK(back[n] == 0);
    }
    OK(memopt_fill(w->device, (char *)p + 3, 0xA5, 1001, w->stream));
    OK(memopt_copy(w->device, back, (char *)p + 3, 1001, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    for (int i = 0; i < 1001; i++)
        CHECK(back[i] == 0xA5);
    OK(mo_mem_free(w->device, p, MOST / 512 * 512 + 512));
    OK(mo_mem_free(w->device, q, MOST / 512 * 512 + 512));
    free(sent);
    free(back);
}

static void pinned_memory_works(world *w)
{
    unsigned char *pinned = NULL, *mine = malloc(100000);
    void *p = NULL;
    CHECK(mine != NULL);
    OK(memopt_host_alloc(w->device, 100000, (void **)&pinned));
    OK(mo_mem_alloc(w->device, 100352, &p));
    fill_bytes(pinned, 100000, 9);
    OK(memopt_host_register(w->device, mine, 100000));
    OK(memopt_copy(w->device, p, pinned, 100000, w->stream));
    OK(memopt_copy(w->device, mine, p, 100000, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    CHECK(memcmp(mine, pinned, 100000) == 0);
    OK(memopt_host_unregister(w->device, mine));
    OK(memopt_host_free(w->device, pinned));
    OK(mo_mem_free(w->device, p, 100352));
    free(mine);
}

/* A producer, a consumer and an event between them, over and over. */
static void events_order_streams(world *w)
{
    enum { ROUNDS = 20, BYTES = 8192 };
    unsigned char *back = NULL;
    memopt_event *made = NULL, *used = NULL;
    void *p = NULL, *q = NULL;
    OK(memopt_host_alloc(w->device, ROUNDS, (void **)&back));
    OK(memopt_event_create(w->device, 0, &made));
    OK(memopt_event_create(w->device, 0, &used));
    OK(mo_mem_alloc(w->device, BYTES, &p));
    OK(mo_mem_alloc(w->device, BYTES, &q));
    OK(memopt_event_sync(used)); /* never recorded: complete */
    OK(memopt_event_query(used));
    OK(memopt_stream_wait_event(w->device, NULL, used));
    for (int i = 0; i < ROUNDS; i++) {
        OK(memopt_stream_wait_event(w->device, w->stream, used));
        OK(memopt_fill(w->device, p, i + 1, BYTES, w->stream));
        OK(memopt_event_record(made, w->stream));
        OK(memopt_stream_wait_event(w->device, w->other, made));
        OK(memopt_copy(w->device, q, p, BYTES, w->other));
        OK(memopt_copy(w->device, &back[i], (char *)q + BYTES - 1, 1, w->other));
        OK(memopt_event_record(used, w->other));
    }
    OK(memopt_event_sync(used));
    for (int i = 0; i < ROUNDS; i++)
        CHECK(back[i] == i + 1);
    memopt_status status = MEMOPT_NOT_READY;
    for (int i = 0; status == MEMOPT_NOT_READY && i < 1000000; i++)
        status = memopt_stream_query(w->device, w->stream);
    CHECK(status == MEMOPT_OK);
    OK(memopt_event_query(made));
    OK(memopt_event_destroy(made));
    OK(memopt_event_destroy(used));
    OK(mo_mem_free(w->device, p, BYTES));
    OK(mo_mem_free(w->device, q, BYTES));
    OK(memopt_host_free(w->device, back));
}

static void events_measure_time(world *w)
{
    memopt_event *start = NULL, *end = NULL;
    double seconds = -1;
    void *p = NULL;
    OK(mo_mem_alloc(w->device, MIB, &p));
    OK(memopt_event_create(w->device, 1, &start));
    OK(memopt_event_create(w->device, 1, &end));
    OK(memopt_event_record(start, w->stream));
    OK(memopt_fill(w->device, p, 1, MIB, w->stream));
    OK(memopt_event_record(end, w->stream));
    OK(memopt_event_sync(end));
    OK(memopt_event_elapsed(start, end, &seconds));
    CHECK(seconds >= 0 && seconds < 60);
    OK(memopt_event_destroy(start));
    OK(memopt_event_destroy(end));
    OK(mo_mem_free(w->device, p, MIB));
}

static void count_up(void *user)
{
    atomic_fetch_add((atomic_int *)user, 1);
}

static void host_callbacks_run_in_order(world *w)
{
    atomic_int count = 0;
    for (int i = 0; i < 5; i++)
        OK(memopt_stream_host_callback(w->device, w->stream, count_up, &count));
    OK(memopt_stream_sync(w->device, w->stream));
    CHECK(atomic_load(&count) == 5);
}

/* A kernel over an odd number of items, launched by name. */
static void kernels_launch(world *w)
{
    enum { BYTES = 3 * MO_HASH_GRANULE + 77, GRANULES = 4 };
    unsigned char *data = malloc(BYTES);
    void *p = NULL, *hashes = NULL;
    CHECK(data != NULL);
    fill_bytes(data, BYTES, 3);
    OK(mo_mem_alloc(w->device, (BYTES / 512 + 1) * 512, &p));
    OK(mo_mem_alloc(w->device, 512, &hashes));
    OK(memopt_copy(w->device, p, data, BYTES, w->stream));
    mo_hash_granules_args args = {p, hashes, BYTES};
    OK(mo_launch(w->device, w->stream, &mo_kernel_hash_granules, &args, GRANULES));
    OK(mo_launch(w->device, w->stream, &mo_kernel_hash_granules, &args, 0));
    result_of(w, hashes, GRANULES * sizeof(uint64_t));
    OK(mo_mem_free(w->device, p, (BYTES / 512 + 1) * 512));
    OK(mo_mem_free(w->device, hashes, 512));
    free(data);
}

static void bad_input_is_refused(world *w)
{
    char byte = 0;
    void *p = NULL;
    OK(mo_mem_alloc(w->device, 512, &p));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_copy(w->device, NULL, &byte, 1, w->stream));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_fill(w->device, NULL, 0, 1, w->stream));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_host_free(w->device, &byte));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_host_unregister(w->device, &byte));
    FAILS(MEMOPT_BUSY, memopt_device_close(w->device));
    OK(mo_mem_free(w->device, p, 512));
}

const conformance_case device_cases[] = {
    {"properties", properties_make_sense, 0, 0, 0},
    {"memory", plain_memory_comes_and_goes, 0, 0, 0},
    {"virtual_memory", virtual_memory_moves, 0, 0, 0},
    {"copies", copies_carry_every_byte, 0, 0, 0},
    {"pinned", pinned_memory_works, 0, 0, 0},
    {"events", events_order_streams, 0, 0, 0},
    {"timing", events_measure_time, 0, 0, 0},
    {"host_callbacks", host_callbacks_run_in_order, 0, 0, 0},
    {"launch", kernels_launch, 1, 0, 0},
    {"bad_input", bad_input_is_refused, 0, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
