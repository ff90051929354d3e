/* What the tests of the solver share: a small case, and how it is solved. */
#ifndef TEST_PLAN_SOLVE_SUPPORT_H
#define TEST_PLAN_SOLVE_SUPPORT_H

#include "plan/solve.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define OK(call) assert_int_equal(call, MEMOPT_OK)
#define MIB ((uint64_t)1 << 20)

static inline mo_case small_case(void)
{
    mo_case c = {MEMOPT_PLAN_MODEL_INIT, MEMOPT_PLAN_RUN_INIT, MEMOPT_PLAN_CARD_INIT, NULL};
    c.model.layers = 4;
    c.model.hidden = 256;
    c.model.heads = 4;
    c.model.vocabulary = 4096;
    c.run.sequence = 256;
    c.card.margin = 1;
    c.card.device = MEMOPT_PLAN_DEVICE_CPU;
    c.card.capacity = (uint64_t)1 << 50;
    return c;
}

static inline uint64_t peak_of(const mo_case *c)
{
    mo_cost cost;
    OK(mo_case_cost(c, &cost));
    return cost.peak;
}

static inline uint64_t peak_at(mo_case c, uint64_t batch)
{
    c.run.batch = batch;
    return peak_of(&c);
}

static inline memopt_plan_fit solve(const mo_case *c, const memopt_plan_target_options *options,
                                    memopt_plan_solution **solution)
{
    memopt_plan_fit fit = {.struct_size = sizeof fit};
    OK(memopt_plan_solve(&c->model, &c->run, &c->card, options, solution));
    OK(memopt_plan_solution_get_fit(*solution, &fit));
    return fit;
}

/* The case that a solution says to run. */
static inline mo_case chosen(const memopt_plan_solution *solution, const mo_case *given)
{
    mo_case c = *given;
    c.model.struct_size = sizeof c.model;
    c.run.struct_size = sizeof c.run;
    OK(memopt_plan_solution_get_settings(solution, &c.model, &c.run));
    return c;
}

static inline memopt_plan_change change_of(const memopt_plan_solution *solution, uint64_t index)
{
    memopt_plan_change change = {.struct_size = sizeof change};
    OK(memopt_plan_solution_get_change(solution, index, &change));
    return change;
}

#endif
