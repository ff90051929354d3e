/* What budgets cost; see rehearse.h. */
#include "stream/rehearse.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/options.h"

#include <inttypes.h>
#include <math.h>

memopt_status mo_check_pace(const char *call, const mo_pace *pace, uint64_t begins)
{
    if (!(pace->link > 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: a link of %g bytes a second; it must be above 0", call, pace->link);
    for (uint64_t i = 0; i < begins; i++)
        if (!(pace->work[i] >= 0) || !isfinite(pace->work[i]))
            return mo_fail(MEMOPT_INVALID_ARGUMENT,
                           "%s: work[%" PRIu64 "] is %g seconds; it must be finite, at least 0",
                           call, i, pace->work[i]);
    return MEMOPT_OK;
}

memopt_status mo_write_plan(const mo_schedule *schedule, const mo_round *round,
                            memopt_stream_plan *out_plan)
{
    memopt_stream_plan plan = MEMOPT_STREAM_PLAN_INIT;
    plan.budget = schedule->budget;
    plan.layers = schedule->count;
    for (uint32_t i = 0; i < schedule->count; i++) {
        plan.layer_bytes += schedule->layers[i].bytes;
        plan.largest_bytes = mo_max_u64(plan.largest_bytes, schedule->layers[i].bytes);
    }
    plan.resident = round->resident;
    plan.copies = round->copies;
    plan.copied_bytes = round->bytes;
    return mo_result_write(out_plan, &plan, sizeof plan, "memopt_stream_plan");
}

static memopt_status add_layers(mo_schedule *schedule, const uint64_t *layers, uint32_t count)
{
    uint32_t number;
    for (uint32_t i = 0; i < count; i++) {
        if (layers[i] == 0)
            return mo_fail(MEMOPT_INVALID_ARGUMENT, "streamer_rehearse: layer %u has 0 bytes", i);
        if (layers[i] > schedule->budget)
            return mo_fail(MEMOPT_LIMIT_REACHED,
                           "streamer_rehearse: layer %u has %s; the budget is %s", i,
                           MO_SIZE(layers[i]), MO_SIZE(schedule->budget));
        uint64_t steps = layers[i] / MO_STREAM_STEP + (layers[i] % MO_STREAM_STEP != 0);
        MO_TRY(mo_schedule_add(schedule, steps * MO_STREAM_STEP, &number));
    }
    return MEMOPT_OK;
}

memopt_status memopt_streamer_rehearse(const uint64_t *layers, uint32_t count, uint64_t budget,
                                       const double *work, double link,
                                       memopt_stream_plan *out_plan, double *out_seconds)
{
    const mo_pace pace = {work, link};
    mo_schedule schedule;
    mo_round round;
    MO_NOT_NULL("streamer_rehearse", layers, work, out_plan, out_seconds);
    if (count == 0 || count > INT32_MAX)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "streamer_rehearse: %u layers; there can be 1 to 2^31 - 1", count);
    MO_TRY(mo_check_pace("streamer_rehearse", &pace, 2 * (uint64_t)count));
    mo_schedule_open(&schedule, budget / MO_ARENA_UNIT * MO_ARENA_UNIT);
    memopt_status status = add_layers(&schedule, layers, count);
    if (status == MEMOPT_OK)
        status = mo_schedule_rehearse(&schedule, NULL, 0, &pace, &round);
    if (status == MEMOPT_OK)
        status = mo_write_plan(&schedule, &round, out_plan);
    mo_schedule_close(&schedule);
    if (status == MEMOPT_OK)
        *out_seconds = round.seconds;
    return status;
}
