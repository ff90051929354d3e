/* Tapes written event by event, and what the fit tests do with them. */
#ifndef TEST_FIT_SUPPORT_H
#define TEST_FIT_SUPPORT_H

#include "memopt/fit.h"
#include "support/unit.h"

#include "support/checks.h"

#include <string.h>

#define BIRTH(s)                                                                                   \
    {                                                                                              \
        MEMOPT_FIT_BIRTH, (s), 0                                                                   \
    }
#define DEATH(s)                                                                                   \
    {                                                                                              \
        MEMOPT_FIT_DEATH, (s), 0                                                                   \
    }
#define PACK(p, s)                                                                                 \
    {                                                                                              \
        MEMOPT_FIT_PACK, (p), (s)                                                                  \
    }
#define UNPACK(p)                                                                                  \
    {                                                                                              \
        MEMOPT_FIT_UNPACK, (p), 0                                                                  \
    }
#define RELEASE(p)                                                                                 \
    {                                                                                              \
        MEMOPT_FIT_RELEASE, (p), 0                                                                 \
    }
#define ENTER(m)                                                                                   \
    {                                                                                              \
        MEMOPT_FIT_ENTER, (m), 0                                                                   \
    }
#define LEAVE(m)                                                                                   \
    {                                                                                              \
        MEMOPT_FIT_LEAVE, (m), 0                                                                   \
    }
#define BACKWARD                                                                                   \
    {                                                                                              \
        MEMOPT_FIT_BACKWARD, 0, 0                                                                  \
    }
#define COUNT(array) (sizeof(array) / sizeof *(array))

static inline memopt_fit_result replayed(const memopt_fit *fit, const uint32_t *chosen,
                                         uint64_t count)
{
    memopt_fit_result r = MEMOPT_FIT_RESULT_INIT;
    OK(memopt_fit_replay(fit, chosen, count, &r));
    return r;
}

#endif
