/**
 * @file memopt.h
 * @brief Everything at once.
 */
#ifndef MEMOPT_MEMOPT_H
#define MEMOPT_MEMOPT_H

#include <memopt/allocator.h>
#include <memopt/base.h>
#include <memopt/cast.h>
#include <memopt/checkpoint.h>
#include <memopt/device.h>
#include <memopt/monitor.h>
#include <memopt/offload.h>
#include <memopt/optim.h>
#include <memopt/plan.h>
#include <memopt/pluggable.h>
#include <memopt/publish.h>
#include <memopt/trace.h>

#endif /* MEMOPT_MEMOPT_H */
