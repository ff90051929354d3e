/* Packing and unpacking by a request: the arguments in a struct that the caller keeps. */
#include "offload/offload.h"

#include "base/error.h"
#include "base/options.h"

static memopt_status read_request(memopt_offload_request *copy,
                                  const memopt_offload_request *request, const char *call)
{
    if (request == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: request is NULL", call);
    if (request->struct_size < sizeof *copy)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: struct_size is %zu, below %zu; begin with MEMOPT_OFFLOAD_REQUEST_INIT",
                       call, request->struct_size, sizeof *copy);
    return mo_options_read(copy, sizeof *copy, request, "memopt_offload_request");
}

memopt_status memopt_offload_request_pack(memopt_offload_request *request)
{
    memopt_offload_request r;
    int32_t kept = 0;
    memopt_status status = read_request(&r, request, "offload_request_pack");
    if (status == MEMOPT_OK)
        status =
            memopt_offload_pack_borrowed(r.offloader, r.data, r.bytes, r.stream, &r.ticket, &kept);
    if (status != MEMOPT_OK)
        return status;
    request->ticket = r.ticket;
    request->kept = (uint64_t)kept;
    return MEMOPT_OK;
}

memopt_status memopt_offload_request_unpack(const memopt_offload_request *request)
{
    memopt_offload_request r;
    memopt_status status = read_request(&r, request, "offload_request_unpack");
    return status == MEMOPT_OK
               ? memopt_offload_unpack_into(r.offloader, r.ticket, r.data, r.bytes, r.stream)
               : status;
}
