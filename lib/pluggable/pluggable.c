/* The entry points that frameworks call by address; see pluggable.h. */
#include "pluggable/pluggable.h"

#include "base/error.h"
#include "base/lock.h"

#include <stdio.h>
#include <string.h>

static _Atomic(memopt_pluggable_raise) raise_function;

/* --- configuration ---------------------------------------------------------------------------- */

memopt_status memopt_pluggable_configure(const char *backend, const char *config,
                                         memopt_pluggable_raise raise)
{
    if (backend == NULL || (strcmp(backend, "cuda") != 0 && strcmp(backend, "hip") != 0 &&
                            strcmp(backend, "cpu") != 0))
        return mo_fail(
            MEMOPT_INVALID_ARGUMENT,
            "pluggable_configure: backend is \"cuda\", \"hip\" or \"cpu\", not \"%.20s\"",
            backend == NULL ? "(NULL)" : backend);
    if (config == NULL)
        config = "";
    if (strlen(config) >= MO_PLUG_CONFIG)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "pluggable_configure: config has %zu characters; write fewer than %d",
                       strlen(config), MO_PLUG_CONFIG);
    MO_TRY(memopt_allocator_check_config(config));
    MO_TRY(mo_plug_set_config(backend, config));
    atomic_store(&raise_function, raise);
    return MEMOPT_OK;
}

static memopt_allocator *first_of(mo_plug_slot *slot)
{
    return atomic_load_explicit(&slot->first, memory_order_acquire);
}

/* --- blocks ----------------------------------------------------------------------------------- */

static memopt_status allocate(uint64_t size, int32_t device, memopt_stream stream,
                              void **out_pointer)
{
    mo_plug_slot *slot;
    memopt_tag tag;
    memopt_status status = mo_plug_enter(device, &slot);
    if (status == MEMOPT_OK)
        status = mo_plug_tag(slot, &tag);
    if (status != MEMOPT_OK)
        return status;
    if (mo_plug_pool_alloc(slot, size, tag, stream, out_pointer, &status))
        return status;
    return memopt_allocator_alloc(first_of(slot), size, tag, stream, out_pointer);
}

void *memopt_pluggable_alloc(uint64_t size, int32_t device, memopt_stream stream)
{
    void *pointer = NULL;
    return allocate(size, device, stream, &pointer) == MEMOPT_OK ? pointer : NULL;
}

static void raise_failure(memopt_status status, int32_t device, uint64_t asked)
{
    char text[2048], name[sizeof mo_plug_backend];
    memopt_pluggable_raise raise = atomic_load(&raise_function);
    mo_lock(&mo_plug_lock);
    memcpy(name, mo_plug_backend, sizeof name);
    mo_unlock(&mo_plug_lock);
    const char *prefix = status != MEMOPT_OUT_OF_DEVICE_MEMORY ? "memopt: "
                         : strcmp(name, "hip") == 0            ? "HIP out of memory. "
                                                               : "CUDA out of memory. ";
    snprintf(text, sizeof text, "%s%s", prefix, memopt_last_error());
    if (status == MEMOPT_OUT_OF_DEVICE_MEMORY)
        mo_plug_observed(device, asked); /* it may change the last error */
    if (raise != NULL)
        raise("memopt_pluggable_alloc_or_raise", "libmemopt", 0, text);
}

void *memopt_pluggable_alloc_or_raise(uint64_t size, int32_t device, memopt_stream stream)
{
    void *pointer = NULL;
    memopt_status status = allocate(size, device, stream, &pointer);
    if (status == MEMOPT_OK)
        return pointer;
    raise_failure(status, device, size);
    return NULL;
}

void memopt_pluggable_free(void *pointer, uint64_t size, int32_t device, memopt_stream stream)
{
    mo_plug_slot *slot;
    (void)size;
    (void)stream;
    if (pointer == NULL)
        return;
    memopt_status status = mo_plug_enter(device, &slot);
    if (status == MEMOPT_OK && !mo_plug_pool_free(slot, pointer, &status))
        status = memopt_allocator_free(first_of(slot), pointer);
}

void memopt_pluggable_record_stream(void *pointer, memopt_stream stream)
{
    memopt_status status;
    for (int i = 0; i < MO_PLUG_DEVICES; i++) {
        mo_plug_slot *slot = &mo_plug_slots[i];
        memopt_allocator *allocator = first_of(slot);
        if (allocator == NULL)
            continue;
        if (mo_allocator_owns(allocator, pointer)) {
            memopt_allocator_record_stream(allocator, pointer, stream);
            return;
        }
        if (mo_plug_pool_record(slot, pointer, stream, &status)) {
            return;
        }
    }
    mo_fail(MEMOPT_INVALID_ARGUMENT, "pluggable_record_stream: %p is not a live block", pointer);
}

/* --- the cache -------------------------------------------------------------------------------- */

