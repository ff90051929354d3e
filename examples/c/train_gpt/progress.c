/*
 * Showing a run while it goes on (progress.h).
 */
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define BAR_CELLS 24
#define LINE_SECONDS 4.0 /* between two plain lines */

void progress_begin(progress *p, const trainer *t, uint64_t steps)
{
    const options *o = &t->options;
    const char *plain = getenv("NO_COLOR"), *terminal = getenv("TERM");
    int screen = isatty(STDOUT_FILENO) && terminal && strcmp(terminal, "dumb") != 0;
    memset(p, 0, sizeof *p);
    p->style = o->quiet  ? PROGRESS_NONE
               : o->json ? PROGRESS_JSON
               : screen  ? PROGRESS_BAR
                         : PROGRESS_LINES;
    p->colour = screen && !(plain && plain[0]);
    p->first = t->step;
    p->steps = steps;
    p->started = seconds_now();
}

static uint64_t tokens_of_step(const trainer *t)
{
    const options *o = &t->options;
    return (uint64_t)o->batch * o->context * o->accumulation;
}

static void show_json(const progress *p, const trainer *t, const step_result *r,
                      const memory_figures *f)
{
    printf("{\"step\":%llu,\"loss\":%.6f,\"loss_hex\":\"%a\",\"norm\":\"%a\",\"lr\":%.9g,"
           "\"scale\":%.9g,\"skipped\":%s,\"seconds\":%.4f,\"tokens_per_second\":%.1f,"
           "\"live_bytes\":%llu,\"reserved_peak_bytes\":%llu}\n",
           (unsigned long long)t->step, r->loss, r->loss, r->norm, r->lr, r->scale,
           r->skipped ? "true" : "false", r->seconds, p->tokens_per_second,
           (unsigned long long)f->live, (unsigned long long)f->reserved_peak);
    fflush(stdout);
}

/* "step 12/40  loss 3.2101  1240 tok/s  live 80.1 MiB  peak 121 MiB of 256 MiB" */
static int format_figures(char *line, size_t room, const progress *p, const trainer *t,
                          const step_result *r, const memory_figures *f)
{
    char live[SIZE_TEXT], peak[SIZE_TEXT], capacity[SIZE_TEXT];
    return snprintf(line, room, "step %llu/%llu  loss %.4f%s  %.0f tok/s  live %s  peak %s of %s",
                    (unsigned long long)t->step, (unsigned long long)p->steps, r->loss,
                    r->skipped ? " (overflow, step skipped)" : "", p->tokens_per_second,
                    size_text(live, f->live), size_text(peak, f->reserved_peak),
                    size_text(capacity, f->capacity));
}

static size_t screen_columns(void)
{
    struct winsize window;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0)
        return window.ws_col;
    return 80;
}

static void show_bar(const progress *p, const trainer *t, const char *figures)
{
    uint64_t total = p->steps > p->first ? p->steps - p->first : 1;
    uint64_t done = (t->step - p->first) * BAR_CELLS / total;
    char bar[BAR_CELLS + 1];
    for (uint64_t i = 0; i < BAR_CELLS; i++)
        bar[i] = i < done ? '=' : i == done ? '>' : ' ';
    bar[BAR_CELLS] = 0;
    size_t columns = screen_columns();
    if (columns < BAR_CELLS + 20)
        printf("\r\x1b[K%.*s", (int)columns - 1, figures);
    else
        printf("\r\x1b[K%s[%s]%s %.*s", p->colour ? "\x1b[36m" : "", bar,
               p->colour ? "\x1b[0m" : "", (int)(columns - BAR_CELLS - 4), figures);
    fflush(stdout);
}

memopt_status progress_step(progress *p, trainer *t, const step_result *r)
{
    double now = seconds_now();
    double speed = (double)tokens_of_step(t) / (r->seconds > 0 ? r->seconds : 1e-9);
    p->tokens_per_second =
        p->tokens_per_second > 0 ? 0.8 * p->tokens_per_second + 0.2 * speed : speed;
    int due = now - p->shown >= LINE_SECONDS || t->step == p->steps;
    if (p->style == PROGRESS_NONE || (p->style == PROGRESS_LINES && !due))
        return MEMOPT_OK;
    p->shown = now;

    char figures[256];
    memory_figures f;
    TRY(memory_measure(&t->memory, &f));
    format_figures(figures, sizeof figures, p, t, r, &f);
    if (p->style == PROGRESS_JSON)
        show_json(p, t, r, &f);
    else if (p->style == PROGRESS_BAR)
        show_bar(p, t, figures);
    else {
        printf("%s\n", figures);
        fflush(stdout);
    }
    return MEMOPT_OK;
}

void progress_end(progress *p)
{
    if (p->style == PROGRESS_BAR) {
        printf("\n");
        fflush(stdout);
    }
}
