/*
 * What the tests of train_gpt share: a small model, some text, and comparing device memory.
 */
#ifndef GPT_TEST_SUPPORT_H
#define GPT_TEST_SUPPORT_H

#include "support/unit.h"

#include "train.h"

/* A status that must be MEMOPT_OK; shows the message otherwise. */
#define assert_ok(call) assert_ok_at((call), #call, __FILE__, __LINE__)
void assert_ok_at(memopt_status status, const char *call, const char *file, int line);

/* Two layers, width 32, two heads, context 16, batch 2, some dropout. */
options tiny_options(void);

/* Readable text made from a seed, in the form that text_read() would give. */
void tiny_text(corpus *text);

/* Every byte of the parameters' weights and masters, or of their gradients, in host memory of the
 * caller's. */
typedef struct bytes {
    uint8_t *data;
    size_t length;
} bytes;
bytes weight_bytes(trainer *t);
bytes gradient_bytes(trainer *t);
void assert_same_bytes(const bytes *a, const bytes *b);
int same_bytes(const bytes *a, const bytes *b);

#endif
