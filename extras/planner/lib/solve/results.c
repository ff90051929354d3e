#include "solve/results.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/words.h"

enum { WHOLE, SIGNED, REAL, TRUTH, TEXT, PHASE, LAYER, CHANGE, TRAINING };

typedef struct row {
    const char *name; /* the first member, for mo_nearest_word */
    int kind;
    size_t offset;
} row;

/* clang-format off */
#define ROW(of, name, kind) {#name, kind, offsetof(of, name)}
/* clang-format on */

static const row report_rows[] = {
    {"peak_bytes", WHOLE, offsetof(mo_plan_report, peak.total)},
    ROW(mo_plan_report, peak_phase, PHASE),
    ROW(mo_plan_report, peak_reason, TEXT),
    ROW(mo_plan_report, fits, TRUTH),
    ROW(mo_plan_report, limit_bytes, WHOLE),
    ROW(mo_plan_report, mean_bytes, WHOLE),
    ROW(mo_plan_report, parameter_count, WHOLE),
    ROW(mo_plan_report, trainable_count, WHOLE),
    ROW(mo_plan_report, buffer_bytes, WHOLE),
    ROW(mo_plan_report, activation_bytes, WHOLE),
    ROW(mo_plan_report, activation_peak_bytes, WHOLE),
    ROW(mo_plan_report, host_bytes, WHOLE),
    ROW(mo_plan_report, disk_bytes, WHOLE),
    ROW(mo_plan_report, link_bytes, WHOLE),
    ROW(mo_plan_report, samples, WHOLE),
    ROW(mo_plan_report, recomputed_layers, WHOLE),
    ROW(mo_plan_report, forward_flops, REAL),
    ROW(mo_plan_report, time_factor, REAL),
    ROW(mo_plan_report, step_seconds, REAL),
    ROW(mo_plan_report, time_assumption, TEXT),
    ROW(mo_plan_report, overhead_reason, TEXT),
};

static const row bytes_rows[] = {
    ROW(mo_plan_bytes, parameters, WHOLE), ROW(mo_plan_bytes, gradients, WHOLE),
    ROW(mo_plan_bytes, optimizer, WHOLE),  ROW(mo_plan_bytes, activations, WHOLE),
    ROW(mo_plan_bytes, logits, WHOLE),     ROW(mo_plan_bytes, batch, WHOLE),
    ROW(mo_plan_bytes, overhead, WHOLE),   ROW(mo_plan_bytes, total, WHOLE)};

static const row layer_rows[] = {
    ROW(mo_plan_layer_bytes, name, TEXT),
    ROW(mo_plan_layer_bytes, kind, LAYER),
    ROW(mo_plan_layer_bytes, recomputed, TRUTH),
    ROW(mo_plan_layer_bytes, parameter_count, WHOLE),
    ROW(mo_plan_layer_bytes, parameter_bytes, WHOLE),
    ROW(mo_plan_layer_bytes, gradient_bytes, WHOLE),
    ROW(mo_plan_layer_bytes, optimizer_bytes, WHOLE),
    ROW(mo_plan_layer_bytes, output_bytes, WHOLE),
    ROW(mo_plan_layer_bytes, saved_bytes, WHOLE),
    ROW(mo_plan_layer_bytes, plain_saved_bytes, WHOLE),
    ROW(mo_plan_layer_bytes, forward_bytes, WHOLE),
    ROW(mo_plan_layer_bytes, backward_bytes, WHOLE),
    ROW(mo_plan_layer_bytes, forward_flops, REAL),
};

static const row fit_rows[] = {
    ROW(mo_plan_fit, fits, TRUTH),
    ROW(mo_plan_fit, fits_after, TRUTH),
    ROW(mo_plan_fit, micro_batch, WHOLE),
    ROW(mo_plan_fit, largest_micro_batch, WHOLE),
    ROW(mo_plan_fit, accumulation, WHOLE),
    ROW(mo_plan_fit, effective_batch, WHOLE),
    ROW(mo_plan_fit, target_batch, WHOLE),
    ROW(mo_plan_fit, remainder, SIGNED),
    ROW(mo_plan_fit, peak_bytes, WHOLE),
    ROW(mo_plan_fit, floor_bytes, WHOLE),
    ROW(mo_plan_fit, limit_bytes, WHOLE),
    ROW(mo_plan_fit, time_factor, REAL),
    ROW(mo_plan_fit, start_batch, WHOLE),
    ROW(mo_plan_fit, start_accumulation, WHOLE),
    ROW(mo_plan_fit, start_peak_bytes, WHOLE),
};

