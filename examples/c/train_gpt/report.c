/*
 * The summary of a run and the table of many (report.h).
 */
#include "report.h"

#include <stdio.h>

typedef unsigned long long ull;

static void summary_json(const trainer *t, const memory_figures *f, const step_result *last,
                         double held_out)
{
    printf("{\"steps\":%llu,\"parameters\":%llu,\"loss\":%.6f,\"held_out_loss\":%.6f,"
           "\"memory\":{\"weights\":%llu,\"gradients\":%llu,\"optimizer\":%llu,"
           "\"activations\":%llu,\"workspace\":%llu,\"live_peak\":%llu,\"reserved_peak\":%llu,"
           "\"capacity\":%llu,\"host_pinned_peak\":%llu}",
           (ull)t->step, (ull)t->model.parameters.elements, last->loss, held_out, (ull)f->weights,
           (ull)f->gradients, (ull)f->optimizer, (ull)f->activations, (ull)f->workspace,
           (ull)f->live_peak, (ull)f->reserved_peak, (ull)f->capacity, (ull)f->pinned_peak);
    if (f->plan.layers)
        printf(",\"streamed_weights\":{\"layers\":%llu,\"bytes\":%llu,\"budget\":%llu,"
               "\"peak\":%llu,\"copies\":%llu,\"copied_bytes\":%llu}",
               (ull)f->plan.layers, (ull)f->plan.layer_bytes, (ull)f->plan.budget,
               (ull)f->streamed.resident_bytes_peak, (ull)last->copies, (ull)last->copied_bytes);
    if (t->model.plan.budget)
        printf(",\"budget\":{\"bytes\":%llu,\"fixed\":%llu,\"plain\":%llu,\"planned\":%llu,"
               "\"measured\":%llu,\"host\":%llu,\"recomputed_layers\":%u,\"sent_values\":%u}",
               (ull)t->model.plan.budget, (ull)t->model.plan.fixed, (ull)t->model.plan.plain,
               (ull)t->model.plan.planned, (ull)f->exact_peak, (ull)t->model.plan.host,
               t->model.plan.recomputed, t->model.plan.sent);
    printf("}\n");
}

static void budget_line(const fit_figures *plan, const memory_figures *f)
{
    char budget[SIZE_TEXT], peak[SIZE_TEXT], plain[SIZE_TEXT], host[SIZE_TEXT];
    printf("budget: %s of live bytes, at most %s used (%s if all were kept): %u layers recomputed, "
           "%u values on the host, %s of them at once\n",
           size_text(budget, plan->budget), size_text(peak, f->exact_peak),
           size_text(plain, plan->plain), plan->recomputed, plan->sent,
           size_text(host, plan->host));
}

static void streamed_line(const memory_figures *f, const step_result *last)
{
    char all[SIZE_TEXT], peak[SIZE_TEXT], copied[SIZE_TEXT];
    printf("streamed weights: %llu layers of %s together, at most %s of them on the device; in the "
           "last "
           "step %llu copies of a layer, %s\n",
           (ull)f->plan.layers, size_text(all, f->plan.layer_bytes),
           size_text(peak, f->streamed.resident_bytes_peak), (ull)last->copies,
           size_text(copied, last->copied_bytes));
}

void report_summary(const trainer *t, const memory_figures *f, const step_result *last,
                    double held_out)
{
    if (t->options.json) {
        summary_json(t, f, last, held_out);
        return;
    }
    const struct {
        const char *name;
        uint64_t bytes;
    } lines[] = {
        {"weights", f->weights},           {"gradients", f->gradients},
        {"optimizer", f->optimizer},       {"activations", f->activations},
        {"workspace", f->workspace},       {"held from device", f->reserved_peak},
        {"host (pinned)", f->pinned_peak},
    };
    printf("%llu steps, %.2f M parameters: loss %.4f, %.4f on held-out text\n", (ull)t->step,
           (double)t->model.parameters.elements / 1e6, last->loss, held_out);
    printf("peak memory:");
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        char text[SIZE_TEXT];
        printf("%s %s %s", i ? "," : "", lines[i].name, size_text(text, lines[i].bytes));
    }
    printf("\n");
    if (f->plan.layers)
        streamed_line(f, last);
    if (t->model.plan.budget)
        budget_line(&t->model.plan, f);
}

static void cell(uint64_t bytes)
{
    printf(" %11.1f", (double)bytes / (1 << 20));
}

void report_heading(void)
{
    printf("%-22s %11s %11s %11s %11s %11s %11s %8s\n", "peak MiB", "weights", "gradients",
           "optimizer", "activations", "reserved", "host pinned", "s/step");
}

void report_line(const report_row *row)
{
    const memory_figures *f = &row->memory;
    printf("%-22s", row->name);
    cell(f->weights);
    cell(f->gradients);
    cell(f->optimizer);
    cell(f->activations);
    cell(f->reserved_peak);
    cell(f->pinned_peak);
    printf(" %8.2f\n", row->step_seconds);
    fflush(stdout);
}
