#include "plan/solve/results.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/words.h"

enum { WHOLE, SIGNED, REAL, TRUTH, TEXT, PHASE, LAYER, CHANGE };

typedef struct row {
    const char *name; /* the first member, for mo_nearest_word */
    int kind;
    size_t offset;
} row;

#define REPORT(name, kind)                                                                         \
    {                                                                                              \
#name, kind, offsetof(mo_plan_report, name)                                                \
    }
static const row report_rows[] = {
    {"peak_bytes", WHOLE, offsetof(mo_plan_report, peak.total)},
    REPORT(peak_phase, PHASE),
    REPORT(peak_reason, TEXT),
    REPORT(fits, TRUTH),
    REPORT(limit_bytes, WHOLE),
    REPORT(mean_bytes, WHOLE),
    REPORT(parameter_count, WHOLE),
    REPORT(trainable_count, WHOLE),
    REPORT(buffer_bytes, WHOLE),
    REPORT(activation_bytes, WHOLE),
    REPORT(activation_peak_bytes, WHOLE),
    REPORT(host_bytes, WHOLE),
    REPORT(disk_bytes, WHOLE),
    REPORT(link_bytes, WHOLE),
    REPORT(samples, WHOLE),
    REPORT(recomputed_layers, WHOLE),
    REPORT(forward_flops, REAL),
    REPORT(time_factor, REAL),
    REPORT(step_seconds, REAL),
    REPORT(time_assumption, TEXT),
    REPORT(overhead_reason, TEXT),
};

#define BYTES(name)                                                                                \
    {                                                                                              \
#name, WHOLE, offsetof(mo_plan_bytes, name)                                                \
    }
static const row bytes_rows[] = {BYTES(parameters),  BYTES(gradients), BYTES(optimizer),
                                 BYTES(activations), BYTES(logits),    BYTES(batch),
                                 BYTES(overhead),    BYTES(total)};

#define OF_LAYER(name, kind)                                                                       \
    {                                                                                              \
#name, kind, offsetof(mo_plan_layer_bytes, name)                                           \
    }
static const row layer_rows[] = {
    OF_LAYER(name, TEXT),
    OF_LAYER(kind, LAYER),
    OF_LAYER(recomputed, TRUTH),
    OF_LAYER(parameter_count, WHOLE),
    OF_LAYER(parameter_bytes, WHOLE),
    OF_LAYER(gradient_bytes, WHOLE),
    OF_LAYER(optimizer_bytes, WHOLE),
    OF_LAYER(output_bytes, WHOLE),
    OF_LAYER(saved_bytes, WHOLE),
    OF_LAYER(plain_saved_bytes, WHOLE),
    OF_LAYER(forward_bytes, WHOLE),
    OF_LAYER(backward_bytes, WHOLE),
    OF_LAYER(forward_flops, REAL),
};

#define FIT(name, kind)                                                                            \
    {                                                                                              \
#name, kind, offsetof(mo_plan_fit, name)                                                   \
    }
static const row fit_rows[] = {
    FIT(fits, TRUTH),
    FIT(fits_after, TRUTH),
    FIT(micro_batch, WHOLE),
    FIT(largest_micro_batch, WHOLE),
    FIT(accumulation, WHOLE),
    FIT(effective_batch, WHOLE),
    FIT(target_batch, WHOLE),
    FIT(remainder, SIGNED),
    FIT(peak_bytes, WHOLE),
    FIT(floor_bytes, WHOLE),
    FIT(limit_bytes, WHOLE),
    FIT(time_factor, REAL),
    FIT(start_batch, WHOLE),
    FIT(start_accumulation, WHOLE),
    FIT(start_peak_bytes, WHOLE),
};

#define OF_CHANGE(name, kind)                                                                      \
    {                                                                                              \
#name, kind, offsetof(mo_plan_change, name)                                                \
    }
static const row change_rows[] = {
    OF_CHANGE(kind, CHANGE),      OF_CHANGE(applied, TRUTH),     OF_CHANGE(change, TEXT),
    OF_CHANGE(option, TEXT),      OF_CHANGE(saves_bytes, WHOLE), OF_CHANGE(peak_bytes, WHOLE),
    OF_CHANGE(time_factor, REAL),
};

