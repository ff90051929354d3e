/* CRC-32 as in zlib and PNG (polynomial 0xedb88320, reflected). */
#ifndef MO_OPTIM_CRC32_H
#define MO_OPTIM_CRC32_H

#include <stdint.h>

/* `before` is the CRC of the bytes before these; 0 at the start. */
uint32_t mo_crc32(uint32_t before, const void *data, uint64_t size);

#endif
