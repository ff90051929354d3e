/*
 * Writing and reading the resume file (resume.h).
 */
#include "resume.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* With --ranks each rank's states are a file of its own beside the resume file, PATH-STEP.RANKofRANKS,
 * written before it; the resume file, rank 0's, says which. So it has a whole set at any moment. */

static const char magic[8] = {'M', 'E', 'M', 'O', 'G', 'P', 'T', '1'};

#define CONFIG_MOST 512
#define HEADER_BYTES 16 /* magic and length */

/* All that the loss curve depends on, as words. Steps, capacity and the memory savers that change
 * no bit are left out: a run may go on with others. */
static uint32_t describe(const trainer *t, char *text)
{
    const options *o = &t->options;
    int length = snprintf(
        text, CONFIG_MOST,
        "layers=%u width=%u heads=%u context=%u tied=%u dropout=%a batch=%u accumulation=%u "
        "dtype=%s master=%u optimizer=%s lr=%a warmup=%llu weight-decay=%a clip=%a seed=%llu "
        "scale-growth=%u text=%zu:%08x",
        o->layers, o->width, o->heads, o->context, o->tied, o->dropout, o->batch, o->accumulation,
        memopt_dtype_name(o->dtype), o->dtype == MEMOPT_DTYPE_F32 ? 0 : o->master,
        o->adamw8bit ? "adamw8bit" : "adamw", o->lr, (unsigned long long)o->warmup, o->weight_decay,
        o->clip, (unsigned long long)o->seed, o->scale_growth, t->text->length, t->text->crc);
    if (o->ranks) /* however many there are */
        length += snprintf(text + length, (size_t)(CONFIG_MOST - length), " ranks=any");
    return (uint32_t)length;
}

static size_t tensor_bytes(const memopt_tensor *tensor)
{
    return tensor->data ? (size_t)tensor->count * memopt_dtype_size(tensor->dtype) : 0;
}

/* Of the whole master, where there are masters. */
static size_t master_bytes(const trainer *t, const parameter *p)
{
    return t->options.master && p->weight.dtype != MEMOPT_DTYPE_F32 ? (size_t)p->weight.count * 4
                                                                    : 0;
}

/* The counters of a run, as they lie in the file. */
typedef struct counters {
    uint64_t step, draws;
    double scale;
    uint32_t growth_tracker;
    uint32_t ranks; /* that saved their states; 0: these are in the file */
} counters;

static memopt_status counters_get(trainer *t, counters *out)
{
    memset(out, 0, sizeof *out);
    out->step = t->step;
    out->draws = t->ranks.count ? 0 : t->random.draws; /* else each micro-batch has its own */
    out->ranks = t->ranks.count;
    if (!t->scaler)
        return MEMOPT_OK;
    memopt_scaler_state state = {sizeof state, 0, 0, 0, 0, 0};
    TRY(memopt_scaler_get_state_sync(t->scaler, NULL, &state));
    out->scale = state.scale;
    out->growth_tracker = state.growth_tracker;
    return MEMOPT_OK;
}

static memopt_status counters_set(trainer *t, const counters *c)
{
    if (t->scaler) {
        memopt_scaler_state state = {sizeof state, 0, 0, 0, 0, 0};
        TRY(memopt_scaler_get_state_sync(t->scaler, NULL, &state));
        state.scale = c->scale;
        state.growth_tracker = c->growth_tracker;
        TRY(memopt_scaler_set_state_sync(t->scaler, &state, NULL));
    }
    t->step = c->step;
    t->random.draws = c->draws;
    return MEMOPT_OK;
}

/* --- writing ------------------------------------------------------------------------------- */

/* The whole file is put together in host memory, then written in one go. */
typedef struct image {
    uint8_t *bytes;
    size_t length, room;
} image;

static void put(image *i, const void *bytes, size_t length)
{
    memcpy(i->bytes + i->length, bytes, length);
    i->length += length;
}

/* Device memory is read with the library's copy, in the order of the default stream. */
static memopt_status put_tensor(image *i, trainer *t, const memopt_tensor *tensor)
{
    size_t length = tensor_bytes(tensor);
    TRY(memopt_copy(t->memory.device, i->bytes + i->length, tensor->data, length, NULL));
    TRY(memory_sync(&t->memory));
    i->length += length;
    return MEMOPT_OK;
}

static size_t image_size(const trainer *t, uint32_t config, uint64_t optimizer)
{
    size_t size = HEADER_BYTES + 4 + config + sizeof(counters) + 8 + (size_t)optimizer + 4;
    for (uint64_t i = 0; i < t->model.parameters.count; i++) {
        const parameter *p = &t->model.parameters.list[i];
        size += 8 + tensor_bytes(&p->weight) + master_bytes(t, p);
    }
    return size;
}

