/*
 * Plans: what a training step takes, before it runs.
 *
 * A Llama of 1.1 billion weights is described as text, and its step is played with sizes alone:
 * which phase is the fullest and of what, and what each saver changes. Then the planner is asked
 * what to change so that the step fits a card of 12 GiB, and which batch fits of a program whose
 * bytes were measured. No device is opened and nothing is allocated for the model.
 *
 * Build it with:  cc plan.c $(pkg-config --cflags --libs memopt-plan)
 */
#include <memopt/base.h>
#include <memopt/plan.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL                                                                                      \
    "model.family=llama; model.hidden=2048; model.layers=22; model.heads=32; model.kv_heads=4;"    \
    "model.ffn=5632; model.vocabulary=32000; run.batch=4; run.sequence=2048;"

/* Leaves the program with the library's own words when a call fails. */
static void must(memopt_status status)
{
    if (status == MEMOPT_OK)
        return;
    fprintf(stderr, "%s: %s\n", memopt_status_name(status), memopt_last_error());
    exit(1);
}

static double value(const memopt_plan *plan, const char *name)
{
    double number;
    must(memopt_plan_get_value(plan, name, &number));
    return number;
}

static double gib(double bytes)
{
    return bytes / (1 << 30);
}

static void show_phases(const memopt_plan *plan)
{
    static const char *const phases[] = {"load", "forward", "loss", "backward", "step"};
    static const char *const categories[] = {"parameters",  "gradients", "optimizer",
                                             "activations", "logits",    "total"};
    char name[64];
    printf("%.0f weights; GiB by phase:\n            weights   grads  states  activ.  logits     "
           "all\n",
           value(plan, "parameter_count"));
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++) {
        printf("  %-9s", phases[i]);
        for (size_t k = 0; k < sizeof categories / sizeof *categories; k++) {
            (void)snprintf(name, sizeof name, "phases.%s.%s", phases[i], categories[k]);
            printf(" %7.2f", gib(value(plan, name)));
        }
        printf("\n");
    }
}

/* Each saver on top of those before it; every one must save. */
static int show_savers(void)
{
    static const char *const savers[] = {"run.weight_dtype=bf16;", "run.optimizer=adamw8bit;",
                                         "run.checkpointing=full;", "run.offload=activations;"};
    char settings[512] = MODEL;
    double before = 1e18;
    printf("savers, one on top of the other:\n");
    for (size_t i = 0; i < sizeof savers / sizeof *savers; i++) {
        memopt_plan *plan = NULL;
        strcat(settings, savers[i]);
        must(memopt_plan_create(settings, NULL, NULL, &plan));
        double peak = value(plan, "peak_bytes");
        printf("  %-26s %6.2f GiB, time × %.2f, host %.2f GiB\n", savers[i], gib(peak),
               value(plan, "time_factor"), gib(value(plan, "host_bytes")));
        must(memopt_plan_destroy(plan));
        if (peak > before)
            return 0;
        before = peak;
    }
    return 1;
}

/* What the planner itself would change for a card: the JSON has the changes in words. */
static int show_solution(void)
{
    memopt_plan *plan = NULL;
    must(memopt_plan_solve(MODEL "card.capacity=12GiB; card.device=cuda", NULL, NULL, &plan));
    double limit = value(plan, "solution.limit_bytes"), peak = value(plan, "solution.peak_bytes");
    int fits = value(plan, "solution.fits_after") == 1 && peak <= limit;
    printf("on a card of 12 GiB, of which %.2f may be used: micro-batch %.0f, accumulation %.0f: "
           "%.2f GiB\n",
           gib(limit), value(plan, "solution.micro_batch"), value(plan, "solution.accumulation"),
           gib(peak));
    const char *changes = strstr(memopt_plan_get_json(plan), "\"changes\"");
    printf("  %.200s…\n", changes);
    must(memopt_plan_destroy(plan));
    return fits;
}

/* Of a program that is no such model, a function says what a run takes: so many bytes a sample. */
static memopt_status measure(void *user, const char *settings, uint64_t *out_bytes)
{
    enum { BACKWARD = 3, ACTIVATIONS = 3 };
    const uint64_t *sample = user;
    const char *batch = strstr(settings, "run.batch=");
    if (batch == NULL || strstr(settings, "run.optimizer=adamw\n") == NULL)
        return MEMOPT_UNSUPPORTED; /* so that no other optimizer is proposed */
    out_bytes[BACKWARD * MEMOPT_PLAN_CATEGORIES + ACTIVATIONS] =
        strtoull(batch + strlen("run.batch="), NULL, 10) * *sample;
    return MEMOPT_OK;
}

/* Its batch, measured at 300 MiB a sample, on 4 GiB of host memory: 13 samples in 5 micro-batches
 * come to 65, and 8 micro-batches of 8 samples to 64. */
static int show_measured(void)
{
    memopt_plan *plan = NULL;
    uint64_t sample = UINT64_C(300) << 20;
    must(memopt_plan_solve("card.capacity=4GiB; card.margin=1; card.device=cpu;"
                           "target.effective_batch=64",
                           measure, &sample, &plan));
    double most = value(plan, "solution.largest_micro_batch");
    double batch = value(plan, "solution.micro_batch");
    double steps = value(plan, "solution.accumulation");
    must(memopt_plan_destroy(plan));
    printf("measured: at most %.0f samples fit; 64 are %.0f of %.0f\n", most, steps, batch);
    return most == 13 && batch == 8 && steps == 8;
}

int main(void)
{
    memopt_plan *plan = NULL;
    must(memopt_plan_create(MODEL, NULL, NULL, &plan));
    show_phases(plan);
    must(memopt_plan_destroy(plan));
    return show_savers() && show_solution() && show_measured() ? 0 : 1;
}
