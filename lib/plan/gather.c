/*
 * Which weights are gathered when, at stage 3 of DeepSpeed 0.19: its coordinator
 * (runtime/zero/partitioned_param_coordinator.py), followed module by module with sizes alone, once
 * it knows the order of modules from an earlier step.
 *
 * Before a module runs, its weights that are away are gathered, and it waits for those that were
 * asked for earlier. A gather of several goes through one flat buffer, out of which all are copied
 * when the first of them is waited for; the buffer goes when the last one has been. Then weights of
 * modules to come are asked for, until they are so many elements (prefetch_bucket), while fewer are
 * there than may be (live_parameters). Modules without weights ask too. After a module those of its
 * weights go that no module uses within so many elements (reuse_distance), and whose next use
 * nobody has looked at while asking ahead. Small weights (persistence_threshold) never go.
 *
 * Modules without weights stand where Llama's code has them; in other families there are two before
 * each matrix, which is no fewer than there are: the more, the further it asks ahead. A layer that
 * is run again is run whole before its backward.
 */
#include "plan/engine.h"

#include <string.h>

enum { AWAY, ASKED, THERE };

/* A weight while the step runs. */
typedef struct mo_kept {
    uint64_t elements, bytes, padded; /* padded: bytes of its place in a flat buffer */
    uint64_t seen;                    /* 1 + the last step whose use was looked at ahead */
    uint32_t bundle, state, persists;
} mo_kept;

/* Weights that were asked for together: members first … last − 1. */
typedef struct mo_bundle {
    uint64_t bytes; /* of the flat buffer; 0: there is none */
    uint32_t first, last, left, opened;
} mo_bundle;

/* A module that runs and its weights: entries first … last − 1. */
typedef struct mo_use {
    uint32_t first, last, layer, backward;
} mo_use;

/* A use of a weight. */
typedef struct mo_entry {
    uint32_t weight, step;
    uint32_t next; /* the step of the weight's next use; 0: there is none */
} mo_entry;

typedef struct mo_walk {
    const mo_play *play;
    memopt_status status;
    mo_kept *weights;
    uint32_t *order;  /* weights by layers */
    uint64_t *starts; /* of layers in it */
    mo_use *uses;
    mo_entry *entries;
    uint64_t *before; /* elements of all uses before a step */
    mo_bundle *bundles;
    uint32_t *members;
    uint64_t use_count, use_capacity, entry_count, entry_capacity, bundle_count, bundle_capacity,
        member_count, member_capacity;
    uint64_t head; /* the first entry that was not looked at */
    uint64_t bytes, elements;
    mo_gathered *out;
} mo_walk;

static uint64_t setting(uint64_t value)
{
    return value == MEMOPT_PLAN_NOTHING ? 0 : value;
}

int mo_gather_persists(const mo_play *p, const mo_weight *w)
{
    return w->count <= setting(p->settings->run.persistence_threshold);
}

static int room(mo_walk *w, void **items, uint64_t *capacity, uint64_t count, size_t size)
{
    if (w->status == MEMOPT_OK && !mo_grow(items, capacity, count, size))
        w->status = MEMOPT_OUT_OF_HOST_MEMORY;
    return w->status == MEMOPT_OK;
}

/* --- the order of modules ------------------------------------------------------------------- */

static void add_module(mo_walk *w, uint32_t layer, int backward, const uint32_t *weights,
                       uint32_t count)
{
    if (!room(w, (void **)&w->uses, &w->use_capacity, w->use_count + 1, sizeof *w->uses) ||
        !room(w, (void **)&w->entries, &w->entry_capacity, w->entry_count + count,
              sizeof *w->entries))
        return;
    uint32_t from = (uint32_t)w->entry_count, step = (uint32_t)w->use_count;
    for (uint32_t i = 0; i < count; i++)
        w->entries[w->entry_count++] = (mo_entry){weights[i], step, 0};
    w->uses[w->use_count++] = (mo_use){from, from + count, layer, backward != 0};
}

static void add_bare(mo_walk *w, uint32_t layer, int backward, int count)
{
    for (int i = 0; i < count; i++)
        add_module(w, layer, backward, NULL, 0);
}