/* With --ranks: a bucket's parameters, whose masters come from all ranks. Rank 0 has an image. */
static memopt_status put_bucket(image *i, trainer *t, uint32_t number)
{
    const bucket *b = &t->shards.buckets[number];
    memopt_tensor masters = {NULL, 0, MEMOPT_DTYPE_F32};
    memopt_status status = MEMOPT_OK;
    if (master_bytes(t, b->parameters))
        TRY(shards_gather_masters(&t->shards, number, &masters));
    for (uint32_t k = 0; i->bytes && k < b->count && status == MEMOPT_OK; k++) {
        const parameter *p = &b->parameters[k];
        memopt_tensor master = {NULL, p->weight.count, MEMOPT_DTYPE_F32};
        put(i, &p->weight.count, sizeof p->weight.count);
        status = put_tensor(i, t, &p->weight);
        if (masters.data)
            master.data = (float *)masters.data + shards_place(b, k);
        if (masters.data && status == MEMOPT_OK)
            status = put_tensor(i, t, &master);
    }
    memopt_status freed = memory_free(&t->memory, &masters);
    return status == MEMOPT_OK ? freed : status;
}

static memopt_status put_parameters(image *i, trainer *t)
{
    const uint32_t layers = t->options.layers;
    for (uint32_t n = 0; t->ranks.count && n <= layers; n++) /* those outside the layers first */
        TRY(put_bucket(i, t, n == 0 ? layers : n - 1));
    for (uint64_t n = 0; !t->ranks.count && n < t->model.parameters.count; n++) {
        const parameter *p = &t->model.parameters.list[n];
        put(i, &p->weight.count, sizeof p->weight.count);
        TRY(put_tensor(i, t, &p->weight));
        if (p->master.data)
            TRY(put_tensor(i, t, &p->master));
    }
    return MEMOPT_OK;
}

static memopt_status fill_image(image *i, trainer *t, const char *config, uint32_t config_length,
                                uint64_t optimizer)
{
    counters c;
    uint64_t size = i->room;
    TRY(counters_get(t, &c));
    put(i, magic, sizeof magic);
    put(i, &size, sizeof size);
    put(i, &config_length, sizeof config_length);
    put(i, config, config_length);
    put(i, &c, sizeof c);
    TRY(put_parameters(i, t));
    put(i, &optimizer, sizeof optimizer);
    if (optimizer)
        TRY(memopt_optimizer_export_sync(t->optimizer, optimizer, NULL, i->bytes + i->length,
                                         NULL));
    i->length += (size_t)optimizer;
    uint32_t crc = crc32_add(0, i->bytes, i->length);
    put(i, &crc, sizeof crc);
    return MEMOPT_OK;
}

static int write_all(int file, const uint8_t *bytes, size_t length)
{
    while (length > 0) {
        ssize_t written = write(file, bytes, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return 0;
        bytes += written;
        length -= (size_t)written;
    }
    return 1;
}

/* Makes the new name durable: without it a crash of the machine may bring the old file back. */
static int sync_folder(const char *path)
{
    char folder[4096];
    const char *slash = strrchr(path, '/');
    size_t length = slash == path ? 1 : slash ? (size_t)(slash - path) : 1;
    snprintf(folder, sizeof folder, "%.*s", (int)length, slash ? path : ".");
    int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0)
        return 0;
    int done = fsync(file) == 0 || errno == EINVAL; /* some file systems cannot */
    close(file);
    return done;
}

static memopt_status replace_file(const char *path, const image *i)
{
    char temporary[4096];
    int length = snprintf(temporary, sizeof temporary, "%s.tmp", path);
    if (length < 0 || (size_t)length >= sizeof temporary)
        return gpt_fail(MEMOPT_INVALID_ARGUMENT, "save: the path is too long");
    int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int done = file >= 0 && write_all(file, i->bytes, i->length) && fsync(file) == 0;
    int error = errno;
    if (file >= 0 && close(file) != 0 && done) {
        done = 0;
        error = errno;
    }
    if (done && (rename(temporary, path) != 0 || !sync_folder(path))) {
        done = 0;
        error = errno;
    }
    if (done)
        return MEMOPT_OK;
    if (file >= 0)
        unlink(temporary);
    return gpt_fail(MEMOPT_IO_ERROR, "save: %s could not be written: %s", path, strerror(error));
}

static memopt_status save_image(trainer *t, const char *path)
{
    char config[CONFIG_MOST];
    uint32_t config_length = describe(t, config);
    uint64_t optimizer = 0;
    if (!t->ranks.count)
        TRY(memopt_optimizer_export_sync(t->optimizer, 0, NULL, NULL, &optimizer));
    image i = {NULL, 0, image_size(t, config_length, optimizer)};
    if (t->ranks.rank != 0)
        return put_parameters(&i, t); /* only what the other ranks need */
    i.bytes = malloc(i.room);
    if (!i.bytes)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "save: no memory for %zu bytes", i.room);
    memopt_status status = fill_image(&i, t, config, config_length, optimizer);
    if (status == MEMOPT_OK)
        status = replace_file(path, &i);
    free(i.bytes);
    return status;
}

