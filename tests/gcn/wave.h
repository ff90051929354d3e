/*
 * A wave of an AMD GPU that runs on the CPU: its registers, how it starts, and its memory. A
 * register holds LANES words of 32 bits; a 64-bit operand is two registers in a row, the low words
 * first. A load's result is poison until a wait for it.
 *
 * Included once, by the C that translate.py makes.
 */
#ifndef MEMOPT_GCN_WAVE_H
#define MEMOPT_GCN_WAVE_H

#include "../sim/kernels.h"
#include "../sim/number_bits.h"
#define BY_WARP 1
#include "../sim/parts.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-label"

/* Scalar registers with a name. */
enum { VCC = 106, NOWHERE = 125, EXEC = 126, POISON = 0xC7 };
enum { SPARES = 3, QUEUE = 32, MOST_WAVES = 1024 / LANES, KERNARG_MOST = 8192, PAGE = 4096 };

#define EACH_LANE                                                                                  \
    const uint64_t on = mask(w, EXEC);                                                             \
    for (uint32_t i = 0; i < LANES; i++)                                                           \
        if (on >> i & 1)
#define OPERATION __attribute__((noinline)) static

/* A load on its way, or a store that counts like one: `words` for each lane, or of scalars. */
typedef struct transfer {
    uint32_t *to; /* NULL: a store */
    uint64_t lanes;
    uint32_t words, scalar;
    uint32_t kept; /* bits of the registers that stay */
    uint32_t data[4 * LANES];
} transfer;

typedef struct queue {
    uint32_t count;
    transfer waiting[QUEUE];
} queue;

typedef struct wave {
    uint32_t s[128], scc;
    uint32_t v[256][LANES];
    uint32_t spare[SPARES][2 * LANES]; /* operands that are no plain vector register */
    unsigned char kernarg[KERNARG_MOST];
    uint32_t kernarg_bytes, lds_bytes;
    unsigned char *lds;
    queue vector_memory, other_memory; /* vmcnt and lgkmcnt */
} wave;

static wave waves[MOST_WAVES];

extern const unsigned char gcn_image[] __attribute__((visibility("hidden")));
extern const uint64_t gcn_image_bytes __attribute__((visibility("hidden")));

/* --- registers ------------------------------------------------------------------------------- */

static uint64_t s64(const wave *w, uint32_t n)
{
    return w->s[n] | (uint64_t)w->s[n + 1] << 32;
}

static void put_s64(wave *w, uint32_t n, uint64_t value)
{
    w->s[n] = (uint32_t)value;
    w->s[n + 1] = (uint32_t)(value >> 32);
}

/* A bit for each lane. */
static uint64_t mask(const wave *w, uint32_t n)
{
    return LANES == 64 ? s64(w, n) : w->s[n];
}

static void put_mask(wave *w, uint32_t n, uint64_t value)
{
    if (n == NOWHERE)
        return;
    w->s[n] = (uint32_t)value;
    if (LANES == 64)
        w->s[n + 1] = (uint32_t)(value >> 32);
}

/* The same scalar in every lane. */
OPERATION const uint32_t *all(wave *w, int spare, uint64_t value)
{
    for (uint32_t i = 0; i < LANES; i++) {
        w->spare[spare][i] = (uint32_t)value;
        w->spare[spare][LANES + i] = (uint32_t)(value >> 32);
    }
    return w->spare[spare];
}

/* |x| and -x: `high` is the plane that holds the sign. */
OPERATION const uint32_t *sign_of(wave *w, int spare, const uint32_t *from, int high, uint32_t keep,
                                  uint32_t flip)
{
    uint32_t *to = w->spare[spare];
    for (uint32_t i = 0; i < LANES; i++) {
        to[i] = from[i];
        to[high * LANES + i] = (from[high * LANES + i] & keep) ^ flip;
    }
    return to;
}

/* The halves that the two results of a packed instruction take, some of them negative. */
OPERATION const uint32_t *picked(wave *w, int spare, const uint32_t *from, int low, int high,
                                 int negative_low, int negative_high)
{
    uint32_t *to = w->spare[spare];
    for (uint32_t i = 0; i < LANES; i++) {
        uint32_t halves[2] = {from[i], low || high ? from[LANES + i] : 0};
        to[i] = halves[low] ^ (uint32_t)negative_low << 31;
        to[LANES + i] = halves[high] ^ (uint32_t)negative_high << 31;
    }
    return to;
}

