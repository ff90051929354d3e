/*
 * Kernels on the host: one block after another, each thread of a block on a stack of its own.
 *
 * A thread runs until its next barrier or shuffle; the seed decides who is next, so the threads of
 * a block meet each other in every order. A kernel that runs warps has one of these for a warp, at
 * the warp's first thread. Threads that wait at different places, or have ended
 * while others wait, are reported. What the threads touch comes in through sim_touch (hooks.c),
 * where each access is checked: against the device's memory map, against other streams (shadow.c),
 * and against the other threads of the launch (race.c).
 *
 * One launch runs at a time, under the simulator's lock.
 */
#include "emulator.h"

#include "core/sim.h"
#include "launch.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { THREADS = 1024, STACK = 128 << 10, SHARED_MOST = 48 << 10, SHARED_KEYS = 32 };

typedef enum thread_state { RUNS, AT_BARRIER, AT_SHUFFLE, ENDED } thread_state;

typedef struct fiber {
    void *stack_pointer;
    thread_state state;
    const char *file;
    int line;
    uint32_t mask, shuffles;
    uint64_t bits;
} fiber;

typedef struct shared_piece {
    const void *key;
    uint64_t offset, size;
} shared_piece;

sim_launch_state sim_now;

static fiber fibers[THREADS];
static char *stacks;
static void *scheduler;
static unsigned char *shared_memory;
static shared_piece pieces[SHARED_KEYS];
static uint32_t piece_count;
static uint64_t shared_used;

/* --- switching ----------------------------------------------------------------------------- */

/* Saves the callee-saved registers and the stack pointer to *from, goes on at `to`. */
#if defined(__x86_64__)
__asm__(".text\n"
        ".p2align 4\n"
        ".type sim_switch, @function\n"
        "sim_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n"
        "    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n"
        "    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size sim_switch, .-sim_switch\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".p2align 4\n"
        ".type sim_switch, %function\n"
        "sim_switch:\n"
        "    sub sp, sp, #176\n"
        "    stp x19, x20, [sp, #0]\n    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n    str x9, [x0]\n    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #176\n    ret\n"
        ".size sim_switch, .-sim_switch\n");
#else
#error "the emulator knows how to switch stacks on x86-64 and aarch64"
#endif
void sim_switch(void **from, void *to);

static void leave_thread(thread_state state)
{
    fiber *f = &fibers[sim_now.thread];
    f->state = state;
    sim_switch(&f->stack_pointer, scheduler);
}

static void thread_body(void)
{
    const sim_kernel_call *call = sim_now.op->launch;
    call->kernel->run(call->args, call->first_item);
    leave_thread(ENDED);
    abort(); /* an ended thread is never resumed */
}

static void prepare_thread(uint32_t thread)
{
    fiber *f = &fibers[thread];
    uintptr_t top = (uintptr_t)stacks + ((uintptr_t)thread + 1) * STACK;
    void **frame = (void **)top;
    *f = (fiber){.state = RUNS};
#if defined(__x86_64__)
    frame -= 2; /* as if called: the stack is 8 bytes off 16 at the entry */
    frame[1] = NULL;
    frame[0] = (void *)(uintptr_t)thread_body;
    frame -= 6;
    memset(frame, 0, 6 * sizeof *frame);
#else
    frame -= 22;
    memset(frame, 0, 22 * sizeof *frame);
    frame[11] = (void *)(uintptr_t)thread_body;
#endif
    f->stack_pointer = frame;
}

/* --- what kernels call --------------------------------------------------------------------- */

uint32_t mo_sim_thread(void)
{
    return sim_now.thread;
}

uint32_t mo_sim_block(void)
{
    return sim_now.block;
}

uint32_t mo_sim_threads(void)
{
    return sim_now.threads;
}

uint32_t mo_sim_warp_size(void)
{
    return sim_options.warp_size;
}

void mo_sim_barrier(const char *file, int line)
{
    fiber *f = &fibers[sim_now.thread];
    f->file = file;
    f->line = line;
    leave_thread(AT_BARRIER);
}

uint64_t mo_sim_shuffle_xor(uint64_t bits, uint32_t mask, const char *file, int line)
{
    fiber *f = &fibers[sim_now.thread];
    f->file = file;
    f->line = line;
    f->bits = bits;
    f->mask = mask;
    leave_thread(AT_SHUFFLE);
    return f->bits;
}

void *mo_sim_shared(uint64_t size, const void *key)
{
    for (uint32_t i = 0; i < piece_count; i++)
        if (pieces[i].key == key)
            return shared_memory + pieces[i].offset;
    uint64_t offset = (shared_used + 15) / 16 * 16;
    if (piece_count == SHARED_KEYS || size > SHARED_MOST || offset > SHARED_MOST - size) {
        sim_violation(0, sim_now.op->site, "%s takes more than 48 KiB of shared memory",
                      sim_now.op->launch->kernel->name);
        sim_fail_launch();
    }
    pieces[piece_count++] = (shared_piece){key, offset, size};
    shared_used = offset + size;
    return shared_memory + offset;
}

