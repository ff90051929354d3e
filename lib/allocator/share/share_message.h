/* What one process tells another of an exported block. */
#ifndef MO_ALLOCATOR_SHARE_MESSAGE_H
#define MO_ALLOCATOR_SHARE_MESSAGE_H

#include "device/device.h"
#include "memopt/share.h"

typedef struct mo_share_message {
    char magic[8];
    uint32_t version;
    uint32_t zero;
    uint64_t bytes;  /* of the block */
    uint64_t offset; /* of its first byte in the first page */
    uint64_t page_bytes;
    uint64_t pages;
    uint8_t identity[MO_IDENTITY_BYTES]; /* of the device */
    char backend[8];
    char device[48]; /* its name, for messages */
    uint64_t check;  /* of all before */
} mo_share_message;

_Static_assert(sizeof(mo_share_message) == MEMOPT_SHARE_MESSAGE_BYTES, "what travels");

/* Fills in all but the four sizes. */
memopt_status mo_share_message_begin(memopt_device *device, mo_share_message *out);
void mo_share_message_end(mo_share_message *message);
/* Reads and checks it: INVALID_ARGUMENT if it is damaged, UNSUPPORTED if this device cannot import
 * it. */
memopt_status mo_share_message_read(memopt_device *device, const void *data, uint64_t bytes,
                                    mo_share_message *out);

#endif
