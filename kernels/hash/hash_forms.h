/* The vector form of the content hash. */
#ifndef MO_KERNELS_HASH_FORMS_H
#define MO_KERNELS_HASH_FORMS_H

#include <stdint.h>

void mo_hash_granules_avx512(const void *args, uint64_t begin, uint64_t end);

#endif
