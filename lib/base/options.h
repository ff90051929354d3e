/*
 * Option structs grow only at the end. mo_options_read copies the smaller of the two sizes over the
 * defaults (all zero); a larger struct of a newer caller is accepted if its tail is zero.
 */
#ifndef MO_BASE_OPTIONS_H
#define MO_BASE_OPTIONS_H

#include "base/error.h"

/* options may be NULL (defaults). name is the struct's, for messages. INVALID_ARGUMENT where
 * struct_size is below sizeof(size_t), UNSUPPORTED where an unknown tail is not zero. */
memopt_status mo_options_read(void *copy, size_t copy_size, const void *options, const char *name);

/* Fills an out-struct of the caller as far as its struct_size reaches. */
memopt_status mo_result_write(void *out, const void *full, size_t full_size, const char *name);

/* Numbers that a call takes, and what they may be. `call` is "adafactor" or the like. */
typedef struct mo_value_range {
    const char *name;
    double value, least, most;
} mo_value_range;
memopt_status mo_ranges_check(const char *call, const mo_value_range *ranges, size_t count);
#define MO_F32_MOST 3.4028234663852886e38

#endif
