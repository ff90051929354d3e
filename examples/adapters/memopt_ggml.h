/*
 * ggml with libmemopt's memory and optimizers, on the CPU.
 *
 * A buffer type: tensors, graphs and schedulers of ggml take their memory from a memopt_allocator of the "cpu"
 * device, whose limit, statistics by tag and out-of-memory report then cover them. It needs ggml's header
 * ggml-backend-impl.h, as every backend outside ggml's tree.
 *
 * An optimizer: any kind and state format of memopt_optimizer steps the parameters of a context. It takes each
 * parameter's gradient from ggml_opt, or from where a callback of yours finds it.
 */
#ifndef MEMOPT_GGML_H
#define MEMOPT_GGML_H

#include <ggml-backend.h>
#include <ggml-opt.h>
#include <memopt/allocator.h>
#include <memopt/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Both borrow the allocator, which must outlive them and every buffer. NULL: no host memory, or the allocator is not
 * of the "cpu" device. */
ggml_backend_buffer_type_t memopt_ggml_buffer_type(memopt_allocator *allocator, memopt_tag tag);
void memopt_ggml_buffer_type_free(ggml_backend_buffer_type_t type);

typedef struct memopt_ggml_optimizer memopt_ggml_optimizer;

/* The gradient of a parameter; NULL: it has none. Of a graph: ggml_graph_get_grad_acc(), or ggml_graph_get_grad(). */
typedef struct ggml_tensor *(*memopt_ggml_gradient)(void *from, struct ggml_tensor *parameter);
/* ggml_opt keeps them if its opt_period is above 1, or its graphs are not static. */
struct ggml_tensor *memopt_ggml_gradient_of_opt(void *opt_context, struct ggml_tensor *parameter);

/* Of the tensors of a context that ggml_set_param() has marked: f32, f16 or bf16, contiguous. The context
 * outlives the optimizer. options: NULL, or as memopt_optimizer_create() takes them. */
memopt_status memopt_ggml_optimizer_create(memopt_allocator *allocator,
                                           const memopt_optimizer_options *options,
                                           const memopt_optimizer_group *group,
                                           struct ggml_context *parameters,
                                           memopt_ggml_optimizer **out_optimizer);
/* One step of all that have a gradient; when it returns, it is done. step: NULL, or clipping, scaling, …  */
memopt_status memopt_ggml_optimizer_step(memopt_ggml_optimizer *optimizer,
                                         memopt_ggml_gradient gradient, void *from,
                                         const memopt_step_options *step);
/* For schedules, exports and statistics; parameters have the order of the context. */
memopt_optimizer *memopt_ggml_optimizer_get(memopt_ggml_optimizer *optimizer);
void memopt_ggml_optimizer_destroy(memopt_ggml_optimizer *optimizer);

#ifdef __cplusplus
}
#endif
#endif