/* A byte or a half of each lane; `sign`: its highest bit, where it is a signed number, else 0. */
OPERATION const uint32_t *part_of(wave *w, int spare, const uint32_t *from, int shift,
                                  uint32_t bits, uint32_t sign)
{
    for (uint32_t i = 0; i < LANES; i++)
        w->spare[spare][i] = ((from[i] >> shift & bits) ^ sign) - sign;
    return w->spare[spare];
}

/* Of each lane's result, its lower bits alone, at a byte or a half. */
OPERATION void put_part(wave *w, uint32_t *to, int shift, uint32_t bits)
{
    EACH_LANE to[i] = (to[i] & bits) << shift;
}

/* --- a wave's run ---------------------------------------------------------------------------- */

/* The wave that runs, as the hardware starts it; *ran: whether this kernel ever ran. */
static wave *enter(const void *args, uint32_t args_bytes, uint64_t first_item, uint32_t lds_bytes,
                   char *ran)
{
    static const char key;
    uint32_t first = calls->thread(), lanes = calls->threads() - first;
    wave *w = &waves[first / LANES];
    *ran = 1;
    memset(w->s, POISON, sizeof w->s);
    memset(w->v, POISON, sizeof w->v);
    w->vector_memory.count = w->other_memory.count = 0;
    memcpy(w->kernarg, args, args_bytes);
    memcpy(w->kernarg + args_bytes, &first_item, sizeof first_item);
    w->kernarg_bytes = args_bytes + sizeof first_item;
    w->lds_bytes = lds_bytes;
    w->lds = lds_bytes != 0 ? calls->shared(lds_bytes, &key) : NULL;
    w->s[EXEC + 1] = 0;
    put_mask(w, EXEC, lanes >= LANES ? UINT64_MAX >> (64 - LANES) : (1ull << lanes) - 1);
    for (uint32_t i = 0; i < LANES; i++)
        w->v[0][i] = first + i;
    return w;
}

/* --- memory ---------------------------------------------------------------------------------- */

/* What of this object itself a kernel may read: its image, and its arguments. */
static void check_range(const wave *w, uint64_t at, uint64_t bytes, int write)
{
    uint64_t kernarg = at - (uintptr_t)w->kernarg, image = at - (uintptr_t)gcn_image;
    if (at < (uintptr_t)&__ehdr_start || at >= (uintptr_t)&_end)
        return;
    if (!(kernarg < w->kernarg_bytes && bytes <= w->kernarg_bytes - kernarg) &&
        !(image < gcn_image_bytes && bytes <= gcn_image_bytes - image))
        calls->illegal(at, bytes, write, "beyond the arguments and the constants");
}

/* A run of neighbours, within a page, at once where it is longer than any one access. */
static void touch_run(uint64_t begin, uint64_t end, uint32_t bytes, int write, int atomic)
{
    uint64_t step = end - begin > 16 ? end - begin : bytes < 4 ? bytes : 4;
    for (uint64_t at = begin; at != end; at += step)
        calls->touch(at, step, write, atomic);
}

/* Tells the simulator of the lanes' accesses, which need no more than a word's alignment. */
static void touch(const wave *w, const uint64_t *at, uint32_t bytes, int write, int atomic)
{
    uint64_t begin = 0, end = 0;
    EACH_LANE
    {
        if (at[i] % (bytes < 4 ? bytes : 4) != 0)
            calls->illegal(at[i], bytes, write, "misaligned");
        check_range(w, at[i], bytes, write);
        if (at[i] != end || at[i] % PAGE == 0) {
            touch_run(begin, end, bytes, write, atomic);
            begin = at[i];
        }
        end = at[i] + bytes;
    }
    touch_run(begin, end, bytes, write, atomic);
}

static unsigned char *pointer(uint64_t at)
{
    return (unsigned char *)(uintptr_t)at;
}

