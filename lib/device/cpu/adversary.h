/* Orders in which streams are queues without threads; see adversary.c. Used by the "cpu" back end
 * only. */
#ifndef MO_DEVICE_CPU_ADVERSARY_H
#define MO_DEVICE_CPU_ADVERSARY_H

#include "device/cpu/cpu.h"

/* What freed memory is filled with, in little-endian pairs of bytes: a signalling NaN as bf16 and
 * as fp32 (0x7F9B7F9B), a NaN as fp16. */
#define MO_POISON_LOW 0x9B
#define MO_POISON_HIGH 0x7F

/* 1 on success, 0 when host memory is out. */
int mo_cpu_adversary_init(mo_cpu_adversary *adversary);
void mo_cpu_adversary_fini(mo_cpu_adversary *adversary);

/* Runs what is needed until `target` operations of the stream are completed, or until the record is
 * done; and, before each operation, those that may legally overtake it. Pre: device.lock is held;
 * it is given up while operations run. */
void mo_cpu_force(mo_cpu_device *cpu, mo_cpu_stream *stream, uint64_t target);
/* Runs everything enqueued now, starting with the stream that the seed picks. */
void mo_cpu_force_all(mo_cpu_device *cpu);
void mo_cpu_force_marker(mo_cpu_device *cpu, mo_cpu_marker *marker);

/* With a lag: runs what is complete by now, in the order of the calls. Pre: device.lock, which is
 * given up meanwhile. */
void mo_cpu_catch_up(mo_cpu_device *cpu);
/* Whether the host is so far ahead of an operation that it may be complete. Pre: device.lock. */
int mo_cpu_is_past(const mo_cpu_device *cpu, uint64_t due);

/* The host asks: that takes it time, in which operations complete. Pre: device.lock. */
void mo_cpu_ask(mo_cpu_device *cpu);
/* clock.c. When an operation that is being enqueued is complete. Pre: device.lock. */
uint64_t mo_cpu_due(mo_cpu_device *cpu, const mo_cpu_stream *stream, const mo_cpu_op *op);
/* The host waits until then; returns how long. Pre: device.lock. */
uint64_t mo_cpu_wait_until(mo_cpu_device *cpu, uint64_t due);

/* True after a seeded number of polls. Pre: device.lock. */
int mo_cpu_polled_enough(mo_cpu_device *cpu, uint32_t *polls);

/* DEVICE_FAULT with the first race or violation found since the last call, or OK. */
memopt_status mo_cpu_take_violation(mo_cpu_device *cpu);

memopt_status mo_cpu_uses(memopt_device *device, memopt_stream stream, const char *what,
                          const void *pointer, uint64_t bytes, memopt_race_mode mode);
void mo_cpu_note_alloc(memopt_device *device, void *pointer, uint64_t bytes, memopt_stream stream);
void mo_cpu_note_free(memopt_device *device, void *pointer, uint64_t bytes, memopt_stream stream);

/* The range is no longer memory: it is neither freed nor live. */
void mo_cpu_forget(mo_cpu_device *cpu, const void *pointer, uint64_t bytes);

#endif
