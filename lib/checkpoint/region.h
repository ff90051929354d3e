/*
 * The checkpoint region: what its parts share.
 *
 * A region walks through these states:
 *
 *     IDLE --forward--> FORWARDED --recompute--> HELD --release--> FORWARDED
 *     IDLE --forward, keep mode--> KEPT --recompute--> HELD
 *                                  KEPT --release--> FORWARDED
 *
 * forward begins anew from every state but HELD; reset leads from every state to IDLE.
 *
 * Leases are one array, in the order of the run that made them. The forward run writes their sizes
 * (lease_total of them); a lease is alive while its pointer is not NULL. The arrays grow during the
 * first runs and are used again after that: a steady state allocates no host memory.
 *
 * A lease that could not be freed (a driver error) stays alive in whatever state the region is;
 * the next forward, recompute, release or destroy tries again.
 *
 * Threads: one at a time per region, so nothing is locked and no state is kept per thread (backward
 * may run on another thread than forward).
 */
#ifndef MO_CHECKPOINT_REGION_H
#define MO_CHECKPOINT_REGION_H

#include "memopt/checkpoint.h"

#include "base/error.h"

typedef enum mo_region_state {
    MO_REGION_IDLE = 0,  /* not run, or the last forward failed */
    MO_REGION_FORWARDED, /* run; no leases alive */
    MO_REGION_KEPT,      /* run; the leases of the forward run are alive */
    MO_REGION_HELD       /* ready for backward; leases alive */
} mo_region_state;

typedef enum mo_region_activity {
    MO_ACTIVITY_NONE = 0,
    MO_ACTIVITY_RANDOM, /* inside random_save or random_restore */
    MO_ACTIVITY_RUN     /* inside run: leases and checks are allowed */
} mo_region_activity;

typedef struct mo_lease {
    uint64_t bytes;
    void *pointer; /* NULL: not alive */
} mo_lease;

/* A value declared by the forward run, with what the recompute run is compared against. */
typedef struct mo_check {
    char *name;
    uint64_t bytes;
    uint64_t *hashes;     /* device memory, one per granule; NULL: none */
    uint64_t granules;    /* of hashes */
    memopt_stream stream; /* that hashes were allocated on */
    void *copy;           /* page-locked host memory; NULL: none */
    uint64_t copy_bytes;
} mo_check;

enum { MO_MISMATCH_BYTES = 640 };

struct memopt_region {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_region_callbacks callbacks;
    char *name;
    memopt_region_mode mode;
    memopt_region_check_mode check_mode;

    mo_region_state state;
    mo_region_activity activity;
    memopt_region_pass pass; /* of the run that goes on */
    memopt_stream stream;    /* of the run that goes on, or of the last one */

    /* The caller's random state at the start of forward, and at the start of recompute. */
    uint64_t random_bytes;
    unsigned char *random_first;
    unsigned char *random_now;
    const void *random_due; /* what a pass that was cut off has left to restore; or NULL */

    mo_lease *leases;
    uint64_t lease_capacity;
    uint64_t lease_total; /* of the forward run */
    uint64_t lease_next;  /* of the run that goes on */

    mo_check *checks;
    uint64_t check_capacity; /* all initialised; those past check_total keep buffers for later */
    uint64_t check_total;
    uint64_t check_next;

    /* Comparing. verdict is the device's (label, granule) of the first difference, found its copy.
     * scratch holds the recomputed bytes of one value (exact mode). settled is recorded behind the
     * last work that touches host memory of the region; pending until a wait for it. */
    uint64_t *verdict;
    uint64_t found[2];
    void *scratch;
    uint64_t scratch_bytes;
    memopt_event *settled;
    memopt_stream settled_stream;
    int pending;

    char mismatch[MO_MISMATCH_BYTES]; /* the first one of this run; "" if none */
    memopt_region_stats stats;
};

/* --- shared.c */

/* Writes down the run's first mismatch and makes it the last error. Later ones are not kept. */
memopt_status mo_region_mismatch(memopt_region *region, const char *format, ...) MO_PRINTF(2, 3);

/* Notes that enqueued work uses host memory of the region, and waits until it is done. */
memopt_status mo_region_settle_mark(memopt_region *region);
memopt_status mo_region_settle_wait(memopt_region *region);

/* --- leases.c */

/* Frees every lease that is alive. On failure it still frees the rest; returns the first error. */
memopt_status mo_region_drop_leases(memopt_region *region);

/* Makes the forward run's leases safe for work on another stream. */
memopt_status mo_region_share_leases(memopt_region *region, memopt_stream stream);

/* Live bytes. */
uint64_t mo_region_leased_bytes(const memopt_region *region);

/* --- check.c */

/* Before a run: orders it after work of an earlier run on another stream that uses the region's
 * host memory. */
memopt_status mo_region_checks_begin(memopt_region *region);

/* After a run, failed or not: notes where its work ends. */
memopt_status mo_region_checks_end(memopt_region *region);

/* After a successful recompute run: waits for the comparisons and returns MISMATCH if one
 * failed. */
memopt_status mo_region_checks_verdict(memopt_region *region);

/* Waits for pending work on host memory; then all buffers are freed. */
memopt_status mo_region_checks_destroy(memopt_region *region);

/* --- check_hash.c and check_exact.c: one value of the forward run, and of the recompute run. The
 * record's name and bytes are set. */
memopt_status mo_check_hash_first(memopt_region *region, mo_check *check, const void *data);
memopt_status mo_check_hash_again(memopt_region *region, mo_check *check, const void *data);
memopt_status mo_check_hash_verdict(memopt_region *region);
memopt_status mo_check_hash_drop(memopt_region *region, mo_check *check);
/* Gives back what only a recompute run needs. */
memopt_status mo_check_hash_drop_verdict(memopt_region *region);
memopt_status mo_check_exact_first(memopt_region *region, mo_check *check, const void *data);
memopt_status mo_check_exact_again(memopt_region *region, mo_check *check, const void *data);

#endif