/* Two lanes that store different values to one place would leave either there. */
static void store(wave *w, const uint64_t *at, const uint32_t *from, uint32_t bytes, int atomic)
{
    touch(w, at, bytes, 1, atomic);
    const uint64_t on = mask(w, EXEC);
    const uint32_t words = (bytes + 3) / 4, size = bytes < 4 ? bytes : 4;
    for (uint32_t i = 0; i < LANES; i++)
        for (uint32_t k = 0; k < words && (on >> i & 1); k++)
            memcpy(pointer(at[i] + k * 4), &from[k * LANES + i], size);
    for (uint32_t i = 0; i < LANES; i++)
        for (uint32_t k = 0; k < words && (on >> i & 1); k++)
            if (memcmp(pointer(at[i] + k * 4), &from[k * LANES + i], size) != 0)
                calls->illegal(at[i], bytes, 1, "lanes of a wave store different values there");
}

static void fetch(const wave *w, transfer *t, uint32_t word, const uint64_t *at, uint32_t bytes)
{
    touch(w, at, bytes, 0, 0);
    EACH_LANE
    {
        uint32_t words[4] = {0};
        memcpy(words, pointer(at[i]), bytes);
        for (uint32_t k = 0; k * 4 < bytes; k++)
            t->data[(word + k) * LANES + i] = words[k];
    }
}

static void arrive(const transfer *t)
{
    if (t->to == NULL)
        return;
    if (t->scalar)
        memcpy(t->to, t->data, t->words * 4);
    for (uint32_t k = 0; k < t->words && !t->scalar; k++)
        for (uint32_t i = 0; i < LANES; i++)
            if (t->lanes >> i & 1)
                t->to[k * LANES + i] =
                    (t->to[k * LANES + i] & t->kept) | (t->data[k * LANES + i] & ~t->kept);
}

static void take_out(queue *q, uint32_t index)
{
    arrive(&q->waiting[index]);
    q->count--;
    memmove(&q->waiting[index], &q->waiting[index + 1],
            (q->count - index) * sizeof q->waiting[index]);
}

static transfer *begin(const wave *w, queue *q, uint32_t *to, uint32_t words, uint32_t scalar)
{
    if (q->count == QUEUE)
        take_out(q, 0);
    transfer *t = &q->waiting[q->count++];
    t->to = to;
    t->lanes = mask(w, EXEC);
    t->words = words;
    t->scalar = scalar;
    t->kept = 0;
    return t;
}

/* What a load will bring is not there before a wait for it. */
static void poison(const transfer *t)
{
    transfer none = *t;
    memset(none.data, POISON, sizeof none.data);
    arrive(&none);
}

/* Waits until at most `left` are on their way. Scalar loads arrive in any order, so that only a
 * wait for all of them is one; the others arrive in theirs. */
static void wait_for(queue *q, uint32_t left)
{
    uint32_t scalars = 0;
    for (uint32_t i = 0; i < q->count; i++)
        scalars += q->waiting[i].scalar;
    for (uint32_t i = 0; i < q->count && q->count > (left != 0 ? left + scalars : 0);)
        if (left != 0 && q->waiting[i].scalar)
            i++;
        else
            take_out(q, i);
}

OPERATION void s_waitcnt(wave *w, uint32_t vector_left, uint32_t other_left)
{
    wait_for(&w->vector_memory, vector_left);
    wait_for(&w->other_memory, other_left);
}

static void s_barrier(wave *w, int line)
{
    for (uint32_t i = 0; i < w->other_memory.count; i++)
        if (w->other_memory.waiting[i].to == NULL)
            calls->illegal((uintptr_t)w->lds, w->lds_bytes, 1, "not waited for before a barrier");
    calls->barrier("code object", line);
}

OPERATION void s_load(wave *w, uint32_t to, uint64_t base, uint64_t offset, uint32_t words)
{
    uint64_t at = (base + offset) & ~3ull;
    transfer *t = begin(w, &w->other_memory, &w->s[to], words, 1);
    check_range(w, at, words * 4, 0);
    touch_run(at, at + words * 4, 4, 0, 0);
    memcpy(t->data, pointer(at), words * 4);
    poison(t);
}

