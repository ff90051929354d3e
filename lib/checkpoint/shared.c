/* What leases and checks both need: the first mismatch, and waiting for work on host memory. */
#include "checkpoint/region.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

memopt_status mo_region_mismatch(memopt_region *region, const char *format, ...)
{
    char text[MO_MISMATCH_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (region->mismatch[0] == '\0')
        memcpy(region->mismatch, text, sizeof text);
    return mo_fail(MEMOPT_MISMATCH, "%s", text);
}

memopt_status mo_region_settle_mark(memopt_region *region)
{
    memopt_status status = memopt_event_record(region->settled, region->stream);
    if (status != MEMOPT_OK) {
        /* Without the event no one can wait later: wait now. */
        (void)memopt_stream_sync(region->device, region->stream);
        return status;
    }
    region->settled_stream = region->stream;
    region->pending = 1;
    return MEMOPT_OK;
}

memopt_status mo_region_settle_wait(memopt_region *region)
{
    if (!region->pending)
        return MEMOPT_OK;
    MO_TRY(memopt_event_sync(region->settled));
    region->pending = 0;
    return MEMOPT_OK;
}
