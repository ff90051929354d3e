/*
 * A tape plays a training step with sizes in place of tensors.
 *
 * It owns storages (bytes, category, references), values (a storage seen as so many elements, and
 * the node of the graph that made it) and nodes (what backward of an operation makes, keeps and
 * frees). Operations (ops.h) run on it in the order in which a program runs them; then
 * mo_plan_tape_backward runs the nodes in the order in which autograd does: the newest first. After
 * each allocation the bytes alive are compared with the fullest moment so far, of the phase and of
 * the layer.
 *
 * Rules, as of torch: a node holds what it saved until it has run. It runs with its incoming
 * gradients, what it saved and all it makes alive at once; what it made is brought to the type and
 * the size of its inputs; then the first two go, and what it made is added to the gradients that
 * wait at the nodes before it. What a hook fetched, from the host or by a run anew, goes when it
 * has been used, before that. A sum is a new tensor. The first
 * gradient that reaches a weight becomes its gradient; later ones are added in place.
 *
 * Errors stick: after one, every call does nothing, and mo_plan_tape.status says which it was.
 * Values are handles that the caller drops; MO_PLAN_NONE may be handed anywhere a value may be
 * missing.
 */
#ifndef MO_PLAN_TAPE_H
#define MO_PLAN_TAPE_H

#include <stddef.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "settings/bytes.h"

typedef uint32_t mo_plan_value;
/* No value, storage or node: their first entries are never used, and zeroed structs have none. */
#define MO_PLAN_NONE 0u

typedef enum mo_plan_category {
    MO_PLAN_PARAMETERS,
    MO_PLAN_GRADIENTS,
    MO_PLAN_OPTIMIZER,
    MO_PLAN_ACTIVATIONS,
    MO_PLAN_LOGITS,
    MO_PLAN_BATCH,
    MO_PLAN_CATEGORIES
} mo_plan_category;

/* What was alive at one moment. */
typedef struct mo_plan_moment {
    uint64_t bytes[MO_PLAN_CATEGORIES];
    uint64_t total;
    uint32_t layer;
    const char *label; /* the operation; a static string */
} mo_plan_moment;

typedef struct mo_plan_storage {
    uint64_t bytes;
    uint32_t refs;      /* holders on the device */
    uint32_t host_refs; /* holders of a copy on the host */
    uint32_t category;
    uint32_t next_free;
    uint32_t stays; /* 1: it is not offloaded */
    uint32_t event; /* its first, counted from 1; 0: it is not listed */
} mo_plan_storage;

typedef struct mo_plan_value_entry {
    uint64_t elements;
    uint32_t storage;
    uint32_t node; /* MO_PLAN_NONE: needs no gradient */
    uint32_t width;
    uint32_t slot;
} mo_plan_value_entry;

typedef enum mo_plan_node_kind {
    MO_PLAN_NODE_PLAIN,
    MO_PLAN_NODE_LEAF,
    MO_PLAN_NODE_REGION,
    MO_PLAN_NODE_INPUT,
    MO_PLAN_NODE_HOOK
} mo_plan_node_kind;

/* Where a gradient goes. It is new (bytes) or the incoming one of a slot (alias − 1). */
typedef struct mo_plan_edge {
    uint64_t bytes;
    uint32_t node;
    uint8_t slot;
    uint8_t alias;
    uint8_t category;
    uint8_t reserved;
} mo_plan_edge;

typedef struct mo_plan_saved {
    uint32_t storage;
    uint32_t host; /* 1: only a copy on the host is held */
} mo_plan_saved;

typedef struct mo_plan_node {
    uint64_t temp; /* bytes alive on top of everything at the fullest moment of its backward */
    uint64_t late; /* the same when the engine casts and sums what it made */
    const char *label;
    uint32_t edges, saved, grads; /* where its own start in the tape's pools */
    uint32_t layer;
    uint32_t object; /* leaf: the weight; region: the region; hook: the hook */
    uint8_t kind, edge_count, saved_count, slots;
    uint8_t temp_category;
    uint8_t reserved[3];
    uint32_t waiting; /* leaf: gradients still to come */
} mo_plan_node;

