/* Lists of gradients: their checks, and launches over their chunks. */
#ifndef MO_CAST_GRADIENTS_H
#define MO_CAST_GRADIENTS_H

#include "memopt/cast.h"

#include "device/device.h"
#include "kernels/reduce/scale.h"

/* Checks a list of tensors; `subject` begins the messages; *out_chunks is how many chunks they
 * have. */
memopt_status mo_gradient_list_check(memopt_device *device, const char *subject,
                                     const memopt_tensor *gradients, uint64_t count, int written,
                                     uint64_t *out_chunks);

/* Launches a kernel over the chunks of all gradients. `header` is the argument struct with its
 * fields but count and segments set; partials move with the launches. */
memopt_status mo_gradients_reduce(memopt_device *device, const mo_kernel *kernel,
                                  mo_reduce_args *args, const memopt_tensor *gradients,
                                  uint64_t count, memopt_stream stream);
memopt_status mo_gradients_scale(memopt_device *device, mo_scale_args *args,
                                 const memopt_tensor *gradients, uint64_t count,
                                 memopt_stream stream);

#endif