#define ROWS(table) table, sizeof table / sizeof *table

/* --- text ------------------------------------------------------------------------------------ */

typedef struct writer {
    char *text;
    uint64_t length, capacity;
    int failed;
    int comma; /* 1: the next value follows another */
} writer;

static void put(writer *w, const char *text)
{
    size_t length = strlen(text);
    if (!w->failed && !mo_grow((void **)&w->text, &w->capacity, w->length + length + 1, 1))
        w->failed = 1;
    if (w->failed)
        return;
    memcpy(w->text + w->length, text, length + 1);
    w->length += length;
}

static void put_quoted(writer *w, const char *text)
{
    put(w, "\"");
    for (; *text != '\0'; text++) {
        char one[3] = {'\\', *text, '\0'};
        put(w, *text == '"' || *text == '\\' ? one : one + 1);
    }
    put(w, "\"");
}

static void put_name(writer *w, const char *name)
{
    if (w->comma)
        put(w, ", ");
    w->comma = 1;
    if (name == NULL) /* of a list */
        return;
    put_quoted(w, name);
    put(w, ": ");
}

static void open(writer *w, const char *name, const char *bracket)
{
    put_name(w, name);
    put(w, bracket);
    w->comma = 0;
}

static void close(writer *w, const char *bracket)
{
    put(w, bracket);
    w->comma = 1;
}

/* --- values ---------------------------------------------------------------------------------- */

/* A field as a number; 0: it is text. */
static int number_of(const row *r, const void *of, double *out_value)
{
    const char *field = (const char *)of + r->offset;
    uint64_t whole;
    int64_t number;
    uint32_t truth;
    switch (r->kind) {
    case WHOLE:
        memcpy(&whole, field, sizeof whole);
        *out_value = (double)whole;
        return 1;
    case SIGNED:
        memcpy(&number, field, sizeof number);
        *out_value = (double)number;
        return 1;
    case REAL:
        memcpy(out_value, field, sizeof *out_value);
        return 1;
    case TRUTH:
        memcpy(&truth, field, sizeof truth);
        *out_value = truth;
        return 1;
    default:
        return 0;
    }
}

static const char *word_of(const row *r, uint32_t value)
{
    static const char *const layers[] = {"embedding", "block", "vision", "head"};
    static const char *const changes[] = {"micro_batch", "dtype",     "optimizer", "checkpointing",
                                          "offload",     "attention", "loss",      "sequence",
                                          "sharding",    "lora",      "allocator", "bucket"};
    return r->kind == PHASE   ? mo_plan_phase_name(value)
           : r->kind == LAYER ? layers[value]
                              : changes[value];
}

static void put_number(writer *w, const row *r, const char *field)
{
    char text[40];
    uint64_t whole;
    double real;
    if (r->kind == REAL) {
        memcpy(&real, field, sizeof real);
        mo_plan_number_text(real, text, sizeof text);
    } else {
        memcpy(&whole, field, sizeof whole);
        if (r->kind == SIGNED)
            (void)snprintf(text, sizeof text, "%" PRId64, (int64_t)whole);
        else
            (void)snprintf(text, sizeof text, "%" PRIu64, whole);
    }
    put(w, text);
}

static void put_row(writer *w, const row *r, const void *of)
{
    const char *field = (const char *)of + r->offset;
    uint32_t word;
    memcpy(&word, field, sizeof word);
    put_name(w, r->name);
    if (r->kind <= REAL)
        put_number(w, r, field);
    else if (r->kind == TRUTH)
        put(w, word ? "true" : "false");
    else
        put_quoted(w, r->kind == TEXT ? field : word_of(r, word));
}

static void put_rows(writer *w, const void *of, const row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        put_row(w, &rows[i], of);
}

static void put_object(writer *w, const char *name, const void *of, const row *rows, size_t count)
{
    open(w, name, "{");
    put_rows(w, of, rows, count);
    close(w, "}");
}

