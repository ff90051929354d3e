/*
 * The library's handles and the views through which kernels see tensors (memory.h).
 */
#include "memory.h"

#include <stdio.h>
#include <string.h>

memopt_status memory_open(memory *m, const options *o)
{
    memset(m, 0, sizeof *m);

    memopt_device_options device = MEMOPT_DEVICE_OPTIONS_INIT;
    device.capacity = o->capacity;
    device.threads = (uint32_t)o->threads;
    device.stream_order =
        o->adversarial ? MEMOPT_STREAM_ORDER_ADVERSARIAL : MEMOPT_STREAM_ORDER_EAGER;
    device.seed = o->seed;
    device.unified = m->unified = o->unified;
    TRY(memopt_device_open("cpu", &device, &m->device));

    memopt_status status = memopt_allocator_create(m->device, o->allocator, NULL, &m->allocator);
    if (status == MEMOPT_OK)
        status = memopt_allocator_register_tag(m->allocator, "workspace", &m->workspace);
    if (status == MEMOPT_OK && (o->offload || o->budget)) {
        memopt_offloader_options offload = MEMOPT_OFFLOADER_OPTIONS_INIT;
        offload.host_limit = o->host_limit;
        /* What does not fit stays on the device, but for a budget: its plan keeps to the limit. */
        offload.overflow = o->budget ? MEMOPT_OVERFLOW_FAIL : MEMOPT_OVERFLOW_KEEP;
        status = memopt_offloader_create(m->device, m->allocator, &offload, &m->offloader);
    }
    if (status == MEMOPT_OK && o->stream)
        status = memopt_offloader_create(m->device, m->allocator, NULL, &m->store);
    if (status != MEMOPT_OK)
        memory_close(m);
    return status;
}

memopt_status memory_close(memory *m)
{
    const memopt_status ends[] = {
        memopt_streamer_destroy_force(m->streamer), memopt_offloader_destroy_force(m->store),
        memopt_offloader_destroy_force(m->offloader), memopt_allocator_destroy_force(m->allocator),
        memopt_device_close(m->device)};
    memopt_status first = MEMOPT_OK;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        first = first == MEMOPT_OK ? ends[i] : first;
    memset(m, 0, sizeof *m);
    return first;
}

memopt_status memory_sync(memory *m)
{
    return memopt_stream_sync(m->device, NULL);
}

memopt_status memory_tensor(memory *m, memopt_dtype dtype, uint64_t count, memopt_tag tag,
                            memopt_tensor *out_tensor)
{
    uint64_t bytes = count * memopt_dtype_size(dtype);
    void *data = NULL;
    if (m->tape)
        data = tape_birth(m->tape, bytes, tag == m->workspace ? "scratch" : "a value for backward");
    else
        TRY(memopt_allocator_alloc(m->allocator, bytes, tag, NULL, &data));
    *out_tensor = (memopt_tensor){data, count, dtype};
    return memory_sync(m);
}

memopt_status memory_free(memory *m, memopt_tensor *tensor)
{
    void *data = tensor->data;
    tensor->data = NULL;
    if (data && m->tape) {
        tape_death(m->tape, data);
        return MEMOPT_OK;
    }
    return memopt_allocator_free(m->allocator, data);
}

memopt_status memory_cast(memory *m, const memopt_tensor *destination, const memopt_tensor *source)
{
    if (m->tape)
        return MEMOPT_OK;
    TRY(memopt_cast(m->device, destination, source, 1, NULL, NULL));
    return memory_sync(m);
}

/* --- views --------------------------------------------------------------------------------- */

frame frame_begin(memory *m)
{
    frame f;
    f.memory = m;
    f.status = MEMOPT_OK;
    f.count = 0;
    return f;
}

/* Adds a view over fp32 scratch; NULL after an error. */
static float *frame_push(frame *f, uint64_t count, const memopt_tensor *narrow)
{
    if (f->status != MEMOPT_OK)
        return NULL;
    if (f->count == FRAME_VIEWS) {
        f->status = gpt_fail(MEMOPT_INTERNAL, "frame: more than %d views", FRAME_VIEWS);
        return NULL;
    }
    memopt_tensor wide;
    f->status = memory_tensor(f->memory, MEMOPT_DTYPE_F32, count, f->memory->workspace, &wide);
    if (f->status != MEMOPT_OK)
        return NULL;
    f->views[f->count].wide = wide;
    f->views[f->count].narrow = narrow ? *narrow : (memopt_tensor){NULL, 0, MEMOPT_DTYPE_F32};
    f->count++;
    return wide.data;
}

