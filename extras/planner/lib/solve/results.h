/* Results by name: as JSON and one by one, from one table for each struct. */
#ifndef MO_PLAN_RESULTS_H
#define MO_PLAN_RESULTS_H

#include "solve/solve.h"

/* The JSON object; solution NULL: there is none. NULL: OUT_OF_HOST_MEMORY; the caller frees it. */
char *mo_plan_json(const mo_plan_estimate *e, const mo_plan_solution *solution);

/* "run.batch=4" lines of what is measured: the run's settings, and of the model the adapters' where
 * there are any. The caller frees it. */
char *mo_plan_measured_text(const mo_plan_settings *settings);

/* NOT_FOUND names the nearest. */
memopt_status mo_plan_number(const mo_plan_estimate *e, const mo_plan_solution *solution,
                             const char *name, double *out_value);

#endif