/* base + the lane's: 64 bits without a base, 32 bits with one. */
static void addresses(const wave *w, uint64_t *at, const uint32_t *lane, int has_base,
                      uint64_t base, int64_t offset)
{
    EACH_LANE at[i] =
        base + (uint64_t)offset + lane[i] + (has_base ? 0 : (uint64_t)lane[LANES + i] << 32);
}

OPERATION void global_load(wave *w, uint32_t *to, const uint32_t *lane, int has_base, uint64_t base,
                           int64_t offset, uint32_t bytes, uint32_t kept)
{
    uint64_t at[LANES];
    transfer *t = begin(w, &w->vector_memory, to, (bytes + 3) / 4, 0);
    addresses(w, at, lane, has_base, base, offset);
    t->kept = kept;
    fetch(w, t, 0, at, bytes);
    poison(t);
}

static const uint32_t *upper_halves(const uint32_t *from)
{
    static _Thread_local uint32_t upper[LANES];
    for (uint32_t i = 0; i < LANES; i++)
        upper[i] = from[i] >> 16;
    return upper;
}

OPERATION void global_store(wave *w, const uint32_t *from, const uint32_t *lane, int has_base,
                            uint64_t base, int64_t offset, uint32_t bytes, int atomic)
{
    uint64_t at[LANES];
    addresses(w, at, lane, has_base, base, offset);
    store(w, at, from, bytes, atomic);
#ifdef GFX9
    (void)begin(w, &w->vector_memory, NULL, 0, 0);
#endif
}

/* from: the new value, and behind it the one that must be there. */
OPERATION void global_cmpswap(wave *w, uint32_t *to, const uint32_t *lane, const uint32_t *from,
                              int64_t offset)
{
    uint64_t at[LANES];
    transfer *t = begin(w, &w->vector_memory, to, 1, 0);
    addresses(w, at, lane, 0, 0, offset);
    touch(w, at, 4, 1, 1);
    EACH_LANE
    {
        uint32_t seen = from[LANES + i];
        __atomic_compare_exchange_n((uint32_t *)(void *)pointer(at[i]), &seen, from[i], 0,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        t->data[i] = seen;
    }
    poison(t);
}

/* Shared memory is accessed at multiples of an access's size: three words like four. */
static void lds_addresses(const wave *w, uint64_t *at, const uint32_t *lane, uint32_t offset,
                          uint32_t bytes, int write)
{
    EACH_LANE
    {
        uint64_t place = (uint64_t)lane[i] + offset;
        if (place > w->lds_bytes || bytes > w->lds_bytes - place)
            calls->illegal(place, bytes, write, "outside the block's shared memory");
        if (place % (bytes == 12 ? 16 : bytes) != 0)
            calls->illegal(place, bytes, write, "misaligned, in shared memory");
        at[i] = (uintptr_t)w->lds + place;
    }
}

OPERATION void ds_read(wave *w, uint32_t *to, const uint32_t *lane, uint32_t bytes, int count,
                       uint32_t offset, uint32_t second)
{
    uint64_t at[LANES];
    uint32_t words = (bytes + 3) / 4;
    transfer *t = begin(w, &w->other_memory, to, words * (uint32_t)count, 0);
    for (int k = 0; k < count; k++) {
        lds_addresses(w, at, lane, k == 0 ? offset : second, bytes, 0);
        fetch(w, t, words * (uint32_t)k, at, bytes);
    }
    poison(t);
}

OPERATION void ds_write(wave *w, const uint32_t *lane, const uint32_t *from, uint32_t bytes,
                        uint32_t offset)
{
    uint64_t at[LANES];
    lds_addresses(w, at, lane, offset, bytes, 1);
    store(w, at, from, bytes, 0);
}

/* ds_write…: one transfer, though it may store twice. */
static void count_lds_store(wave *w)
{
    (void)begin(w, &w->other_memory, NULL, 0, 0);
}

/* A lane that is off gives 0. */
OPERATION void ds_bpermute_b32(wave *w, uint32_t *to, const uint32_t *lane, const uint32_t *from)
{
    transfer *t = begin(w, &w->other_memory, to, 1, 0);
    EACH_LANE
    {
        uint32_t source = lane[i] / 4 % LANES;
        t->data[i] = on >> source & 1 ? from[source] : 0;
    }
    poison(t);
}

#endif