/* --- a block ------------------------------------------------------------------------------- */

/* The warp's lanes give each other their bits once all of them are there. */
static void try_shuffle(uint32_t thread)
{
    uint32_t width = sim_options.warp_size, first = thread / width * width;
    uint32_t end = first + width < sim_now.threads ? first + width : sim_now.threads;
    const fiber *f = &fibers[thread];
    uint64_t bits[64];
    for (uint32_t i = first; i < end; i++)
        if (fibers[i].state != AT_SHUFFLE || fibers[i].line != f->line ||
            fibers[i].file != f->file || fibers[i].mask != f->mask)
            return;
    for (uint32_t i = first; i < end; i++) {
        uint32_t other = first + ((i - first) ^ f->mask);
        bits[i - first] = fibers[other < end && f->mask < width ? other : i].bits;
    }
    for (uint32_t i = first; i < end; i++) {
        fibers[i].bits = bits[i - first];
        fibers[i].shuffles++;
        fibers[i].state = RUNS;
    }
}

/* All threads stand at one barrier: they go on. */
static int try_barrier(void)
{
    for (uint32_t i = 0; i < sim_now.threads; i += sim_now.step)
        if (fibers[i].state != AT_BARRIER || fibers[i].line != fibers[0].line ||
            fibers[i].file != fibers[0].file)
            return 0;
    for (uint32_t i = 0; i < sim_now.threads; i += sim_now.step)
        fibers[i].state = RUNS;
    sim_now.phase++;
    return 1;
}

static const char *describe(const fiber *f, char *out, size_t size)
{
    if (f->state == ENDED)
        return "has ended";
    snprintf(out, size, "waits in a %s at %s:%d", f->state == AT_BARRIER ? "barrier" : "shuffle",
             f->file, f->line);
    return out;
}

/* Two threads that cannot meet, for the message. */
static void tell_divergence(void)
{
    char a[256], b[256];
    uint32_t one = 0, other = 0;
    while (fibers[one].state == ENDED)
        one += sim_now.step;
    for (uint32_t i = 0; i < sim_now.threads; i += sim_now.step)
        if (fibers[i].state != fibers[one].state || fibers[i].line != fibers[one].line ||
            fibers[i].mask != fibers[one].mask)
            other = i;
    sim_violation(0, sim_now.op->site, "%s: block %u diverges: thread %u %s, thread %u %s",
                  sim_now.op->launch->kernel->name, sim_now.block, one,
                  describe(&fibers[one], a, sizeof a), other,
                  describe(&fibers[other], b, sizeof b));
}

/* One that can run, from a place that the seed gives; UINT32_MAX: none. */
static uint32_t next_thread(void)
{
    uint32_t count = (sim_now.threads + sim_now.step - 1) / sim_now.step;
    uint32_t start = (uint32_t)(sim_random() % count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t thread = (start + i) % count * sim_now.step;
        if (fibers[thread].state == RUNS)
            return thread;
    }
    return UINT32_MAX;
}

static int all_ended(void)
{
    for (uint32_t i = 0; i < sim_now.threads; i += sim_now.step)
        if (fibers[i].state != ENDED)
            return 0;
    return 1;
}

static int run_block(void)
{
    for (uint32_t i = 0; i < sim_now.threads; i += sim_now.step)
        prepare_thread(i);
    piece_count = 0;
    shared_used = 0;
    memset(shared_memory, 0xC7, SHARED_MOST);
    for (;;) {
        uint32_t thread = next_thread();
        if (thread == UINT32_MAX) {
            if (try_barrier())
                continue;
            if (all_ended())
                return 1;
            tell_divergence();
            return 0;
        }
        sim_now.thread = thread;
        sim_now.shuffles = fibers[thread].shuffles;
        sim_switch(&scheduler, fibers[thread].stack_pointer);
        if (sim_now.failed)
            return 0;
        if (fibers[thread].state == AT_SHUFFLE)
            try_shuffle(thread);
    }
}

void sim_fail_launch(void)
{
    sim_now.failed = 1;
    leave_thread(ENDED);
    abort();
}

/* --- a launch ------------------------------------------------------------------------------ */

static struct sigaction earlier_handler;

/* Library code that a kernel calls (memcpy) is not seen by the hooks: pages it may touch open here.
 * Anything else is the crash it looks like. */
