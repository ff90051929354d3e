/*
 * The demo (demo.h), in five acts: the plain run fails for lack of memory; with the memory savers
 * the same model trains on the same device; each saver is measured by itself; the plain run holds a
 * budget; and what is claimed is checked.
 */
#include "demo.h"

#include "progress.h"
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CAPACITY ((uint64_t)128 << 20)
#define STEPS 30      /* of the two runs whose losses are compared */
#define SHORT_STEPS 5 /* of every other row; the best step behind the first is its time */
#define BUDGET ((uint64_t)256 << 20) /* unless --budget says another one */
#define BUDGET_STEPS 4
#define HELD_OUT_BATCHES 8
#define TOLERANCE 0.05 /* between the held-out losses of the two runs */
#define EXPANDABLE "expandable_segments:True"

static options demo_options(const options *o)
{
    options d = options_default();
    d.layers = 24;
    d.width = 192;
    d.heads = 6;
    d.context = 256;
    d.batch = 4;
    d.dropout = 0.05;
    d.steps = STEPS;
    d.warmup = 8;
    d.lr = 3e-4; /* at 5e-4 a hard batch among the last can part the two runs, by 0.8 once */
    d.text = o->text;
    d.threads = o->threads;
    return d;
}

/* --- the variants -------------------------------------------------------------------------- */

typedef enum variant {
    PLAIN,
    EIGHT_BIT,
    MIXED,
    STOCHASTIC,
    CHECKPOINTING,
    OFFLOADING,
    SEGMENTS,
    ALL,
    VARIANTS
} variant;

static const char *const variant_names[VARIANTS] = {
    [PLAIN] = "plain",
    [EIGHT_BIT] = "+ 8-bit optimizer",
    [MIXED] = "+ bf16, fp32 masters",
    [STOCHASTIC] = "+ bf16, stochastic",
    [CHECKPOINTING] = "+ checkpointing",
    [OFFLOADING] = "+ offload",
    [SEGMENTS] = "+ expandable segments",
    [ALL] = "all together",
};

static options variant_options(const options *base, variant v)
{
    options o = *base;
    int all = v == ALL;
    o.adamw8bit = all || v == EIGHT_BIT;
    o.checkpoint = all || v == CHECKPOINTING;
    o.offload = all || v == OFFLOADING;
    if (all || v == SEGMENTS)
        o.allocator = EXPANDABLE;
    if (all || v == MIXED || v == STOCHASTIC)
        o.dtype = MEMOPT_DTYPE_BF16;
    o.master = v == MIXED;
    return o;
}

/* What a run of the demo leaves behind. */
typedef struct outcome {
    report_row row;
    double first_loss, last_loss, held_out;
    double losses[BUDGET_STEPS]; /* of the first steps */
    fit_figures plan;
    uint8_t *gradients; /* every byte of them, after the first backward; NULL where not wanted */
    size_t gradient_bytes;
} outcome;

/* --- running ------------------------------------------------------------------------------- */

static memopt_status keep_gradients(trainer *t, outcome *out)
{
    size_t bytes = 0;
    const parameter_set *p = &t->model.parameters;
    for (uint64_t i = 0; i < p->count; i++)
        bytes += p->list[i].gradient.count * memopt_dtype_size(p->list[i].gradient.dtype);
    out->gradients = malloc(bytes);
    if (!out->gradients)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "demo: no memory for %zu bytes", bytes);
    out->gradient_bytes = bytes;
    uint8_t *at = out->gradients;
    for (uint64_t i = 0; i < p->count; i++) {
        const memopt_tensor *g = &p->list[i].gradient;
        TRY(memopt_copy(t->memory.device, at, g->data, g->count * memopt_dtype_size(g->dtype),
                        NULL));
        at += g->count * memopt_dtype_size(g->dtype);
    }
    return memory_sync(&t->memory);
}

static memopt_status run_steps(trainer *t, uint64_t steps, int keep, outcome *out)
{
    progress bar;
    progress_begin(&bar, t, steps);
    for (uint64_t i = 0; i < steps; i++) {
        step_result r;
        double start = seconds_now();
        TRY(trainer_gradients(t, &r));
        if (i == 0 && keep)
            TRY(keep_gradients(t, out));
        TRY(trainer_update(t, &r));
        r.seconds = seconds_now() - start;
        if (i == 0)
            out->first_loss = r.loss;
        out->last_loss = r.loss;
        if (i < BUDGET_STEPS)
            out->losses[i] = r.loss;
        if (i > 0 && (i == 1 || r.seconds < out->row.step_seconds))
            out->row.step_seconds = r.seconds;
        TRY(progress_step(&bar, t, &r));
    }
    progress_end(&bar);
    out->plan = t->model.plan;
    return memory_measure(&t->memory, &out->row.memory);
}

