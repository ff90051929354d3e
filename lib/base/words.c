#include "base/words.h"

#include "base/checked.h"

#include <ctype.h>
#include <string.h>

/* The cost of turning a into b: letters missing in a are cheap, because people abbreviate; wrong
 * ones are not. Case is free. */
static size_t edit_distance(const char *a, const char *b)
{
    enum { ADD = 1, DROP = 2, REPLACE = 3 };
    size_t row[MO_WORD_BYTES + 1];
    size_t columns = strlen(b);
    for (size_t j = 0; j <= columns; j++)
        row[j] = j * ADD;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i * DROP;
        for (size_t j = 1; j <= columns; j++) {
            int same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
            size_t best = diagonal + (same ? 0 : REPLACE);
            diagonal = row[j];
            best = mo_min_u64(best, row[j] + DROP);
            row[j] = mo_min_u64(best, row[j - 1] + ADD);
        }
    }
    return row[columns];
}

const char *mo_nearest_word(const char *word, const void *first, size_t stride, size_t count)
{
    const char *nearest = "";
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        const char *name;
        memcpy(&name, (const char *)first + i * stride, sizeof name);
        size_t distance = edit_distance(word, name);
        if (distance < least) {
            least = distance;
            nearest = name;
        }
    }
    return nearest;
}

int mo_parse_integer(const char *text, uint64_t *out_value)
{
    size_t length = strlen(text);
    uint64_t value = 0;
    if (length == 0 || length > 18 || strspn(text, "0123456789") != length)
        return 0;
    for (; *text != '\0'; text++)
        value = value * 10 + (uint64_t)(*text - '0');
    *out_value = value;
    return 1;
}

/* "e12", "e+12" or "e-3", up to 99. */
static const char *read_exponent(const char *text, int *exponent)
{
    const char *at = text + 1;
    int negative = *at == '-', value = 0, count = 0;
    at += *at == '-' || *at == '+';
    for (; isdigit((unsigned char)*at) && count < 2; at++, count++)
        value = value * 10 + (*at - '0');
    *exponent = negative ? -value : value;
    return count > 0 ? at : text;
}

int mo_parse_decimal(const char *text, double *out_value, const char **out_end)
{
    double digits = 0, unit = 1;
    int count = 0, exponent = 0;
    for (; isdigit((unsigned char)*text); text++, count++)
        digits = digits * 10 + (*text - '0');
    if (*text == '.')
        for (text++; isdigit((unsigned char)*text); text++, count++, unit *= 10)
            digits = digits * 10 + (*text - '0');
    if (count == 0)
        return 0;
    if (*text == 'e' || *text == 'E')
        text = read_exponent(text, &exponent);
    for (; exponent > 0; exponent--)
        digits *= 10;
    for (; exponent < 0; exponent++)
        unit *= 10;
    *out_value = digits / unit;
    *out_end = text;
    return 1;
}