typedef struct mo_plan_tape mo_plan_tape;

/* A part of the forward pass that is run again in backward. It drops no input, returns its output
 * and leaves nothing else alive but what nodes hold. */
enum { MO_PLAN_REGION_INPUTS = 3, MO_PLAN_REGION_KEPT = 5 };
typedef mo_plan_value (*mo_plan_region_run)(mo_plan_tape *t, void *context,
                                            const mo_plan_value *inputs);

typedef struct mo_plan_tape_region {
    mo_plan_region_run run;
    void *context;
    mo_plan_value_entry inputs[MO_PLAN_REGION_INPUTS];
    uint32_t input_count;
} mo_plan_tape_region;

/* Called in backward once the gradient of a value is whole, before what made the value runs. */
typedef void (*mo_plan_tape_hook_run)(void *context, uint32_t number);

typedef struct mo_plan_tape_hook {
    mo_plan_tape_hook_run run;
    void *context;
    uint32_t number;
} mo_plan_tape_hook;

/* A block begins (bytes > 0), or the one that began with event number `begins`, from 1, ends. */
typedef struct mo_plan_event {
    uint64_t bytes;
    uint32_t begins, phase, category;
} mo_plan_event;

/* A weight's gradient at rest. */
typedef struct mo_plan_leaf {
    uint64_t bytes;   /* of the gradient at rest */
    uint32_t storage; /* MO_PLAN_NONE: there is none yet */
    uint32_t node;
    uint32_t passing; /* 1: the gradient goes when backward ends */
    uint32_t next;    /* of a list of leaves: the next's index + 1 */
} mo_plan_leaf;

typedef struct mo_plan_layer_peak {
    uint64_t forward, backward; /* all alive at the fullest moment */
} mo_plan_layer_peak;

/* How far the tape was recorded. */
typedef struct mo_plan_mark {
    uint64_t nodes, edges, saved, grads, regions;
} mo_plan_mark;

struct mo_plan_tape {
    memopt_status status;
    mo_plan_storage *storages;
    mo_plan_value_entry *values;
    mo_plan_node *nodes;
    mo_plan_edge *edges;
    mo_plan_saved *saved;
    uint32_t *grads; /* storages of gradients that wait, or MO_PLAN_NONE */
    mo_plan_leaf *leaves;
    mo_plan_tape_region *regions;
    mo_plan_tape_hook *hooks;
    mo_plan_event *events;
    uint64_t storage_count, storage_capacity, value_count, value_capacity, node_count,
        node_capacity, edge_count, edge_capacity, saved_count, saved_capacity, grad_count,
        grad_capacity, leaf_count, leaf_capacity, region_count, region_capacity, hook_count,
        hook_capacity, event_count, event_capacity;
    uint32_t free_storage, free_value;

    uint64_t live[MO_PLAN_CATEGORIES];
    uint64_t total;
    uint64_t most_activations; /* alive at any moment */
    uint64_t host, host_peak;  /* copies on the host */
    uint64_t link;             /* bytes copied either way */
    mo_plan_moment phases[MO_PLAN_PHASES];
    mo_plan_layer_peak *layers;
    uint32_t layer_count;

    const char *label;
    uint32_t phase, layer;
    mo_plan_category category; /* of what operations make */
    uint8_t recording;         /* 0: no nodes are made */
    uint8_t offload;           /* 1: saved activations go to the host */
    uint8_t gpu; /* 1: kernels of a GPU. A CPU's layer norms take 16-bit input as it is, and where
                    their weight is as narrow they keep their statistics so; dropout's masks are of
                    the input's type; torch's AdamW steps one weight after the other */
    uint8_t in_backward;
    uint8_t in_region; /* 1: nodes of a region run, which was run again for them */
    uint8_t kept_count;
    uint32_t kept[MO_PLAN_REGION_KEPT]; /* storages for the node of the region that runs */
    uint8_t listing;                    /* 1: events are kept */
    uint8_t ghost; /* 1: what is made takes no bytes: it is played to learn what is recorded */
    uint64_t stop; /* the node after which what runs again ends (0: none): no more is saved */
    mo_plan_value *cached; /* weights that autocast has cast; it keeps them to the end of forward */
    uint64_t cached_count, cached_capacity;
    uint32_t compute;       /* 0, or the width that autocast computes in */
    double adapter_dropout; /* before LoRA's two */
    uint32_t base_width;    /* that quantised weights are computed with in 4 bits */
    double flops;           /* of forward operations outside recomputation */
};

