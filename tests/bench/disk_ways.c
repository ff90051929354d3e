/*
 * Ways to move values of 4 MiB between memory and a file, in one run:
 *
 *     disk_ways FOLDER
 *
 * Prints a Markdown table: GB/s and seconds of a processor for each GB, the best of the rounds; through
 * the system's cache, and with O_DIRECT. "hash": with the check of content that the disk tier makes.
 * io_uring is used without a library; where the system forbids it, its rows are left out.
 */
#define _GNU_SOURCE /* O_TMPFILE, O_DIRECT */
#include "kernels/hash/hash_bytes.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { VALUE = 4 << 20, COUNT = 64, ROUNDS = 5, ENTRIES = 64 };

static unsigned char *memory;
static int file;
static volatile uint64_t sum; /* of hashes, so that they are computed */

static void need(int fine, const char *what)
{
    if (fine)
        return;
    perror(what);
    exit(1);
}

/* --- one or several threads */

typedef struct part {
    int writes, hashes, first, step;
} part;

static void one_value(const part *p, uint64_t at)
{
    if (p->writes && p->hashes)
        sum += mo_hash_bytes(0, memory + at, VALUE);
    for (uint64_t done = 0; done < VALUE;) {
        unsigned char *data = memory + at + done;
        off_t offset = (off_t)(at + done);
        ssize_t count = p->writes ? pwrite(file, data, VALUE - done, offset)
                                  : pread(file, data, VALUE - done, offset);
        need(count > 0, "pwrite or pread");
        done += (uint64_t)count;
    }
    if (!p->writes && p->hashes)
        sum += mo_hash_bytes(0, memory + at, VALUE);
}

static void *run_part(void *user)
{
    const part *p = user;
    for (int i = p->first; i < COUNT; i += p->step)
        one_value(p, (uint64_t)i * VALUE);
    return NULL;
}

static void threads(int writes, int hashes, int count)
{
    pthread_t ids[8];
    part parts[8];
    for (int i = 0; i < count; i++) {
        parts[i] = (part){writes, hashes, i, count};
        if (i > 0)
            need(pthread_create(&ids[i], NULL, run_part, &parts[i]) == 0, "pthread_create");
    }
    run_part(&parts[0]);
    for (int i = 1; i < count; i++)
        pthread_join(ids[i], NULL);
}

/* --- io_uring */

static struct {
    int ring;
    struct io_uring_sqe *requests;
    struct io_uring_cqe *results;
    unsigned *tail, *mask, *array, *done_head, *done_tail, *done_mask;
} uring;

static int open_ring(void)
{
    struct io_uring_params p = {0};
    uring.ring = (int)syscall(SYS_io_uring_setup, ENTRIES, &p);
    if (uring.ring < 0)
        return 0;
    size_t results = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    size_t bytes = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    int access = PROT_READ | PROT_WRITE;
    char *in = mmap(NULL, bytes, access, MAP_SHARED, uring.ring, IORING_OFF_SQ_RING);
    char *out = mmap(NULL, results, access, MAP_SHARED, uring.ring, IORING_OFF_CQ_RING);
    uring.requests = mmap(NULL, p.sq_entries * sizeof *uring.requests, access, MAP_SHARED,
                          uring.ring, IORING_OFF_SQES);
    need(in != MAP_FAILED && out != MAP_FAILED && (void *)uring.requests != MAP_FAILED, "mmap");
    uring.tail = (unsigned *)(void *)(in + p.sq_off.tail);
    uring.mask = (unsigned *)(void *)(in + p.sq_off.ring_mask);
    uring.array = (unsigned *)(void *)(in + p.sq_off.array);
    uring.done_head = (unsigned *)(void *)(out + p.cq_off.head);
    uring.done_tail = (unsigned *)(void *)(out + p.cq_off.tail);
    uring.done_mask = (unsigned *)(void *)(out + p.cq_off.ring_mask);
    uring.results = (struct io_uring_cqe *)(void *)(out + p.cq_off.cqes);
    return 1;
}

static void ask(int writes, uint64_t at, unsigned bytes)
{
    unsigned tail = *uring.tail, slot = tail & *uring.mask;
    uring.requests[slot] =
        (struct io_uring_sqe){.opcode = writes ? IORING_OP_WRITE : IORING_OP_READ,
                              .fd = file,
                              .addr = (uintptr_t)(memory + at),
                              .len = bytes,
                              .off = at,
                              .user_data = at};
    uring.array[slot] = slot;
    __atomic_store_n(uring.tail, tail + 1, __ATOMIC_RELEASE);
}

