#include "memopt_umf.h"

#include <stdlib.h>

enum { BLOCK_ALIGNMENT = 512, PAGE = 2 << 20, CACHE_LINE = 64 };

static umf_result_t result_of(memopt_status status)
{
    switch (status) {
    case MEMOPT_OK:
        return UMF_RESULT_SUCCESS;
    case MEMOPT_INVALID_ARGUMENT:
        return UMF_RESULT_ERROR_INVALID_ARGUMENT;
    case MEMOPT_OUT_OF_HOST_MEMORY:
        return UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    default: /* get_last_native_error() has the message */
        return UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC;
    }
}

static umf_result_t begin(const void *params, void **out_provider)
{
    const memopt_umf_params *given = params;
    if (given == NULL || given->allocator == NULL)
        return UMF_RESULT_ERROR_INVALID_ARGUMENT;
    memopt_umf_params *kept = malloc(sizeof *kept);
    if (kept == NULL)
        return UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    *kept = *given;
    *out_provider = kept;
    return UMF_RESULT_SUCCESS;
}

static umf_result_t end(void *provider)
{
    free(provider);
    return UMF_RESULT_SUCCESS;
}

/* A stricter alignment than the allocator's is found inside a larger block; give_back finds its begin. */
static umf_result_t take(void *provider, size_t size, size_t alignment, void **out_pointer)
{
    const memopt_umf_params *p = provider;
    size_t more = alignment > BLOCK_ALIGNMENT ? alignment - BLOCK_ALIGNMENT : 0;
    void *block;
    if ((alignment & (alignment - 1)) != 0)
        return UMF_RESULT_ERROR_INVALID_ALIGNMENT;
    if (size > SIZE_MAX - more)
        return UMF_RESULT_ERROR_INVALID_ARGUMENT;
    memopt_status status =
        memopt_allocator_alloc(p->allocator, size + more, p->tag, p->stream, &block);
    if (status != MEMOPT_OK)
        return result_of(status);
    *out_pointer = more == 0
                       ? block
                       : (void *)(((uintptr_t)block + alignment - 1) & ~(uintptr_t)(alignment - 1));
    return UMF_RESULT_SUCCESS;
}

static umf_result_t give_back(void *provider, void *pointer, size_t size)
{
    const memopt_umf_params *p = provider;
    void *block = NULL;
    (void)size;
    if (pointer == NULL)
        return UMF_RESULT_SUCCESS;
    memopt_status status = memopt_allocator_get_block(p->allocator, pointer, &block, NULL);
    return result_of(status == MEMOPT_OK ? memopt_allocator_free(p->allocator, block) : status);
}

static umf_result_t last_error(void *provider, const char **out_message, int32_t *out_error)
{
    (void)provider;
    *out_message = memopt_last_error();
    *out_error = 0;
    return UMF_RESULT_SUCCESS;
}

static umf_result_t recommended_page(void *provider, size_t size, size_t *out_bytes)
{
    (void)provider;
    (void)size;
    *out_bytes = PAGE;
    return UMF_RESULT_SUCCESS;
}

static umf_result_t smallest_page(void *provider, const void *pointer, size_t *out_bytes)
{
    (void)provider;
    (void)pointer;
    *out_bytes = BLOCK_ALIGNMENT;
    return UMF_RESULT_SUCCESS;
}

static umf_result_t name(void *provider, const char **out_name)
{
    (void)provider;
    *out_name = "memopt";
    return UMF_RESULT_SUCCESS;
}

#if UMF_PROVIDER_OPS_VERSION_CURRENT >= UMF_MAKE_VERSION(1, 2)
static umf_result_t cache_line(void *provider, size_t *out_bytes)
{
    (void)provider;
    *out_bytes = CACHE_LINE;
    return UMF_RESULT_SUCCESS;
}
#endif

const umf_memory_provider_ops_t *memopt_umf_provider_ops(void)
{
    static const umf_memory_provider_ops_t ops = {
        .version = UMF_PROVIDER_OPS_VERSION_CURRENT,
        .initialize = begin,
        .finalize = end,
        .alloc = take,
        .free = give_back,
        .get_last_native_error = last_error,
        .get_recommended_page_size = recommended_page,
        .get_min_page_size = smallest_page,
        .get_name = name,
#if UMF_PROVIDER_OPS_VERSION_CURRENT >= UMF_MAKE_VERSION(1, 2)
        .get_cache_line_size = cache_line,
#endif
    };
    return &ops;
}
