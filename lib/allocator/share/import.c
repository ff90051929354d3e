/*
 * Blocks of other processes: addresses of this process, and behind them pages that another one has
 * made. Pages are mapped as their descriptors come, and can be used once all of them are there.
 */
#include "allocator/share/share_message.h"
#include "allocator/share/share_socket.h"

#include "base/checked.h"
#include "base/memory.h"

#include <inttypes.h>

struct memopt_import {
    memopt_device *device;
    char *address; /* of the first page */
    mo_share_message message;
    uint64_t count, mapped; /* handles that are there, and those that are mapped */
    mo_vm_handle handles[];
};

static uint64_t all_bytes(const memopt_import *import)
{
    return import->message.pages * import->message.page_bytes;
}

static memopt_status begin(memopt_device *device, const void *message, uint64_t bytes,
                           memopt_import **out)
{
    mo_share_message m;
    void *address = NULL;
    MO_TRY(mo_share_message_read(device, message, bytes, &m));
    if (m.pages > SIZE_MAX / 2 / sizeof(mo_vm_handle))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_import *import = mo_calloc(1, sizeof *import + m.pages * sizeof(mo_vm_handle));
    if (import == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = mo_vm_reserve(device, m.pages * m.page_bytes, &address);
    if (status != MEMOPT_OK) {
        mo_free(import);
        return status;
    }
    import->device = device;
    import->address = address;
    import->message = m;
    *out = import;
    return MEMOPT_OK;
}

static memopt_status add(memopt_import *import, int file)
{
    uint64_t page = import->message.page_bytes;
    MO_TRY(mo_vm_import(import->device, file, page, &import->handles[import->count]));
    char *address = import->address + import->count * page;
    memopt_status status =
        mo_vm_map(import->device, address, page, import->handles[import->count++]);
    import->mapped += status == MEMOPT_OK;
    return status;
}

static memopt_status add_all(memopt_import *import, const int32_t *files, uint64_t count)
{
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0; i < count && status == MEMOPT_OK; i++)
        status = add(import, files[i]);
    return status;
}

/* What the driver refuses to end is still there; a repeated call goes on. */
static memopt_status end(memopt_import *import)
{
    uint64_t page = import->message.page_bytes;
    memopt_status status = MEMOPT_OK;
    while (import->mapped > 0 && status == MEMOPT_OK) {
        status = mo_vm_unmap(import->device, import->address + (import->mapped - 1) * page, page);
        import->mapped -= status == MEMOPT_OK;
    }
    while (import->count > 0 && status == MEMOPT_OK) {
        status = mo_vm_drop_import(import->device, import->handles[import->count - 1], page);
        import->count -= status == MEMOPT_OK;
    }
    if (status == MEMOPT_OK)
        status = mo_vm_unreserve(import->device, import->address, all_bytes(import));
    if (status == MEMOPT_OK)
        mo_free(import);
    return status;
}

/* Gives access to all of it, or ends it. */
static memopt_status finish(memopt_import *import, memopt_status status, memopt_import **out)
{
    if (status == MEMOPT_OK)
        status = mo_vm_set_access(import->device, import->address, all_bytes(import));
    if (status == MEMOPT_OK)
        *out = import;
    else if (end(import) != MEMOPT_OK)
        (void)end(import); /* a refusal may have been for once */
    return status;
}

/* --- calls ------------------------------------------------------------------------------------ */

static memopt_status check(memopt_device *device, const void *out_import, const void *out_pointer,
                           const char *call)
{
    MO_NOT_NULL(call, device, out_import, out_pointer);
    return mo_check_process(device, call);
}

static void tell(const memopt_import *import, void **out_pointer, uint64_t *out_bytes)
{
    *out_pointer = import->address + import->message.offset;
    if (out_bytes != NULL)
        *out_bytes = import->message.bytes;
}

memopt_status memopt_import_open(memopt_device *device, const void *message, uint64_t bytes,
                                 const int32_t *files, uint64_t count, void **out_pointer,
                                 uint64_t *out_bytes, memopt_import **out_import)
{
    memopt_import *import = NULL;
    MO_TRY(check(device, out_import, out_pointer, "import_open"));
    MO_NOT_NULL("import_open", message, files);
    memopt_status status = begin(device, message, bytes, &import);
    if (status != MEMOPT_OK)
        return status;
    if (count != import->message.pages)
        status =
            mo_fail(MEMOPT_INVALID_ARGUMENT,
                    "import_open: %" PRIu64 " descriptors, but the block has %" PRIu64 " pages",
                    count, import->message.pages);
    else
        status = add_all(import, files, count);
    MO_TRY(finish(import, status, out_import));
    tell(import, out_pointer, out_bytes);
    return MEMOPT_OK;
}

static memopt_status receive_some(memopt_import *import, int socket)
{
    int32_t files[MO_SHARE_FILES];
    uint64_t told = 0, count = mo_min_u64(import->message.pages - import->count, MO_SHARE_FILES);
    memopt_status status = mo_share_receive(socket, &told, sizeof told, files, count);
    if (status != MEMOPT_OK)
        return status;
    if (told == count)
        status = add_all(import, files, count);
    else
        status = mo_fail(MEMOPT_INVALID_ARGUMENT,
                         "import_receive: %" PRIu64 " descriptors are told, %" PRIu64 " came", told,
                         count);
    mo_share_close(files, count);
    return status;
}

memopt_status memopt_import_receive(memopt_device *device, int32_t socket, void **out_pointer,
                                    uint64_t *out_bytes, memopt_import **out_import)
{
    char message[MEMOPT_SHARE_MESSAGE_BYTES];
    memopt_import *import = NULL;
    memopt_status status = check(device, out_import, out_pointer, "import_receive");
    if (status == MEMOPT_OK)
        status = mo_share_receive(socket, message, sizeof message, NULL, 0);
    if (status == MEMOPT_OK)
        status = begin(device, message, sizeof message, &import);
    if (status != MEMOPT_OK)
        return status;
    while (status == MEMOPT_OK && import->count < import->message.pages)
        status = receive_some(import, socket);
    MO_TRY(finish(import, status, out_import));
    tell(import, out_pointer, out_bytes);
    return MEMOPT_OK;
}

memopt_status memopt_import_destroy(memopt_import *import)
{
    if (import == NULL)
        return MEMOPT_OK;
    MO_TRY(mo_check_process(import->device, "import_destroy"));
    int lost = mo_device_lost(import->device);
    memopt_status waited = lost ? MEMOPT_OK : memopt_device_sync(import->device);
    if (!mo_work_is_over(waited))
        return waited;
    MO_TRY(end(import));
    return waited;
}