/* A bias is of the module of its weight. */
static uint32_t module_size(const mo_walk *w, uint64_t at, uint64_t end)
{
    return at + 1 < end && w->play->weights[w->order[at + 1]].bias ? 2 : 1;
}

/* Modules without weights before the matrix that is the n-th of its layer. */
static int bare_before(const mo_play *p, uint64_t n)
{
    if (p->settings->model.family != MEMOPT_PLAN_LLAMA || p->text.fused_qkv)
        return 2;
    return n == 0 ? 2 : n == 4 || n == 5;
}

/* Modules of a layer, forward. */
static void add_forward(mo_walk *w, uint32_t layer, int in_backward)
{
    uint64_t end = w->starts[layer + 1], matrices = 0;
    for (uint64_t i = w->starts[layer], size; i < end; i += size) {
        size = module_size(w, i, end);
        if (w->play->weights[w->order[i]].columns > 0)
            add_bare(w, layer, in_backward, bare_before(w->play, matrices++));
        add_module(w, layer, in_backward, &w->order[i], (uint32_t)size);
    }
}

/* The same from the last to the first. */
static void add_backward(mo_walk *w, uint32_t layer)
{
    uint64_t end = w->starts[layer + 1], matrices = 0;
    for (uint64_t i = w->starts[layer]; i < end; i++)
        matrices += w->play->weights[w->order[i]].columns > 0;
    for (uint64_t i = end; i > w->starts[layer];) {
        uint64_t size = i - w->starts[layer] > 1 && module_size(w, i - 2, end) == 2 ? 2 : 1;
        i -= size;
        if (w->play->weights[w->order[i]].columns > 0)
            add_bare(w, layer, 1, bare_before(w->play, --matrices));
        add_module(w, layer, 1, &w->order[i], (uint32_t)size);
    }
}

static int runs_again(const mo_play *p, uint32_t layer)
{
    uint64_t first = 1 + p->settings->model.vision_layers;
    int block = layer > 0 && layer + 1 < p->tape.layer_count;
    return block && mo_block_again(p, layer >= first ? layer - first : layer - 1u);
}

/* The first layer that has a backward. */
static uint32_t first_learning(const mo_play *p)
{
    uint32_t first = UINT32_MAX;
    for (uint64_t i = 0; i < p->weight_count; i++)
        if (p->weights[i].learns && p->weights[i].layer < first)
            first = p->weights[i].layer;
    return first;
}

static void add_modules(mo_walk *w)
{
    const mo_play *p = w->play;
    uint32_t layers = p->tape.layer_count, first = first_learning(p), embedding = 0;
    int tied = p->settings->model.tied == MEMOPT_PLAN_YES && p->head.weight == p->embedding &&
               p->embedding != MO_NONE;
    /* The embeddings are the first weight of the text, behind those of a tower. */
    while (tied && p->weights[embedding].count !=
                       p->settings->model.vocabulary * p->settings->model.embedding)
        embedding++;
    add_bare(w, 0, 0, 2);
    for (uint32_t l = 0; l < layers; l++)
        add_forward(w, l, 0);
    if (tied)
        add_module(w, layers - 1, 0, &embedding, 1);
    add_bare(w, layers - 1, 1, 2);
    if (tied)
        add_module(w, layers - 1, 1, &embedding, 1);
    for (uint32_t l = layers; l-- > 0 && l >= first;) {
        if (runs_again(p, l))
            add_forward(w, l, 1);
        add_backward(w, l);
    }
}

/* When each weight is used next, and what is used before each step. */
static void link_uses(mo_walk *w)
{
    uint64_t *next = mo_calloc(w->play->weight_count + 1, sizeof *next);
    w->before = mo_calloc(w->use_count + 1, sizeof *w->before);
    if (next == NULL || w->before == NULL) {
        w->status = MEMOPT_OUT_OF_HOST_MEMORY;
        mo_free(next);
        return;
    }
    for (uint64_t i = w->entry_count; i > 0; i--) {
        mo_entry *e = &w->entries[i - 1];
        e->next = (uint32_t)next[e->weight];
        next[e->weight] = e->step;
    }
    for (uint64_t s = 0; s < w->use_count; s++) {
        w->before[s + 1] = w->before[s];
        for (uint32_t i = w->uses[s].first; i < w->uses[s].last; i++)
            w->before[s + 1] += w->weights[w->entries[i].weight].elements;
    }
    mo_free(next);
}