/* --- life (tape.c) ------------------------------------------------------------------------ */
memopt_status mo_plan_tape_init(mo_plan_tape *t, uint32_t layers);
void mo_plan_tape_end(mo_plan_tape *t);
/* Records the first error; returns its status. */
memopt_status mo_plan_tape_fail(mo_plan_tape *t, memopt_status status);
/* Room for one more entry of an array of the tape; 0 and an error without memory. */
int mo_plan_tape_grow(mo_plan_tape *t, void **array, uint64_t *capacity, uint64_t count,
                      size_t size);
#define MO_PLAN_GROW(t, array, name)                                                               \
    mo_plan_tape_grow(t, (void **)&(t)->array, &(t)->name##_capacity, (t)->name##_count + 1,       \
                      sizeof *(t)->array)
/* a × b, or 0 and an error. */
uint64_t mo_plan_tape_mul(mo_plan_tape *t, uint64_t a, uint64_t b);

/* --- storages and values (tape.c) ---------------------------------------------------------- */
uint32_t mo_plan_storage_new(mo_plan_tape *t, uint64_t bytes, mo_plan_category category);
void mo_plan_storage_hold(mo_plan_tape *t, uint32_t storage);
void mo_plan_storage_drop(mo_plan_tape *t, uint32_t storage);
/* A value without a node. */
mo_plan_value mo_plan_value_new(mo_plan_tape *t, uint64_t elements, uint32_t width,
                                mo_plan_category category);
/* Another handle of the same value, of another shape. */
mo_plan_value mo_plan_value_view(mo_plan_tape *t, mo_plan_value v, uint64_t elements);
void mo_plan_drop(mo_plan_tape *t, mo_plan_value v);
void mo_plan_drop_all(mo_plan_tape *t, const mo_plan_value *values, size_t count);
#define MO_PLAN_DROP(t, ...)                                                                       \
    mo_plan_drop_all(t, (const mo_plan_value[]){__VA_ARGS__},                                      \
                     sizeof(const mo_plan_value[]){__VA_ARGS__} / sizeof(mo_plan_value))
uint64_t mo_plan_bytes_of(const mo_plan_tape *t, mo_plan_value v);
uint64_t mo_plan_elements(const mo_plan_tape *t, mo_plan_value v);
uint32_t mo_plan_width(const mo_plan_tape *t, mo_plan_value v);
int mo_plan_needs(const mo_plan_tape *t, mo_plan_value v);
/* Another handle of v that stays until mo_plan_tape_forget (not in backward, where nothing stays).
 */
void mo_plan_tape_cache(mo_plan_tape *t, mo_plan_value v);
void mo_plan_tape_forget(mo_plan_tape *t);
/* Bytes come and go at once on top of what is alive. */
void mo_plan_tape_flash(mo_plan_tape *t, uint64_t bytes, mo_plan_category category);
/* v, which nothing made, learns like a weight whose gradient goes with it after backward; it is not
 * offloaded, as leaves of the graph are not. */
void mo_plan_value_input_learns(mo_plan_tape *t, mo_plan_value v);
/* A learning weight: its gradients end in a leaf whose gradient at rest takes so many bytes. */
void mo_plan_value_learns(mo_plan_tape *t, mo_plan_value v, uint64_t gradient_bytes);

