/*
 * Sets of address ranges that may overlap: a search tree by start, end and a third number, which
 * random priorities keep balanced, with the highest end below each node. Adding and removing cost
 * O(log n), the k ranges that share a byte with one O(log n + k). The nodes are the owner's. Equal
 * calls give equal trees. Not thread-safe.
 */
#ifndef MO_RACE_SPAN_H
#define MO_RACE_SPAN_H

#include <stdint.h>

typedef struct mo_span {
    uint64_t lo, hi, extra; /* the owner's; lo < hi */
    uint64_t highest;       /* the highest hi of this node and those below */
    struct mo_span *lower, *upper;
    uint64_t priority; /* no child's is higher */
} mo_span;

/* Pre: no span with the same three numbers is in the tree. */
void mo_span_add(mo_span **root, mo_span *span);
void mo_span_remove(mo_span **root, const mo_span *span);
/* One that shares a byte with [lo, hi), or NULL: the first in the tree's order. */
mo_span *mo_span_first(mo_span *root, uint64_t lo, uint64_t hi);
/* Calls visit for each that shares a byte with [lo, hi), in order. visit must not change the tree. */
void mo_span_each(mo_span *root, uint64_t lo, uint64_t hi, void (*visit)(void *user, mo_span *span),
                  void *user);

#endif
