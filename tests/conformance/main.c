/*
 * conformance --device NAME [options]; --help lists them.
 *
 * Runs every case on the device, and those that compute on "cpu" too. Exits with 0 if none fails,
 * 1 if one does, 2 if the arguments are wrong, 77 if the device is not there (1 with --require).
 *
 * With --digests the device is the cpu, with each instruction set in turn that this processor has (or
 * MEMOPT_ISA alone), and what a case computes is that of the file, but for optimizers. This writes one:
 *
 *     MEMOPT_ISA=scalar conformance --digests /dev/null | sed -n 's/.* digest: //p'
 */
#include "driver.h"

#include "device/cpu/cpu.h"
#include "support/flush.h"
#include "support/sweep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- ending a case ------------------------------------------------------------------------- */

typedef struct way_back {
    jmp_buf place;
    char *message;
    uint64_t size;
} way_back;

static _Thread_local way_back *back;

_Noreturn void fail(const char *file, int line, const char *format, ...)
{
    va_list arguments;
    const char *name = strrchr(file, '/');
    snprintf(back->message, back->size, "%s:%d: ", name != NULL ? name + 1 : file, line);
    size_t used = strlen(back->message);
    va_start(arguments, format);
    vsnprintf(back->message + used, back->size - used, format, arguments);
    va_end(arguments);
    longjmp(back->place, 1 + FAILED);
}

_Noreturn void skip(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(back->message, back->size, format, arguments);
    va_end(arguments);
    longjmp(back->place, 1 + SKIPPED);
}

void end_as(case_outcome outcome, const char *message)
{
    snprintf(back->message, back->size, "%s", message);
    longjmp(back->place, 1 + (int)outcome);
}

case_outcome run_guarded(void (*function)(world *w), world *w, char *message, uint64_t size)
{
    way_back here, *outer = back;
    here.message = message;
    here.size = size;
    message[0] = '\0';
    back = &here;
    int jumped = setjmp(here.place);
    if (jumped == 0)
        function(w);
    back = outer;
    return jumped == 0 ? PASSED : (case_outcome)(jumped - 1);
}

/* --- running ------------------------------------------------------------------------------- */

typedef struct suite {
    suite_options options;
    memopt_device *device, *cpu;
    memopt_device_properties properties;
} suite;

static void (*case_function)(world *w);

/* A case that skips has left nothing behind; after a failure the world stays as it is. */
static void run_in_world(world *w)
{
    static char why[512];
    memopt_device *device = w->device;
    open_world(w, device, w->options);
    case_outcome outcome = run_guarded(case_function, w, why, sizeof why);
    if (outcome != FAILED)
        close_world(w);
    if (outcome != PASSED)
        end_as(outcome, why);
}

static case_outcome run_on(const suite *s, const conformance_case *c, memopt_device *device,
                           world *w, char *message, uint64_t size)
{
    memset(w, 0, sizeof *w);
    w->device = device;
    w->options = &s->options;
    w->kind = c->kind;
    w->format = c->format;
    case_function = c->run;
    case_outcome outcome = run_guarded(run_in_world, w, message, size);
    if (outcome == FAILED)
        abandon_capture(); /* or it would spoil every later case */
    return outcome;
}

/* 1 where the file has the line. */
static int is_known(const char *digests, const char *name, uint64_t digest, char *message,
                    uint64_t size)
{
    char line[160], wanted[100];
    int known = 0;
    FILE *file = fopen(digests, "r");
    snprintf(wanted, sizeof wanted, "%s %016llx", name, (unsigned long long)digest);
    while (!known && file != NULL && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        known = strcmp(line, wanted) == 0;
    }
    if (file != NULL)
        fclose(file);
    if (!known)
        snprintf(message, size, "not in %s; digest: %s", digests, wanted);
    return known;
}

