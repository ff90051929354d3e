/* The table of settings and its parser. */
#include "settings/keys.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/words.h"

enum { COUNT, SIZE, SHARE, NUMBER, CHOICE, FLAGS, SWITCH, DTYPE };

#define DTYPES "fp32|fp16|bf16"
#define SWITCHES "no|yes"

#define LIMIT_COUNT(limit) (limit)
#define LIMIT_SIZE(limit) (limit)
#define LIMIT_SHARE(limit) (limit)
#define LIMIT_NUMBER(limit) (limit)
#define LIMIT_CHOICE(words) 0
#define LIMIT_FLAGS(words) 0
#define LIMIT_SWITCH(unused) 0
#define LIMIT_DTYPE(unused) 0
#define ACCEPTS_COUNT(limit) "a whole number from 0 (default) to " #limit
#define ACCEPTS_SIZE(limit) "a size such as 24GiB, from 0 (default) to " #limit
#define ACCEPTS_SHARE(limit) "a number from 0 to below " #limit
#define ACCEPTS_NUMBER(limit) "a number from 0 (default) to " #limit
#define ACCEPTS_CHOICE(words) words
#define ACCEPTS_FLAGS(words) words
#define ACCEPTS_SWITCH(unused) SWITCHES
#define ACCEPTS_DTYPE(unused) DTYPES

static const char *const kinds[] = {"count",  "size",  "share",  "number",
                                    "choice", "flags", "switch", "dtype"};

#define ROW(section, kind, name, limit, help)                                                      \
    {#section "." #name,                                                                           \
     ACCEPTS_##kind(limit),                                                                        \
     help,                                                                                         \
     (double)LIMIT_##kind(limit),                                                                  \
     offsetof(mo_plan_given, section.name),                                                        \
     kind},
#define MODEL_ROW(...) ROW(model, __VA_ARGS__)
#define RUN_ROW(...) ROW(run, __VA_ARGS__)
#define CARD_ROW(...) ROW(card, __VA_ARGS__)
#define TARGET_ROW(...) ROW(target, __VA_ARGS__)

static const mo_plan_key keys[] = {
    MO_PLAN_MODEL_KEYS(MODEL_ROW)   //
    MO_PLAN_RUN_KEYS(RUN_ROW)       //
    MO_PLAN_CARD_KEYS(CARD_ROW)     //
    MO_PLAN_TARGET_KEYS(TARGET_ROW) //
};

enum { KEY_COUNT = sizeof keys / sizeof *keys, VALUE_BYTES = 128 };

const mo_plan_key *mo_plan_key_at(uint64_t index)
{
    return index < KEY_COUNT ? &keys[index] : NULL;
}

const char *mo_plan_key_kind(const mo_plan_key *key)
{
    return kinds[key->type];
}

const mo_plan_key *mo_plan_key_of(size_t offset)
{
    size_t i = 0;
    while (i + 1 < KEY_COUNT && keys[i].offset != offset)
        i++;
    return &keys[i];
}

/* --- words ----------------------------------------------------------------------------------- */

/* The position of a word of `length` characters in "a|b|c"; -1: it is none of them. */
static int position_of(const char *words, const char *word, size_t length)
{
    for (int i = 0;; i++) {
        size_t size = strcspn(words, "|");
        if (size == length && strncmp(words, word, length) == 0)
            return i;
        if (words[size] == '\0')
            return -1;
        words += size + 1;
    }
}

static void word_at(const char *words, uint32_t position, char *text, size_t size)
{
    while (position-- > 0)
        words += strcspn(words, "|") + 1;
    (void)snprintf(text, size, "%.*s", (int)strcspn(words, "|"), words);
}

const char *mo_plan_word(size_t offset, uint32_t value, char text[32])
{
    word_at(mo_plan_key_of(offset)->accepts, value, text, 32);
    return text;
}

static const memopt_dtype dtypes[] = {MEMOPT_DTYPE_F32, MEMOPT_DTYPE_F16, MEMOPT_DTYPE_BF16};

const char *mo_plan_dtype_word(memopt_dtype dtype)
{
    return dtype == MEMOPT_DTYPE_F32 ? "fp32" : dtype == MEMOPT_DTYPE_F16 ? "fp16" : "bf16";
}

