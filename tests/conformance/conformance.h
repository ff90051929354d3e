/*
 * The conformance suite: what every back end must do, as one program for all of them, real devices
 * and simulated ones. It needs no test library, and never reads device memory on the host.
 *
 * A case is a function of a world (an open device with an allocator and two streams). A case that
 * computes runs on the device and on "cpu", and what it reports with result() must be the same
 * bytes. A case ends early through fail() or skip(), which jump back to whoever runs it
 * (run_guarded); each thread has its own way back.
 */
#ifndef MEMOPT_CONFORMANCE_H
#define MEMOPT_CONFORMANCE_H

#include "memopt/memopt.h"
#include "support/clock.h"
#include "support/random.h"

#include <stdint.h>

#define KIB ((uint64_t)1024)
#define MIB (KIB * KIB)

/* How large the tensors are, and how many combinations are run. */
typedef enum suite_scale { SCALE_SMALL, SCALE_NORMAL, SCALE_LARGE } suite_scale;

typedef struct suite_options {
    const char *device, *only, *sampled, *json, *digests;
    uint64_t capacity; /* of the "cpu" devices */
    uint64_t seed, rounds;
    double seconds; /* of each stress case; 0: `rounds` decide */
    suite_scale scale;
    int require, list;
    int peer; /* the socket of a case in another process; 0: none */
} suite_options;

/* One piece of what a case computed. */
typedef struct segment {
    char label[80];
    uint64_t bytes, hash;
} segment;

typedef struct world {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream stream, other;
    memopt_device_properties properties;
    const suite_options *options;
    uint32_t kind, format; /* of the optimizer, for cases that are about one */
    /* What the case computed. The bytes are kept as long as they are few. */
    segment *segments;
    uint64_t segment_count, segment_capacity;
    unsigned char *bytes;
    uint64_t byte_count, byte_capacity;
    char label[80];
} world;

typedef struct conformance_case {
    const char *name;
    void (*run)(world *w);
    int compared;          /* its results are those of the cpu device, bit for bit */
    uint32_t kind, format; /* of the optimizer */
} conformance_case;

/* NULL name at the end of each. */
extern const conformance_case device_cases[], memory_cases[], primitive_cases[], cast_cases[],
    block_cases[], scaler_cases[], adafactor_cases[], trust_cases[], code_cases[], foreign_cases[],
    two_device_cases[], graph_cases[], stress_cases[], share_cases[];
/* Writes up to `most` cases and returns how many there are: one for each kind of optimizer and
 * format of states that the library makes. */
uint32_t optimizer_cases(world *w, conformance_case *out, uint32_t most);

/* Part of each optimizer's case (parity_external.c). */
void steps_on_memory_of_the_caller(world *w);

/* The other process of share_cases; its exit status. Closes the device. */
int share_peer(memopt_device *device, int socket);

/* Cases of all primitives on the world's streams, whatever they are (foreign_cases.c). */
void run_everything(world *w);

typedef enum case_outcome { PASSED, FAILED, SKIPPED } case_outcome;

/* --- main.c: ending a case ----------------------------------------------------------------- */

_Noreturn void fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Ends the case as another one did, with its message. */
_Noreturn void end_as(case_outcome outcome, const char *message);
/* Runs a function that may fail or skip. The text of why goes to message[size]. */
case_outcome run_guarded(void (*function)(world *w), world *w, char *message, uint64_t size);

/* --- world.c: worlds, tensors, results ----------------------------------------------------- */

memopt_status open_device(const suite_options *options, const char *name,
                          memopt_device **out_device);
void open_world(world *w, memopt_device *device, const suite_options *options);
void close_world(world *w);
void free_results(world *w);
/* Of all results: the same on every processor of this byte order. */
uint64_t digest_of(const world *w);
memopt_memory_info info_of(world *w);
/* An allocator with expandable segments where the device can, else a plain one. */
memopt_allocator *new_allocator(world *w);

/* What later results are about, for the message where they differ. */
void label(world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void result(world *w, const void *data, uint64_t bytes);
/* Appends device memory (synchronises the stream). */
void result_of(world *w, const void *device_data, uint64_t bytes);
/* 1 if both worlds have the same results; else says in message what differs first. */
int same_results(const world *mine, const world *reference, char *message, uint64_t size);

/* Host floats that exercise a format: normal, tiny, huge, negative, zero; the same every time. */
void fill_floats(float *out, uint64_t count, uint64_t seed);
/* The same with infinities and NaNs. */
void fill_any_floats(float *out, uint64_t count, uint64_t seed);
/* Values as gradients or parameters have them, around `size`. */
void fill_smooth(float *out, uint64_t count, uint64_t seed, float size);
void fill_bytes(void *out, uint64_t count, uint64_t seed);
void *host_memory(uint64_t bytes); /* malloc that fails the case */

/* A tensor in the allocator, holding these host floats converted to dtype by the device; values
 * NULL: zeros. shift: it starts that many elements behind an aligned address. */
memopt_tensor new_tensor(world *w, uint64_t count, memopt_dtype dtype, const float *values);
memopt_tensor new_shifted_tensor(world *w, uint64_t count, memopt_dtype dtype, const float *values,
                                 uint64_t shift);
/* The same, holding these bytes. */
memopt_tensor new_raw_tensor(world *w, uint64_t count, memopt_dtype dtype, const void *bytes,
                             uint64_t shift);
void free_tensor(world *w, memopt_tensor *tensor);
uint64_t tensor_bytes(const memopt_tensor *tensor);
void result_of_tensor(world *w, const memopt_tensor *tensor);

extern const memopt_dtype float_types[];
enum { FLOAT_TYPES = 7, WIDE_TYPES = 3 }; /* the first three can be trained */

/* Odd and even sizes around blocks, chunks and vector widths; more of them on a larger scale. */
const uint64_t *odd_sizes(suite_scale scale, uint32_t *out_count);

/* --- report.c ------------------------------------------------------------------------------ */

void report_case(const char *name, case_outcome outcome, double seconds, const char *message);
/* Prints the counts and writes the JSON file, if one is asked for; the exit status. */
int report_end(const suite_options *options, const memopt_device_properties *properties);

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
