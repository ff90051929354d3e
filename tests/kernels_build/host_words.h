/* Words of gpu_compat.h for code that runs on the host alone and uses none of them. Included once
 * by a program, after the code. */
#ifndef TEST_HOST_WORDS_H
#define TEST_HOST_WORDS_H

#include <cstdint>

extern "C" {
uint32_t mo_sim_thread(void)
{
    return 0;
}
uint32_t mo_sim_block(void)
{
    return 0;
}
uint32_t mo_sim_threads(void)
{
    return 64;
}
uint32_t mo_sim_warp_size(void)
{
    return 32;
}
void mo_sim_barrier(const char *, int)
{
}
uint64_t mo_sim_shuffle_xor(uint64_t bits, uint32_t, const char *, int)
{
    return bits;
}
void *mo_sim_shared(uint64_t, const void *)
{
    return 0;
}
}

#endif
