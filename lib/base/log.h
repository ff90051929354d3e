/* The process-wide log sink. Lines above the level are dropped before they are formatted. */
#ifndef MO_BASE_LOG_H
#define MO_BASE_LOG_H

#include "base/error.h"

void mo_log(memopt_log_level level, const char *format, ...) MO_PRINTF(2, 3);

#endif
