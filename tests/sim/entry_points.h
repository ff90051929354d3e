/*
 * What the tests of the simulated drivers share: entry points by name, checks of a driver's codes,
 * and plain structs of its calls. FUNCTIONS(F) of a test lists F(result, name, parameters).
 */
#ifndef TEST_SIM_ENTRY_POINTS_H
#define TEST_SIM_ENTRY_POINTS_H

#include "support/unit.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

#define OK(call) assert_int_equal(call, 0)
#define FAILS(code, call) assert_int_equal(call, code)

typedef void *handle;

/* What both vendors are told of an allocation, and of access to a mapping. */
typedef struct allocation {
    int type, handle_types, where, id;
    void *metadata;
    unsigned char flags[8];
} allocation;

typedef struct access {
    int where, id, flags;
} access;

static inline void *open_library(const char *name)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return library;
}

static inline void *find_symbol(void *library, const char *symbol)
{
    void *address = dlsym(library, symbol);
    if (address == NULL) {
        fprintf(stderr, "%s is missing\n", symbol);
        exit(1);
    }
    return address;
}

#define DECLARE(result, name, parameters) static result(*name) parameters;
#define FIND(result, name, parameters) *(void **)&name = find_symbol(library, #name);

#endif
