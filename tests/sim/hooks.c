/*
 * Every load and store of a kernel comes through here: kernels are compiled with the
 * instrumentation of ThreadSanitizer, and these are its entry points (this file itself is not
 * instrumented).
 */
#include "launch.h"

#include "emulator.h"

#include <stdlib.h>
#include <string.h>

struct sim_tag {
    uint64_t writer, reader;
};

extern const char __ehdr_start __attribute__((visibility("hidden")));
extern const char _end __attribute__((visibility("hidden")));

static struct sim_tag shared_tags[48 << 10];

void sim_illegal_access(uintptr_t address, uint64_t bytes, int write, const char *why)
{
    sim_violation(0, sim_now.op->site, "%s: thread %u of block %u %s %llu bytes at %p: %s",
                  sim_now.op->launch->kernel->name, sim_now.thread, sim_now.block,
                  write ? "writes" : "reads", (unsigned long long)bytes, (void *)address, why);
    sim_fail_launch();
}

static void touch_arena(const sim_arena *arena, uintptr_t address, uint64_t bytes, int write,
                        sim_touch_kind kind)
{
    sim_mapping *m = sim_find_mapping(arena, address);
    int device = sim_now.op->context->device;
    if (m == NULL || (m->access >> device & 1) == 0 || bytes > m->bytes - (address - m->address))
        sim_illegal_access(address, bytes, write,
                           m == NULL                        ? "nothing is allocated there"
                           : m->access == 0                 ? "access has not been set"
                           : (m->access >> device & 1) == 0 ? "memory of another device"
                                                            : "beyond its allocation");
    if (kind != SIM_UNALIGNED && bytes <= 16 && address % (bytes < 8 ? bytes : 8) != 0)
        sim_illegal_access(address, bytes, write, "misaligned");
    sim_open_mapping(arena, m);
    uint64_t offset = m->physical->offset + (address - m->address);
    if (!write && !sim_now.reported)
        sim_now.reported = !sim_shadow_initialised(sim_now.op, address, bytes);
    sim_shadow_access(sim_now.op, arena, offset, bytes, write);
    if (kind != SIM_ATOMIC)
        sim_race_check(arena->tags + offset, bytes, write, address, 0);
}

/* Arguments and constants. */
static int readable(uintptr_t address)
{
    uintptr_t args = (uintptr_t)sim_now.op->launch->args;
    const mo_sim_loaded *loaded = sim_loaded_kernels();
    if (loaded != NULL && address >= (uintptr_t)loaded->begin && address < (uintptr_t)loaded->end)
        return 1;
    return (address >= args && address < args + SIM_PARAMS) ||
           (address >= (uintptr_t)&__ehdr_start && address < (uintptr_t)&_end);
}

void sim_touch(uintptr_t address, uint64_t bytes, int write, sim_touch_kind kind)
{
    if (sim_now.op == NULL || address - sim_now.stacks < sim_now.stacks_bytes)
        return;
    if (address - sim_now.shared < sim_now.shared_bytes) {
        if (kind != SIM_ATOMIC)
            sim_race_check(shared_tags + (address - sim_now.shared), bytes, write, address, 1);
        return;
    }
    const sim_arena *arena = sim_arena_of(address);
    if (arena != NULL) {
        touch_arena(arena, address, bytes, write, kind);
        return;
    }
    if (!write && readable(address))
        return;
    if (!sim_registered(address, bytes))
        sim_illegal_access(address, bytes, write, "host memory that the device does not know");
}

void __tsan_init(void);
void __tsan_init(void)
{
}

void __tsan_func_entry(void *caller);
void __tsan_func_entry(void *caller)
{
}

void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
}

#define ACCESS(bytes)                                                                              \
    void __tsan_read##bytes(void *p);                                                              \
    void __tsan_read##bytes(void *p)                                                               \
    {                                                                                              \
        sim_touch((uintptr_t)p, bytes, 0, SIM_PLAIN);                                              \
    }                                                                                              \
    void __tsan_write##bytes(void *p);                                                             \
    void __tsan_write##bytes(void *p)                                                              \
    {                                                                                              \
        sim_touch((uintptr_t)p, bytes, 1, SIM_PLAIN);                                              \
    }                                                                                              \
    void __tsan_volatile_read##bytes(void *p);                                                     \
    void __tsan_volatile_read##bytes(void *p)                                                      \
    {                                                                                              \
        sim_touch((uintptr_t)p, bytes, 0, SIM_PLAIN);                                              \
    }                                                                                              \
    void __tsan_volatile_write##bytes(void *p);                                                    \
    void __tsan_volatile_write##bytes(void *p)                                                     \
    {                                                                                              \
        sim_touch((uintptr_t)p, bytes, 1, SIM_PLAIN);                                              \
    }                                                                                              \
    void __tsan_unaligned_read##bytes(void *p);                                                    \
    void __tsan_unaligned_read##bytes(void *p)                                                     \
    {                                                                                              \
        sim_touch((uintptr_t)p, bytes, 0, SIM_UNALIGNED);                                          \
    }                                                                                              \
    void __tsan_unaligned_write##bytes(void *p);                                                   \
    void __tsan_unaligned_write##bytes(void *p)                                                    \
    {                                                                                              \
        sim_touch((uintptr_t)p, bytes, 1, SIM_UNALIGNED);                                          \
    }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

void __tsan_read_range(void *p, unsigned long bytes);
void __tsan_read_range(void *p, unsigned long bytes)
{
    sim_touch((uintptr_t)p, bytes, 0, SIM_UNALIGNED);
}

void __tsan_write_range(void *p, unsigned long bytes);
void __tsan_write_range(void *p, unsigned long bytes)
{
    sim_touch((uintptr_t)p, bytes, 1, SIM_UNALIGNED);
}

void *__tsan_memcpy(void *to, const void *from, unsigned long bytes);
void *__tsan_memcpy(void *to, const void *from, unsigned long bytes)
{
    sim_touch((uintptr_t)from, bytes, 0, SIM_UNALIGNED);
    sim_touch((uintptr_t)to, bytes, 1, SIM_UNALIGNED);
    return memcpy(to, from, bytes);
}

void *__tsan_memset(void *to, int value, unsigned long bytes);
void *__tsan_memset(void *to, int value, unsigned long bytes)
{
    sim_touch((uintptr_t)to, bytes, 1, SIM_UNALIGNED);
    return memset(to, value, bytes);
}

#define ATOMIC(bits)                                                                               \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *p, int order);        \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *p, int order)         \
    {                                                                                              \
        (void)order;                                                                               \
        sim_touch((uintptr_t)p, sizeof *p, 0, SIM_ATOMIC);                                         \
        return *p;                                                                                 \
    }                                                                                              \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t *p, uint##bits##_t value, int order); \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t *p, uint##bits##_t value, int order)  \
    {                                                                                              \
        (void)order;                                                                               \
        sim_touch((uintptr_t)p, sizeof *p, 1, SIM_ATOMIC);                                         \
        *p = value;                                                                                \
    }
int __tsan_atomic32_compare_exchange_weak(volatile uint32_t *p, uint32_t *expected, uint32_t value,
                                          int order, int otherwise);
int __tsan_atomic32_compare_exchange_weak(volatile uint32_t *p, uint32_t *expected, uint32_t value,
                                          int order, int otherwise)
{
    sim_touch((uintptr_t)p, sizeof *p, 1, SIM_ATOMIC);
    return __atomic_compare_exchange_n(p, expected, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)
