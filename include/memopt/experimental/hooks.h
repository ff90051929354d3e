/**
 * @file hooks.h
 * @brief What a library built on libmemopt needs from it beyond the stable interface.
 *
 * **They may change in any version.**
 */
#ifndef MEMOPT_EXPERIMENTAL_HOOKS_H
#define MEMOPT_EXPERIMENTAL_HOOKS_H

#include <memopt/device.h>

MEMOPT_BEGIN_DECLS

/**
 * @brief Records the calling thread's last error and logs it.
 * @param status returned unchanged.
 * @param driver_code a driver's own code or errno; 0 where there is none.
 * @param driver_message that code's name, at most 95 characters; "" or NULL where there is none.
 * @param message at most 1,023 characters; what is longer is cut.
 * @return status.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_set_error(memopt_status status, int32_t driver_code,
                                          const char *driver_message, const char *message);

MEMOPT_END_DECLS

#endif /* MEMOPT_EXPERIMENTAL_HOOKS_H */