/* --- values ---------------------------------------------------------------------------------- */

static void *field_of(const mo_plan_key *key, mo_plan_given *given)
{
    return (char *)given + key->offset;
}

/* 7B is 7e9; 0: the letter is not known. */
static double factor_of(const char *suffix)
{
    static const char letters[] = "kMBT";
    static const double factors[] = {1e3, 1e6, 1e9, 1e12};
    const char *at = strchr(letters, *suffix);
    if (*suffix == '\0')
        return 1;
    return at != NULL && suffix[1] == '\0' ? factors[at - letters] : 0;
}

static int read_count(const mo_plan_key *key, const char *text, uint64_t *value)
{
    double number;
    const char *end;
    if (mo_parse_integer(text, value))
        return 1;
    if (!mo_parse_decimal(text, &number, &end))
        return 0;
    number = floor(number * factor_of(end) + 0.5);
    *value = number <= key->limit ? (uint64_t)number : UINT64_MAX;
    return number > 0;
}

static int read_whole(const mo_plan_key *key, const char *text, void *field)
{
    uint64_t value;
    int good = key->type == SIZE ? memopt_parse_size(text, &value) == MEMOPT_OK
                                 : read_count(key, text, &value);
    if (!good || (double)value > key->limit)
        return 0;
    memcpy(field, &value, sizeof value);
    return 1;
}

static int read_number(const mo_plan_key *key, const char *text, void *field)
{
    double value;
    const char *end;
    if (!mo_parse_decimal(text, &value, &end) || *end != '\0' || value > key->limit ||
        (key->type == SHARE && value >= key->limit))
        return 0;
    memcpy(field, &value, sizeof value);
    return 1;
}

static int read_flags(const mo_plan_key *key, const char *text, void *field)
{
    uint32_t bits = 0;
    for (;;) {
        size_t length = strcspn(text, ",");
        int at = position_of(key->accepts, text, length);
        if (at < 0)
            return 0;
        bits |= UINT32_C(1) << at;
        if (text[length] == '\0')
            break;
        text += length + 1;
    }
    memcpy(field, &bits, sizeof bits);
    return 1;
}

static int read_word(const mo_plan_key *key, const char *text, void *field)
{
    int at = position_of(key->accepts, text, strlen(text));
    if (at < 0)
        return 0;
    /* 0 of a switch is "not said". */
    int32_t value = key->type == DTYPE ? dtypes[at] : at + (key->type == SWITCH);
    memcpy(field, &value, sizeof value);
    return 1;
}

static int read_value(const mo_plan_key *key, const char *text, void *field)
{
    switch (key->type) {
    case COUNT:
    case SIZE:
        return read_whole(key, text, field);
    case SHARE:
    case NUMBER:
        return read_number(key, text, field);
    case FLAGS:
        return read_flags(key, text, field);
    default:
        return read_word(key, text, field);
    }
}

/* --- the text -------------------------------------------------------------------------------- */

/* Copies without the blanks around it; 0: it is too long. */
static int copy_trimmed(const char *from, const char *to, char *out, size_t size)
{
    while (from < to && isspace((unsigned char)*from))
        from++;
    while (to > from && isspace((unsigned char)to[-1]))
        to--;
    size_t length = (size_t)(to - from);
    if (length >= size)
        return 0;
    memcpy(out, from, length);
    out[length] = '\0';
    return 1;
}

static memopt_status bad_value(const mo_plan_key *key, const char *value)
{
    return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: %s is \"%s\"; it must be %s%s", key->name, value,
                   key->type == FLAGS    ? "some, separated by commas, of "
                   : key->type >= CHOICE ? "one of "
                                         : "",
                   key->accepts);
}