static void put_settings(writer *w, const mo_plan_given *given)
{
    char text[128];
    const mo_plan_key *key;
    open(w, "settings", "{");
    for (uint64_t i = 0; (key = mo_plan_key_at(i)) != NULL; i++) {
        if (!mo_plan_key_text(key, given, text, sizeof text))
            continue;
        put_name(w, key->name);
        if (mo_plan_key_is_number(key))
            put(w, text);
        else
            put_quoted(w, text);
    }
    close(w, "}");
}

static void put_solution(writer *w, const mo_plan_solution *s)
{
    const mo_plan_given chosen = {
        .model = s->chosen.model, .run = s->chosen.run, .card = s->chosen.card};
    open(w, "solution", "{");
    put_rows(w, &s->fit, ROWS(fit_rows));
    open(w, "changes", "[");
    for (uint64_t i = 0; i < s->found.count; i++)
        put_object(w, NULL, &s->found.changes[i], ROWS(change_rows));
    close(w, "]");
    put_settings(w, &chosen);
    close(w, "}");
}

char *mo_plan_json(const mo_plan_estimate *e, const mo_plan_solution *solution)
{
    writer w = {.text = NULL};
    const mo_plan_given given = {
        .model = e->settings.model, .run = e->settings.run, .card = e->settings.card};
    open(&w, NULL, "{");
    put_settings(&w, &given);
    put_rows(&w, &e->report, ROWS(report_rows));
    put_object(&w, "categories", &e->report.peak, ROWS(bytes_rows));
    open(&w, "phases", "{");
    for (uint32_t i = 0; i < MO_PLAN_PHASES; i++)
        put_object(&w, mo_plan_phase_name(i), &e->report.phases[i], ROWS(bytes_rows));
    close(&w, "}");
    open(&w, "layers", "[");
    for (uint64_t i = 0; i < e->layer_count; i++)
        put_object(&w, NULL, &e->layers[i], ROWS(layer_rows));
    close(&w, "]");
    if (solution != NULL)
        put_solution(&w, solution);
    close(&w, "}");
    if (!w.failed)
        return w.text;
    mo_free(w.text);
    return NULL;
}

/* What follows `prefix` and a dot in name; NULL: it does not begin so. */
static const char *below(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(name, prefix, length) == 0 && name[length] == '.' ? name + length + 1 : NULL;
}

char *mo_plan_run_text(const mo_plan_run *run)
{
    writer w = {.text = NULL};
    const mo_plan_given given = {.run = *run};
    const mo_plan_key *key;
    char text[128];
    for (uint64_t i = 0; (key = mo_plan_key_at(i)) != NULL; i++)
        if (below(key->name, "run") != NULL && mo_plan_key_text(key, &given, text, sizeof text)) {
            put(&w, key->name);
            put(&w, "=");
            put(&w, text);
            put(&w, "\n");
        }
    if (!w.failed)
        return w.text;
    mo_free(w.text);
    return NULL;
}

/* --- by name --------------------------------------------------------------------------------- */

static memopt_status find(const void *of, const row *rows, size_t count, const char *name,
                          double *out_value)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(rows[i].name, name) == 0 && number_of(&rows[i], of, out_value))
            return MEMOPT_OK;
    return mo_fail(MEMOPT_NOT_FOUND,
                   "plan: there is no number \"%.40s\"; the nearest name is \"%s\"", name,
                   mo_nearest_word(name, rows, sizeof *rows, count));
}

memopt_status mo_plan_number(const mo_plan_estimate *e, const mo_plan_solution *solution,
                             const char *name, double *out_value)
{
    const char *rest = below(name, "categories"), *phase;
    if (rest != NULL)
        return find(&e->report.peak, ROWS(bytes_rows), rest, out_value);
    phase = below(name, "phases");
    for (uint32_t i = 0; phase != NULL && i < MO_PLAN_PHASES; i++)
        if ((rest = below(phase, mo_plan_phase_name(i))) != NULL)
            return find(&e->report.phases[i], ROWS(bytes_rows), rest, out_value);
    rest = below(name, "solution");
    if (rest != NULL && solution != NULL)
        return find(&solution->fit, ROWS(fit_rows), rest, out_value);
    return find(&e->report, ROWS(report_rows), name, out_value);
}