static void run_case(const suite *s, const conformance_case *c)
{
    static world mine, reference;
    char message[1024];
    double start = seconds_now();
    case_outcome outcome = run_on(s, c, s->device, &mine, message, sizeof message);
    if (outcome == PASSED && c->compared) {
        if (mine.segment_count == 0) {
            outcome = FAILED;
            snprintf(message, sizeof message, "the case has no results to compare");
        } else if (s->cpu != s->device)
            outcome = run_on(s, c, s->cpu, &reference, message, sizeof message);
        if (outcome == PASSED && s->cpu != s->device &&
            !same_results(&mine, &reference, message, sizeof message))
            outcome = FAILED;
    }
    if (outcome == PASSED && c->compared && s->options.digests != NULL &&
        !is_known(s->options.digests, c->name, digest_of(&mine), message, sizeof message))
        outcome = FAILED;
    report_case(c->name, outcome, seconds_now() - start, message);
    free_results(&mine);
    free_results(&reference);
}

/* --- all cases ----------------------------------------------------------------------------- */

enum { MOST_OPTIMIZERS = 64 };

static conformance_case optimizers[MOST_OPTIMIZERS + 1];

static void find_optimizers(world *w)
{
    memopt_device *device = w->device;
    open_world(w, device, w->options);
    optimizers[optimizer_cases(w, optimizers, MOST_OPTIMIZERS)].name = NULL;
    close_world(w);
}

/* Those that take all memory come last, so that a failure there leaves it to the others. */
static const conformance_case *const tables[] = {
    device_cases,  primitive_cases,  cast_cases,   block_cases, scaler_cases,
    code_cases,    adafactor_cases,  trust_cases,  optimizers,  graph_cases,
    foreign_cases, two_device_cases, stress_cases, share_cases, memory_cases};

/* A name, or the beginning of one that ends with '*'. */
/* `only` is a list of names with commas between; a '*' at a name's end stands for any rest. */
static int is_wanted(const char *only, const char *name)
{
    while (only != NULL) {
        size_t length = strcspn(only, ",");
        if (length > 0 && only[length - 1] == '*' && strncmp(only, name, length - 1) == 0)
            return 1;
        if (strlen(name) == length && strncmp(only, name, length) == 0)
            return 1;
        if (only[length] == '\0')
            return 0;
        only += length + 1;
    }
    return 1;
}

/* Of the sampled cases a quarter runs, which the seed chooses. */
static int is_sampled_out(const suite_options *o, const char *name, uint64_t *count)
{
    return o->sampled != NULL && !is_long() && is_wanted(o->sampled, name) && (*count)++ % 4 != 0;
}

static void run_all(const suite *s)
{
    uint64_t sampled = is_long() ? 0 : first_seed();
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++)
        for (const conformance_case *c = tables[t]; c->name != NULL; c++) {
            if (!is_wanted(s->options.only, c->name) ||
                is_sampled_out(&s->options, c->name, &sampled) ||
                (s->options.digests != NULL && (!c->compared || c->kind != 0)))
                continue;
            if (s->options.list)
                puts(c->name);
            else
                run_case(s, c);
        }
}

/* --- arguments ----------------------------------------------------------------------------- */

static const char *const usage =
    "conformance [--device NAME]    cpu, cuda:N or hip:N; default: cpu\n"
    "            [--only CASES]     a list with commas; 'cast_*' is all that begin with cast_\n"
    "            [--sampled CASES]  of these a quarter, or all with MEMOPT_TEST_LONG\n"
    "            [--list]           print the cases and end\n"
    "            [--small|--large]  sizes of tensors; --large is for real devices\n"
    "            [--seed N] [--rounds N] [--seconds S]  of the stress cases\n"
    "            [--json FILE]      one entry for each case\n"
    "            [--digests FILE]   what the cpu computes is that of the file\n"
    "            [--capacity BYTES] memory of the cpu device\n"
    "            [--require]        a device that is not there is a failure\n";