/* Memory of released pools first: it serves nobody. */
static memopt_status trim(mo_plug_slot *slot, uint64_t target, uint64_t *released)
{
    memopt_allocator *allocator = first_of(slot);
    uint64_t held = 0, bytes = 0;
    memopt_status status = MEMOPT_OK;
    if (allocator == NULL)
        return MEMOPT_OK;
    memopt_allocator_get_stat(allocator, "reserved_bytes.all.current", &held);
    uint64_t of_graphs = mo_plug_pools_held(slot);
    if (held + of_graphs > target) {
        status = mo_plug_pools_trim(slot, released);
        of_graphs = mo_plug_pools_held(slot);
    }
    uint64_t own = target > of_graphs ? target - of_graphs : 0;
    mo_keep_first(&status, memopt_allocator_trim_sync(allocator, own, &bytes));
    *released += bytes;
    return status;
}

memopt_status memopt_pluggable_trim_to_sync(int32_t device, uint64_t target, uint64_t *out_released)
{
    mo_plug_slot *slot = NULL; /* else gcc warns in the one C file */
    uint64_t released = 0;
    MO_TRY(mo_plug_find(device, &slot));
    MO_TRY(trim(slot, target, &released));
    if (out_released != NULL)
        *out_released = released;
    return MEMOPT_OK;
}

void memopt_pluggable_empty_cache(void)
{
    uint64_t released = 0;
    for (int i = 0; i < MO_PLUG_DEVICES; i++)
        (void)trim(&mo_plug_slots[i], 0, &released);
}

void memopt_pluggable_memory_fraction(double fraction, int32_t device)
{
    mo_plug_slot *slot;
    memopt_status status = mo_plug_enter(device, &slot);
    if (status == MEMOPT_OK && !(fraction >= 0 && fraction <= 1))
        status = mo_fail(MEMOPT_INVALID_ARGUMENT, "memory_fraction: %g is not 0 to 1", fraction);
    if (status == MEMOPT_OK) {
        memopt_allocator *allocator = first_of(slot);
        memopt_memory_info memory = MEMOPT_MEMORY_INFO_INIT;
        status = memopt_device_get_memory_info(mo_allocator_device(allocator), &memory);
        if (status != MEMOPT_OK)
            return;
        uint64_t limit = (uint64_t)((double)memory.total * fraction);
        status = memopt_allocator_set_limit(allocator, limit > 0 ? limit : 1);
    }
}

/* --- seeing and ending ------------------------------------------------------------------------ */

memopt_status memopt_pluggable_get_allocator(int32_t device, uint64_t index,
                                             memopt_allocator **out_allocator)
{
    mo_plug_slot *slot;
    MO_NOT_NULL("pluggable_get_allocator", out_allocator);
    MO_TRY(mo_plug_enter(device, &slot));
    memopt_allocator *found = index == 0 ? first_of(slot) : NULL;
    mo_lock(&mo_plug_lock);
    for (mo_graph_pool *pool = slot->pools; pool != NULL && found == NULL; pool = pool->next)
        if (--index == 0)
            found = pool->allocator;
    mo_unlock(&mo_plug_lock);
    if (found == NULL)
        return mo_fail(MEMOPT_NOT_FOUND,
                       "pluggable_get_allocator: the device has no allocator with this index");
    *out_allocator = found;
    return MEMOPT_OK;
}

static uint64_t live_blocks(mo_plug_slot *slot)
{
    uint64_t live = 0, count = 0;
    memopt_allocator *allocator = first_of(slot);
    if (allocator != NULL)
        memopt_allocator_get_stat(allocator, "allocation.all.current", &live);
    for (mo_graph_pool *pool = slot->pools; pool != NULL; pool = pool->next)
        count += pool->live;
    return live + count;
}

static memopt_status end_slot(mo_plug_slot *slot)
{
    memopt_allocator *allocator = first_of(slot);
    if (allocator == NULL)
        return MEMOPT_OK;
    memopt_device *device = mo_allocator_device(allocator);
    memopt_status status = mo_plug_pools_end(slot);
    mo_keep_first(&status, memopt_allocator_destroy(allocator));
    atomic_store(&slot->first, NULL);
    for (int i = 0; i < MO_PLUG_TAGS; i++)
        atomic_store(&slot->tags[i], MEMOPT_TAG_OTHER);
    mo_keep_first(&status, memopt_device_close(device));
    return status;
}

memopt_status memopt_pluggable_end(void)
{
    memopt_status status = MEMOPT_OK;
    uint64_t live = 0;
    for (int i = 0; i < MO_PLUG_DEVICES; i++)
        live += live_blocks(&mo_plug_slots[i]);
    if (live > 0)
        return mo_fail(MEMOPT_BUSY, "pluggable_end: %llu blocks are still allocated; free them",
                       (unsigned long long)live);
    for (int i = 0; i < MO_PLUG_DEVICES; i++)
        mo_keep_first(&status, end_slot(&mo_plug_slots[i]));
    strcpy(mo_plug_backend, "cuda");
    mo_plug_config[0] = '\0';
    atomic_store(&raise_function, NULL);
    memopt_pluggable_observe(NULL);
    mo_keep_first(&status, memopt_pluggable_trace(NULL));
    mo_keep_first(&status, memopt_pluggable_history(NULL));
    return status;
}
