/* Marks between the steps of a training loop: what they say, and when a plan is made or dropped. */
#include "allocator/memory/family.h"
#include "allocator/memory/observers.h"
#include "allocator/memory/segment.h"
#include "allocator/steps/step_lanes.h"
#include "allocator/steps/step_plan.h"
#include "allocator/steps/step_recorder.h"
#include "allocator/streams/events.h"

#include "base/lock.h"
#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>

enum {
    MOST_UNLIKE = 16, /* steps in a row that differ; then the plan is dropped */
    MOST_WANTED = 64, /* equal steps before a plan, where plans did not last */
    LONG_STREAK = 64, /* planned steps in a row; then the next plan is made at once again */
    SETTLING = 2      /* marks after a plan that give back what blocks have left elsewhere */
};

/* 1 if all segments with places are there. */
static int is_whole(const mo_steps *steps)
{
    for (const mo_lane *lane = steps->lanes; lane != NULL; lane = lane->next)
        for (uint32_t i = 0; i < lane->region_count; i++)
            if (lane->regions[i].segment == NULL && lane->regions[i].end > lane->regions[i].start)
                return 0;
    return 1;
}

/* 1 if every lane has asked for what is planned until now; *out_missed: not all places were free. */
static int is_as_planned(const mo_steps *steps, int *out_missed)
{
    int same = steps->planned;
    *out_missed = 0;
    for (const mo_lane *lane = steps->lanes; lane != NULL; lane = lane->next) {
        *out_missed |= lane->missed > 0;
        if (lane->slots != NULL && (!lane->armed || lane->left))
            same = 0;
    }
    return same;
}

/* 1 if every lane has gone through its slots, all from their places. */
static int was_as_planned(mo_steps *steps)
{
    int missed, same = is_as_planned(steps, &missed);
    for (const mo_lane *lane = steps->lanes; lane != NULL; lane = lane->next) {
        steps->info.missed += lane->missed;
        if (lane->slots != NULL && lane->at != lane->slot_count)
            same = 0;
    }
    return same && !missed;
}

static void drop_plan(memopt_allocator *allocator)
{
    memopt_step_plan *info = &allocator->steps->info;
    mo_lanes_drop(allocator);
    info->active = info->allocations = info->unplanned = info->least_bytes = info->bytes = 0;
}

/* Counts the step that has ended; 1 if it was as planned. */
static int judge(memopt_allocator *allocator)
{
    mo_steps *steps = allocator->steps;
    if (steps->planned && !is_whole(steps))
        drop_plan(allocator);
    int same = was_as_planned(steps);
    steps->info.planned_steps += (uint64_t)same;
    steps->streak = same ? steps->streak + 1 : 0;
    steps->unlike = same || !steps->planned ? 0 : steps->unlike + 1;
    steps->alike = mo_step_is_alike(steps) ? steps->alike + 1 : 0;
    if (steps->streak == LONG_STREAK)
        steps->wanted = 1;
    if (steps->unlike == MOST_UNLIKE)
        drop_plan(allocator);
    return same;
}

/* A plan of the step that has ended, if that is wanted; *out_made. */
static memopt_status consider(memopt_allocator *allocator, int now, int *out_made)
{
    mo_steps *steps = allocator->steps;
    *out_made = 0;
    if (!steps->recording || steps->broken || steps->now.count == 0 ||
        (!now && steps->alike < steps->wanted))
        return MEMOPT_OK;
    memopt_status status = mo_step_plan_learn(allocator);
    if (status != MEMOPT_OK)
        return status; /* the next mark tries again */
    steps->alike = steps->unlike = steps->streak = 0;
    steps->wanted = steps->wanted < MOST_WANTED ? steps->wanted * 2 : MOST_WANTED;
    steps->settling = SETTLING;
    *out_made = steps->planned;
    return MEMOPT_OK;
}

/* While the plan fits, nothing is recorded. */
static void record_next(mo_steps *steps, int planned)
{
    if (planned) {
        if (steps->recording)
            mo_step_stop(steps);
        return;
    }
    if (steps->recording)
        mo_step_turn(steps);
    steps->recording = 1;
}

/* While tags are paused no lane is armed: what is freed then sleeps, and is not held for places. */
static void start_lanes(memopt_allocator *allocator)
{
    int paused = allocator->paused_tags != 0;
    for (mo_lane *lane = allocator->steps->lanes; lane != NULL; lane = lane->next) {
        if (lane->left || lane->missed > 0 || !lane->armed) {
            mo_lane_disarm(allocator, lane);
            if (!paused)
                (void)mo_lane_arm(allocator, lane); /* what is not held goes online */
        }
        lane->at = lane->missed = 0;
        lane->left = paused;
    }
}

/* What the stripes have counted. */
static void add_served(mo_steps *steps)
{
    for (mo_lane *lane = steps->lanes; lane != NULL; lane = lane->next) {
        steps->info.served += lane->served;
        lane->served = 0;
    }
}

static void forget_ended_lanes(mo_steps *steps)
{
    for (mo_lane **place = &steps->lanes; *place != NULL;) {
        mo_lane *lane = *place;
        if (!lane->ended || lane->count > 0 || lane->count_before > 0) {
            place = &lane->next;
            continue;
        }
        *place = lane->next;
        mo_free(lane);
    }
}