static int read_value(suite_options *o, const char *name, const char *value)
{
    if (value == NULL)
        return 0;
    if (strcmp(name, "--device") == 0)
        o->device = value;
    else if (strcmp(name, "--only") == 0)
        o->only = value;
    else if (strcmp(name, "--sampled") == 0)
        o->sampled = value;
    else if (strcmp(name, "--json") == 0)
        o->json = value;
    else if (strcmp(name, "--digests") == 0)
        o->digests = value, o->scale = SCALE_SMALL;
    else if (strcmp(name, "--capacity") == 0)
        o->capacity = strtoull(value, NULL, 0);
    else if (strcmp(name, "--seed") == 0)
        o->seed = strtoull(value, NULL, 0);
    else if (strcmp(name, "--rounds") == 0)
        o->rounds = strtoull(value, NULL, 0);
    else if (strcmp(name, "--peer") == 0)
        o->peer = atoi(value);
    else if (strcmp(name, "--seconds") == 0)
        o->seconds = strtod(value, NULL);
    else
        return 0;
    return 1;
}

static int read_arguments(int count, char **words, suite_options *o)
{
    *o = (suite_options){.device = "cpu", .seed = 1, .rounds = 400, .scale = SCALE_NORMAL};
    for (int i = 1; i < count; i++) {
        if (strcmp(words[i], "--require") == 0)
            o->require = 1;
        else if (strcmp(words[i], "--list") == 0)
            o->list = 1;
        else if (strcmp(words[i], "--small") == 0)
            o->scale = SCALE_SMALL;
        else if (strcmp(words[i], "--large") == 0)
            o->scale = SCALE_LARGE;
        else if (read_value(o, words[i], i + 1 < count ? words[i + 1] : NULL))
            i++;
        else
            return 0;
    }
    if (o->capacity == 0)
        o->capacity = o->scale == SCALE_LARGE ? 4096 * MIB : 256 * MIB;
    return 1;
}

static int cannot_open(const suite *s, memopt_status status)
{
    fprintf(stderr, "%s: %s: %s\n", s->options.device, memopt_status_name(status),
            memopt_last_error());
    int absent = status == MEMOPT_DRIVER_MISSING || status == MEMOPT_NOT_FOUND ||
                 status == MEMOPT_UNSUPPORTED;
    return absent && !s->options.require ? 77 : 1;
}

static int run(suite *s)
{
    static world w;
    char message[512];
    memopt_status status = open_device(&s->options, "cpu", &s->cpu);
    if (status == MEMOPT_OK && !s->options.list)
        status = open_device(&s->options, s->options.device, &s->device);
    if (status != MEMOPT_OK)
        return cannot_open(s, status);
    if (s->options.peer != 0)
        return share_peer(s->device, s->options.peer);
    w.device = s->cpu;
    w.options = &s->options;
    if (run_guarded(find_optimizers, &w, message, sizeof message) != PASSED) {
        fprintf(stderr, "%s\n", message);
        return 1;
    }
    run_all(s);
    if (s->options.list)
        return 0;
    s->properties.struct_size = sizeof s->properties;
    (void)memopt_device_get_properties(s->device, &s->properties);
    double start = seconds_now();
    status = memopt_device_close(s->device);
    report_case("close", status == MEMOPT_OK ? PASSED : FAILED, seconds_now() - start,
                status == MEMOPT_OK ? "" : memopt_last_error());
    (void)memopt_device_close(s->cpu);
    return report_end(&s->options, &s->properties);
}

int main(int count, char **words)
{
    static suite s;
    int failed = 0;
    if (!read_arguments(count, words, &s.options)) {
        fputs(usage, stderr);
        return 2;
    }
    if (s.options.digests == NULL)
        return run(&s);
    flush_subnormals();
    const int best = (int)mo_cpu_best_isa();
    for (int isa = getenv("MEMOPT_ISA") != NULL ? best : MO_ISA_SCALAR; isa <= best; isa++) {
        setenv("MEMOPT_ISA", mo_isa_name((mo_isa)isa), 1);
        printf("%s:\n", mo_isa_name((mo_isa)isa));
        failed |= run(&s);
    }
    return failed;
}
