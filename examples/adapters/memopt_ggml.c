#include "memopt_ggml.h"

#include <ggml-backend-impl.h>
#include <memopt/device.h>
#include <stdlib.h>
#include <string.h>

/* --- the buffer type -------------------------------------------------------------------------- */

typedef struct source {
    memopt_allocator *allocator;
    memopt_tag tag;
} source;

static const char *name(ggml_backend_buffer_type_t type)
{
    (void)type;
    return "memopt";
}

/* ggml keeps the buffer type until the buffer is gone. */
static void free_buffer(ggml_backend_buffer_t buffer)
{
    const source *from = buffer->buft->context;
    memopt_allocator_free(from->allocator, buffer->context);
}

static ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size)
{
    const source *from = type->context;
    void *block;
    if (memopt_allocator_alloc(from->allocator, size, from->tag, NULL, &block) != MEMOPT_OK)
        return NULL; /* ggml tells its caller; memopt_last_error() has the report */
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(block, size);
    buffer->buft = type;
    buffer->iface.free_buffer = free_buffer;
    return buffer;
}

ggml_backend_buffer_type_t memopt_ggml_buffer_type(memopt_allocator *allocator, memopt_tag tag)
{
    memopt_allocator_info info = MEMOPT_ALLOCATOR_INFO_INIT;
    memopt_device_properties properties = MEMOPT_DEVICE_PROPERTIES_INIT;
    if (memopt_allocator_get_info(allocator, &info) != MEMOPT_OK ||
        memopt_device_get_properties(info.device, &properties) != MEMOPT_OK ||
        strcmp(properties.backend, "cpu") != 0)
        return NULL;
    ggml_backend_buffer_type_t type = calloc(1, sizeof *type + sizeof(source));
    if (type == NULL)
        return NULL;
    *(source *)(type + 1) = (source){allocator, tag};
    type->iface = ggml_backend_cpu_buffer_type()->iface;
    type->iface.get_name = name;
    type->iface.alloc_buffer = alloc_buffer;
    type->device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    type->context = type + 1;
    return type;
}

void memopt_ggml_buffer_type_free(ggml_backend_buffer_type_t type)
{
    free(type);
}

/* --- the optimizer ---------------------------------------------------------------------------- */

struct memopt_ggml_optimizer {
    memopt_device *device;
    memopt_optimizer *optimizer;
    struct ggml_context *context; /* of the parameters */
    uint64_t count;               /* of them */
    memopt_tensor *gradients;
};

struct ggml_tensor *memopt_ggml_gradient_of_opt(void *opt_context, struct ggml_tensor *parameter)
{
    return ggml_opt_grad_acc(opt_context, parameter);
}

/* An element type that memopt does not train, or gaps between elements, become a type that it refuses by name. */
static memopt_tensor tensor_of(const struct ggml_tensor *tensor)
{
    memopt_dtype dtype = MEMOPT_DTYPE_INVALID;
    if (ggml_is_contiguous(tensor))
        dtype = tensor->type == GGML_TYPE_F32    ? MEMOPT_DTYPE_F32
                : tensor->type == GGML_TYPE_F16  ? MEMOPT_DTYPE_F16
                : tensor->type == GGML_TYPE_BF16 ? MEMOPT_DTYPE_BF16
                                                 : MEMOPT_DTYPE_INVALID;
    return (memopt_tensor){tensor->data, (uint64_t)ggml_nelements(tensor), dtype};
}

static memopt_status add_all(memopt_ggml_optimizer *o)
{
    for (struct ggml_tensor *t = ggml_get_first_tensor(o->context); t != NULL;
         t = ggml_get_next_tensor(o->context, t)) {
        if (!(t->flags & GGML_TENSOR_FLAG_PARAM))
            continue;
        const memopt_tensor tensor = tensor_of(t);
        uint64_t index;
        memopt_status status =
            memopt_optimizer_add_parameter(o->optimizer, 0, &tensor, NULL, NULL, &index);
        if (status != MEMOPT_OK)
            return status;
        o->count++;
    }
    o->gradients = calloc(o->count + 1, sizeof *o->gradients);
    return o->gradients != NULL ? MEMOPT_OK : MEMOPT_OUT_OF_HOST_MEMORY;
}

memopt_status memopt_ggml_optimizer_create(memopt_allocator *allocator,
                                           const memopt_optimizer_options *options,
                                           const memopt_optimizer_group *group,
                                           struct ggml_context *parameters,
                                           memopt_ggml_optimizer **out_optimizer)
{
    memopt_allocator_info info = MEMOPT_ALLOCATOR_INFO_INIT;
    uint32_t first;
    memopt_status status = memopt_allocator_get_info(allocator, &info);
    if (status != MEMOPT_OK)
        return status;
    memopt_ggml_optimizer *o = calloc(1, sizeof *o);
    if (o == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    o->device = info.device;
    o->context = parameters;
    status = memopt_optimizer_create(allocator, options, &o->optimizer);
    if (status == MEMOPT_OK)
        status = memopt_optimizer_add_group(o->optimizer, group, &first);
    if (status == MEMOPT_OK)
        status = add_all(o);
    if (status == MEMOPT_OK)
        *out_optimizer = o;
    else
        memopt_ggml_optimizer_destroy(o);
    return status;
}

memopt_status memopt_ggml_optimizer_step(memopt_ggml_optimizer *o, memopt_ggml_gradient gradient,
                                         void *from, const memopt_step_options *step)
{
    uint64_t i = 0;
    for (struct ggml_tensor *t = ggml_get_first_tensor(o->context); t != NULL && i < o->count;
         t = ggml_get_next_tensor(o->context, t)) {
        if (!(t->flags & GGML_TENSOR_FLAG_PARAM))
            continue;
        const struct ggml_tensor *g = gradient(from, t);
        o->gradients[i++] = g == NULL ? (memopt_tensor){NULL, 0, MEMOPT_DTYPE_F32} : tensor_of(g);
    }
    memopt_status status = memopt_optimizer_step(o->optimizer, o->gradients, o->count, step, NULL);
    return status == MEMOPT_OK ? memopt_stream_sync(o->device, NULL) : status;
}

memopt_optimizer *memopt_ggml_optimizer_get(memopt_ggml_optimizer *o)
{
    return o->optimizer;
}

void memopt_ggml_optimizer_destroy(memopt_ggml_optimizer *o)
{
    if (o == NULL)
        return;
    memopt_optimizer_destroy(o->optimizer);
    free(o->gradients);
    free(o);
}
