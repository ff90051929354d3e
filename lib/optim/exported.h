/*
 * An export that an import reads, by places: what it holds, checked against the optimizer. An
 * import has one or more, which are shards of the same parameters.
 */
#ifndef MO_OPTIM_EXPORTED_H
#define MO_OPTIM_EXPORTED_H

#include "optim/layout.h"

/* A parameter, or a shard of it, as it was exported. */
typedef struct mo_record {
    uint64_t first, count, whole; /* elements */
    uint64_t steps;               /* as the device keeps them */
    uint64_t at;                  /* where its states begin in the export */
    uint32_t format, group, rows, columns;
} mo_record;

typedef struct mo_exported {
    memopt_export_source from;
    char subject[48]; /* of messages */
    uint64_t length;  /* of the export */
    uint32_t version, block;
    int is_cut;
    memopt_optimizer_group *groups;
    mo_record *records; /* by parameter */
} mo_exported;

/* Reads and checks all but whether the shards of all sources are enough. Piece: host memory of `room`
 * bytes. mo_exported_close() frees what it keeps, also after a failure. */
memopt_status mo_exported_open(const memopt_optimizer *o, int converts, unsigned char *piece,
                               uint64_t room, mo_exported *s);
void mo_exported_close(mo_exported *s);

memopt_status mo_exported_read(const mo_exported *s, uint64_t at, uint64_t bytes, void *out);

/* A parameter of `count` elements as it was exported: format and block may be others than now. */
mo_parameter mo_exported_parameter(const memopt_optimizer *o, const mo_exported *s, uint64_t index,
                                   uint64_t count);
/* Whether the states' bytes mean the same. */
int mo_same_states(const mo_parameter *a, const mo_parameter *b);

#endif
