/*
 * Files of optimizer states: for every kind and format a few steps, an export, an import into a new
 * optimizer and a further step. The bytes of the export are digested as they are: they must be the
 * same on every processor.
 *
 * The file has the exports one behind the other; each tells its own length (lib/optim/layout.h).
 */
#include "machines/digest.h"

#include "optim/layout.h"

enum { PARAMETERS = 4, LARGEST = 900, MOST = 16 };

static const uint64_t counts[PARAMETERS] = {LARGEST, 1, 257, 600};

/* An optimizer with two groups and four parameters. */
typedef struct run {
    memopt_allocator *allocator;
    memopt_optimizer *optimizer;
    memopt_tensor parameters[PARAMETERS], gradients[PARAMETERS];
    void *blocks[2 * PARAMETERS];
} run;

static memopt_tensor new_tensor(run *r, int block, uint64_t count, memopt_dtype dtype)
{
    memopt_tensor t = {NULL, count, dtype};
    MUST(memopt_allocator_alloc(r->allocator, count * memopt_dtype_size(dtype), MEMOPT_TAG_OTHER,
                                NULL, &t.data));
    r->blocks[block] = t.data;
    return t;
}

static void begin(run *r, uint32_t kind, uint32_t format)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    uint32_t number;
    uint64_t index;
    options.kind = kind;
    options.state_format = format;
    options.min_8bit_size = 2;
    options.stochastic_rounding = kind != MEMOPT_OPTIMIZER_ADAFACTOR;
    group.momentum = 0.9;
    group.beta3 = 0.999;
    group.alpha = 5.0;
    MUST(memopt_allocator_create(digest_device(), NULL, NULL, &r->allocator));
    MUST(memopt_optimizer_create(r->allocator, &options, &r->optimizer));
    MUST(memopt_optimizer_add_group(r->optimizer, &group, &number));
    group.lr = 0.1;
    group.dampening = 0.25;
    MUST(memopt_optimizer_add_group(r->optimizer, &group, &number));
    for (int i = 0; i < PARAMETERS; i++) {
        memopt_dtype dtype = (memopt_dtype)(MEMOPT_DTYPE_F32 + i % 3);
        r->parameters[i] = new_tensor(r, 2 * i, counts[i], dtype);
        r->gradients[i] = new_tensor(r, 2 * i + 1, counts[i], MEMOPT_DTYPE_F32);
        digest_fill_runs(r->parameters[i].data, counts[i], dtype, 200 + (uint64_t)i);
        MUST(memopt_optimizer_add_parameter(r->optimizer, (uint32_t)i % 2, &r->parameters[i], NULL,
                                            NULL, &index));
    }
}

static void end(run *r)
{
    MUST(memopt_optimizer_destroy(r->optimizer));
    for (int i = 0; i < 2 * PARAMETERS; i++)
        MUST(memopt_allocator_free(r->allocator, r->blocks[i]));
    MUST(memopt_allocator_destroy(r->allocator));
}

static void step(run *r, uint64_t seed)
{
    for (int i = 0; i < PARAMETERS; i++)
        digest_fill_runs(r->gradients[i].data, counts[i], MO_DTYPE_F32, seed + (uint64_t)i);
    MUST(memopt_optimizer_step(r->optimizer, r->gradients, PARAMETERS, NULL, NULL));
}

static unsigned char *export_of(run *r, uint64_t *bytes)
{
    MUST(memopt_optimizer_export_sync(r->optimizer, 0, NULL, NULL, bytes));
    unsigned char *buffer = malloc(*bytes);
    MUST(memopt_optimizer_export_sync(r->optimizer, *bytes, NULL, buffer, NULL));
    return buffer;
}

/* The next export of a file. */
static unsigned char *read_export(FILE *in, uint64_t *bytes)
{
    unsigned char header[MO_EXPORT_HEADER];
    if (fread(header, 1, sizeof header, in) != sizeof header) {
        fprintf(stderr, "the file of states is too short\n");
        exit(1);
    }
    *bytes = mo_get_u64(header + 16);
    unsigned char *buffer = malloc(*bytes);
    memcpy(buffer, header, sizeof header);
    if (fread(buffer + sizeof header, 1, *bytes - sizeof header, in) != *bytes - sizeof header) {
        fprintf(stderr, "the file of states is too short\n");
        exit(1);
    }
    return buffer;
}

static void export_case(uint32_t kind, uint32_t format, FILE *in, FILE *out)
{
    run first, second;
    uint64_t bytes, exported = DIGEST_START, resumed = DIGEST_START;
    begin(&first, kind, format);
    for (uint64_t i = 0; i < 3; i++)
        step(&first, 300 + 10 * i);
    unsigned char *states = export_of(&first, &bytes);
    digest_add(&exported, states, bytes, 1);
    digest_report(exported, "export.%u.%u", kind, format);
    if (out != NULL)
        fwrite(states, 1, bytes, out);
    if (in != NULL) {
        free(states);
        states = read_export(in, &bytes);
    }
    begin(&second, kind, format);
    MUST(memopt_optimizer_import_sync(second.optimizer, states, bytes, 0, NULL));
    step(&second, 400);
    free(states);
    states = export_of(&second, &bytes);
    digest_add(&resumed, states, bytes, 1);
    for (int i = 0; i < PARAMETERS; i++)
        digest_add(&resumed, second.parameters[i].data, counts[i],
                   mo_element_size((uint32_t)second.parameters[i].dtype));
    digest_report(resumed, "import.%u.%u", kind, format);
    free(states);
    end(&first);
    end(&second);
}

void digest_states(FILE *in, FILE *out)
{
    for (uint32_t kind = 1; kind < MOST; kind++)
        for (uint32_t format = 1; format < MOST; format++)
            if (mo_optimizer_kernel(kind, format) != NULL)
                export_case(kind, format, in, out);
}
