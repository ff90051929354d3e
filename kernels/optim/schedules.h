/*
 * What changes from step to step, in double: powers, and coefficients that grow in the first steps.
 * Sums, products and quotients alone, so that every back end has the same roundings; the C
 * library's exp and log differ in their last places.
 */
#ifndef MO_KERNELS_OPTIM_SCHEDULES_H
#define MO_KERNELS_OPTIM_SCHEDULES_H

#include "kernels/core/numerics.h"

/* base^exponent by repeated squaring: the same roundings on every back end. */
MO_HD static inline double mo_power(double base, uint64_t exponent)
{
    double result = 1.0;
    for (; exponent != 0; exponent >>= 1) {
        if (exponent & 1)
            result *= base;
        base *= base;
    }
    return result;
}

/* -log(x) of x in (0, 1): with f = x * 2^halvings above the root of 1/2 and s = (1 - f) / (1 + f),
 * below 0.172, twice the series s + s^3 / 3 + s^5 / 5 + ... */
MO_HD static inline double mo_minus_log(double x)
{
    double halvings = 0.0, sum = 0.0;
    for (; x < 0x1.6a09e667f3bcdp-1; x *= 2.0)
        halvings += 1.0;
    double s = (1.0 - x) / (1.0 + x), square = s * s;
    for (double n = 23.0; n > 0.0; n -= 2.0)
        sum = sum * square + 1.0 / n;
    return halvings * 0x1.62e42fefa39efp-1 + 2.0 * s * sum;
}

/* exp(-x) of x >= 0, finite: Taylor's series of x less the halvings, at most log(2). */
MO_HD static inline double mo_exp_minus(double x)
{
    double scale = 1.0, sum = 1.0;
    for (; x > 0x1.62e42fefa39efp-1 && scale != 0.0; x -= 0x1.62e42fefa39efp-1)
        scale *= 0.5;
    for (double n = 20.0; n > 0.0; n -= 1.0)
        sum = 1.0 - sum * x / n;
    return sum * scale;
}

/* How far something has grown that grows linearly in `steps` steps; 1 with steps 0. */
MO_HD static inline double mo_growth(double steps, uint64_t step)
{
    return (double)step < steps ? (double)step / steps : 1.0;
}

/* The decay between two, in (0, 1), whose mean's half-life is as far from the first's to the last's
 * as the step has got, and not above the last. */
MO_HD static inline double mo_beta_growing(double first, double last, double steps, uint64_t step)
{
    double done = mo_growth(steps, step);
    if (done >= 1.0)
        return last;
    double from = mo_minus_log(first), to = mo_minus_log(last);
    double beta = mo_exp_minus(from * to / ((1.0 - done) * to + done * from));
    return beta < last ? beta : last;
}

#endif
