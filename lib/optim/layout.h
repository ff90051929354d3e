/*
 * The export format. Little-endian, no gaps beyond those named. Version 1 is AdamW with 32-bit or
 * 8-bit states, version 4 is AdEMAMix, version 3 has split weights with a residual of 8 bits,
 * version 5 of 16, version 6 is Adafactor, everything else is version 2: so older libraries read
 * what they can. Where a parameter is a shard, the version is 7; the one of the rest follows.
 *
 *   header      64 bytes: magic "MEMOPTOS", u32 version, u32 header bytes, u64 bytes in all,
 *               u32 optimizer kind, u32 block size, u64 groups, u64 parameters, in version 7 u32
 *               version of the rest, else 0; 12 zero bytes
 *   groups      48 bytes each: f64 lr, beta1, beta2, eps, weight_decay, u32 maximize, u32 0;
 *               from version 2 on 24 more: f64 momentum, dampening, u32 nesterov, u32 0;
 *               in version 4 32 more: f64 beta3, alpha, t_alpha, t_beta3;
 *               in version 6 24 more: f64 beta2_decay, eps2, d
 *   parameters  32 bytes each: u64 elements, u32 state format (0: no states, of SGD without
 *               momentum), u32 group, u64 steps (the highest bit: a momentum buffer exists that no
 *               step has written), u32 rows, u32 columns (of Adafactor's matrices; else 0);
 *               in version 7 16 more: u64 place of the first element in the whole, u64 elements of
 *               the whole
 *   states      per parameter: the moments, then, where they are coded, the absmax or scales of
 *               each, then the residual of a split weight; each padded with zeros to 8 bytes
 *   end         u32 CRC-32 of all bytes before, u32 0
 */
#ifndef MO_OPTIM_LAYOUT_H
#define MO_OPTIM_LAYOUT_H

#include "optim/optim.h"

enum {
    MO_EXPORT_VERSION = 7, /* also the one of shards */
    MO_EXPORT_HEADER = 64,
    MO_EXPORT_PARAMETER = 32,
    MO_EXPORT_SHARD = 48, /* in place of it */
    MO_EXPORT_END = 8,
    MO_EXPORT_PARTS = MO_STATES_MAX,
    MO_EXPORT_BLOCK_MOST = 4096 /* elements that share a scale, in exports of older libraries */
};

extern const unsigned char mo_export_magic[8];

/* A state tensor of a parameter. */
typedef struct mo_state_part {
    void *data; /* device memory */
    uint64_t bytes;
    uint64_t padded; /* to 8 bytes */
    uint32_t word;   /* bytes of an element: 1, 2 or 4 */
} mo_state_part;

/* Fills parts, in the order of memopt_optimizer_get_state(); returns how many there are. */
int mo_state_parts(const mo_parameter *p, mo_state_part parts[MO_EXPORT_PARTS]);
/* What all of them take in an export. */
uint64_t mo_parts_bytes(const mo_parameter *p);

/* The version that an optimizer is written as, shards or not, and the bytes of a group in it and of a
 * parameter. */
uint32_t mo_export_version(const memopt_optimizer *o);
uint64_t mo_export_group_bytes(uint32_t version);
uint64_t mo_export_record_bytes(int is_cut);
/* What the record of a parameter says of its states. */
uint32_t mo_export_format(const mo_parameter *p);

/* Bytes of an export of this optimizer; it fits, since its states do. */
uint64_t mo_export_bytes(const memopt_optimizer *o);

/* Step counts and states are copied as they lie in device memory. On a big-endian processor this
 * turns an array of words to the file's order or back. */
void mo_export_turn(unsigned char *at, uint64_t bytes, uint32_t word);

void mo_put_u32(unsigned char *at, uint32_t value);
void mo_put_u64(unsigned char *at, uint64_t value);
void mo_put_f64(unsigned char *at, double value);
uint32_t mo_get_u32(const unsigned char *at);
uint64_t mo_get_u64(const unsigned char *at);
double mo_get_f64(const unsigned char *at);

#endif
