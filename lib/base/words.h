/*
 * Words and numbers of configuration texts: what the parsers of such texts share.
 */
#ifndef MO_BASE_WORDS_H
#define MO_BASE_WORDS_H

#include <stddef.h>
#include <stdint.h>

/* Longer than every name in a table and every parsed value. */
enum { MO_WORD_BYTES = 48 };

/* The name that is nearest to `word`. Names are the first member of each of `count` structs that
 * lie `stride` bytes apart. */
const char *mo_nearest_word(const char *word, const void *first, size_t stride, size_t count);

/* Digits only, at most 18 of them. 1 on success. */
int mo_parse_integer(const char *text, uint64_t *out_value);

/* Digits with an optional fraction and exponent, whatever the locale; exact to the last bit up to
 * 15 digits without an exponent. *out_end is the first character after it. 1 on success. */
int mo_parse_decimal(const char *text, double *out_value, const char **out_end);

#endif
