/*
 * What the tests of train_gpt share (support.h).
 */
#include "support.h"

#include "ops.h"

#include <stdlib.h>
#include <string.h>

void assert_ok_at(memopt_status status, const char *call, const char *file, int line)
{
    if (status != MEMOPT_OK) {
        print_error("%s: %s: %s\n", call, memopt_status_name(status), gpt_error());
        _fail(file, line);
    }
}

options tiny_options(void)
{
    options o = options_default();
    o.layers = 2;
    o.width = 32;
    o.heads = 2;
    o.context = 16;
    o.batch = 2;
    o.dropout = 0.1;
    o.lr = 3e-3;
    o.warmup = 4;
    o.steps = 8;
    o.capacity = (uint64_t)256 << 20;
    o.threads = 2;
    return o;
}

void tiny_text(corpus *text)
{
    static const char *const words[] = {"memory ", "device ", "stream ", "layer ",
                                        "block ",  "event ",  "of ",     "the "};
    memset(text, 0, sizeof *text);
    text->bytes = malloc(8192);
    assert_non_null(text->bytes);
    for (uint64_t i = 0; text->length < 8000; i++) {
        const char *word = words[random_draw(7, i) % 8];
        memcpy(text->bytes + text->length, word, strlen(word));
        text->length += strlen(word);
    }
    text->training = text->length - 1000;
    text->files = 1;
    text->crc = crc32_add(0, text->bytes, text->length);
}

static void append(bytes *to, trainer *t, const memopt_tensor *tensor)
{
    size_t length = (size_t)tensor->count * memopt_dtype_size(tensor->dtype);
    if (!tensor->data)
        return;
    to->data = realloc(to->data, to->length + length);
    assert_non_null(to->data);
    assert_ok(memopt_copy(t->memory.device, to->data + to->length, tensor->data, length, NULL));
    assert_ok(memopt_stream_sync(t->memory.device, NULL));
    to->length += length;
}

bytes weight_bytes(trainer *t)
{
    bytes all = {NULL, 0};
    for (uint64_t i = 0; i < t->model.parameters.count; i++) {
        append(&all, t, &t->model.parameters.list[i].weight);
        append(&all, t, &t->model.parameters.list[i].master);
    }
    return all;
}

bytes gradient_bytes(trainer *t)
{
    bytes all = {NULL, 0};
    for (uint64_t i = 0; i < t->model.parameters.count; i++)
        append(&all, t, &t->model.parameters.list[i].gradient);
    return all;
}

int same_bytes(const bytes *a, const bytes *b)
{
    return a->length == b->length && memcmp(a->data, b->data, a->length) == 0;
}

void assert_same_bytes(const bytes *a, const bytes *b)
{
    assert_int_equal(a->length, b->length);
    for (size_t i = 0; i < a->length; i++)
        if (a->data[i] != b->data[i])
            fail_msg("byte %zu of %zu differs: %02x and %02x", i, a->length, a->data[i],
                     b->data[i]);
}
