/* Reports, one for each kind and pair of tags, in the order in which they were found. */
#include "race/finder.h"

static uint64_t *bucket_of(memopt_race *race, const memopt_race_report *report)
{
    uint64_t hash = report->first.tag * 0x9E3779B97F4A7C15U + report->second.tag;
    hash = (hash ^ (hash >> 31)) * 0xBF58476D1CE4E5B9U + report->kind;
    return &race->buckets[(hash >> 40) % MO_RACE_BUCKETS];
}

void mo_race_report_add(memopt_race *race, const memopt_race_report *report)
{
    uint64_t *bucket = bucket_of(race, report);
    for (uint64_t i = *bucket; i != 0; i = race->found[i - 1].next) {
        const memopt_race_report *known = &race->found[i - 1].report;
        if (known->kind == report->kind && known->first.tag == report->first.tag &&
            known->second.tag == report->second.tag)
            return;
    }
    if (race->stats.reports == race->options.max_reports ||
        !mo_race_grow(race, (void **)&race->found, &race->found_capacity, race->stats.reports + 1,
                      sizeof *race->found)) {
        race->stats.forgotten++;
        return;
    }
    race->found[race->stats.reports] = (mo_race_found){*report, *bucket};
    *bucket = ++race->stats.reports;
}