#define NAME_MOST 4096

static memopt_status states_name(char *name, const char *path, uint64_t step, uint32_t rank,
                                 uint32_t of)
{
    int length =
        snprintf(name, NAME_MOST, "%s-%llu.%uof%u", path, (unsigned long long)step, rank, of);
    return length < NAME_MOST ? MEMOPT_OK
                              : gpt_fail(MEMOPT_INVALID_ARGUMENT, "save: the path is too long");
}

/* This rank's states; returns when all ranks have saved theirs. */
static memopt_status save_states(trainer *t, const char *path)
{
    char name[NAME_MOST];
    uint8_t done[256] = {0}; /* a byte of each rank */
    TRY(states_name(name, path, t->step, t->ranks.rank, t->ranks.count));
    TRY(memopt_optimizer_save_sync(t->optimizer, name, NULL));
    for (uint32_t k = 0; k <= t->ranks.count; k++)
        t->shards.at[k] = k;
    return ranks_gather(&t->ranks, done, t->shards.at);
}

/* The set before this one is not needed any more. */
static memopt_status forget_states(trainer *t, const char *path)
{
    char name[NAME_MOST];
    int same = t->saved_step == t->step && t->saved_ranks == t->ranks.count;
    for (uint32_t k = 0; t->ranks.rank == 0 && !same && k < t->saved_ranks; k++) {
        TRY(states_name(name, path, t->saved_step, k, t->saved_ranks));
        unlink(name);
    }
    t->saved_step = t->step;
    t->saved_ranks = t->ranks.count;
    return MEMOPT_OK;
}

memopt_status resume_save(trainer *t, const char *path)
{
    if (t->ranks.count)
        TRY(save_states(t, path));
    TRY(save_image(t, path));
    return t->ranks.count ? forget_states(t, path) : MEMOPT_OK;
}

/* --- reading ------------------------------------------------------------------------------- */

static memopt_status read_image(const char *path, image *out)
{
    struct stat about;
    FILE *file = fopen(path, "rb");
    if (!file || fstat(fileno(file), &about) != 0) {
        int error = errno;
        if (file)
            fclose(file);
        return gpt_fail(MEMOPT_IO_ERROR, "resume: %s: %s", path, strerror(error));
    }
    out->room = (size_t)about.st_size;
    out->bytes = malloc(out->room + 1);
    out->length = out->bytes ? fread(out->bytes, 1, out->room, file) : 0;
    fclose(file);
    if (!out->bytes)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "resume: no memory for %zu bytes", out->room);
    return MEMOPT_OK;
}

/* Magic, length and checksum: after this every byte is as it was written. */
static memopt_status check_image(const image *i, const char *path)
{
    uint64_t length = 0;
    uint32_t crc = 0;
    if (i->length < HEADER_BYTES + 8 || memcmp(i->bytes, magic, sizeof magic) != 0)
        return gpt_fail(MEMOPT_CORRUPT, "resume: %s is not a resume file", path);
    memcpy(&length, i->bytes + sizeof magic, sizeof length);
    if (length != i->length)
        return gpt_fail(MEMOPT_CORRUPT, "resume: %s has %zu bytes and should have %llu", path,
                        i->length, (unsigned long long)length);
    memcpy(&crc, i->bytes + i->length - 4, sizeof crc);
    uint32_t found = crc32_add(0, i->bytes, i->length - 4);
    if (crc != found)
        return gpt_fail(MEMOPT_CORRUPT,
                        "resume: %s is damaged: its checksum is %08x and should be %08x", path,
                        found, crc);
    return MEMOPT_OK;
}

/* Refuses a file of another run, naming the first setting that differs. */
static memopt_status check_config(const trainer *t, const char *theirs, uint32_t length,
                                  const char *path)
{
    char ours[CONFIG_MOST];
    uint32_t our_length = describe(t, ours);
    if (our_length == length && memcmp(ours, theirs, length) == 0)
        return MEMOPT_OK;
    uint32_t at = 0, word = 0;
    while (at < our_length && at < length && ours[at] == theirs[at])
        if (ours[at++] == ' ')
            word = at;
    int our_word = (int)strcspn(ours + word, " "), their_word = 0;
    while (word + (uint32_t)their_word < length && theirs[word + (uint32_t)their_word] != ' ')
        their_word++;
    return gpt_fail(MEMOPT_MISMATCH, "resume: %s is of a run with %.*s, and this one has %.*s",
                    path, their_word, theirs + word, our_word, ours + word);
}

