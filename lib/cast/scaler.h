/*
 * A scaler: one block in device memory (kernels/reduce/scale.h) and scratch for totals.
 *
 * Scratch is used in stream order and never freed before the scaler, since earlier work may still
 * use it: when a call needs more, a block of at least twice the size is added, and the smaller ones
 * wait for the end. One thread at a time per scaler; no lock.
 */
#ifndef MO_CAST_SCALER_H
#define MO_CAST_SCALER_H

#include "memopt/cast.h"

#include "device/device.h"
#include "kernels/reduce/scale.h"

/* Blocks double, so that more than these cannot be needed. */
enum { MO_SCRATCH_BLOCKS = 64 };

struct memopt_scaler {
    memopt_device *device;
    mo_scaler_block *block; /* device memory */
    uint32_t disabled;
    uint32_t scratch_count;
    double *scratch[MO_SCRATCH_BLOCKS]; /* device memory; the last is in use */
    uint64_t scratch_bytes[MO_SCRATCH_BLOCKS];
};

/* Makes room for `doubles` of scratch. */
memopt_status mo_scaler_reserve(memopt_scaler *scaler, uint64_t doubles, double **out_scratch);

/* Checks a list of gradients for a call named `verb`; *out_chunks is how many chunks they have. */
memopt_status mo_gradients_check(const char *verb, const memopt_scaler *scaler,
                                 const memopt_tensor *gradients, uint64_t count, int written,
                                 uint64_t *out_chunks);
/* The same without a scaler; `subject` begins the messages. */
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
