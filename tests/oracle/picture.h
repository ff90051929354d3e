/*
 * Which addresses have memory: a sorted list of disjoint ranges, in which neighbours are joined.
 * Its memory is malloc's own, so that faults of the library's host memory pass it by.
 */
#ifndef TEST_ORACLE_PICTURE_H
#define TEST_ORACLE_PICTURE_H

#include "memopt/device.h"

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

/* What the simulated driver of a device offers to tests; NULL on the cpu device. */
typedef struct driver_hooks {
    void (*fail_at)(const char *call, int64_t n, int32_t code);
    int64_t (*pending)(void);
    int (*mapping)(int32_t device, uint64_t index, uint64_t *address, uint64_t *bytes);
    void (*seed)(uint64_t seed);
    uint32_t (*violations)(void);
    int (*take_violation)(char *out, uint64_t bytes);
    void *library;
} driver_hooks;

const driver_hooks *driver_of(const char *device);
/* All device memory that can be used now. */
void driver_picture(memopt_device *device, const char *name, picture *out);

#endif
