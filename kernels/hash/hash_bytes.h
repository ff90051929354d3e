/* One content hash of many bytes, on the host. It is not in hash.h, which GPU compilers see: NVRTC
 * refuses a function of the host, even if it is only declared. */
#ifndef MO_KERNELS_HASH_HASH_BYTES_H
#define MO_KERNELS_HASH_HASH_BYTES_H

#include <stdint.h>

/* Adds bytes to a hash that starts as 0. All pieces of a value but the last are multiples of 4096
 * bytes. */
uint64_t mo_hash_bytes(uint64_t hash, const void *data, uint64_t bytes);

#endif