static const mo_plan_key *find(const char *name)
{
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

static memopt_status read_entry(const char *from, const char *to, mo_plan_given *given)
{
    char name[MO_WORD_BYTES], value[VALUE_BYTES];
    const char *equals = memchr(from, '=', (size_t)(to - from));
    if (equals == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: \"%.*s\" has no \"=\"; write key=value",
                       (int)(to - from < 40 ? to - from : 40), from);
    if (!copy_trimmed(from, equals, name, sizeof name))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: \"%.40s…\" is longer than any key", from);
    const mo_plan_key *key = find(name);
    if (key == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: unknown key \"%s\"; the nearest valid one is \"%s\"", name,
                       mo_nearest_word(name, keys, sizeof *keys, KEY_COUNT));
    if (!copy_trimmed(equals + 1, to, value, sizeof value))
        return bad_value(key, "(too long)");
    return read_value(key, value, field_of(key, given)) ? MEMOPT_OK : bad_value(key, value);
}

static int is_blank(const char *from, const char *to)
{
    while (from < to && isspace((unsigned char)*from))
        from++;
    return from == to;
}

memopt_status mo_plan_parse(const char *text, mo_plan_given *out)
{
    mo_plan_given given;
    memset(&given, 0, sizeof given); /* padding too: cases are compared as bytes */
    for (const char *at = text == NULL ? "" : text; *at != '\0';) {
        const char *end = at + strcspn(at, ";\n");
        memopt_status status = is_blank(at, end) ? MEMOPT_OK : read_entry(at, end, &given);
        if (status != MEMOPT_OK)
            return status;
        at = *end == '\0' ? end : end + 1;
    }
    *out = given;
    return MEMOPT_OK;
}

memopt_status mo_plan_at_most(const char *name, uint64_t value, const char *other, uint64_t high)
{
    if (value <= high)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: %s is %llu; it must be at most %s, %llu", name,
                   (unsigned long long)value, other, (unsigned long long)high);
}

memopt_status mo_plan_check_limits(const mo_plan_given *given)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        uint64_t value;
        if (keys[i].type != COUNT && keys[i].type != SIZE)
            continue;
        memcpy(&value, (const char *)given + keys[i].offset, sizeof value);
        if ((double)value > keys[i].limit)
            return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: %s comes to %" PRIu64 "; it must be %s",
                           keys[i].name, value, keys[i].accepts);
    }
    return MEMOPT_OK;
}

/* --- out ------------------------------------------------------------------------------------- */

static void flags_text(const mo_plan_key *key, uint32_t bits, char *text, size_t size)
{
    size_t used = 0;
    for (uint32_t i = 0; bits >> i != 0; i++) {
        char word[32];
        if (!(bits >> i & 1))
            continue;
        word_at(key->accepts, i, word, sizeof word);
        used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? "," : "", word);
    }
}

int mo_plan_key_text(const mo_plan_key *key, const mo_plan_given *given, char *text, size_t size)
{
    const char *field = (const char *)given + key->offset;
    union {
        uint64_t whole;
        double number;
        uint32_t choice;
        memopt_dtype dtype;
    } v = {0};
    memcpy(&v, field, key->type <= NUMBER ? 8 : 4);
    if (v.whole == 0 && key->type != CHOICE)
        return 0;
    if (key->type == COUNT || key->type == SIZE)
        (void)snprintf(text, size, "%" PRIu64, v.whole);
    else if (key->type == SHARE || key->type == NUMBER)
        mo_plan_number_text(v.number, text, size);
    else if (key->type == FLAGS)
        flags_text(key, v.choice, text, size);
    else if (key->type == DTYPE)
        (void)snprintf(text, size, "%s", mo_plan_dtype_word(v.dtype));
    else
        word_at(key->accepts, v.choice - (key->type == SWITCH), text, size);
    return 1;
}

int mo_plan_key_is_number(const mo_plan_key *key)
{
    return key->type <= NUMBER;
}

/* The fewest digits that are read as the same number. printf writes the locale's decimal point. */
void mo_plan_number_text(double number, char *text, size_t size)
{
    double again = -1;
    const char *end;
    for (int digits = 15; digits <= 17 && again != number; digits++) {
        (void)snprintf(text, size, "%.*g", digits, number);
        for (char *at = text; *at != '\0'; at++)
            if (strchr("+-0123456789e", *at) == NULL)
                *at = '.';
        if (!mo_parse_decimal(text, &again, &end))
            return;
    }
}
