/*
 * The command line: one table that parsing, checking and --help are made of.
 */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind {
    SECTION, /* a heading of --help */
    COUNT32, /* a whole number, uint32_t */
    COUNT64, /* a whole number, uint64_t */
    REAL,    /* a number, double */
    SIZE,    /* "512MiB", uint64_t */
    TEXT,    /* const char * */
    CHOICE,  /* one of `values`, by its position in `codes`; uint32_t */
    FLAG,    /* no argument; sets a uint32_t to 1 */
} kind;

typedef struct choice {
    const char *name;
    uint32_t code;
} choice;

static const choice on_off[] = {{"on", 1}, {"off", 0}, {NULL, 0}};
static const choice dtypes[] = {
    {"fp32", MEMOPT_DTYPE_F32}, {"bf16", MEMOPT_DTYPE_BF16}, {"fp16", MEMOPT_DTYPE_F16}, {NULL, 0}};
static const choice optimizers[] = {{"adamw", 0}, {"adamw8bit", 1}, {NULL, 0}};
static const choice orders[] = {{"eager", 0}, {"adversarial", 1}, {NULL, 0}};
static const choice checks[] = {{"none", MEMOPT_CHECK_NONE},
                                {"hash", MEMOPT_CHECK_HASH},
                                {"exact", MEMOPT_CHECK_EXACT},
                                {NULL, 0}};

typedef struct option {
    const char *name;
    kind kind;
    size_t offset;
    double least, most; /* of a number */
    const choice *choices;
    const char *argument;
    const char *help;
} option;

#define AT(field) offsetof(options, field)
#define MANY 4294967295.0
#define RANKS_MOST 256

static const option table[] = {
    {"Model", SECTION, 0, 0, 0, NULL, NULL, NULL},
    {"layers", COUNT32, AT(layers), 1, 1024, NULL, "N", "transformer layers (6)"},
    {"width", COUNT32, AT(width), 2, 65536, NULL, "N", "width of the residual stream (192)"},
    {"heads", COUNT32, AT(heads), 1, 1024, NULL, "N", "attention heads; they divide width (6)"},
    {"context", COUNT32, AT(context), 2, 65536, NULL, "N", "bytes of text seen at once (256)"},
    {"tied", CHOICE, AT(tied), 0, 0, on_off, "on|off", "head shares the token embedding (on)"},
    {"dropout", REAL, AT(dropout), 0, 0.95, NULL, "P", "probability of dropping a value (0)"},

    {"Training", SECTION, 0, 0, 0, NULL, NULL, NULL},
    {"text", TEXT, AT(text), 0, 0, NULL, "DIR|FILE",
     "text to learn (the guide of the repository the current folder\n"
     "lies in, else all text in the current folder)"},
    {"batch", COUNT32, AT(batch), 1, 65536, NULL, "N", "sequences per micro-batch (4)"},
    {"accumulation", COUNT32, AT(accumulation), 1, 65536, NULL, "N", "micro-batches per step (1)"},
    {"steps", COUNT64, AT(steps), 0, 1e15, NULL, "N", "optimizer steps in all (100)"},
    {"lr", REAL, AT(lr), 0, 1e3, NULL, "X", "learning rate after warm-up (1e-3)"},
    {"warmup", COUNT64, AT(warmup), 0, 1e15, NULL, "N", "steps of linear warm-up (10)"},
    {"weight-decay", REAL, AT(weight_decay), 0, 1e3, NULL, "X", "decay of the matrices (0.01)"},
    {"clip", REAL, AT(clip), 0, 1e30, NULL, "X", "bound on the gradients' norm; 0: none (1)"},
    {"seed", COUNT64, AT(seed), 0, 1.8e19, NULL, "N", "of weights, batches and dropout (1)"},

    {"Memory", SECTION, 0, 0, 0, NULL, NULL, NULL},
    {"capacity", SIZE, AT(capacity), 0, 0, NULL, "SIZE",
     "memory of the device, such as 256MiB (the machine's)"},
    {"unified", CHOICE, AT(unified), 0, 0, on_off, "on|off",
     "the device's memory is the host's own (off): what goes to the\n"
     "host would free nothing, and stays"},
    {"dtype", CHOICE, AT(dtype), 0, 0, dtypes, "fp32|bf16|fp16",
     "type of weights, gradients and activations (fp32)"},
    {"master", CHOICE, AT(master), 0, 0, on_off, "on|off",
     "keep fp32 weights beside bf16 or fp16 ones (on); off rounds\n"
     "updates stochastically into the only copy"},
    {"optimizer", CHOICE, AT(adamw8bit), 0, 0, optimizers, "adamw|adamw8bit",
     "32-bit or block-wise 8-bit states (adamw)"},
    {"checkpoint", CHOICE, AT(checkpoint), 0, 0, on_off, "on|off",
     "recompute layers in backward (off)"},
    {"check", CHOICE, AT(check), 0, 0, checks, "none|hash|exact",
     "compare recomputed values with the first run's (none)"},
    {"offload", CHOICE, AT(offload), 0, 0, on_off, "on|off",
     "park what backward needs in host memory (off): the layers'\n"
     "inputs with --checkpoint on, else all of it"},
    {"budget", SIZE, AT(budget), 0, 0, NULL, "SIZE",
     "most live bytes of the device: what is recomputed and what\n"
     "goes to the host is planned, with the same results"},
    {"stream-weights", CHOICE, AT(stream), 0, 0, on_off, "on|off",
     "keep the layers' weights on the host (off); the device holds\n"
     "a third of them at a time, or one layer"},
    {"host-limit", SIZE, AT(host_limit), 0, 0, NULL, "SIZE",
     "most page-locked host memory; the rest stays on the device\n"
     "(no limit)"},
    {"allocator", TEXT, AT(allocator), 0, 0, NULL, "CONFIG",
     "such as expandable_segments:True,max_split_size_mb:64"},
    {"init-scale", REAL, AT(init_scale), 0, 1e38, NULL, "X", "first loss scale of fp16 (65536)"},
    {"scale-growth", COUNT32, AT(scale_growth), 0, MANY, NULL, "N",
     "clean steps before the loss scale grows (2000)"},

    {"Run", SECTION, 0, 0, 0, NULL, NULL, NULL},
    {"save", TEXT, AT(save), 0, 0, NULL, "FILE", "write a resume file, atomically"},
    {"save-every", COUNT64, AT(save_every), 0, 1e15, NULL, "N",
     "every N steps and at the end (0: end)"},
    {"resume", TEXT, AT(resume), 0, 0, NULL, "FILE", "go on from a resume file"},
    {"threads", COUNT32, AT(threads), 0, 4096, NULL, "N",
     "kernel and BLAS threads (0: all that the process may use)"},
    {"ranks", COUNT32, AT(ranks), 1, RANKS_MOST, NULL, "N",
     "processes that MPI started (mpirun -n N train_gpt --ranks N):\n"
     "each takes its share of the micro-batches and of the states"},
    {"stream-order", CHOICE, AT(adversarial), 0, 0, orders, "eager|adversarial",
     "adversarial runs copies as late as they legally may (eager)"},
    {"json", FLAG, AT(json), 0, 0, NULL, NULL, "one JSON object per step and one at the end"},
    {"quiet", FLAG, AT(quiet), 0, 0, NULL, NULL, "only the end's summary"},
    {"demo", FLAG, AT(demo), 0, 0, NULL, NULL,
     "train a model that does not fit its device, and measure why it\n"
     "then does (about five minutes; --text, --threads and\n"
     "--budget apply)"},
};
#define OPTIONS (sizeof table / sizeof table[0])

