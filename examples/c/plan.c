/*
 * Plans: what a training step takes, before it runs.
 *
 * A Llama of 1.1 billion weights is described, and its step is played with sizes alone: which phase
 * is the fullest and of what, what the layers keep, and what each saver would change. Then the
 * planner is asked what to change so that it fits a card of 12 GiB, and which batch of a program
 * whose bytes were measured fits. No device is opened and nothing is allocated for the model.
 *
 * Build it with:  cc plan.c $(pkg-config --cflags --libs memopt)
 */
#include <memopt/memopt.h>
#include <memopt/plan.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Leaves the program with the library's own words when a call fails. */
static void must(memopt_status status)
{
    if (status == MEMOPT_OK)
        return;
    fprintf(stderr, "%s: %s\n", memopt_status_name(status), memopt_last_error());
    exit(1);
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (1u << 30);
}

static memopt_plan_report ask(const memopt_plan_model *model, const memopt_plan_run *run)
{
    memopt_plan_report report = {.struct_size = sizeof report};
    memopt_plan *plan = NULL;
    must(memopt_plan_create(model, run, NULL, &plan));
    must(memopt_plan_get_report(plan, &report));
    must(memopt_plan_destroy(plan));
    return report;
}

static void show_phases(const memopt_plan_report *report)
{
    printf("%" PRIu64 " weights; GiB by phase:\n", report->parameter_count);
    printf("  %-9s %7s %7s %7s %7s %7s %7s\n", "", "weights", "grads", "states", "activ.", "logits",
           "all");
    for (uint32_t i = 0; i < MEMOPT_PLAN_PHASES; i++) {
        const memopt_plan_bytes *b = &report->phases[i];
        printf("  %-9s %7.2f %7.2f %7.2f %7.2f %7.2f %7.2f%s\n", memopt_plan_phase_name(i),
               gib(b->parameters), gib(b->gradients), gib(b->optimizer), gib(b->activations),
               gib(b->logits), gib(b->total), i == report->peak_phase ? "  <- peak" : "");
    }
    printf("  %s\n", report->peak_reason);
}

/* Each saver on top of those before it; every one must save. */
static int show_savers(const memopt_plan_model *model, memopt_plan_run run)
{
    uint64_t before = ask(model, &run).peak.total;
    int all_save = 1;
    printf("savers, one on top of the other:\n");
    for (int i = 0; i < 4; i++) {
        static const char *const names[] = {"bf16 weights", "8-bit states", "checkpointing",
                                            "activations on the host"};
        if (i == 0)
            run.weight_dtype = MEMOPT_DTYPE_BF16;
        if (i == 1)
            run.optimizer = MEMOPT_PLAN_ADAMW_8BIT;
        if (i == 2)
            run.checkpointing = MEMOPT_PLAN_CHECKPOINT_FULL;
        if (i == 3)
            run.offload = MEMOPT_PLAN_OFFLOAD_ACTIVATIONS;
        memopt_plan_report report = ask(model, &run);
        printf("  %-24s %7.2f GiB, time × %.2f, host %.2f GiB\n", names[i], gib(report.peak.total),
               report.time_factor, gib(report.host_bytes));
        all_save &= report.peak.total <= before;
        before = report.peak.total;
    }
    return all_save;
}

/* What the planner itself would change for a card. */
static int show_solution(const memopt_plan_model *model, const memopt_plan_run *run)
{
    memopt_plan_card card = MEMOPT_PLAN_CARD_INIT;
    memopt_plan_fit fit = {.struct_size = sizeof fit};
    memopt_plan_solution *solution = NULL;
    card.capacity = UINT64_C(12) << 30;
    card.device = MEMOPT_PLAN_DEVICE_CUDA;
    must(memopt_plan_solve(model, run, &card, NULL, &solution));
    must(memopt_plan_solution_get_fit(solution, &fit));
    printf("on a card of 12 GiB, of which %.2f may be used:\n", gib(fit.limit_bytes));
    for (uint64_t i = 0; i < fit.change_count; i++) {
        memopt_plan_change change = {.struct_size = sizeof change};
        must(memopt_plan_solution_get_change(solution, i, &change));
        if (change.applied)
            printf("  %-44s saves %5.2f GiB, time × %.2f\n", change.change, gib(change.saves_bytes),
                   change.time_factor);
    }
    printf("  micro-batch %" PRIu64 ", accumulation %" PRIu64 ": %.2f GiB\n", fit.micro_batch,
           fit.accumulation, gib(fit.peak_bytes));
    must(memopt_plan_solution_destroy(solution));
    return fit.fits_after && fit.peak_bytes <= fit.limit_bytes;
}

/* Of a program that is no such model, a function says what a run takes: so many bytes a sample. */
static memopt_status measure(void *user, const memopt_plan_run *asked, memopt_plan_bytes *phases)
{
    const uint64_t *sample = user;
    if (asked->optimizer != MEMOPT_PLAN_ADAMW)
        return MEMOPT_UNSUPPORTED; /* so that no other is proposed */
    phases[MEMOPT_PLAN_PHASE_BACKWARD].activations = asked->batch * *sample;
    return MEMOPT_OK;
}

/* Its batch, measured at 300 MiB a sample, on 4 GiB of host memory: 13 samples in 5 micro-batches
 * come to 65, of which 64 are met with 8 of 8. */
static int show_measured(void)
{
    memopt_plan_card card = MEMOPT_PLAN_CARD_INIT;
    memopt_plan_target_options target = MEMOPT_PLAN_TARGET_OPTIONS_INIT;
    memopt_plan_fit fit = {.struct_size = sizeof fit};
    memopt_plan_solution *solution = NULL;
    uint64_t sample = UINT64_C(300) << 20;
    card.capacity = UINT64_C(4) << 30;
    card.margin = 1;
    card.device = MEMOPT_PLAN_DEVICE_CPU;
    target.effective_batch = 64;
    must(memopt_plan_solve_measured(measure, &sample, NULL, &card, &target, &solution));
    must(memopt_plan_solution_get_fit(solution, &fit));
    must(memopt_plan_solution_destroy(solution));
    printf("measured: at most %" PRIu64 " samples fit; 64 are %" PRIu64 " of %" PRIu64 "\n",
           fit.largest_micro_batch, fit.accumulation, fit.micro_batch);
    return fit.largest_micro_batch == 13 && fit.micro_batch == 8 && fit.accumulation == 8;
}

int main(void)
{
    memopt_plan_model model = MEMOPT_PLAN_MODEL_INIT;
    memopt_plan_run run = MEMOPT_PLAN_RUN_INIT;
    model.hidden = 2048;
    model.layers = 22;
    model.heads = 32;
    model.kv_heads = 4;
    model.ffn = 5632;
    model.vocabulary = 32000;
    run.batch = 4;
    run.sequence = 2048;

    memopt_plan_report report = ask(&model, &run);
    show_phases(&report);
    if (report.peak.total != report.phases[report.peak_phase].total)
        return 1;
    if (!show_savers(&model, run))
        return 1;
    return show_solution(&model, &run) && show_measured() ? 0 : 1;
}
