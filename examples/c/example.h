/*
 * What the examples share: a failed call ends the program, and --device chooses where it runs.
 */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <memopt/memopt.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

/* Any status but OK ends the example with the library's own words. */
#define CHECK(call)                                                                                \
    do {                                                                                           \
        memopt_status status_ = (call);                                                            \
        if (status_ != MEMOPT_OK) {                                                                \
            fprintf(stderr, "%s\n  %s: %s\n", #call, memopt_status_name(status_),                  \
                    memopt_last_error());                                                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static inline void tell_usage(const char *problem)
{
    fprintf(stderr,
            "%s\nThe option is --device NAME: cpu (the default), cuda, cuda:1, hip, ...; "
            "the command \"memopt info\" lists the devices.\n",
            problem);
    exit(1);
}

/* The name behind --device; `otherwise` without the option. */
static inline const char *device_argument(int count, char **words, const char *otherwise)
{
    if (count == 1)
        return otherwise;
    if (count != 3 || strcmp(words[1], "--device") != 0)
        tell_usage("unknown arguments");
    return words[2];
}

/* Opens the device of the arguments. A cpu device is like a card of `capacity` bytes. */
static inline memopt_device *open_device(const char *name, uint64_t capacity)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device;
    options.capacity = strncmp(name, "cpu", 3) == 0 ? capacity : 0;
    if (memopt_device_open(name, &options, &device) != MEMOPT_OK)
        tell_usage(memopt_last_error());
    return device;
}

/* Memory that the host and the device both use: page-locked. In the examples the host plays the
 * model, so it reads and writes the tensors; a model on a GPU has them in the device's own memory.
 */
static inline memopt_allocator *shared_memory(memopt_device *device)
{
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_allocator *allocator;
    options.memory = MEMOPT_MEMORY_PINNED;
    CHECK(memopt_allocator_create(device, NULL, &options, &allocator));
    return allocator;
}

#endif