options options_default(void)
{
    options o;
    memset(&o, 0, sizeof o);
    o.layers = 6;
    o.width = 192;
    o.heads = 6;
    o.context = 256;
    o.tied = 1;
    o.batch = 4;
    o.accumulation = 1;
    o.steps = 100;
    o.warmup = 10;
    o.lr = 1e-3;
    o.weight_decay = 0.01;
    o.clip = 1;
    o.seed = 1;
    o.dtype = MEMOPT_DTYPE_F32;
    o.master = 1;
    return o;
}

static void print_help(void)
{
    printf(
        "train_gpt: trains a byte-level GPT with libmemopt's memory savers\n\n"
        "Usage: train_gpt [options]\n       train_gpt --demo [--text DIR|FILE] [--budget SIZE]\n");
    for (size_t i = 0; i < OPTIONS; i++) {
        const option *entry = &table[i];
        if (entry->kind == SECTION) {
            printf("\n%s\n", entry->name);
            continue;
        }
        char left[64];
        snprintf(left, sizeof left, "--%s %s", entry->name, entry->argument ? entry->argument : "");
        printf("  %-27s%s", left, strlen(left) > 27 ? "\n" : " ");
        if (strlen(left) > 27)
            printf("%30s", "");
        for (const char *c = entry->help; *c; c++) {
            putchar(*c);
            if (*c == '\n')
                printf("%30s", "");
        }
        printf("\n");
    }
    printf("\n  --help, --version\n\n"
           "Exit codes: 0 done, 1 failed, 2 usage error, 3 out of device memory.\n");
}

static options_result wrong(const char *format, const char *name, const char *value)
{
    fputs("train_gpt: ", stderr);
    fprintf(stderr, format, name, value);
    fputs("; see --help\n", stderr);
    return OPTIONS_WRONG;
}