static void on_fault(int signal_number, siginfo_t *info, void *unused)
{
    uintptr_t address = (uintptr_t)info->si_addr;
    const sim_arena *arena = sim_now.op != NULL ? sim_arena_of(address) : NULL;
    sim_mapping *m = arena != NULL ? sim_find_mapping(arena, address) : NULL;
    if (m != NULL && (m->access >> sim_now.op->context->device & 1) != 0 && !m->open)
        sim_open_mapping(arena, m);
    else
        (void)sigaction(signal_number, &earlier_handler, NULL);
}

static int prepare_launches(void)
{
    void *p;
    if (stacks != NULL)
        return 1;
    p = mmap(NULL, (size_t)THREADS * STACK, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    shared_memory = aligned_alloc(64, SHARED_MOST);
    if (p == MAP_FAILED || shared_memory == NULL)
        return 0;
    stacks = p;
    sim_now.stacks = (uintptr_t)p;
    sim_now.stacks_bytes = (uint64_t)THREADS * STACK;
    sim_now.shared = (uintptr_t)shared_memory;
    sim_now.shared_bytes = SHARED_MOST;
    return 1;
}

static const mo_sim_kernel *find_in(const mo_sim_kernel *registry, const char *name)
{
    for (const mo_sim_kernel *k = registry; k->name != NULL; k++)
        if (strcmp(k->name, name) == 0)
            return k;
    return NULL;
}

static uint32_t step_of(const mo_sim_kernel *kernel)
{
    const mo_sim_loaded *loaded = sim_loaded_kernels();
    return loaded != NULL && loaded->by_warp && find_in(loaded->kernels, kernel->name) == kernel
               ? sim_options.warp_size
               : 1;
}

int sim_emulate(sim_op *op)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    const sim_kernel_call *call = op->launch;
    if (!prepare_launches())
        return 0;
    sim_now.op = op;
    sim_now.failed = 0;
    sim_now.reported = 0;
    sim_now.launch++;
    sim_now.threads = call->block;
    sim_now.step = step_of(call->kernel);
    (void)sigaction(SIGSEGV, &action, &earlier_handler);
    int good = 1;
    for (uint32_t block = 0; block < call->grid && good; block++) {
        sim_now.block = block;
        sim_now.phase++;
        good = run_block();
    }
    (void)sigaction(SIGSEGV, &earlier_handler, NULL);
    sim_now.op = NULL;
    sim_close_mappings();
    return good;
}

static void touch(uintptr_t address, uint64_t bytes, int write, int atomic)
{
    sim_touch(address, bytes, write, atomic ? SIM_ATOMIC : SIM_PLAIN);
}

static const mo_sim_loaded *load_kernels(const char *path)
{
    static const mo_sim_calls calls = {
        mo_sim_thread,      mo_sim_block,  mo_sim_threads, mo_sim_barrier,
        mo_sim_shuffle_xor, mo_sim_shared, touch,          sim_illegal_access,
    };
    const mo_sim_loaded *(*load)(const mo_sim_calls *) = NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library != NULL ? dlsym(library, "mo_sim_load") : NULL;
    if (symbol == NULL) {
        fprintf(stderr, "MEMOPT_SIM_KERNELS=%s: %s\n", path, dlerror());
        abort();
    }
    memcpy(&load, &symbol, sizeof load);
    return load(&calls);
}

const mo_sim_loaded *sim_loaded_kernels(void)
{
    static const mo_sim_loaded *loaded;
    static int looked;
    const char *path = getenv("MEMOPT_SIM_KERNELS");
    if (!looked && path != NULL && *path != '\0')
        loaded = load_kernels(path);
    looked = 1;
    return loaded;
}

/* The library's kernels where they are built in, and those of the simulator's own tests. */
extern const mo_sim_kernel mo_sim_kernels[] __attribute__((weak));
extern const mo_sim_kernel sim_test_kernels[];

/* Into the file that MEMOPT_SIM_RAN names, as translated kernels (parts.h) do. */
static void tell_found(const char *name)
{
    const char *path = getenv("MEMOPT_SIM_RAN");
    FILE *file = path != NULL && sim_loaded_kernels() == NULL ? fopen(path, "a") : NULL;
    if (file == NULL)
        return;
    fprintf(file, "%s\n", name);
    fclose(file);
}

const mo_sim_kernel *sim_find_kernel(const char *name)
{
    const mo_sim_loaded *loaded = sim_loaded_kernels();
    tell_found(name);
    const mo_sim_kernel *kernel = loaded != NULL ? find_in(loaded->kernels, name) : NULL;
    if (kernel == NULL)
        kernel = find_in(sim_test_kernels, name);
    if (kernel == NULL && mo_sim_kernels != NULL)
        kernel = find_in(mo_sim_kernels, name);
    return kernel;
}
