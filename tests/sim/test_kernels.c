/* Kernels for the simulator's own tests: right ones, and each mistake that the emulator tells. */
#include "test_kernels.h"
#include "kernels.h"

#include <stddef.h>

static void add(const void *args, uint64_t first_item)
{
    const sim_test_args *a = args;
    uint64_t i = (first_item + mo_sim_block()) * mo_sim_threads() + mo_sim_thread();
    float *to = (float *)(uintptr_t)a->to;
    const float *from = (const float *)(uintptr_t)a->from;
    if (i < a->count)
        to[i] = to[i] + from[i];
}

/* The sum of a block by shuffles within warps and shared memory between them. */
static void sum(const void *args, uint64_t first_item)
{
    static const char key = 0;
    const sim_test_args *a = args;
    uint64_t *parts = mo_sim_shared(sizeof *parts * 64, &key);
    const uint64_t *from = (const uint64_t *)(uintptr_t)a->from;
    uint64_t item = first_item + mo_sim_block();
    uint64_t i = item * mo_sim_threads() + mo_sim_thread();
    uint64_t value = i < a->count ? from[i] : 0;
    for (uint32_t mask = mo_sim_warp_size() / 2; mask > 0; mask /= 2)
        value += mo_sim_shuffle_xor(value, mask, __FILE__, __LINE__);
    if (mo_sim_thread() % mo_sim_warp_size() == 0)
        parts[mo_sim_thread() / mo_sim_warp_size()] = value;
    mo_sim_barrier(__FILE__, __LINE__);
    if (mo_sim_thread() == 0) {
        uint64_t all = 0;
        for (uint32_t w = 0; w < mo_sim_threads() / mo_sim_warp_size(); w++)
            all += parts[w];
        ((uint64_t *)(uintptr_t)a->to)[item] = all;
    }
}

/* As sum, with the barrier left out. */
static void race_shared(const void *args, uint64_t first_item)
{
    static const char key = 0;
    const sim_test_args *a = args;
    uint32_t *parts = mo_sim_shared(sizeof *parts * 1024, &key);
    parts[mo_sim_thread()] = mo_sim_thread();
    ((uint32_t *)(uintptr_t)
         a->to)[(first_item + mo_sim_block()) * mo_sim_threads() + mo_sim_thread()] =
        parts[mo_sim_thread() ^ 1];
}

static void race_global(const void *args, uint64_t first_item)
{
    const sim_test_args *a = args;
    ((uint32_t *)(uintptr_t)a->to)[0] = mo_sim_block() + mo_sim_thread();
}

static void diverge(const void *args, uint64_t first_item)
{
    if (mo_sim_thread() != 7)
        mo_sim_barrier(__FILE__, __LINE__);
}

/* 16 bytes at a time through a libcall-sized copy, as vectorised kernels do. */
static void move16(const void *args, uint64_t first_item)
{
    typedef struct four {
        uint32_t x[4];
    } four;
    const sim_test_args *a = args;
    uint64_t i = (first_item + mo_sim_block()) * mo_sim_threads() + mo_sim_thread();
    if (i < a->count / 16)
        ((four *)(uintptr_t)a->to)[i] = ((const four *)(uintptr_t)a->from)[i];
}

const mo_sim_kernel sim_test_kernels[] = {
    {"sim_test_add", sizeof(sim_test_args), add},
    {"sim_test_sum", sizeof(sim_test_args), sum},
    {"sim_test_race_shared", sizeof(sim_test_args), race_shared},
    {"sim_test_race_global", sizeof(sim_test_args), race_global},
    {"sim_test_diverge", sizeof(sim_test_args), diverge},
    {"sim_test_move16", sizeof(sim_test_args), move16},
    {NULL, 0, NULL},
};
