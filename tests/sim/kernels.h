/*
 * What kernels compiled for the host (MO_GPU_SIM) and the emulator tell each other.
 */
#ifndef MEMOPT_SIM_KERNELS_H
#define MEMOPT_SIM_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mo_sim_kernel {
    const char *name; /* NULL ends a registry */
    uint32_t args_size;
    void (*run)(const void *args, uint64_t first_item);
} mo_sim_kernel;

/* The registry of the library's own kernels. */
extern const mo_sim_kernel mo_sim_kernels[];

uint32_t mo_sim_thread(void);
uint32_t mo_sim_block(void);
uint32_t mo_sim_threads(void);
uint32_t mo_sim_warp_size(void);
/* Every thread of the block comes to this place before any goes on. */
void mo_sim_barrier(const char *file, int line);
/* The bits that the lane with this number exclusive-or mask gives; every lane of the warp calls it
 * from the same place with the same mask. */
uint64_t mo_sim_shuffle_xor(uint64_t bits, uint32_t mask, const char *file, int line);
/* Memory of the block: the same for every thread that asks with this key. */
void *mo_sim_shared(uint64_t size, const void *key);

/*
 * Kernels from a shared object (MEMOPT_SIM_KERNELS): its mo_sim_load takes these calls and gives
 * the registry, the range of its constants, and the digests (CRC-32) of the code object that it was
 * translated from, or of the PTX of each kernel; 0 ends them. by_warp: a run is a whole warp's;
 * thread() is its first, and it never shuffles.
 */
typedef struct mo_sim_calls {
    uint32_t (*thread)(void), (*block)(void), (*threads)(void);
    void (*barrier)(const char *file, int line);
    uint64_t (*shuffle_xor)(uint64_t bits, uint32_t mask, const char *file, int line);
    void *(*shared)(uint64_t size, const void *key);
    void (*touch)(uintptr_t address, uint64_t bytes, int write, int atomic);
    void (*illegal)(uintptr_t address, uint64_t bytes, int write, const char *why);
} mo_sim_calls;

typedef struct mo_sim_loaded {
    const mo_sim_kernel *kernels;
    const char *begin, *end;
    const uint64_t *image_digests;
    int by_warp;
} mo_sim_loaded;

#ifdef __cplusplus
}
#endif

#endif
