/*
 * The two passes of a region and the release between them.
 *
 * A failed pass frees its leases in stream order and restores the caller's random state of the
 * start of the call.
 */
#include "checkpoint/region.h"

#include "device/device.h"

static memopt_status refuse_if_busy(const memopt_region *region, const char *verb)
{
    if (region->activity != MO_ACTIVITY_NONE)
        return mo_fail(MEMOPT_BUSY, "checkpoint: region '%s' cannot %s inside its own callback",
                       region->name, verb);
    return MEMOPT_OK;
}

static memopt_status refuse_if_held(const memopt_region *region, const char *verb)
{
    if (region->state != MO_REGION_KEPT && region->state != MO_REGION_HELD)
        return MEMOPT_OK;
    return mo_fail(
        MEMOPT_BUSY,
        "checkpoint: region '%s' cannot %s while it holds %s of leases; release it first",
        region->name, verb, MO_SIZE(mo_region_leased_bytes(region)));
}

static memopt_status called(const memopt_region *region, const char *callback, memopt_status status)
{
    return mo_callback_status(status, "checkpoint: region '%s': its callback %s", region->name,
                              callback);
}

static memopt_status random_save(memopt_region *region, void *state)
{
    if (region->random_bytes == 0)
        return MEMOPT_OK;
    region->activity = MO_ACTIVITY_RANDOM;
    memopt_status status = region->callbacks.random_save(region->callbacks.user, state);
    region->activity = MO_ACTIVITY_NONE;
    return called(region, "random_save", status);
}

static memopt_status random_restore(memopt_region *region, const void *state)
{
    if (region->random_bytes == 0)
        return MEMOPT_OK;
    region->activity = MO_ACTIVITY_RANDOM;
    memopt_status status = region->callbacks.random_restore(region->callbacks.user, state);
    region->activity = MO_ACTIVITY_NONE;
    return called(region, "random_restore", status);
}

/* After a pass with this status. If it failed, its status and text stay the last error. */
static memopt_status random_put_back(memopt_region *region, const void *state, memopt_status status)
{
    if (status == MEMOPT_OK)
        return random_restore(region, state);
    mo_error_record failure = *mo_error_here();
    (void)random_restore(region, state);
    *mo_error_here() = failure;
    return status;
}

/* Forward begins anew where nobody has asked for the kept leases. */
static memopt_status refuse_forward(const memopt_region *region)
{
    MO_TRY(refuse_if_busy(region, "run forward"));
    return region->state == MO_REGION_HELD ? refuse_if_held(region, "run forward") : MEMOPT_OK;
}

/* Calls the callback. Its leases and declared values stay. */
static memopt_status run(memopt_region *region, memopt_region_pass pass, memopt_stream stream)
{
    region->pass = pass;
    region->stream = stream;
    region->lease_next = 0;
    region->check_next = 0;
    region->mismatch[0] = '\0';
    MO_TRY(mo_region_checks_begin(region));
    region->activity = MO_ACTIVITY_RUN;
    memopt_status status = region->callbacks.run(region->callbacks.user, region, pass, stream);
    region->activity = MO_ACTIVITY_NONE;
    status = called(region, "run", status);
    mo_keep_first(&status, mo_region_checks_end(region));
    return status;
}

memopt_status memopt_region_forward(memopt_region *region, memopt_stream stream)
{
    MO_NOT_NULL("region_forward", region);
    MO_TRY(mo_check_process(region->device, "region_forward"));
    MO_TRY(refuse_forward(region));
    MO_TRY(mo_region_drop_leases(region));
    region->state = MO_REGION_IDLE;
    region->lease_total = 0;
    region->check_total = 0;
    MO_TRY(random_save(region, region->random_first));
    region->random_due = region->random_first;
    memopt_status status = run(region, MEMOPT_PASS_FORWARD, stream);
    region->random_due = NULL;
    region->lease_total = region->lease_next;
    region->check_total = region->check_next;
    uint64_t leased = mo_region_leased_bytes(region);
    if (status == MEMOPT_OK && region->mode == MEMOPT_REGION_KEEP) {
        region->state = MO_REGION_KEPT;
        region->stats.forwards++;
        return MEMOPT_OK;
    }
    mo_keep_first(&status, mo_region_drop_leases(region));
    if (status != MEMOPT_OK)
        return random_put_back(region, region->random_first, status);
    region->state = MO_REGION_FORWARDED;
    region->stats.dropped_bytes = leased;
    region->stats.forwards++;
    return MEMOPT_OK;
}

