#include "race/span.h"

#include <stddef.h>

static void update(mo_span *span)
{
    span->highest = span->hi;
    if (span->lower != NULL && span->lower->highest > span->highest)
        span->highest = span->lower->highest;
    if (span->upper != NULL && span->upper->highest > span->highest)
        span->highest = span->upper->highest;
}

static int is_before(const mo_span *a, const mo_span *b)
{
    if (a->lo != b->lo)
        return a->lo < b->lo;
    return a->hi != b->hi ? a->hi < b->hi : a->extra < b->extra;
}

/* What is before `key` goes into *out_lower, the rest into *out_upper. */
static void split(mo_span *root, const mo_span *key, mo_span **out_lower, mo_span **out_upper)
{
    if (root == NULL) {
        *out_lower = *out_upper = NULL;
    } else if (is_before(root, key)) {
        split(root->upper, key, &root->upper, out_upper);
        *out_lower = root;
        update(root);
    } else {
        split(root->lower, key, out_lower, &root->lower);
        *out_upper = root;
        update(root);
    }
}

static mo_span *join(mo_span *lower, mo_span *upper)
{
    if (lower == NULL || upper == NULL)
        return lower != NULL ? lower : upper;
    mo_span *root = lower->priority > upper->priority ? lower : upper;
    if (root == lower)
        root->upper = join(root->upper, upper);
    else
        root->lower = join(lower, root->lower);
    update(root);
    return root;
}

static void add(mo_span **root, mo_span *span)
{
    mo_span *at = *root;
    if (at == NULL || span->priority > at->priority) {
        split(at, span, &span->lower, &span->upper);
        *root = span;
    } else {
        add(is_before(at, span) ? &at->upper : &at->lower, span);
    }
    update(*root);
}

/* The finaliser of splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
}

void mo_span_add(mo_span **root, mo_span *span)
{
    span->priority = mix(span->lo + mix(span->hi + mix(span->extra)));
    add(root, span);
}

void mo_span_remove(mo_span **root, const mo_span *span)
{
    mo_span *at = *root;
    if (at == span) {
        *root = join(at->lower, at->upper);
        return;
    }
    mo_span_remove(is_before(at, span) ? &at->upper : &at->lower, span);
    update(at);
}

mo_span *mo_span_first(mo_span *root, uint64_t lo, uint64_t hi)
{
    while (root != NULL && root->highest > lo) {
        if (root->lower != NULL && root->lower->highest > lo)
            root =
                root->lower; /* all below start before this one: if none fits, none at all does */
        else if (root->lo < hi && root->hi > lo)
            return root;
        else if (root->lo >= hi)
            return NULL;
        else
            root = root->upper;
    }
    return NULL;
}

void mo_span_each(mo_span *root, uint64_t lo, uint64_t hi, void (*visit)(void *user, mo_span *span),
                  void *user)
{
    while (root != NULL && root->highest > lo) {
        mo_span_each(root->lower, lo, hi, visit, user);
        if (root->lo >= hi)
            return;
        if (root->hi > lo)
            visit(user, root);
        root = root->upper;
    }
}
