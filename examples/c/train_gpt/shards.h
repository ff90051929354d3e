/*
 * A run of several ranks (--ranks): each learns from its share of a step's micro-batches and has its
 * share of the optimizer's states and of the fp32 masters (ZeRO-1); weights are whole everywhere.
 *
 * Micro-batch m of a step is rank m % N's. A bucket is a layer's parameters, or those outside the
 * layers. When backward has its gradients, every rank sends each other one the elements that are that
 * one's, while the layers before it go on; the owner adds what it receives in the order of the
 * micro-batches. So every sum, and every bit of the run, is the same on any number of ranks.
 *
 * A bucket lies flat in units of 256 elements, each parameter from a whole unit on; rank r of N has
 * units U r / N to U (r + 1) / N of the bucket's U. So every cut is one that an optimizer takes.
 */
#ifndef GPT_SHARDS_H
#define GPT_SHARDS_H

#include "parameters.h"
#include "ranks.h"

typedef struct bucket {
    parameter *parameters;
    uint32_t count;
    uint64_t units;
} bucket;

#define SHARD_SLOTS 2 /* exchanges on their way */

typedef struct shards {
    ranks *ranks;
    memory *memory;
    bucket *buckets;
    uint32_t count;
    uint64_t *at; /* of the parts in a call: ranks + 1 */
    struct slot {
        memopt_tensor flat, received; /* in the run's dtype */
        ranks_work work;
        const bucket *bucket; /* that is on its way; NULL: none */
        int first;            /* 1: of the step */
    } slots[SHARD_SLOTS];
    uint64_t begun, ended; /* exchanges */
    double *squares;       /* host memory: a sum for each unit of all buckets */
    memopt_tensor total;   /* their sum, one f64 on the device */
} shards;

/* Tells each of a bucket's parameters, whose weights have their counts, which elements this rank has. */
void shards_cut(parameter *parameters, uint32_t count, uint32_t rank, uint32_t of);

/* Buckets of these parameters, and the slots. On failure shards_destroy() frees what there is. */
memopt_status shards_create(shards *s, memory *m, ranks *r, parameter_set *p, uint32_t layers);
memopt_status shards_destroy(shards *s);

/* Begins to send the gradients of a bucket, which are complete, and sets them to zero. first: no sum of
 * this step has anything yet. */
memopt_status shards_send(shards *s, uint32_t number, int first);
/* Waits until all sums are made. */
memopt_status shards_receive(shards *s);

/* The sum of squares of all ranks' gradients, the same bits on any number of them; in s->total. */
memopt_status shards_square_sum(shards *s);

/* Makes the weights whole again after a step of the shards. */
memopt_status shards_gather_weights(shards *s);
/* All masters of a bucket, from the fp32 ones of the ranks, into `flat`: parameter i of it from element
 * shards_place(bucket, i) on. */
memopt_status shards_gather_masters(shards *s, uint32_t number, memopt_tensor *flat);
uint64_t shards_place(const bucket *b, uint32_t index);

#endif
