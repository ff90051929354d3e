/* One slot for each device, made as configured; see pluggable.h. */
#include "pluggable/pluggable.h"

#include "base/error.h"
#include "base/lock.h"
#include "base/options.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

mo_plug_slot mo_plug_slots[MO_PLUG_DEVICES];
pthread_mutex_t mo_plug_lock = PTHREAD_MUTEX_INITIALIZER;
char mo_plug_backend[8] = "cuda";
char mo_plug_config[MO_PLUG_CONFIG];

/* Under mo_plug_lock; "" for no traces. */
static char trace_folder[MO_PLUG_CONFIG];
static unsigned trace_count;
static memopt_history_options history_options;
static int history_wanted;

static int in_use(void)
{
    for (int i = 0; i < MO_PLUG_DEVICES; i++)
        if (atomic_load(&mo_plug_slots[i].first) != NULL)
            return 1;
    return 0;
}

memopt_status mo_plug_set_config(const char *backend, const char *config)
{
    memopt_status status = MEMOPT_OK;
    mo_lock(&mo_plug_lock);
    int same = strcmp(backend, mo_plug_backend) == 0 && strcmp(config, mo_plug_config) == 0;
    if (!same && in_use()) {
        status = mo_fail(MEMOPT_BUSY,
                         "pluggable_configure: allocators of %s were made already with \"%.200s\"; "
                         "configure before the first allocation",
                         mo_plug_backend, mo_plug_config);
    } else {
        strcpy(mo_plug_backend, backend);
        strcpy(mo_plug_config, config);
    }
    mo_unlock(&mo_plug_lock);
    return status;
}

memopt_status memopt_pluggable_trace(const char *folder)
{
    if (folder != NULL && strlen(folder) >= sizeof trace_folder)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "pluggable_trace: folder has %zu characters; write fewer than %zu",
                       strlen(folder), sizeof trace_folder);
    mo_lock(&mo_plug_lock);
    strcpy(trace_folder, folder == NULL ? "" : folder);
    mo_unlock(&mo_plug_lock);
    return MEMOPT_OK;
}

memopt_status memopt_pluggable_history(const memopt_history_options *options)
{
    memopt_history_options copy;
    MO_TRY(mo_options_read(&copy, sizeof copy, options, "memopt_history_options"));
    mo_lock(&mo_plug_lock);
    history_options = copy;
    history_wanted = options != NULL;
    mo_unlock(&mo_plug_lock);
    return MEMOPT_OK;
}

/* The history of a new allocator; its pools have one, too. Without it the allocator works. */
static void begin_history(memopt_allocator *made)
{
    mo_lock(&mo_plug_lock);
    int wanted = history_wanted;
    const memopt_history_options options = history_options;
    mo_unlock(&mo_plug_lock);
    if (wanted)
        (void)memopt_allocator_set_history(made, &options);
}

/* Begins the trace of a new allocator. One that cannot be written is logged, no more. */
static void begin_trace(memopt_device *device, memopt_allocator *made)
{
    char path[sizeof trace_folder + 64];
    struct timespec now;
    memopt_device_properties properties = MEMOPT_DEVICE_PROPERTIES_INIT;
    memopt_device_get_properties(device, &properties);
    clock_gettime(CLOCK_REALTIME, &now);
    mo_lock(&mo_plug_lock);
    int traced = trace_folder[0] != '\0';
    snprintf(path, sizeof path, "%s/%d-%lld-%u.csv", trace_folder, properties.index,
             (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000, trace_count++);
    mo_unlock(&mo_plug_lock);
    if (traced)
        memopt_allocator_trace(made, path, NULL);
}

static memopt_status make(memopt_device *device, memopt_allocator **out_allocator)
{
    char config[MO_PLUG_CONFIG];
    mo_lock(&mo_plug_lock);
    memcpy(config, mo_plug_config, sizeof config);
    mo_unlock(&mo_plug_lock);
    MO_TRY(memopt_allocator_create(device, config, NULL, out_allocator));
    begin_trace(device, *out_allocator);
    begin_history(*out_allocator);
    return MEMOPT_OK;
}

memopt_status mo_plug_make_pool(memopt_allocator *first, memopt_pool **out_pool)
{
    memopt_pool_options options = MEMOPT_POOL_OPTIONS_INIT;
    options.name = "graph";
    options.retain = 1;
    MO_TRY(memopt_pool_create(first, &options, out_pool));
    begin_trace(mo_allocator_device(first), *out_pool);
    return MEMOPT_OK;
}

/* Opens the device and makes its first allocator, unless another thread was quicker. */
static memopt_status make_first(mo_plug_slot *slot, int index)
{
    char name[32];
    memopt_device *device;
    memopt_allocator *made, *none = NULL;
    mo_lock(&mo_plug_lock);
    snprintf(name, sizeof name, "%s:%d", mo_plug_backend, index);
    mo_unlock(&mo_plug_lock);
    MO_TRY(memopt_device_open(name, NULL, &device));
    memopt_status status = make(device, &made);
    if (status == MEMOPT_OK && atomic_compare_exchange_strong(&slot->first, &none, made))
        return MEMOPT_OK;
    if (status == MEMOPT_OK)
        memopt_allocator_destroy(made);
    memopt_device_close(device);
    return status;
}

memopt_status mo_plug_find(int32_t device, mo_plug_slot **out_slot)
{
    if (device < 0 || device >= MO_PLUG_DEVICES)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "pluggable: device %d is not 0 to %d", device,
                       MO_PLUG_DEVICES - 1);
    *out_slot = &mo_plug_slots[device];
    return MEMOPT_OK;
}

memopt_status mo_plug_enter(int32_t device, mo_plug_slot **out_slot)
{
    MO_TRY(mo_plug_find(device, out_slot));
    return atomic_load_explicit(&(*out_slot)->first, memory_order_acquire) != NULL
               ? MEMOPT_OK
               : make_first(*out_slot, device);
}