/* Trains one variant; keep: its gradients after the first backward are kept in the outcome. */
static memopt_status run_variant(const options *base, variant v, const corpus *text, uint64_t steps,
                                 int keep, outcome *out)
{
    trainer t;
    options o = variant_options(base, v);
    memset(out, 0, sizeof *out);
    out->row.name = variant_names[v];
    TRY(trainer_create(&t, &o, text));
    memopt_status status = run_steps(&t, steps, keep, out);
    if (status == MEMOPT_OK && steps == STEPS)
        status = trainer_evaluate(&t, HELD_OUT_BATCHES, &out->held_out);
    memopt_status ended = trainer_destroy(&t);
    return status == MEMOPT_OK ? ended : status;
}

/* --- the acts ------------------------------------------------------------------------------ */

static void title(const char *text)
{
    printf("\n%s\n", text);
    fflush(stdout);
}

/* The plain run on the small device must fail, and say what would have been needed. */
static int act_plain(const options *base, const corpus *text)
{
    outcome out;
    options o = *base;
    o.quiet = 1;
    title("1. The plain run: fp32, 32-bit AdamW, everything kept");
    memopt_status status = run_variant(&o, PLAIN, text, 1, 0, &out);
    if (status != MEMOPT_OUT_OF_DEVICE_MEMORY) {
        printf("   expected to run out of device memory, got %s: %s\n", memopt_status_name(status),
               status == MEMOPT_OK ? "it fits" : gpt_error());
        return 0;
    }
    printf("%s: %s\n", memopt_status_name(status), gpt_error());
    gpt_error_clear();
    return 1;
}

static memopt_status act_savers(const options *base, const corpus *text, outcome *out)
{
    title("2. The same model on the same device with every saver on");
    printf("   --dtype bf16 --master off --optimizer adamw8bit --checkpoint on --offload on\n"
           "   --allocator " EXPANDABLE "\n");
    return run_variant(base, ALL, text, STEPS, 0, out);
}

static memopt_status act_table(const options *base, const corpus *text, outcome *outcomes)
{
    options o = *base;
    o.quiet = 1;
    o.capacity = 0;
    title("3. Each saver by itself, on a device with all of the machine's memory");
    report_heading();
    for (int v = 0; v < VARIANTS; v++) {
        int keep = v == PLAIN || v == CHECKPOINTING || v == OFFLOADING;
        if (v != ALL)
            TRY(run_variant(&o, (variant)v, text, v == PLAIN ? STEPS : SHORT_STEPS, keep,
                            &outcomes[v]));
        report_line(&outcomes[v].row);
    }
    const report_row *plain = &outcomes[PLAIN].row, *all = &outcomes[ALL].row;
    printf(
        "\nall together take %.1f times less of the device than plain, for %.2f times the time\n",
        (double)plain->memory.reserved_peak / (double)all->memory.reserved_peak,
        all->step_seconds / plain->step_seconds);
    return MEMOPT_OK;
}

static void budget_row(const char *name, const outcome *o)
{
    char budget[32] = "none";
    if (o->plan.budget)
        snprintf(budget, sizeof budget, "%.1f", (double)o->plan.budget / (1 << 20));
    printf("%-22s %11s %11.1f %11u %14u %11.1f %8.2f\n", name, budget,
           (double)o->row.memory.exact_peak / (1 << 20), o->plan.recomputed, o->plan.sent,
           (double)o->plan.host / (1 << 20), o->row.step_seconds);
}

/* Layers recomputed and values sent away as planned: fewer bytes, and the same losses. */
static memopt_status act_budget(const options *base, uint64_t budget, const corpus *text,
                                const outcome *plain, outcome *out)
{
    options o = *base;
    o.quiet = 1;
    o.capacity = 0;
    o.budget = budget;
    TRY(run_variant(&o, PLAIN, text, BUDGET_STEPS, 0, out));
    title("4. The plain run in a budget of live bytes (for another one: ./demo --budget 300MiB)");
    printf("%-22s %11s %11s %11s %14s %11s %8s\n", "MiB", "budget", "peak", "recomputed",
           "values on host", "host", "s/step");
    budget_row("plain", plain);
    budget_row("planned", out);
    return MEMOPT_OK;
}

