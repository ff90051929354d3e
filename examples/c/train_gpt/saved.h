/*
 * A value that forward leaves for backward, wherever it is in between: leased from a checkpoint
 * region, in a block of its own, or in page-locked host memory behind a ticket.
 */
#ifndef GPT_SAVED_H
#define GPT_SAVED_H

#include "memory.h"

typedef struct saved {
    memopt_tensor tensor; /* its data is NULL while it is on the host */
    memopt_ticket ticket; /* 0: it was never sent. In a rehearsal: of tape_pack() */
    uint32_t away;        /* 1: saved_send() sends it; set before forward, and stays */
} saved;

/* A value in a block of its own. */
memopt_status saved_create(memory *m, memopt_dtype dtype, uint64_t count, saved *out_value);

/* Backward needs the value: so that a rehearsal knows it. */
void saved_keep(memory *m, saved *value);

/* Gives the value to the offloader, if it is to go away: a copy to the host starts behind the work so far, and the
 * block is freed when it is done. Compute goes on meanwhile. */
memopt_status saved_send(memory *m, saved *value);

/* Makes later work wait until a sent value has left the device. */
memopt_status saved_wait(memory *m, const saved *value);

/* Starts bringing a sent value back, so that saved_fetch() need not wait for all of it. */
memopt_status saved_prefetch(memory *m, const saved *value);

/* Makes tensor.data valid again; does nothing for a value that was not sent. */
memopt_status saved_fetch(memory *m, saved *value);

/* Frees the value's memory, on the device and on the host. */
memopt_status saved_drop(memory *m, saved *value);

#endif
