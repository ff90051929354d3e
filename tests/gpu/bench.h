/*
 * Figures of any device. What they share: an open device with an allocator and a stream, tensors of
 * realistic values, and tables whose cases run interleaved.
 *
 * A table's first case is its floor (a device-to-device copy): the others are told as a fraction of
 * its bytes per second, measured in the same rounds. Times are the device's own, by events.
 */
#ifndef MEMOPT_GPU_BENCH_H
#define MEMOPT_GPU_BENCH_H

#include "memopt/memopt.h"

#include <stdint.h>
#include <stdio.h>

#define KIB ((uint64_t)1024)
#define MIB (KIB * KIB)
#define GIB (KIB * MIB)

typedef struct bench {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream stream;
    memopt_event *start, *end;
    memopt_device_properties properties;
    FILE *json;      /* one object a line, or NULL */
    uint32_t rounds; /* of a table */
    int small;       /* sizes of a dry run */
    int first;       /* the first step only */
    double opening;  /* seconds that opening the device took */
    double deadline; /* of now(): no table begins after it */
} bench;

typedef struct bench_case {
    const char *name;
    void (*run)(bench *b, void *context);
    void *context;
    double bytes;      /* that one run must move at least, reads and writes */
    uint32_t repeated; /* runs between two events; set by measure */
} bench_case;

/* Ends the program with status 1, telling the call and the library's message. */
_Noreturn void bench_fail(const char *file, int line, const char *call, memopt_status status);

#define OK(call)                                                                                   \
    do {                                                                                           \
        memopt_status ok_status_ = (call);                                                         \
        if (ok_status_ != MEMOPT_OK)                                                               \
            bench_fail(__FILE__, __LINE__, #call, ok_status_);                                     \
    } while (0)

/* Seconds of the monotonic clock. */
double now(void);
/* A case does not fit or does not apply: said in the table and in the file. */
void skip_row(bench *b, const char *table, const char *name, const char *reason);
/* One line of a table that is not timed by measure(). */
void figure_row(bench *b, const char *table, const char *name, double value, const char *unit);
/* Runs the cases interleaved and writes their rows. The first is the floor. */
void measure(bench *b, const char *table, bench_case *cases, uint32_t count);
double median(double *values, uint32_t count);

/* Device memory through the allocator, filled with floats of about `scale` converted to dtype. */
memopt_tensor new_tensor(bench *b, uint64_t count, memopt_dtype dtype, float scale);
void free_tensor(bench *b, memopt_tensor *tensor);
/* Bytes that can be taken now without filling the device. */
uint64_t room(bench *b);

void bench_optimizers(bench *b);
void bench_memory(bench *b);

#endif