static const row change_rows[] = {
    ROW(mo_plan_change, kind, CHANGE),       ROW(mo_plan_change, applied, TRUTH),
    ROW(mo_plan_change, change, TEXT),       ROW(mo_plan_change, option, TEXT),
    ROW(mo_plan_change, saves_bytes, WHOLE), ROW(mo_plan_change, peak_bytes, WHOLE),
    ROW(mo_plan_change, time_factor, REAL),  ROW(mo_plan_change, training, TRAINING),
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

/* The whole text; NULL: OUT_OF_HOST_MEMORY. */
static char *text_of(writer *w)
{
    if (!w->failed)
        return w->text;
    mo_free(w->text);
    return NULL;
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

/* A field that is no text. */
typedef union scalar {
    uint64_t whole;
    int64_t number;
    double real;
    uint32_t word;
} scalar;

static scalar value_of(const row *r, const void *of)
{
    scalar v = {.whole = 0};
    memcpy(&v, (const char *)of + r->offset, r->kind <= REAL ? sizeof v.whole : sizeof v.word);
    return v;
}

static const char *word_of(const row *r, uint32_t value)
{
    static const char *const layers[] = {"embedding", "block", "vision", "head"};
    static const char *const changes[] = {
        "micro_batch", "dtype",    "optimizer", "checkpointing", "offload",  "attention", "loss",
        "sequence",    "sharding", "lora",      "allocator",     "quantize", "negatives", "images"};
    static const char *const trainings[] = {"same", "close", "other"};
    return r->kind == PHASE      ? mo_plan_phase_name(value)
           : r->kind == LAYER    ? layers[value]
           : r->kind == TRAINING ? trainings[value]
                                 : changes[value];
}

static void put_row(writer *w, const row *r, const void *of)
{
    char text[40];
    scalar v = value_of(r, of);
    put_name(w, r->name);
    switch (r->kind) {
    case TEXT:
        put_quoted(w, (const char *)of + r->offset);
        return;
    case TRUTH:
        put(w, v.word ? "true" : "false");
        return;
    case REAL:
        mo_plan_number_text(v.real, text, sizeof text);
        break;
    case SIGNED:
        (void)snprintf(text, sizeof text, "%" PRId64, v.number);
        break;
    case WHOLE:
        (void)snprintf(text, sizeof text, "%" PRIu64, v.whole);
        break;
    default:
        put_quoted(w, word_of(r, v.word));
        return;
    }
    put(w, text);
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
    return text_of(&w);
}

/* What follows `prefix` and a dot in name; NULL: it does not begin so. */
static const char *below(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(name, prefix, length) == 0 && name[length] == '.' ? name + length + 1 : NULL;
}

static int is_measured(const mo_plan_key *key, const mo_plan_model *model)
{
    const char *of_model = below(key->name, "model");
    if (of_model == NULL)
        return below(key->name, "run") != NULL;
    return model->lora_rank > 0 &&
           (strncmp(of_model, "lora_", 5) == 0 || strcmp(of_model, "quantize") == 0);
}

char *mo_plan_measured_text(const mo_plan_settings *settings)
{
    writer w = {.text = NULL};
    const mo_plan_given given = {.model = settings->model, .run = settings->run};
    const mo_plan_key *key;
    char text[128];
    for (uint64_t i = 0; (key = mo_plan_key_at(i)) != NULL; i++)
        if (is_measured(key, &given.model) && mo_plan_key_text(key, &given, text, sizeof text)) {
            put(&w, key->name);
            put(&w, "=");
            put(&w, text);
            put(&w, "\n");
        }
    return text_of(&w);
}

/* --- by name --------------------------------------------------------------------------------- */

static memopt_status find(const void *of, const row *rows, size_t count, const char *name,
                          double *out_value)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(rows[i].name, name) == 0 && rows[i].kind <= TRUTH) {
            scalar v = value_of(&rows[i], of);
            *out_value = rows[i].kind == REAL     ? v.real
                         : rows[i].kind == SIGNED ? (double)v.number
                         : rows[i].kind == TRUTH  ? (double)v.word
                                                  : (double)v.whole;
            return MEMOPT_OK;
        }
    return mo_fail(MEMOPT_NOT_FOUND,
                   "plan: the plan has no number \"%.40s\"; the nearest name is \"%s\"", name,
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
