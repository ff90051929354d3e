/* A layer for the region tests: it leases a value, computes through it, and can be made to err. */
#ifndef TEST_CHECKPOINT_LAYER_H
#define TEST_CHECKPOINT_LAYER_H

#include "support.h"

typedef struct layer {
    bench *b;
    memopt_region *region;
    const void *in;
    void *out;
    uint64_t words;
    random_state *random; /* draws one number a run; NULL: none */
    struct layer *inner;  /* its region is run forward after the own work */
    /* seen */
    uint64_t *saved; /* the lease of the last run */
    int runs;
    memopt_region_pass pass;
    /* to err, in the recompute pass only unless told otherwise */
    memopt_status fail_with;      /* returned at the end of the run */
    memopt_region_pass fail_pass; /* in this pass */
    int ignore_status;            /* goes on after a failed lease or declaration */
    uint64_t other_words;         /* leases so many instead */
    int extra_lease, no_lease;
    int no_declaration, extra_declaration;
    const char *other_name;
    uint64_t drift;     /* adds this to one computed word... */
    uint64_t drift_at;  /* ...here */
    uint64_t draw_more; /* draws so many numbers first */
} layer;

static inline int in_recompute(const layer *l)
{
    return l->pass == MEMOPT_PASS_RECOMPUTE;
}

static inline memopt_status layer_lease(layer *l, memopt_stream stream)
{
    void *saved = NULL;
    uint64_t words = in_recompute(l) && l->other_words ? l->other_words : l->words;
    memopt_status status = MEMOPT_OK;
    l->saved = NULL;
    if (!(in_recompute(l) && l->no_lease))
        status = memopt_region_alloc(l->region, words * 8, &saved);
    if (status == MEMOPT_OK)
        l->saved = saved;
    if (status == MEMOPT_OK && in_recompute(l) && l->extra_lease)
        status = memopt_region_alloc(l->region, 64, &saved);
    return status;
}

static inline memopt_status layer_compute(layer *l, memopt_stream stream)
{
    uint64_t salt = 5;
    for (uint64_t i = 0; l->random != NULL && in_recompute(l) && i < l->draw_more; i++)
        (void)random_next(l->random);
    if (l->random != NULL)
        salt = random_next(l->random);
    void *first = l->saved != NULL ? l->saved : l->out;
    memopt_status status = scramble(l->b->device, stream, l->in, first, l->words, salt);
    if (status == MEMOPT_OK && in_recompute(l) && l->drift != 0)
        status =
            memopt_fill(l->b->device, (char *)first + l->drift_at, (int32_t)l->drift, 1, stream);
    if (status == MEMOPT_OK && first != l->out)
        status = scramble(l->b->device, stream, first, l->out, l->words, 1);
    return status;
}

static inline memopt_status layer_declare(layer *l)
{
    const char *name = in_recompute(l) && l->other_name != NULL ? l->other_name : "hidden";
    memopt_tensor hidden = {l->saved, l->saved ? l->words * 2 : 0, MEMOPT_DTYPE_F32};
    memopt_tensor out = {l->out, l->words, MEMOPT_DTYPE_I64};
    memopt_status status = memopt_region_check(l->region, name, &hidden);
    if (status == MEMOPT_OK && !(in_recompute(l) && l->no_declaration))
        status = memopt_region_check(l->region, "out", &out);
    if (status == MEMOPT_OK && in_recompute(l) && l->extra_declaration)
        status = memopt_region_check(l->region, "more", &out);
    return status;
}

static inline memopt_status layer_run(void *user, memopt_region *region, memopt_region_pass pass,
                                      memopt_stream stream)
{
    layer *l = user;
    l->pass = pass;
    l->runs++;
    assert_ptr_equal(region, l->region);
    memopt_status status = layer_lease(l, stream);
    if (status == MEMOPT_OK || l->ignore_status)
        status = layer_compute(l, stream);
    if (status == MEMOPT_OK)
        status = layer_declare(l);
    if (l->ignore_status)
        status = MEMOPT_OK;
    if (status == MEMOPT_OK && l->inner != NULL)
        status = memopt_region_forward(l->inner->region, stream);
    if (status == MEMOPT_OK && l->fail_with != MEMOPT_OK && pass == l->fail_pass)
        return l->fail_with;
    return status;
}

static inline memopt_status layer_random_save(void *user, void *out)
{
    memcpy(out, ((layer *)user)->random, sizeof(random_state));
    return MEMOPT_OK;
}

static inline memopt_status layer_random_restore(void *user, const void *in)
{
    memcpy(((layer *)user)->random, in, sizeof(random_state));
    return MEMOPT_OK;
}

static inline void layer_open(layer *l, bench *b, const char *name, uint32_t mode, uint32_t check,
                              random_state *random, uint64_t words)
{
    memopt_region_callbacks callbacks = {sizeof callbacks, layer_run, NULL, NULL, l};
    memopt_region_options options = MEMOPT_REGION_OPTIONS_INIT;
    void *in = NULL, *out = NULL;
    memset(l, 0, sizeof *l);
    options.name = name;
    options.mode = mode;
    options.check = check;
    if (random != NULL) {
        callbacks.random_save = layer_random_save;
        callbacks.random_restore = layer_random_restore;
        options.random_bytes = sizeof(random_state);
    }
    l->b = b;
    l->random = random;
    l->words = words;
    OK(memopt_allocator_alloc(b->allocator, words * 8, MEMOPT_TAG_OTHER, b->stream, &in));
    OK(memopt_allocator_alloc(b->allocator, words * 8, MEMOPT_TAG_OTHER, b->stream, &out));
    OK(memopt_fill(b->device, in, 0x5A, words * 8, b->stream));
    OK(memopt_stream_sync(b->device, b->stream)); /* runs may be on any stream */
    l->in = in;
    l->out = out;
    OK(memopt_region_create(b->device, b->allocator, &callbacks, &options, &l->region));
}

static inline void layer_close(layer *l)
{
    OK(memopt_region_destroy(l->region));
    OK(memopt_allocator_free(l->b->allocator, (void *)(uintptr_t)l->in));
    OK(memopt_allocator_free(l->b->allocator, l->out));
}

/* The bench too. */
static inline void layer_end(layer *l)
{
    layer_close(l);
    bench_close(l->b);
}

/* The words of the last run's lease, read in stream order. */
static inline uint64_t *layer_saved(layer *l)
{
    uint64_t *copy = malloc(l->words * 8);
    assert_non_null(copy);
    OK(memopt_copy(l->b->device, copy, l->saved, l->words * 8, l->b->stream));
    OK(memopt_stream_sync(l->b->device, l->b->stream));
    return copy;
}

#endif