static int check(int holds, const char *what)
{
    printf("  %s  %s\n", holds ? "ok  " : "FAIL", what);
    return holds;
}

static int same_gradients(const outcome *a, const outcome *b)
{
    return a->gradient_bytes == b->gradient_bytes &&
           memcmp(a->gradients, b->gradients, a->gradient_bytes) == 0;
}

static int act_checks(const outcome *outcomes, const outcome *held)
{
    char line[200], reserved[SIZE_TEXT], capacity[SIZE_TEXT];
    const outcome *plain = &outcomes[PLAIN], *all = &outcomes[ALL];
    double difference = fabs(all->held_out - plain->held_out);
    int good = 1;
    title("5. What is claimed");
    snprintf(line, sizeof line,
             "gradients with checkpointing are bit-identical to plain's (%zu bytes)",
             plain->gradient_bytes);
    good &= check(same_gradients(plain, &outcomes[CHECKPOINTING]), line);
    snprintf(line, sizeof line, "gradients with offload are bit-identical to plain's (%zu bytes)",
             plain->gradient_bytes);
    good &= check(same_gradients(plain, &outcomes[OFFLOADING]), line);
    snprintf(line, sizeof line, "the loss falls: %.3f to %.3f in %d steps", all->first_loss,
             all->last_loss, STEPS);
    good &= check(all->last_loss < all->first_loss - 1, line);
    snprintf(line, sizeof line,
             "held-out loss %.3f, plain fp32 %.3f: difference %.3f, at most %.2f", all->held_out,
             plain->held_out, difference, TOLERANCE);
    good &= check(difference <= TOLERANCE, line);
    snprintf(line, sizeof line, "peak held from the device %s, capacity %s",
             size_text(reserved, all->row.memory.reserved_peak), size_text(capacity, CAPACITY));
    good &= check(all->row.memory.reserved_peak <= CAPACITY, line);
    snprintf(line, sizeof line,
             "the budget of %s is held (%llu bytes left), the losses are plain's",
             size_text(capacity, held->plan.budget),
             (unsigned long long)(held->plan.budget - held->row.memory.exact_peak));
    good &= check(held->row.memory.exact_peak <= held->plan.budget &&
                      memcmp(held->losses, plain->losses, sizeof held->losses) == 0,
                  line);
    return good;
}

static void introduce(const options *o, const corpus *text)
{
    char capacity[SIZE_TEXT];
    printf("train_gpt: a byte-level GPT of %u layers, width %u, %u heads, context %u, batch %u\n"
           "text: %.2f MB in %u files; device: cpu with a capacity of %s\n",
           o->layers, o->width, o->heads, o->context, o->batch, (double)text->length / 1e6,
           text->files, size_text(capacity, o->capacity));
}

static memopt_status try_budget(const options *base, uint64_t budget, const corpus *text)
{
    trainer t;
    options o = variant_options(base, PLAIN);
    o.capacity = 0;
    o.budget = budget;
    TRY(trainer_create(&t, &o, text));
    return trainer_destroy(&t);
}

static memopt_status run_acts(const options *base, uint64_t budget, const corpus *text,
                              outcome *outcomes, int *out_good)
{
    double start = seconds_now();
    outcome held;
    introduce(base, text);
    *out_good = act_plain(base, text);
    TRY(act_savers(base, text, &outcomes[ALL]));
    TRY(act_table(base, text, outcomes));
    TRY(act_budget(base, budget, text, &outcomes[PLAIN], &held));
    *out_good &= act_checks(outcomes, &held);
    printf("\n%s in %.0f s\n", *out_good ? "all of it holds" : "NOT all of it holds",
           seconds_now() - start);
    return MEMOPT_OK;
}

int demo_run(const options *o)
{
    outcome outcomes[VARIANTS];
    int good = 0;
    corpus text;
    options base = demo_options(o);
    memset(outcomes, 0, sizeof outcomes);
    base.capacity = CAPACITY;
    memopt_status status = text_read(&text, base.text, base.context + 1);
    if (status != MEMOPT_OK)
        return gpt_report_failure(status);
    if (o->budget) /* one that cannot be held is refused before all else */
        status = try_budget(&base, o->budget, &text);
    if (status == MEMOPT_OK)
        status = run_acts(&base, o->budget ? o->budget : BUDGET, &text, outcomes, &good);
    for (int v = 0; v < VARIANTS; v++)
        free(outcomes[v].gradients);
    text_free(&text);
    if (status != MEMOPT_OK)
        return gpt_report_failure(status);
    return good ? EXIT_CODE_OK : EXIT_CODE_FAILED;
}
