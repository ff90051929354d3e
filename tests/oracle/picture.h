/*
 * Which addresses have memory: a sorted list of disjoint ranges, in which neighbours are joined.
 * Its memory is malloc's own, so that faults of the library's host memory pass it by.
 */
#ifndef TEST_ORACLE_PICTURE_H
#define TEST_ORACLE_PICTURE_H

#include "support/simulated.h"

#include <stdint.h>

typedef struct picture_range {
    uintptr_t start, end;
} picture_range;

typedef struct picture {
    picture_range *ranges;
    uint64_t count, capacity;
} picture;

/* 0: a byte of it is there already. */
int picture_add(picture *p, uintptr_t start, uint64_t bytes);
/* 0: a byte of it is not there. */
int picture_remove(picture *p, uintptr_t start, uint64_t bytes);
int picture_covers(const picture *p, uintptr_t start, uint64_t bytes);
int picture_equals(const picture *a, const picture *b);
uint64_t picture_bytes(const picture *p);
void picture_end(picture *p);

/* All device memory that can be used now. */
void driver_picture(memopt_device *device, const char *name, picture *out);

#endif
