/*
 * Host memory of exact size below a hard limit, page-locked as far as a limit of its own and the system
 * allow.
 *
 * Memory comes from the device in slabs. A large value (HOST_SMALL bytes and more) has a slab of
 * its own, rounded to a page; small values share slabs, cut in units of 64 bytes and joined again
 * when freed. A shared slab holds a whole number of the value that it is made for and is about a
 * 64th of the small memory held, so that unused ends stay below the 3 % that rounding may cost in
 * all, for few values as for many.
 *
 * A slab that would exceed the limit of page-locked memory, or that the system refuses to page-lock, is
 * pageable: copies of it are right, but slower, and a driver may let the caller wait for them. A
 * refusal lowers the limit to what is certain to be refused no more, and is logged once.
 *
 * A free range keeps the numbers of the last copy that wrote it, the last that read it, and the
 * last that the disk tier did with it (timeline.h). It may be taken at once: the new owner makes
 * its copy's stream wait for the copies of other streams. Only returning a slab to the system needs
 * all of them complete.
 *
 * Idle slabs go back, least recently used first, when the bytes held would exceed the limit or the
 * largest payload by 1/64. So sizes that change from step to step do not accumulate.
 *
 * Invariants: held is the sum of all slabs and never above the limit, held - pageable never above the
 * limit of page-locked memory that was given; a slab's ranges tile it in
 * address order, no two free ones side by side; both indices have room for every range that exists,
 * so that freeing needs no memory.
 */
#ifndef MO_OFFLOAD_HOST_POOL_H
#define MO_OFFLOAD_HOST_POOL_H

#include "offload/timeline.h"

enum { MO_HOST_UNIT = 64, MO_HOST_PAGE = 4096, MO_HOST_SMALL = 128 * 1024 };

typedef struct mo_host_slab mo_host_slab;

typedef struct mo_host_range {
    mo_host_slab *slab;
    unsigned char *base;
    uint64_t bytes;                    /* of the range */
    uint64_t payload;                  /* of the value in it; 0 while free */
    struct mo_host_range *prev, *next; /* neighbours in the slab; next links the spare ones, too */
    uint64_t written;                  /* mark of the last copy into it, on the timeline out */
    uint64_t read;                     /* mark of the last copy from it, on the timeline back */
    uint64_t stored; /* mark of the last write or read of a file, on the disk's timeline */
    int free;
} mo_host_range;

struct mo_host_slab {
    unsigned char *base;
    uint64_t bytes;
    uint64_t last_use;
    mo_host_range *first;
    void *block; /* of pageable memory; NULL: it is page-locked */
    int small;
};

/* Free ranges by size, then address. */
typedef struct mo_host_index {
    mo_host_range **items;
    uint64_t count;
    uint64_t capacity;
} mo_host_index;

typedef struct mo_host_pool {
    memopt_device *device;
    mo_timeline *out;
    mo_timeline *back;
    mo_timeline *disk; /* NULL: no disk tier */
    uint64_t limit;    /* UINT64_MAX: none */
    uint64_t pin_limit,
        pin_limit_given; /* of page-locked bytes; lowered by refusals, and as given */
    int refused;         /* the system has refused once; that was logged */

    mo_host_slab **slabs;
    uint64_t slab_count;
    uint64_t slab_capacity;
    mo_host_index small;
    mo_host_index large;
    mo_host_range *spare;
    uint64_t spare_count;
    uint64_t range_count; /* in slabs */

    uint64_t held, held_peak; /* bytes of slabs */
    uint64_t held_small;      /* of shared slabs */
    uint64_t pageable;        /* of pageable slabs */
    uint64_t used, used_peak; /* payload */
    uint64_t clock;
    uint64_t waits;
} mo_host_pool;

void mo_host_pool_open(mo_host_pool *pool, memopt_device *device, mo_timeline *out,
                       mo_timeline *back, mo_timeline *disk, uint64_t limit, uint64_t pin_limit);

/* Frees all slabs; the copies were waited for. */
void mo_host_pool_close(mo_host_pool *pool);

/* A range for `bytes` of payload. LIMIT_REACHED without a message (the caller writes it) if it does
 * not fit the limit; with `wait`, only after waiting for the copies of idle slabs. */
memopt_status mo_host_pool_take(mo_host_pool *pool, uint64_t bytes, int wait,
                                mo_host_range **out_range);

/* Gives a range back. Its marks say until when its memory is in use. */
void mo_host_pool_give(mo_host_pool *pool, mo_host_range *range);

/* Waits for the copies of idle slabs, gives them back to the system, and forgets its refusals. */
memopt_status mo_host_pool_trim(mo_host_pool *pool, uint64_t *out_released);

/* --- slabs.c: what host_pool.c is built from */

/* Makes room for two more ranges, so that taking one cannot fail half-way. */
memopt_status mo_host_pool_reserve(mo_host_pool *pool);

/* The best free range for `need` bytes (a multiple of the unit, or of a page if large), out of the
 * index and cut to size; NULL if there is none. Ranges were reserved. */
mo_host_range *mo_host_pool_find(mo_host_pool *pool, uint64_t need, int small);

/* A new slab with one free range, which was reserved; it fits below the limit, and below that of
 * page-locked memory or it is pageable. LIMIT_REACHED: the system refused to page-lock it. */
memopt_status mo_host_pool_add_slab(mo_host_pool *pool, uint64_t bytes, int small, int pageable);

/* Ends a slab's memory, and the slab. */
void mo_host_slab_free(mo_host_pool *pool, mo_host_slab *slab);

/* True if the slab holds no value. */
int mo_host_slab_idle(const mo_host_slab *slab);

/* Gives an idle slab whose copies are complete back to the system. */
void mo_host_pool_drop_slab(mo_host_pool *pool, uint64_t position);

/* Puts a range that is not in use back into its index, joined with free neighbours. */
void mo_host_pool_insert(mo_host_pool *pool, mo_host_range *range);

#endif