/* Reads on in a checked image; NULL where it ends too soon. */
static const uint8_t *take(image *i, size_t *at, uint64_t length)
{
    if (length > i->length - 4 - *at)
        return NULL;
    const uint8_t *bytes = i->bytes + *at;
    *at += (size_t)length;
    return bytes;
}

/* Where the parts of an image lie. */
typedef struct parts {
    counters counters;
    size_t parameters;
    const uint8_t *optimizer;
    uint64_t optimizer_length;
} parts;

static memopt_status find_parts(const trainer *t, image *i, const char *path, parts *out)
{
    size_t at = HEADER_BYTES;
    uint32_t length = 0;
    const uint8_t *p = take(i, &at, sizeof length);
    if (p)
        memcpy(&length, p, sizeof length);
    p = p ? take(i, &at, length) : NULL;
    if (p)
        TRY(check_config(t, (const char *)p, length, path));
    p = p ? take(i, &at, sizeof out->counters) : NULL;
    if (p)
        memcpy(&out->counters, p, sizeof out->counters);
    out->parameters = at;
    for (uint64_t n = 0; p && n < t->model.parameters.count; n++) {
        const parameter *expected = &t->model.parameters.list[n];
        p = take(i, &at, 8);
        if (p && memcmp(p, &expected->weight.count, 8) == 0)
            p = take(i, &at, tensor_bytes(&expected->weight) + master_bytes(t, expected));
        else
            p = NULL;
    }
    p = p ? take(i, &at, 8) : NULL;
    if (p)
        memcpy(&out->optimizer_length, p, 8);
    out->optimizer = p ? take(i, &at, out->optimizer_length) : NULL;
    if (!out->optimizer || at != i->length - 4)
        return gpt_fail(MEMOPT_CORRUPT, "resume: the parts of %s do not fit together", path);
    return MEMOPT_OK;
}

/* From byte `skip` of `all` bytes. */
static memopt_status take_tensor(trainer *t, const memopt_tensor *tensor, image *i, size_t *at,
                                 size_t skip, size_t all)
{
    size_t length = tensor_bytes(tensor);
    const uint8_t *bytes = take(i, at, all) + skip;
    return length ? memopt_copy(t->memory.device, tensor->data, bytes, length, NULL) : MEMOPT_OK;
}

/* The states of all ranks that saved them, of which this one takes its own. */
static memopt_status load_states(trainer *t, const char *path, const counters *c)
{
    char *names = malloc((size_t)c->ranks * NAME_MOST);
    const char **list = malloc(c->ranks * sizeof *list);
    memopt_status status = names && list ? MEMOPT_OK
                                         : gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY,
                                                    "resume: no memory for %u names", c->ranks);
    for (uint32_t k = 0; k < c->ranks && status == MEMOPT_OK; k++) {
        char *name = names + (size_t)k * NAME_MOST;
        list[k] = name;
        status = states_name(name, path, c->step, k, c->ranks);
    }
    if (status == MEMOPT_OK)
        status = memopt_optimizer_load_sync(t->optimizer, list, c->ranks, 0, NULL);
    free(names);
    free(list);
    return status;
}

/* The optimizer checks its part once more before it changes anything; then the rest follows. */
static memopt_status apply(trainer *t, image *i, const parts *found, const char *path)
{
    size_t at = found->parameters;
    if (found->counters.ranks)
        TRY(load_states(t, path, &found->counters));
    else
        TRY(memopt_optimizer_import_sync(t->optimizer, found->optimizer, found->optimizer_length, 0,
                                         NULL));
    TRY(parameters_write(&t->model.parameters, &t->memory));
    for (uint64_t n = 0; n < t->model.parameters.count; n++) {
        const parameter *p = &t->model.parameters.list[n];
        at += 8;
        TRY(take_tensor(t, &p->weight, i, &at, 0, tensor_bytes(&p->weight)));
        TRY(take_tensor(t, &p->master, i, &at, (size_t)p->first * 4, master_bytes(t, p)));
    }
    TRY(memory_sync(&t->memory));
    TRY(parameters_written(&t->model.parameters, &t->memory));
    t->saved_step = found->counters.step;
    t->saved_ranks = found->counters.ranks;
    return counters_set(t, &found->counters);
}

memopt_status resume_load(trainer *t, const char *path)
{
    image i = {NULL, 0, 0};
    parts found = {{0, 0, 0, 0, 0}, 0, NULL, 0};
    memopt_status status = read_image(path, &i);
    if (status == MEMOPT_OK)
        status = check_image(&i, path);
    if (status == MEMOPT_OK)
        status = find_parts(t, &i, path, &found);
    if (status == MEMOPT_OK)
        status = apply(t, &i, &found, path);
    free(i.bytes);
    return status;
}
