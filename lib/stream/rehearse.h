/* What budgets cost, by a schedule's rehearsal: for a streamer, and before there is one. */
#ifndef MO_STREAM_REHEARSE_H
#define MO_STREAM_REHEARSE_H

#include "memopt/stream.h"
#include "stream/schedule.h"

enum { MO_ARENA_UNIT = 512 };

/* call: for the message. */
memopt_status mo_check_pace(const char *call, const mo_pace *pace, uint64_t begins);
memopt_status mo_write_plan(const mo_schedule *schedule, const mo_round *round,
                            memopt_stream_plan *out_plan);

#endif
