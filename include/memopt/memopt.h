/**
 * @file memopt.h
 * @brief The whole stable interface of libmemopt.
 *
 * A trainer needs thirty of the calls; the guide's page on porting lists them by header.
 */
#ifndef MEMOPT_MEMOPT_H
#define MEMOPT_MEMOPT_H

#include <memopt/allocator.h>
#include <memopt/base.h>
#include <memopt/cast.h>
#include <memopt/checkpoint.h>
#include <memopt/device.h>
#include <memopt/fit.h>
#include <memopt/loss.h>
#include <memopt/offload.h>
#include <memopt/optim.h>
#include <memopt/pluggable.h>
#include <memopt/race.h>
#include <memopt/share.h>
#include <memopt/stream.h>

#endif /* MEMOPT_MEMOPT_H */