/* Compares the numbers of leases and values with the first run's; sizes were compared before. */
static memopt_status compare_counts(memopt_region *region)
{
    if (region->mismatch[0] != '\0') /* the callback continued after a mismatch */
        return mo_fail(MEMOPT_MISMATCH, "%s", region->mismatch);
    if (region->lease_next != region->lease_total)
        return mo_region_mismatch(region,
                                  "checkpoint: region '%s' made %llu leases in recompute, but %llu "
                                  "in forward; lease %llu of %llu bytes is missing",
                                  region->name, (unsigned long long)region->lease_next,
                                  (unsigned long long)region->lease_total,
                                  (unsigned long long)region->lease_next,
                                  (unsigned long long)region->leases[region->lease_next].bytes);
    if (region->check_next != region->check_total)
        return mo_region_mismatch(region,
                                  "checkpoint: region '%s' declared %llu values in recompute, but "
                                  "%llu in forward; '%s' of %llu bytes is missing",
                                  region->name, (unsigned long long)region->check_next,
                                  (unsigned long long)region->check_total,
                                  region->checks[region->check_next].name,
                                  (unsigned long long)region->checks[region->check_next].bytes);
    return MEMOPT_OK;
}

/* Runs the callback with the first run's random state and puts the caller's back. */
static memopt_status run_again(memopt_region *region, memopt_stream stream)
{
    MO_TRY(random_save(region, region->random_now));
    region->random_due = region->random_now;
    memopt_status status = random_restore(region, region->random_first);
    if (status == MEMOPT_OK)
        status = run(region, MEMOPT_PASS_RECOMPUTE, stream);
    status = random_put_back(region, region->random_now, status);
    region->random_due = NULL;
    if (status == MEMOPT_OK)
        status = compare_counts(region);
    if (status == MEMOPT_OK)
        status = mo_region_checks_verdict(region);
    mo_keep_first(&status, mo_check_hash_drop_verdict(region));
    return status;
}

/* Keep mode: the leases are alive, on the forward stream. Backward may use another stream, also a
 * new one with the handle of an ended forward stream; only the allocator can distinguish them. */
static memopt_status take_kept(memopt_region *region, memopt_stream stream)
{
    MO_TRY(mo_region_share_leases(region, stream));
    region->state = MO_REGION_HELD;
    return MEMOPT_OK;
}

memopt_status memopt_region_recompute(memopt_region *region, memopt_stream stream)
{
    MO_NOT_NULL("region_recompute", region);
    MO_TRY(mo_check_process(region->device, "region_recompute"));
    MO_TRY(refuse_if_busy(region, "recompute"));
    if (region->state == MO_REGION_KEPT)
        return take_kept(region, stream);
    MO_TRY(refuse_if_held(region, "recompute"));
    if (region->state == MO_REGION_IDLE)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "checkpoint: region '%s' cannot recompute before it was run forward",
                       region->name);
    MO_TRY(mo_region_drop_leases(region));
    memopt_status status = run_again(region, stream);
    if (status != MEMOPT_OK) {
        (void)mo_region_drop_leases(region);
        return status;
    }
    region->state = MO_REGION_HELD;
    region->stats.recomputes++;
    return MEMOPT_OK;
}

memopt_status memopt_region_release(memopt_region *region)
{
    MO_NOT_NULL("region_release", region);
    MO_TRY(mo_check_process(region->device, "region_release"));
    MO_TRY(refuse_if_busy(region, "be released"));
    MO_TRY(mo_region_drop_leases(region));
    if (region->state == MO_REGION_KEPT || region->state == MO_REGION_HELD)
        region->state = MO_REGION_FORWARDED;
    return MEMOPT_OK;
}

memopt_status memopt_region_reset(memopt_region *region)
{
    MO_NOT_NULL("region_reset", region);
    MO_TRY(mo_check_process(region->device, "region_reset"));
    const void *due = region->random_due;
    memopt_status status =
        region->activity == MO_ACTIVITY_RUN ? mo_region_checks_end(region) : MEMOPT_OK;
    region->activity = MO_ACTIVITY_NONE;
    region->random_due = NULL;
    region->state = MO_REGION_IDLE;
    memopt_status drop = mo_region_drop_leases(region);
    if (status == MEMOPT_OK)
        status = drop;
    drop = mo_check_hash_drop_verdict(region);
    if (status == MEMOPT_OK)
        status = drop;
    region->lease_total = 0;
    region->check_total = 0;
    drop = due != NULL ? random_restore(region, due) : MEMOPT_OK;
    return status != MEMOPT_OK ? status : drop;
}
