/* What the tests of the solver share: a small case, and how it is solved. */
#ifndef TEST_PLAN_SOLVE_SUPPORT_H
#define TEST_PLAN_SOLVE_SUPPORT_H

#include "support/checks.h"

#include "solve/solve.h"

static inline mo_plan_case small_case(void)
{
    mo_plan_case c = {.source = NULL};
    c.model.layers = 4;
    c.model.hidden = 256;
    c.model.heads = 4;
    c.model.vocabulary = 4096;
    c.run.sequence = 256;
    c.card.margin = 1;
    c.card.device = MO_PLAN_DEVICE_CPU;
    c.card.capacity = (uint64_t)1 << 50;
    return c;
}

static inline uint64_t peak_of(const mo_plan_case *c)
{
    mo_plan_cost cost;
    OK(mo_plan_case_cost(c, &cost));
    return cost.peak;
}

static inline uint64_t peak_at(mo_plan_case c, uint64_t batch)
{
    c.run.batch = batch;
    return peak_of(&c);
}

/* target: NULL for none. */
static inline mo_plan_fit solve(const mo_plan_case *c, const mo_plan_target *target,
                                mo_plan_solution *solution)
{
    mo_plan_given given = {.model = c->model, .run = c->run, .card = c->card};
    if (target != NULL)
        given.target = *target;
    OK(mo_plan_find_fit(&given, NULL, NULL, solution));
    return solution->fit;
}

/* The case that a solution says to run. */
static inline mo_plan_case chosen(const mo_plan_solution *solution, const mo_plan_case *given)
{
    mo_plan_case c = *given;
    c.model = solution->chosen.model;
    c.run = solution->chosen.run;
    return c;
}

#endif
