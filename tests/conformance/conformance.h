/*
 * The conformance suite: what every back end must do, as one program for all of them, real devices
 * and simulated ones. It needs no test library, and never reads device memory on the host.
 *
 * A case is a function of a world (an open device with an allocator and two streams). A case that
 * computes runs on the device and on "cpu", and the bytes that it reports with result() must be the
 * same.
 */
#ifndef MEMOPT_CONFORMANCE_H
#define MEMOPT_CONFORMANCE_H

#include "memopt/memopt.h"

#include <stdint.h>

#define KIB ((uint64_t)1024)
#define MIB (KIB * KIB)

typedef struct world {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream stream, other;
    memopt_device_properties properties;
    /* What the case computed: bytes in order, compared between devices. */
    unsigned char *results;
    uint64_t result_bytes, result_capacity;
} world;

typedef struct conformance_case {
    const char *name;
    void (*run)(world *w);
    int compared; /* its results are those of the cpu device, bit for bit */
} conformance_case;

extern const conformance_case device_cases[];    /* NULL name at the end */
extern const conformance_case primitive_cases[]; /* the same */

/* Ends the case, and the program's status is failure. */
_Noreturn void fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Appends to the case's results. */
void result(world *w, const void *data, uint64_t bytes);
/* Appends device memory (synchronises the stream). */
void result_of(world *w, const void *device_data, uint64_t bytes);
/* Host floats that exercise a format: normal, tiny, huge, negative, zero; the same every time. */
void fill_floats(float *out, uint64_t count, uint64_t seed);
void fill_bytes(void *out, uint64_t count, uint64_t seed);
/* A tensor in the allocator, holding these host floats converted to dtype by the device. */
memopt_tensor new_tensor(world *w, uint64_t count, memopt_dtype dtype, const float *values);
void free_tensor(world *w, memopt_tensor *tensor);
uint64_t tensor_bytes(const memopt_tensor *tensor);

#define OK(call)                                                                                   \
    do {                                                                                           \
        memopt_status ok_status_ = (call);                                                         \
        if (ok_status_ != MEMOPT_OK)                                                               \
            fail(__FILE__, __LINE__, "%s: %s: %s", #call, memopt_status_name(ok_status_),          \
                 memopt_last_error());                                                             \
    } while (0)

#define FAILS(wanted, call)                                                                        \
    do {                                                                                           \
        memopt_status got_ = (call);                                                               \
        if (got_ != (wanted))                                                                      \
            fail(__FILE__, __LINE__, "%s: %s, not %s", #call, memopt_status_name(got_),            \
                 memopt_status_name(wanted));                                                      \
    } while (0)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail(__FILE__, __LINE__, "%s", #condition);                                            \
    } while (0)

#endif
