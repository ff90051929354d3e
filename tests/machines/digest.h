/*
 * What the cases of the digest program share: values that are the same everywhere, launches on the
 * "cpu" device, and digests of values.
 *
 * A digest is taken of values, not of bytes: each element is added from its lowest byte up, so both
 * byte orders agree. A name is the kernel's, then a dot and the case.
 */
#ifndef TEST_MACHINES_DIGEST_H
#define TEST_MACHINES_DIGEST_H

#include "kernels/optim/optim_cpu.h"
#include "support/random.h"

#include <memopt/memopt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGEST_START 0xcbf29ce484222325ull

/* The program ends unless the call succeeds. */
#define MUST(call) digest_must(call, #call)
void digest_must(memopt_status status, const char *call);

/* Adds `count` elements of `size` bytes. */
void digest_add(uint64_t *digest, const void *values, uint64_t count, uint32_t size);
/* The same of one number; floats that may be a NaN of the processor's choice count as one NaN. */
void digest_add_u64(uint64_t *digest, uint64_t value);
void digest_add_f32(uint64_t *digest, float value);

/* Prints the line, or compares it with the next one that is expected. */
void digest_report(uint64_t digest, const char *format, ...) __attribute__((format(printf, 2, 3)));

void digest_launch(const mo_kernel *kernel, const void *args, uint64_t items);
memopt_device *digest_device(void);

/* Runs of 128 numbers of f32, f16 or bf16: a run is of one kind, so that blocks of codes differ. */
void digest_fill_runs(void *to, uint64_t count, uint32_t dtype, uint64_t seed);

/* The cases, by file. `in` (or NULL): where the states come from; `out` (or NULL): where to. */
void digest_optimizers(void);
void digest_states(FILE *in, FILE *out);

#endif
