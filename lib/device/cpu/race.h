/*
 * What the "cpu" device tells its race finder (memopt/race.h). Nothing happens in a device without
 * one. A call of the finder that fails would leave out an order, so the device tells no more after
 * it.
 *
 * Guarded by mo_cpu_device.lock, which the caller holds unless a line says otherwise; the finder's
 * own lock comes after it.
 */
#ifndef MO_DEVICE_CPU_RACE_H
#define MO_DEVICE_CPU_RACE_H

#include "device/cpu/cpu.h"

/* Makes the finder, if the options or else the environment ask for one. No lock held. */
memopt_status mo_cpu_race_init(mo_cpu_device *cpu, memopt_race_search search);
void mo_cpu_race_fini(mo_cpu_device *cpu);

void mo_cpu_race_stream_begins(mo_cpu_device *cpu, mo_cpu_stream *stream);
/* Pre: its work is complete. */
void mo_cpu_race_stream_ends(mo_cpu_device *cpu, mo_cpu_stream *stream);
/* An operation is about to be enqueued, with its number. Markers and callbacks keep an event. */
void mo_cpu_race_enqueue(mo_cpu_device *cpu, const mo_cpu_stream *stream, mo_cpu_op *op);
/* The host has seen that the work is complete. */
void mo_cpu_race_host_waits(mo_cpu_device *cpu, const mo_cpu_stream *stream);
void mo_cpu_race_host_waits_for(mo_cpu_device *cpu, const mo_cpu_marker *marker);
/* A callback is about to run, and can tell the host so. No lock held. */
void mo_cpu_race_callback(mo_cpu_device *cpu, uint64_t event);
/* MO_CPU_NOTE_ALLOC or MO_CPU_NOTE_FREE. */
void mo_cpu_race_note(mo_cpu_device *cpu, const mo_cpu_stream *stream, const mo_cpu_op *op);
void mo_cpu_race_uses(mo_cpu_device *cpu, const mo_cpu_stream *stream, const char *what,
                      const memopt_race_access *use);
/* The addresses are other memory from now on. `host`: the host ends it itself, so no work may still
 * use it. Takes the lock. */
void mo_cpu_race_forget(mo_cpu_device *cpu, const void *pointer, uint64_t bytes, int host);
/* Writes a message about the reports since the last call; their number. Takes the lock. */
uint64_t mo_cpu_race_take(mo_cpu_device *cpu, char *text, size_t size);

#endif
