/* Packing and unpacking by a request: the arguments in a struct that the caller keeps. */
#include "offload/offload.h"

#include "base/error.h"
#include "base/options.h"

static memopt_status read_request(memopt_offloader_request *copy,
                                  const memopt_offloader_request *request, const char *call)
{
    MO_NOT_NULL(call, request);
    if (request->struct_size < sizeof *copy)
        return mo_fail(
            MEMOPT_INVALID_ARGUMENT,
            "%s: struct_size is %zu, below %zu; begin with MEMOPT_OFFLOADER_REQUEST_INIT", call,
            request->struct_size, sizeof *copy);
    return mo_options_read(copy, sizeof *copy, request, "memopt_offloader_request");
}

memopt_status memopt_offloader_request_pack(memopt_offloader_request *request)
{
    memopt_offloader_request r;
    int32_t kept = 0;
    MO_TRY(read_request(&r, request, "offloader_request_pack"));
    MO_TRY(mo_offloader_pack_borrowed(r.offloader, r.data, r.bytes, r.stream, &r.ticket, &kept));
    request->ticket = r.ticket;
    request->kept = (uint64_t)kept;
    return MEMOPT_OK;
}

memopt_status memopt_offloader_request_unpack(const memopt_offloader_request *request)
{
    memopt_offloader_request r;
    MO_TRY(read_request(&r, request, "offloader_request_unpack"));
    return mo_offloader_unpack_into(r.offloader, r.ticket, r.data, r.bytes, r.stream);
}
