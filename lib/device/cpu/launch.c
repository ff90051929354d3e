/*
 * Kernels on the "cpu" device: the split of items over threads.
 *
 * Items are independent, so the split cannot change a result. One launch at a time uses the
 * threads.
 */
#include "device/cpu/cpu.h"

#include "base/checked.h"
#include "base/lock.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <fenv.h>
#endif

/* Below this many items, or elements in them, waking a thread costs more than it saves. */
enum { ITEMS_WORTH_THREADS = 8, ELEMENTS_WORTH_THREADS = 1 << 16, CHUNKS_PER_THREAD = 8 };

void mo_cpu_pool_init(mo_cpu_pool *pool, uint32_t thread_count)
{
    pthread_mutex_init(&pool->lock, NULL);
    mo_threads_init(&pool->threads);
    atomic_init(&pool->thread_count, thread_count);
    atomic_init(&pool->published, 0);
    atomic_init(&pool->finished, 0);
}

void mo_cpu_pool_fini(mo_cpu_pool *pool)
{
    mo_threads_fini(&pool->threads);
    pthread_mutex_destroy(&pool->lock);
}

void mo_cpu_pool_resize(mo_cpu_device *cpu, uint32_t thread_count)
{
    mo_cpu_pool *pool = &cpu->pool;
    mo_lock(&pool->lock);
    if (thread_count != atomic_load(&pool->thread_count)) {
        mo_threads_fini(&pool->threads);
        mo_threads_init(&pool->threads);
        atomic_store(&pool->thread_count, thread_count);
    }
    mo_lock(&cpu->base.lock);
    cpu->base.properties.threads = thread_count;
    mo_unlock(&cpu->base.lock);
    mo_unlock(&pool->lock);
}

/* Kernels round to nearest and keep subnormals whatever the caller has set for its own arithmetic
 * (a framework may flush subnormals to zero): the same bits for every caller. */
static void run_form(mo_cpu_kernel function, const void *args, uint64_t begin, uint64_t end)
{
#if defined(__x86_64__)
    const unsigned standard = 0x1F80;
    unsigned callers = _mm_getcsr();
    _mm_setcsr(standard);
    function(args, begin, end);
    _mm_setcsr(callers);
#else
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    function(args, begin, end);
    fesetenv(&callers);
#endif
}

/* Sanitizers of our code cannot see how the pool passes work on, so each chunk acquires what the
 * launch published and releases what it wrote. */
static void run_chunk(void *context, size_t begin, size_t count)
{
    mo_cpu_pool *pool = context;
    (void)atomic_load_explicit(&pool->published, memory_order_acquire);
    run_form(pool->function, pool->args, begin, begin + count);
    atomic_fetch_add_explicit(&pool->finished, 1, memory_order_release);
}

static int worth_threads(const mo_kernel *kernel, const void *args, uint64_t items)
{
    return items >= ITEMS_WORTH_THREADS &&
           (kernel->elements == NULL || kernel->elements(args) >= ELEMENTS_WORTH_THREADS);
}

void mo_cpu_launch_now(mo_cpu_device *cpu, const mo_kernel *kernel, const void *args,
                       uint64_t items)
{
    mo_cpu_pool *pool = &cpu->pool;
    mo_cpu_kernel function = mo_cpu_form(kernel, cpu->isa);
    if (atomic_load(&pool->thread_count) == 1 || !worth_threads(kernel, args, items)) {
        run_form(function, args, 0, items);
        return;
    }
    mo_lock(&pool->lock);
    uint32_t threads = atomic_load(&pool->thread_count);
    mo_threads_start(&pool->threads, threads);
    pool->function = function;
    pool->args = args;
    atomic_fetch_add_explicit(&pool->published, 1, memory_order_release);
    mo_threads_run(&pool->threads, run_chunk, pool, items,
                   mo_ceil_div_u64(items, (uint64_t)threads * CHUNKS_PER_THREAD));
    (void)atomic_load_explicit(&pool->finished, memory_order_acquire);
    mo_unlock(&pool->lock);
}
