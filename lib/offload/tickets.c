/*
 * The table of packed values. A ticket is a running number (upper 40 bits, from 1) and a place
 * (lower 24 bits): looking one up is one comparison, and an old ticket never matches a new value.
 */
#include "offload/offload.h"

#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/precondition.h"

enum { PLACE_BITS = 24, SERIAL_BITS = 40 };

static const uint64_t place_mask = (1ull << PLACE_BITS) - 1;

memopt_status mo_tickets_reserve(memopt_offloader *offloader)
{
    if (offloader->serial >= (1ull << SERIAL_BITS) - 1 ||
        (offloader->first_free == offloader->packed_count && offloader->packed_count > place_mask))
        return mo_fail(
            MEMOPT_LIMIT_REACHED,
            "offload: no ticket number is left: %llu tickets are live, %llu were given out",
            (unsigned long long)offloader->stats.tickets, (unsigned long long)offloader->serial);
    if (offloader->first_free < offloader->packed_count)
        return MEMOPT_OK;
    mo_lock(&offloader->streams_lock);
    int room = mo_grow((void **)&offloader->packed, &offloader->packed_capacity,
                       offloader->packed_count + 1, sizeof *offloader->packed);
    mo_unlock(&offloader->streams_lock);
    return room ? MEMOPT_OK : MEMOPT_OUT_OF_HOST_MEMORY;
}

memopt_ticket mo_tickets_add(memopt_offloader *offloader, const mo_packed *value)
{
    uint64_t place = offloader->first_free;
    MO_PRE(place < offloader->packed_capacity);
    mo_lock(&offloader->streams_lock);
    if (place == offloader->packed_count)
        offloader->first_free = ++offloader->packed_count;
    else
        offloader->first_free = offloader->packed[place].next_free;
    offloader->packed[place] = *value;
    mo_unlock(&offloader->streams_lock);
    offloader->packed[place].ticket = ++offloader->serial << PLACE_BITS | place;
    offloader->stats.tickets++;
    return offloader->packed[place].ticket;
}

memopt_status mo_tickets_find(memopt_offloader *offloader, memopt_ticket ticket, const char *call,
                              mo_packed **out_value)
{
    MO_NOT_NULL(call, offloader);
    MO_TRY(mo_check_process(offloader->device, call));
    uint64_t place = ticket & place_mask;
    if (ticket != 0 && place < offloader->packed_count &&
        offloader->packed[place].ticket == ticket) {
        *out_value = &offloader->packed[place];
        return MEMOPT_OK;
    }
    int past = ticket >> PLACE_BITS != 0 && ticket >> PLACE_BITS <= offloader->serial;
    return mo_fail(MEMOPT_NOT_FOUND, "%s: ticket %llu is not among the %llu live tickets%s", call,
                   (unsigned long long)ticket, (unsigned long long)offloader->stats.tickets,
                   past ? "; was it released before?" : "");
}

void mo_tickets_remove(memopt_offloader *offloader, mo_packed *value)
{
    value->ticket = 0;
    value->next_free = offloader->first_free;
    offloader->first_free = (uint64_t)(value - offloader->packed);
    offloader->stats.tickets--;
}
