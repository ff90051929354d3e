#ifndef MO_OPTIM_CONVERT_H
#define MO_OPTIM_CONVERT_H

#include "optim/optim.h"

typedef struct mo_converter {
    memopt_optimizer *o;
    memopt_stream stream;
    uint64_t run;
    float *host;  /* a run's values, where they are decoded here */
    void *memory; /* of the device, with these parts; NULL: none */
    float *values, *scales;
    void *codes;
} mo_converter;

/* One moment: the export's bytes, in this processor's order, and the optimizer's state. Scales are
 * NULL where a format has none. */
typedef struct mo_moment {
    const unsigned char *codes, *scales;
    unsigned char *out_codes, *out_scales;
    int is_signed;
} mo_moment;

/* elements: of the largest parameter to convert; 0: none. */
memopt_status mo_converter_begin(memopt_optimizer *o, uint64_t elements, memopt_stream stream,
                                 mo_converter *out);
memopt_status mo_converter_end(mo_converter *c);
/* Enqueues one moment; the export must stay until the stream was waited for. `from` and `to` differ
 * in format or block only. */
memopt_status mo_convert(const mo_converter *c, const mo_parameter *from, const mo_parameter *to,
                         const mo_moment *moment);

#endif
