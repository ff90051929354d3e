/*
 * The allocator's configuration string: "key:value,key:value".
 *
 * Tokens are separated by , : [ and ]; white space is dropped everywhere; a trailing comma is
 * legal; the last of two equal keys wins. Keys and their ranges are those of PyTorch's
 * PYTORCH_CUDA_ALLOC_CONF, so that a string that works there works here; idle_release_seconds is
 * ours. One difference: what follows a number ("64MB") is an error here, and PyTorch drops it.
 */
#ifndef MO_BASE_CONFIG_H
#define MO_BASE_CONFIG_H

#include "memopt/base.h"

/* Divisions of a power of two by size: slot i is for sizes of 2^i to 2^(i+1) MiB; the last for all
 * larger. 0 or 1: no rounding. As in PyTorch, a list changes only the slots that it names; its
 * first size also sets all below it, and ">" all above the size before it. A second list changes
 * what the first has made. */
enum { MO_CONFIG_SLOTS = 16 };
typedef struct mo_config_divisions {
    uint64_t slot[MO_CONFIG_SLOTS];
} mo_config_divisions;

/* X(key, kind, lowest, highest, default, acts). FRACTION excludes its bounds, NUMBER includes them;
 * SKIPPED is a word or a list that nobody reads; acts is 0 for a key of PyTorch's internals, which
 * is accepted without effect. */
#define MO_CONFIG_KEYS(X)                                                                          \
    X(large_segment_size_mb, INTEGER, 11, 1 << 20, 20, 1)                                          \
    X(max_split_size_mb, INTEGER, 11, 1 << 30, 0, 1)                                               \
    X(max_non_split_rounding_mb, INTEGER, 11, 1 << 30, 0, 1)                                       \
    X(garbage_collection_threshold, FRACTION, 0, 1, 0, 1)                                          \
    X(roundup_power2_divisions, DIVISIONS, 1, 1 << 20, 0, 1)                                       \
    X(expandable_segments, BOOLEAN, 0, 1, 0, 1)                                                    \
    X(per_process_memory_fraction, NUMBER, 0, 1, 1, 1)                                             \
    X(idle_release_seconds, NUMBER, 0, 1 << 30, 0, 1)                                              \
    X(throw_on_cudamalloc_oom, BOOLEAN, 0, 1, 0, 1)                                                \
    X(release_lock_on_cudamalloc, BOOLEAN, 0, 1, 0, 0)                                             \
    X(release_lock_on_hipmalloc, BOOLEAN, 0, 1, 0, 0)                                              \
    X(graph_capture_record_stream_reuse, BOOLEAN, 0, 1, 0, 0)                                      \
    X(expandable_segments_reserve, SKIPPED, 0, 0, 0, 0)                                            \
    X(expandable_segments_reserve_by_class, SKIPPED, 0, 0, 0, 0)                                   \
    X(pinned_use_cuda_host_register, BOOLEAN, 0, 1, 0, 0)                                          \
    X(pinned_use_hip_host_register, BOOLEAN, 0, 1, 0, 0)                                           \
    X(pinned_use_background_threads, BOOLEAN, 0, 1, 0, 0)                                          \
    X(pinned_free_catch_all, BOOLEAN, 0, 1, 0, 0)                                                  \
    X(pinned_num_register_threads, POWER_OF_TWO, 1, 128, 1, 0)                                     \
    X(pinned_reserve_segment_size_mb, INTEGER, 1, 1 << 30, 0, 0)                                   \
    X(pinned_max_round_threshold_mb, INTEGER, 0, 1 << 30, 1 << 30, 0)                              \
    X(pinned_max_cached_size_mb, INTEGER, 0, 1 << 30, 1 << 30, 0)                                  \
    X(backend, BACKEND, 0, 2, 0, 0)

#define MO_CONFIG_TYPE_INTEGER uint64_t
#define MO_CONFIG_TYPE_POWER_OF_TWO uint64_t
#define MO_CONFIG_TYPE_BOOLEAN int32_t
#define MO_CONFIG_TYPE_FRACTION double
#define MO_CONFIG_TYPE_NUMBER double
#define MO_CONFIG_TYPE_DIVISIONS mo_config_divisions
#define MO_CONFIG_TYPE_BACKEND int32_t
#define MO_CONFIG_TYPE_SKIPPED int32_t

#define MO_CONFIG_INITIAL_INTEGER(value) value
#define MO_CONFIG_INITIAL_POWER_OF_TWO(value) value
#define MO_CONFIG_INITIAL_BOOLEAN(value) value
#define MO_CONFIG_INITIAL_FRACTION(value) value
#define MO_CONFIG_INITIAL_NUMBER(value) value
#define MO_CONFIG_INITIAL_DIVISIONS(value)                                                         \
    {                                                                                              \
        {                                                                                          \
            value                                                                                  \
        }                                                                                          \
    }
#define MO_CONFIG_INITIAL_BACKEND(value) value
#define MO_CONFIG_INITIAL_SKIPPED(value) value

/* The values as given, in the units of the keys; 0 in max_split_size_mb is unlimited, in
 * max_non_split_rounding_mb the large segment's size, in the threshold no collection. */
typedef struct mo_config {
#define MO_CONFIG_FIELD(key, kind, low, high, initial, acts) MO_CONFIG_TYPE_##kind key;
    MO_CONFIG_KEYS(MO_CONFIG_FIELD)
#undef MO_CONFIG_FIELD
} mo_config;

/* Reads text (NULL is ""). INVALID_ARGUMENT on an unknown key (the message names the nearest valid
 * one), a malformed or an out-of-range value; the message has the column of what is wrong, from 1;
 * *out_config is then untouched. */
memopt_status mo_config_parse(const char *text, mo_config *out_config);

#endif
