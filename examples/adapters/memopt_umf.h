/*
 * A memopt_allocator as a memory provider of the Unified Memory Framework (UMF 1.x): UMF's pools then take their
 * memory from it, and its statistics, limits and reports know them.
 *
 *     memopt_umf_params params = {allocator, MEMOPT_TAG_OTHER, stream};
 *     umfMemoryProviderCreate(memopt_umf_provider_ops(), &params, &provider);
 *
 * The provider borrows the allocator, which must outlive it. Any thread may use it. A free is ordered behind the
 * work of params.stream; what other streams use is theirs to wait for.
 */
#ifndef MEMOPT_UMF_H
#define MEMOPT_UMF_H

#include <memopt/allocator.h>
#include <umf/memory_provider_ops.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct memopt_umf_params {
    memopt_allocator *allocator;
    memopt_tag tag;       /* of the blocks */
    memopt_stream stream; /* whose work uses them first */
} memopt_umf_params;

const umf_memory_provider_ops_t *memopt_umf_provider_ops(void);

#ifdef __cplusplus
}
#endif
#endif
