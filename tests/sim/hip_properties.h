/*
 * HIP's device properties and attributes, field by field in the order in which ROCm's public header
 * declares them, so that the compiler and not a number says where a field lies. (The library knows
 * offsets only: lib/device/gpu/hip.c; test_hip.c compares the two.)
 */
#ifndef MEMOPT_SIM_HIP_PROPERTIES_H
#define MEMOPT_SIM_HIP_PROPERTIES_H

#include <stddef.h>
#include <stdint.h>

/* hipDeviceAttribute_t since ROCm 5.0; 4.x counted otherwise. */
enum {
    HIP_ATTRIBUTE_BLOCK_THREADS = 56,
    HIP_ATTRIBUTE_MULTIPROCESSORS = 63,
    HIP_ATTRIBUTE_PAGEABLE = 65,
    HIP_ATTRIBUTE_BUS = 67,
    HIP_ATTRIBUTE_BLOCK_SHARED = 74,
    HIP_ATTRIBUTE_WARP = 87,
    HIP_ATTRIBUTE_VIRTUAL_MEMORY = 89 /* since 5.3 or so; before, no such attribute */
};

/* hipDeviceProp_tR0000: ROCm 5 and what hipGetDeviceProperties still means as a symbol. */
typedef struct hip_old_properties {
    char name[256];
    size_t total_memory, block_shared;
    int block_registers, warp_size, block_threads, block_dimensions[3], grid_dimensions[3];
    int clock, memory_clock, memory_bus;
    size_t constant_memory;
    int major, minor, multiprocessors, l2_cache, multiprocessor_threads, compute_mode;
    int instruction_clock;
    unsigned architecture_bits; /* seventeen flags of one bit */
    int concurrent_kernels, pci_domain, pci_bus, pci_device;
    size_t multiprocessor_shared;
    int multi_gpu_board, map_host_memory, gcn_arch;
    char gcn_arch_name[256];
    int integrated, cooperative[2], texture_1d[2], texture_2d[2], texture_3d[3];
    void *flush_controls[2];
    size_t pitches[3];
    int kernel_timeout, ecc, tcc, unmatched[4], large_bar, revision, managed, direct_managed;
    int concurrent_managed, pageable[2];
} hip_old_properties;

/* hipDeviceProp_tR0600: ROCm 6 and 7. */
typedef struct hip_properties {
    char name[256], uuid[16], luid[8];
    unsigned luid_mask;
    size_t total_memory, block_shared;
    int block_registers, warp_size;
    size_t copy_pitch;
    int block_threads, block_dimensions[3], grid_dimensions[3], clock;
    size_t constant_memory;
    int major, minor;
    size_t texture_alignment, texture_pitch;
    int overlap, multiprocessors, kernel_timeout, integrated, map_host_memory, compute_mode;
    int texture_1d[3], texture_2d[2], texture_2d_mipmap[2], texture_2d_linear[3];
    int texture_2d_gather[2], texture_3d[3], texture_3d_other[3], texture_cube;
    int texture_1d_layers[2], texture_2d_layers[3], texture_cube_layers[2];
    int surface_1d, surface_2d[2], surface_3d[3], surface_1d_layers[2], surface_2d_layers[3];
    int surface_cube, surface_cube_layers[2];
    size_t surface_alignment;
    int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, copy_engines;
    int unified_addressing, memory_clock, memory_bus, l2_cache, l2_persisting;
    int multiprocessor_threads, stream_priorities, l1_global, l1_local;
    size_t multiprocessor_shared;
    int multiprocessor_registers, managed, multi_gpu_board, board_group, host_atomics;
    int double_ratio, pageable, concurrent_managed, preemption, registered_pointers;
    int cooperative[2];
    size_t block_shared_optional;
    int pageable_tables, direct_managed, multiprocessor_blocks, window_bytes;
    size_t block_shared_reserved;
    int host_register, sparse, register_read_only, timeline, pools, rdma;
    unsigned rdma_flush;
    int rdma_order;
    unsigned pool_handles;
    int deferred_mapping, ipc_events, clusters, function_pointers, reserved[63], hip_reserved[32];
    char gcn_arch_name[256];
    size_t multiprocessor_shared_hip;
    int instruction_clock;
    unsigned architecture_bits;
    void *flush_controls[2];
    int unmatched[4], large_bar, revision;
} hip_properties;

#endif
