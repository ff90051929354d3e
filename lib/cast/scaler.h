/* A scaler: one block in device memory (kernels/reduce/scale.h). One thread at a time per scaler;
 * no lock. */
#ifndef MO_CAST_SCALER_H
#define MO_CAST_SCALER_H

#include "cast/gradients.h"
#include "memopt/allocator.h"

struct memopt_scaler {
    memopt_device *device;
    memopt_allocator *allocator; /* that the block is of; NULL: of the device */
    mo_scaler_block *block;      /* device memory */
    uint32_t disabled;
    uint64_t updates; /* enqueued so far */

    /* scaler_sent.c */
    mo_scaler_block *sent; /* two, page-locked; NULL: none was asked for */
    memopt_event *arrival; /* behind the copy under way */
    int arrived;           /* which of them holds the last state that has arrived */
    int any_arrived, under_way;
    uint64_t arrived_updates, sent_updates; /* updates before the states of the two */
};

/* scaler_sent.c */
memopt_scaler_state mo_scaler_state_of(const mo_scaler_block *block);
/* Frees what sending has made. Pre: no copy is under way. */
memopt_status mo_scaler_end_sent(memopt_scaler *scaler);

#endif