static const option *find(const char *name)
{
    for (size_t i = 0; i < OPTIONS; i++)
        if (table[i].kind != SECTION && strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

static options_result set_number(const option *entry, char *target, const char *value)
{
    char *end = NULL;
    errno = 0;
    int whole = entry->kind != REAL;
    uint64_t count = whole && value[0] >= '0' && value[0] <= '9' ? strtoull(value, &end, 10) : 0;
    double real = whole ? (double)count : strtod(value, &end);
    if (!end || end == value || *end || errno || !isfinite(real) || real < entry->least ||
        real > entry->most) {
        char range[96];
        snprintf(range, sizeof range, "a %snumber from %g to %g", whole ? "whole " : "",
                 entry->least, entry->most);
        fprintf(stderr, "train_gpt: --%s needs %s, not '%s'; see --help\n", entry->name, range,
                value);
        return OPTIONS_WRONG;
    }
    uint32_t small = (uint32_t)count;
    if (entry->kind == COUNT32)
        memcpy(target, &small, sizeof small);
    else if (entry->kind == COUNT64)
        memcpy(target, &count, sizeof count);
    else
        memcpy(target, &real, sizeof real);
    return OPTIONS_RUN;
}

static options_result set_choice(const option *entry, char *target, const char *value)
{
    for (const choice *c = entry->choices; c->name; c++)
        if (strcmp(c->name, value) == 0) {
            memcpy(target, &c->code, sizeof c->code);
            return OPTIONS_RUN;
        }
    fprintf(stderr, "train_gpt: --%s is %s, not '%s'; see --help\n", entry->name, entry->argument,
            value);
    return OPTIONS_WRONG;
}

static options_result set_value(const option *entry, options *o, const char *value)
{
    char *target = (char *)o + entry->offset;
    uint64_t bytes;
    switch (entry->kind) {
    case TEXT:
        memcpy(target, &value, sizeof value);
        return OPTIONS_RUN;
    case SIZE:
        if (memopt_parse_size(value, &bytes) != MEMOPT_OK)
            return wrong("--%s: %s", entry->name, memopt_last_error());
        memcpy(target, &bytes, sizeof bytes);
        return OPTIONS_RUN;
    case CHOICE:
        return set_choice(entry, target, value);
    default:
        return set_number(entry, target, value);
    }
}

/* What no single option can tell. */
static options_result check_together(const options *o)
{
    if (o->width % o->heads) {
        fprintf(stderr, "train_gpt: --width %u is not a multiple of --heads %u; see --help\n",
                o->width, o->heads);
        return OPTIONS_WRONG;
    }
    if (o->ranks && o->accumulation % o->ranks) {
        fprintf(stderr,
                "train_gpt: --accumulation %u is not a multiple of --ranks %u; see --help\n",
                o->accumulation, o->ranks);
        return OPTIONS_WRONG;
    }
    if (o->ranks && o->demo)
        return wrong("%s does not go with %s", "--ranks", "--demo");
    if (o->save_every && !o->save)
        return wrong("%s needs %s", "--save-every", "--save FILE");
    if (o->unified && o->stream)
        return wrong("%s would free nothing with %s", "--stream-weights", "--unified on");
    if (o->budget && (o->checkpoint || o->offload || o->check != MEMOPT_CHECK_NONE))
        return wrong("%s plans what to recompute and to offload: leave out %s", "--budget",
                     "--checkpoint, --offload and --check");
    return OPTIONS_RUN;
}

options_result options_parse(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help();
            return OPTIONS_HELP;
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("train_gpt with libmemopt %s\n", memopt_version_string());
            return OPTIONS_HELP;
        }
        if (strncmp(argv[i], "--", 2) != 0)
            return wrong("'%s' is not an option%s", argv[i], "");
        char name[32];
        const char *equals = strchr(argv[i], '=');
        size_t length = equals ? (size_t)(equals - argv[i] - 2) : strlen(argv[i] + 2);
        snprintf(name, sizeof name, "%.*s", (int)(length < 31 ? length : 31), argv[i] + 2);
        const option *entry = find(name);
        if (!entry)
            return wrong("unknown option --%s%s", name, "");
        if (entry->kind == FLAG) {
            if (equals)
                return wrong("--%s takes no value%s", name, "");
            memcpy((char *)o + entry->offset, &(uint32_t){1}, sizeof(uint32_t));
            continue;
        }
        const char *value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!value)
            return wrong("--%s needs %s", name, entry->argument);
        options_result result = set_value(entry, o, value);
        if (result != OPTIONS_RUN)
            return result;
    }
    return check_together(o);
}
