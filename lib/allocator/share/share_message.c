/* The message of an exported block; both processes run on one machine. */
#include "allocator/share/share_message.h"

#include "kernels/hash/hash_bytes.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const char magic[8] = "MOSHARE";
enum { VERSION = 1 };

static uint64_t check_of(const mo_share_message *message)
{
    return mo_hash_bytes(0, message, offsetof(mo_share_message, check));
}

memopt_status mo_share_message_begin(memopt_device *device, mo_share_message *out)
{
    memopt_device_properties properties = MEMOPT_DEVICE_PROPERTIES_INIT;
    memset(out, 0, sizeof *out);
    memcpy(out->magic, magic, sizeof magic);
    out->version = VERSION;
    MO_TRY(mo_device_identity(device, out->identity));
    MO_TRY(memopt_device_get_properties(device, &properties));
    snprintf(out->backend, sizeof out->backend, "%.7s", properties.backend);
    snprintf(out->device, sizeof out->device, "%.47s", properties.name);
    return MEMOPT_OK;
}

void mo_share_message_end(mo_share_message *message)
{
    message->check = check_of(message);
}

static int sizes_fit(const mo_share_message *m)
{
    return m->pages > 0 && m->page_bytes > 0 && m->bytes > 0 && m->offset < m->page_bytes &&
           m->pages <= (UINT64_MAX >> 1) / m->page_bytes && m->bytes <= m->pages * m->page_bytes &&
           m->offset <= m->pages * m->page_bytes - m->bytes;
}

static memopt_status check_device(const mo_share_message *m, const mo_share_message *here,
                                  uint64_t granularity)
{
    if (memcmp(m->backend, here->backend, sizeof m->backend) != 0 ||
        memcmp(m->identity, here->identity, sizeof m->identity) != 0)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "import: the block is in the memory of another device (%.7s, %.47s); this "
                       "one is %s, %s",
                       m->backend, m->device, here->backend, here->device);
    if (m->page_bytes % granularity != 0)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "import: the block has pages of %" PRIu64 " bytes, this device of %" PRIu64,
                       m->page_bytes, granularity);
    return MEMOPT_OK;
}

memopt_status mo_share_message_read(memopt_device *device, const void *data, uint64_t bytes,
                                    mo_share_message *out)
{
    mo_share_message m, here;
    if (bytes != sizeof m)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "import: the message has %" PRIu64 " bytes, not %zu", bytes, sizeof m);
    memcpy(&m, data, sizeof m);
    if (memcmp(m.magic, magic, sizeof magic) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "import: this is no message of an export");
    if (m.version != VERSION)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "import: the message is of version %" PRIu32 ", this library knows %d; use "
                       "the same library in both processes",
                       m.version, VERSION);
    if (m.check != check_of(&m) || !sizes_fit(&m))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "import: the message is damaged");
    MO_TRY(mo_share_message_begin(device, &here));
    MO_TRY(check_device(&m, &here, mo_device_granularity(device)));
    *out = m;
    return MEMOPT_OK;
}