/* --- the graph (tape_graph.c) --------------------------------------------------------------- */
enum { MO_PLAN_RECORD_INPUTS = 4, MO_PLAN_RECORD_SAVED = 8, MO_PLAN_RECORD_OUTPUTS = 3 };
#define MO_PLAN_ALIAS UINT64_MAX /* the incoming gradient itself */
/* What an operation leaves behind; values that are not named are MO_PLAN_NONE. */
typedef struct mo_plan_record {
    const char *label;
    mo_plan_value out[MO_PLAN_RECORD_OUTPUTS];
    mo_plan_value in[MO_PLAN_RECORD_INPUTS];
    uint64_t
        grad[MO_PLAN_RECORD_INPUTS]; /* bytes of the gradient of each input, or MO_PLAN_ALIAS */
    mo_plan_value saved[MO_PLAN_RECORD_SAVED];
    uint64_t temp, late; /* see mo_plan_node */
} mo_plan_record;
void mo_plan_tape_record(mo_plan_tape *t, const mo_plan_record *r);
/* What an operation makes that saves its inputs alone, before it runs: nothing, where what runs
 * again ends with them. */
mo_plan_value mo_plan_value_of_inputs(mo_plan_tape *t, uint64_t elements, uint32_t width,
                                      mo_plan_category category);

/* Gives v a node that collects its gradient: what is recorded next stands apart from what made v.
 */
void mo_plan_value_collects(mo_plan_tape *t, mo_plan_value v);
/* Takes the gradient that v's node has collected (MO_PLAN_NONE: none); v needs none any more. */
uint32_t mo_plan_value_collected(mo_plan_tape *t, mo_plan_value v);
/* Has `run` called in v's backward; nothing where v needs no gradient. Not for what a region runs
 * again: hooks stay to the end of the tape. */
void mo_plan_value_hook(mo_plan_tape *t, mo_plan_value v, mo_plan_tape_hook_run run, void *context,
                        uint32_t number);
mo_plan_mark mo_plan_tape_mark(const mo_plan_tape *t);
/* Takes what was recorded since off the tape; all of it must have run. */
void mo_plan_tape_rewind(mo_plan_tape *t, const mo_plan_mark *mark);

/* Where a region runs forward that is to be run again, v stays to the end of its backward all the
 * same: 5 storages a region, each once. */
void mo_plan_tape_keep(mo_plan_tape *t, mo_plan_value v);

/* Runs a region forward: with nodes of its own (again = 0), or to be run again in backward. */
mo_plan_value mo_plan_tape_region_forward(mo_plan_tape *t, mo_plan_region_run run, void *context,
                                          const mo_plan_value *inputs, uint32_t count, int again);

/* --- backward (tape_backward.c) -------------------------------------------------------------- */
void mo_plan_tape_backward(mo_plan_tape *t, mo_plan_value loss);
/* Runs the nodes after the first `from`, newest first. */
void mo_plan_tape_run(mo_plan_tape *t, uint64_t from);
/* Takes a weight's gradient away. */
void mo_plan_tape_drop_gradient(mo_plan_tape *t, mo_plan_leaf *leaf);
/* Runs one node, whatever it is (but for leaves and inputs). */
void mo_plan_tape_run_node(mo_plan_tape *t, uint32_t id);
int mo_plan_node_has_gradient(const mo_plan_tape *t, const mo_plan_node *n);
/* Adds a gradient to what waits where an edge leads. Takes over the caller's hold of storage. */
void mo_plan_tape_deliver(mo_plan_tape *t, const mo_plan_edge *edge, uint32_t storage);
void mo_plan_node_drop_grads(mo_plan_tape *t, const mo_plan_node *n);
/* Brings copies on the host back; what they are held by while the node runs goes to held. */
void mo_plan_node_fetch_saved(mo_plan_tape *t, const mo_plan_node *n,
                              uint32_t held[MO_PLAN_RECORD_SAVED]);
void mo_plan_node_drop_saved(mo_plan_tape *t, const mo_plan_node *n,
                             const uint32_t held[MO_PLAN_RECORD_SAVED]);
/* Runs the node of a region (tape_region.c): the region again, then what it recorded. */
void mo_plan_tape_run_region(mo_plan_tape *t, uint32_t id);

#endif
