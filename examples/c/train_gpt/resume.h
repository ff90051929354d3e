/*
 * The resume file: everything that a run's next step depends on, so that a run that was killed
 * goes on with the same bits.
 *
 * Layout: magic "MEMOGPT1", u64 bytes of the file, u32 length and text of the configuration, the
 * counters (u64 step, u64 draws; f64 scale, u32 growth tracker), for each parameter u64 elements
 * and the bytes of its weight and, where it has one, of its master, u64 length and bytes of the
 * optimizer's export, and the CRC-32 of all that. Numbers have the machine's byte order; one of the
 * other order refuses the file, since its length is wrong there.
 *
 * With --ranks, rank 0 writes the file, with all masters and without an export, when every rank has
 * written its states into "FILE-STEP.RANKofRANKS". A run goes on with any number of ranks.
 */
#ifndef GPT_RESUME_H
#define GPT_RESUME_H

#include "train.h"

/* Writes the file atomically: a reader sees the old one or the new one, whole, at any moment. */
memopt_status resume_save(trainer *t, const char *path);

/* Takes the state of a file over. A damaged file or one of another configuration is refused with
 * MEMOPT_CORRUPT or MEMOPT_MISMATCH, and the trainer is as before. */
memopt_status resume_load(trainer *t, const char *path);

#endif