/* --- gathers -------------------------------------------------------------------------------- */

static void tell(mo_walk *w, const mo_use *u)
{
    uint64_t *most = u->backward ? &w->out[u->layer].backward : &w->out[u->layer].forward;
    *most = mo_max_u64(*most, w->bytes);
}

/* Asks for weights; one alone comes into its own place. */
static void ask(mo_walk *w, const uint32_t *weights, uint32_t count)
{
    if (count == 0 || !room(w, (void **)&w->bundles, &w->bundle_capacity, w->bundle_count + 1,
                            sizeof *w->bundles))
        return;
    if (!room(w, (void **)&w->members, &w->member_capacity, w->member_count + count,
              sizeof *w->members))
        return;
    mo_bundle b = {0, (uint32_t)w->member_count, (uint32_t)w->member_count + count, count, 0};
    for (uint32_t i = 0; i < count; i++) {
        mo_kept *k = &w->weights[weights[i]];
        w->members[w->member_count++] = weights[i];
        k->state = ASKED;
        k->bundle = (uint32_t)w->bundle_count;
        w->elements += k->elements;
        b.bytes += k->padded;
    }
    w->bytes += b.bytes;
    if (count == 1) {
        w->weights[weights[0]].bytes = b.bytes;
        b.bytes = 0;
    }
    w->bundles[w->bundle_count++] = b;
}

/* Waits for a weight. */
static void await(mo_walk *w, uint32_t weight, const mo_use *u)
{
    mo_kept *k = &w->weights[weight];
    mo_bundle *b = &w->bundles[k->bundle];
    if (!b->opened && b->bytes > 0) {
        for (uint32_t i = b->first; i < b->last; i++) {
            mo_kept *m = &w->weights[w->members[i]];
            m->bytes = m->padded;
            w->bytes += m->bytes;
        }
        tell(w, u);
    }
    b->opened = 1;
    k->state = THERE;
    if (--b->left == 0)
        w->bytes -= b->bytes;
}

/* Whether somebody has been waited for with it: then it is there. */
static int is_there(const mo_walk *w, const mo_kept *k)
{
    return k->state == THERE || (k->state == ASKED && w->bundles[k->bundle].opened);
}

static void fetch(mo_walk *w, uint64_t step)
{
    const mo_use *u = &w->uses[step];
    uint32_t away[2], count = 0;
    for (uint32_t i = u->first; i < u->last; i++)
        if (w->weights[w->entries[i].weight].state == AWAY && count < 2)
            away[count++] = w->entries[i].weight;
    ask(w, away, count);
    tell(w, u);
    for (uint32_t i = u->first; i < u->last && w->status == MEMOPT_OK; i++)
        if (w->weights[w->entries[i].weight].state == ASKED)
            await(w, w->entries[i].weight, u);
}

/* Entries of the module itself are not looked at again. */
static void pass(mo_walk *w, uint64_t step)
{
    const mo_use *u = &w->uses[step];
    while (w->head < u->last) {
        const mo_entry *e = &w->entries[w->head++];
        w->weights[e->weight].seen = (uint64_t)e->step + 1;
    }
}