/* Opens a tensor; `load` converts what is in it, `store` converts back at the end. */
static float *frame_open(frame *f, const memopt_tensor *tensor, int load, int store)
{
    if (f->status != MEMOPT_OK)
        return NULL;
    if (tensor->dtype == MEMOPT_DTYPE_F32)
        return tensor->data;
    float *wide = frame_push(f, tensor->count, store ? tensor : NULL);
    if (wide && load)
        f->status = memory_cast(f->memory, &f->views[f->count - 1].wide, tensor);
    return f->status == MEMOPT_OK ? wide : NULL;
}

const float *frame_read(frame *f, const memopt_tensor *tensor)
{
    return frame_open(f, tensor, 1, 0);
}

float *frame_write(frame *f, const memopt_tensor *tensor)
{
    return frame_open(f, tensor, 0, 1);
}

float *frame_update(frame *f, const memopt_tensor *tensor)
{
    return frame_open(f, tensor, 1, 1);
}

float *frame_scratch(frame *f, uint64_t count)
{
    return frame_push(f, count, NULL);
}

memopt_status frame_end(frame *f)
{
    while (f->count > 0) {
        f->count--;
        memopt_tensor *narrow = &f->views[f->count].narrow;
        memopt_tensor *wide = &f->views[f->count].wide;
        if (narrow->data && f->status == MEMOPT_OK)
            f->status = memory_cast(f->memory, narrow, wide);
        memopt_status freed = memory_free(f->memory, wide);
        if (f->status == MEMOPT_OK)
            f->status = freed;
    }
    return f->status;
}

/* --- figures ------------------------------------------------------------------------------- */

static memopt_status tag_peak(memory *m, memopt_tag tag, uint64_t *out_peak)
{
    memopt_tag_stats stats = MEMOPT_TAG_STATS_INIT;
    TRY(memopt_allocator_get_tag_stats(m->allocator, tag, &stats));
    *out_peak = stats.peak_bytes;
    return MEMOPT_OK;
}

memopt_status memory_streamed(memory *m, memopt_stream_stats *out_stats)
{
    *out_stats = (memopt_stream_stats)MEMOPT_STREAM_STATS_INIT;
    return m->streamer ? memopt_streamer_get_stats(m->streamer, out_stats) : MEMOPT_OK;
}

memopt_status memory_measure(memory *m, memory_figures *out_figures)
{
    memory_figures figures = {.plan = MEMOPT_STREAM_PLAN_INIT};
    TRY(memory_streamed(m, &figures.streamed));
    if (m->streamer)
        TRY(memopt_streamer_get_plan(m->streamer, NULL, 0, &figures.plan));
    TRY(tag_peak(m, MEMOPT_TAG_WEIGHTS, &figures.weights));
    TRY(tag_peak(m, MEMOPT_TAG_GRADIENTS, &figures.gradients));
    TRY(tag_peak(m, MEMOPT_TAG_OPTIMIZER, &figures.optimizer));
    TRY(tag_peak(m, MEMOPT_TAG_ACTIVATIONS, &figures.activations));
    TRY(tag_peak(m, m->workspace, &figures.workspace));

    const struct {
        const char *name;
        uint64_t *value;
    } wanted[] = {
        {"allocated_bytes.all.current", &figures.live},
        {"allocated_bytes.all.peak", &figures.live_peak},
        {"requested_bytes.all.current", &figures.exact},
        {"requested_bytes.all.peak", &figures.exact_peak},
        {"reserved_bytes.all.current", &figures.reserved},
        {"reserved_bytes.all.peak", &figures.reserved_peak},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        TRY(memopt_allocator_get_stat(m->allocator, wanted[i].name, wanted[i].value));
    figures.exact += figures.plan.budget;
    figures.exact_peak += figures.plan.budget;

    memopt_memory_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    TRY(memopt_device_get_memory_info(m->device, &info));
    figures.capacity = info.total;
    figures.pinned_peak = info.pinned_peak;
    *out_figures = figures;
    return MEMOPT_OK;
}

const char *size_text(char *text, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(text, SIZE_TEXT, unit == 0 || value >= 100 ? "%.0f %s" : "%.1f %s", value,
             units[unit]);
    return text;
}