static memopt_status settle(memopt_allocator *allocator)
{
    mo_release all = MO_RELEASE_ALL;
    uint64_t released = 0;
    if (allocator->steps->settling == 0)
        return MEMOPT_OK;
    allocator->steps->settling--;
    return mo_segment_release(allocator, &all, &released);
}

/* Steps take turns in another way than was thought: the plan does not fit, and what is recorded is
 * of other periods. */
static void change_period(memopt_allocator *allocator, uint32_t period)
{
    mo_steps *steps = allocator->steps;
    if (steps->planned)
        drop_plan(allocator);
    mo_step_turn(steps);
    steps->has_before = 0;
    steps->alike = steps->phase = 0;
    steps->period = period;
}

/* 1 if the mark is one within a period. After another step than the plan's the period ends, so that
 * the next one can begin where the program does. */
static int goes_on(memopt_allocator *allocator)
{
    mo_steps *steps = allocator->steps;
    int missed, same = is_as_planned(steps, &missed);
    uint32_t period = same ? 0 : mo_step_find_period(steps);
    if (period != 0 && period != steps->period) {
        change_period(allocator, period);
        return 1;
    }
    if (steps->phase + 1 >= steps->period || (steps->planned && !same)) {
        steps->phase = 0;
        return 0;
    }
    steps->phase++;
    steps->info.planned_steps += same && !missed;
    return 1;
}

/* While a graph is recorded or tags are paused, no plan is made, and this step counts as one that
 * was not recorded. */
static memopt_status mark(memopt_allocator *allocator, memopt_step what)
{
    mo_steps *steps = allocator->steps;
    memopt_status status = MEMOPT_OK;
    int made = 0, hindered = allocator->paused_tags != 0 || mo_family_records(allocator);
    steps->info.steps++;
    mo_step_note_mark(steps);
    if (!hindered && what == MEMOPT_STEP_NEXT && goes_on(allocator)) {
        add_served(steps);
        steps->used = allocator->clock;
        return MEMOPT_OK;
    }
    steps->phase = 0;
    int same = judge(allocator);
    if (hindered && steps->recording)
        mo_step_stop(steps);
    if (!same && !hindered)
        status = consider(allocator, what == MEMOPT_STEP_LEARN, &made);
    if (status != MEMOPT_OK)
        return status;
    record_next(steps, same || made);
    if (same && !hindered)
        status = settle(allocator);
    start_lanes(allocator);
    add_served(steps);
    forget_ended_lanes(steps);
    steps->used = allocator->clock;
    return status;
}

static void forget(memopt_allocator *allocator, mo_pool *pool, const mo_segment *segment)
{
    if (pool != NULL)
        mo_lanes_end_stream(allocator, pool);
    else if (segment != NULL)
        mo_lanes_end_segment(segment);
    else
        mo_steps_end(allocator);
}

static const mo_step_calls calls = {.serve = mo_lane_serve,
                                    .take = mo_lane_take,
                                    .hold = mo_lane_hold,
                                    .grow = mo_step_grow,
                                    .leave = mo_lanes_leave,
                                    .forget = forget};

static memopt_status first_mark(memopt_allocator *allocator)
{
    mo_steps *steps = mo_calloc(1, sizeof *steps);
    if (steps == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    steps->wanted = steps->period = 1;
    steps->recording = 1;
    steps->used = allocator->clock;
    steps->sink = mo_step_sink;
    mo_sink_add(allocator, &steps->sink);
    allocator->steps = steps;
    allocator->plan = &calls;
    return MEMOPT_OK;
}

static memopt_status mark_call(memopt_allocator *allocator, memopt_step what)
{
    if (what == MEMOPT_STEP_END)
        mo_plan_forget(allocator, NULL, NULL);
    else if (allocator->steps == NULL)
        return first_mark(allocator);
    else
        return mark(allocator, what);
    return MEMOPT_OK;
}

memopt_status memopt_allocator_mark_step(memopt_allocator *allocator, memopt_step what)
{
    if (allocator == NULL || what > MEMOPT_STEP_END)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       allocator == NULL
                           ? "allocator_mark_step: allocator is NULL"
                           : "allocator_mark_step: what is %" PRIu32
                             "; give MEMOPT_STEP_NEXT, MEMOPT_STEP_LEARN or MEMOPT_STEP_END",
                       what);
    MO_TRY(mo_check_process(allocator->device, "allocator_mark_step"));
    if (allocator->pinned)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "allocator_mark_step: blocks of page-locked memory are reused when their "
                       "streams are done, not in the order of a step; mark device memory");
    MO_TRY(mo_family_enter(allocator->family, "allocator_mark_step"));
    mo_lock(&allocator->lock);
    memopt_status status = mark_call(allocator, what);
    mo_unlock(&allocator->lock);
    mo_family_leave(allocator->family);
    return status;
}

memopt_status memopt_allocator_get_step_plan(memopt_allocator *allocator,
                                             memopt_step_plan *out_plan)
{
    memopt_step_plan plan = MEMOPT_STEP_PLAN_INIT;
    MO_NOT_NULL("allocator_get_step_plan", allocator, out_plan);
    MO_TRY(mo_check_process(allocator->device, "allocator_get_step_plan"));
    mo_lock(&allocator->lock);
    if (allocator->steps != NULL) {
        add_served(allocator->steps);
        plan = allocator->steps->info;
    }
    mo_unlock(&allocator->lock);
    return mo_result_write(out_plan, &plan, sizeof plan, "memopt_step_plan");
}