static void look_ahead(mo_walk *w, uint64_t step)
{
    const memopt_plan_run *r = &w->play->settings->run;
    uint64_t most = setting(r->live_parameters), sum = 0;
    most = most > w->elements ? most - w->elements : 0;
    most = mo_min_u64(most, setting(r->prefetch_bucket));
    uint64_t from = w->head;
    while (w->head < w->entry_count && sum < most) {
        const mo_entry *e = &w->entries[w->head++];
        mo_kept *k = &w->weights[e->weight];
        k->seen = mo_max_u64(k->seen, (uint64_t)e->step + 1);
        if (k->state == AWAY) {
            k->state = ASKED; /* once */
            k->bundle = UINT32_MAX;
            sum += k->elements;
        }
    }
    uint32_t *found = sum > 0 ? mo_calloc(w->head - from, sizeof *found) : NULL;
    uint32_t count = 0;
    if (sum == 0)
        return;
    if (found == NULL) {
        w->status = MEMOPT_OUT_OF_HOST_MEMORY;
        return;
    }
    for (uint64_t i = from; i < w->head; i++) {
        mo_kept *k = &w->weights[w->entries[i].weight];
        if (k->state == ASKED && k->bundle == UINT32_MAX) {
            k->bundle = 0;
            found[count++] = w->entries[i].weight;
        }
    }
    ask(w, found, count);
    mo_free(found);
    tell(w, &w->uses[step]);
}

static void release(mo_walk *w, uint64_t step)
{
    const mo_use *u = &w->uses[step];
    uint64_t reach = setting(w->play->settings->run.reuse_distance);
    for (uint32_t i = u->first; i < u->last; i++) {
        const mo_entry *e = &w->entries[i];
        mo_kept *k = &w->weights[e->weight];
        int soon = e->next > 0 && w->before[e->next] - w->before[step + 1] < reach;
        if (k->persists || soon || k->seen > step + 1 || !is_there(w, k))
            continue;
        k->state = AWAY;
        w->bytes -= k->bytes;
        w->elements -= k->elements;
    }
    if (!u->backward)
        w->out[u->layer].after = w->bytes;
}

/* --- a step ---------------------------------------------------------------------------------- */

static void begin(mo_walk *w)
{
    const mo_play *p = w->play;
    uint64_t world = p->settings->run.world_size;
    uint32_t layers = p->tape.layer_count;
    w->weights = mo_calloc(p->weight_count + 1, sizeof *w->weights);
    w->order = mo_calloc(p->weight_count + 1, sizeof *w->order);
    w->starts = mo_calloc((uint64_t)layers + 2, sizeof *w->starts);
    if (w->weights == NULL || w->order == NULL || w->starts == NULL) {
        w->status = MEMOPT_OUT_OF_HOST_MEMORY;
        return;
    }
    for (uint64_t i = 0; i < p->weight_count; i++) {
        const mo_weight *x = &p->weights[i];
        mo_kept *k = &w->weights[i];
        uint32_t width = mo_weight_width(&p->settings->run, x);
        k->elements = x->count;
        k->padded = mo_ceil_div_u64(x->count, world) * world * width;
        k->persists = (uint32_t)mo_gather_persists(p, x);
        k->state = k->persists ? THERE : AWAY; /* counted elsewhere */
        w->starts[x->layer + 1]++;
    }
    for (uint32_t l = 0; l < layers; l++)
        w->starts[l + 1] += w->starts[l];
    for (uint64_t i = 0; i < p->weight_count; i++) /* w->starts[l] moves to where l ends */
        w->order[w->starts[p->weights[i].layer]++] = (uint32_t)i;
    memmove(w->starts + 1, w->starts, layers * sizeof *w->starts);
    w->starts[0] = 0;
}

static void end(mo_walk *w)
{
    mo_free(w->weights);
    mo_free(w->order);
    mo_free(w->starts);
    mo_free(w->uses);
    mo_free(w->entries);
    mo_free(w->before);
    mo_free(w->bundles);
    mo_free(w->members);
}

memopt_status mo_gather_follow(const mo_play *p, mo_gathered *out)
{
    mo_walk w = {.play = p, .status = MEMOPT_OK, .out = out};
    begin(&w);
    if (w.status == MEMOPT_OK)
        add_modules(&w);
    if (w.status == MEMOPT_OK)
        link_uses(&w);
    for (uint64_t s = 0; s < w.use_count && w.status == MEMOPT_OK; s++) {
        fetch(&w, s);
        pass(&w, s);
        look_ahead(&w, s);
        release(&w, s);
    }
    end(&w);
    return w.status;
}