/* Pieces of `bytes`, so many under way; a value is hashed before its first or after its last piece. */
static void pieces(int writes, int hashes, unsigned bytes, int depth)
{
    const uint64_t total = (uint64_t)VALUE * COUNT;
    uint64_t sent = 0, done = 0;
    int left[COUNT], under_way = 0;
    for (int i = 0; i < COUNT; i++)
        left[i] = VALUE / (int)bytes;
    while (done < total) {
        unsigned asked = 0;
        for (; under_way < depth && sent < total; sent += bytes, under_way++, asked++) {
            if (writes && hashes && sent % VALUE == 0)
                sum += mo_hash_bytes(0, memory + sent, VALUE);
            ask(writes, sent, bytes);
        }
        need(syscall(SYS_io_uring_enter, uring.ring, asked, 1, IORING_ENTER_GETEVENTS, NULL, 0) >=
                 0,
             "io_uring_enter");
        unsigned head = *uring.done_head;
        for (; head != __atomic_load_n(uring.done_tail, __ATOMIC_ACQUIRE); head++, under_way--) {
            const struct io_uring_cqe *result = &uring.results[head & *uring.done_mask];
            uint64_t value = result->user_data / VALUE;
            need(result->res == (int)bytes, "a piece");
            done += bytes;
            if (--left[value] == 0 && !writes && hashes)
                sum += mo_hash_bytes(0, memory + value * VALUE, VALUE);
        }
        __atomic_store_n(uring.done_head, head, __ATOMIC_RELEASE);
    }
}

/* --- rounds */

typedef struct way {
    const char *name;
    int hashes, threads;
    unsigned piece;
    int depth;
} way;

static const way ways[] = {
    {"`pwrite` and `pread`", 0, 1, 0, 0},
    {"the same, hash: the disk tier", 1, 1, 0, 0},
    {"two threads, hash", 1, 2, 0, 0},
    {"io_uring, 4 MiB", 0, 0, VALUE, 1},
    {"io_uring, 8 of 1 MiB", 0, 0, 1 << 20, 8},
    {"io_uring, 8 of 1 MiB, hash", 1, 0, 1 << 20, 8},
    {"io_uring, 32 of 256 KiB, hash", 1, 0, 256 << 10, 32},
};
enum { WAYS = sizeof ways / sizeof *ways };

typedef struct figure {
    double seconds, processor;
} figure;

static figure now(void)
{
    struct timespec t;
    struct rusage u;
    clock_gettime(CLOCK_MONOTONIC, &t);
    getrusage(RUSAGE_SELF, &u);
    return (figure){(double)t.tv_sec + (double)t.tv_nsec * 1e-9,
                    (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                        (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6};
}

static void run(const way *w, int writes, figure *best)
{
    figure start = now();
    if (w->threads > 0)
        threads(writes, w->hashes, w->threads);
    else
        pieces(writes, w->hashes, w->piece, w->depth);
    figure end = now();
    figure took = {end.seconds - start.seconds, end.processor - start.processor};
    if (best->seconds == 0.0 || took.seconds < best->seconds)
        *best = took;
    need(!writes || fdatasync(file) == 0, "fdatasync");
}

static void table(const char *folder, int flags, const char *title, int has_ring)
{
    figure best[WAYS][2] = {0};
    file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    if (file < 0) {
        printf("\n%s: not there\n", title);
        return;
    }
    threads(1, 0, 1); /* the file has its size */
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < WAYS; i++)
            for (int writes = 2; writes-- > 0 && (has_ring || ways[i].threads > 0);)
                run(&ways[i], writes, &best[i][writes]);
    close(file);
    const double gb = (double)VALUE * COUNT / 1e9;
    printf("\n| %s | write, GB/s | s a GB | read, GB/s | s a GB |\n|---|---|---|---|---|\n", title);
    for (int i = 0; i < WAYS; i++)
        if (best[i][1].seconds > 0.0)
            printf("| %s | %.2f | %.3f | %.2f | %.3f |\n", ways[i].name, gb / best[i][1].seconds,
                   best[i][1].processor / gb, gb / best[i][0].seconds, best[i][0].processor / gb);
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : "/tmp";
    memory = aligned_alloc(4096, (size_t)VALUE * COUNT);
    need(memory != NULL, "aligned_alloc");
    memset(memory, 1, (size_t)VALUE * COUNT);
    int has_ring = open_ring();
    table(folder, 0, "through the cache", has_ring);
    table(folder, O_DIRECT, "O_DIRECT", has_ring);
    return 0;
}
