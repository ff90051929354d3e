#include "base/config.h"

#include "base/checked.h"
#include "base/log.h"
#include "base/words.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

/* No valid token is as long; a longer one is cut, which keeps it invalid. */
enum { TOKEN_BYTES = MO_WORD_BYTES };

typedef enum kind {
    INTEGER,
    POWER_OF_TWO,
    BOOLEAN,
    FRACTION,
    NUMBER,
    DIVISIONS,
    BACKEND,
    SKIPPED
} kind;

typedef struct key {
    const char *name;
    kind kind;
    int acts;
    uint64_t low, high;
    size_t offset;
} key;

static const key keys[] = {
#define ROW(key, kind, low, high, initial, acts)                                                   \
    {#key, kind, acts, low, high, offsetof(mo_config, key)},
    MO_CONFIG_KEYS(ROW)
#undef ROW
};

enum { KEY_COUNT = sizeof keys / sizeof keys[0] };

/* A word without its white space; its column counts from 1. */
typedef struct token {
    char text[TOKEN_BYTES];
    size_t column;
} token;

typedef struct parser {
    const char *start, *at;
    mo_config config;
    size_t columns[KEY_COUNT]; /* of each key's last value; 0: not given */
} parser;

/* The next character that is no white space. */
static char peek(parser *from)
{
    while (isspace((unsigned char)*from->at))
        from->at++;
    return *from->at;
}

static size_t column_of(const parser *from)
{
    return (size_t)(from->at - from->start) + 1;
}

static token read_token(parser *from)
{
    token read = {"", 0};
    size_t length = 0;
    (void)peek(from);
    read.column = column_of(from);
    for (; *from->at != '\0' && strchr(",:[]", *from->at) == NULL; from->at++)
        if (!isspace((unsigned char)*from->at) && length + 1 < TOKEN_BYTES)
            read.text[length++] = *from->at;
    return read;
}

/* --- values ----------------------------------------------------------------------------------- */

static int is_power_of_two(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

static int read_integer(const key *of, const char *text, void *field)
{
    uint64_t value;
    if (!mo_parse_integer(text, &value) || value < of->low || value > of->high ||
        (of->kind == POWER_OF_TWO && !is_power_of_two(value)))
        return 0;
    memcpy(field, &value, sizeof value);
    return 1;
}

static int read_number(const key *of, const char *text, void *field)
{
    double value, low = (double)of->low, high = (double)of->high;
    const char *end;
    if (!mo_parse_decimal(text, &value, &end) || *end != '\0' || value < low || value > high ||
        (of->kind == FRACTION && (value <= low || value >= high)))
        return 0;
    memcpy(field, &value, sizeof value);
    return 1;
}

/* One of the words; the field becomes its position. */
static int read_word(const char *const *words, const char *text, void *field)
{
    for (int32_t i = 0; words[i] != NULL; i++) {
        if (strcmp(text, words[i]) == 0) {
            memcpy(field, &i, sizeof i);
            return 1;
        }
    }
    return 0;
}

static const char *range_text(kind of)
{
    switch (of) {
    case BOOLEAN:
        return "True or False";
    case BACKEND:
        return "native, cudaMallocAsync or hipMallocAsync";
    case SKIPPED:
        return "a value";
    default:
        return "a power of two, or [256:1,512:2,>:8] with powers of two (the sizes in MB)";
    }
}

static memopt_status bad_value(const key *of, const token *found)
{
    if (of->kind == BOOLEAN || of->kind == BACKEND || of->kind == DIVISIONS || of->kind == SKIPPED)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "allocator config: column %zu: \"%s\" is not a value of %s; write %s",
                       found->column, found->text, of->name, range_text(of->kind));
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "allocator config: column %zu: \"%s\" is not a value of %s; write %s from "
                   "%" PRIu64 " to %" PRIu64 "%s",
                   found->column, found->text, of->name,
                   of->kind == POWER_OF_TWO ? "a power of two" : "a number", of->low, of->high,
                   of->kind == FRACTION ? ", both excluded" : "");
}

static memopt_status read_scalar(const key *of, const token *found, void *field)
{
    static const char *const booleans[] = {"False", "True", NULL};
    static const char *const backends[] = {"native", "cudaMallocAsync", "hipMallocAsync", NULL};
    int good;
    if (of->kind == BOOLEAN)
        good = read_word(booleans, found->text, field);
    else if (of->kind == BACKEND)
        good = read_word(backends, found->text, field);
    else if (of->kind == SKIPPED)
        good = found->text[0] != '\0';
    else if (of->kind == FRACTION || of->kind == NUMBER)
        good = read_number(of, found->text, field);
    else
        good = read_integer(of, found->text, field);
    return good ? MEMOPT_OK : bad_value(of, found);
}

/* --- lists ------------------------------------------------------------------------------------ */

static memopt_status bad_list(const key *of, parser *from)
{
    if (peek(from) == '\0')
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "allocator config: column %zu: the list of %s is unfinished; write ]",
                       column_of(from), of->name);
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "allocator config: column %zu: \"%.20s\" does not belong in the list of %s; "
                   "write %s",
                   column_of(from), from->at, of->name, range_text(of->kind));
}

static void fill_slots(mo_config_divisions *divisions, size_t from, size_t end, uint64_t value)
{
    for (size_t i = from; i < end; i++)
        divisions->slot[i] = value;
}

/* The slot of a size in MB; sizes beyond the last share it. */
static size_t slot_of(uint64_t megabytes)
{
    return mo_min_u64(63u - (unsigned)__builtin_clzll(megabytes), MO_CONFIG_SLOTS - 1);
}

/* "256:1" or ">:8". *last is the slot of the size before; MO_CONFIG_SLOTS if there is none. */
static memopt_status read_division(parser *from, const key *of, size_t *last,
                                   mo_config_divisions *divisions)
{
    uint64_t megabytes = 1, value;
    token size = read_token(from);
    int rest = strcmp(size.text, ">") == 0;
    if (!rest && (!mo_parse_integer(size.text, &megabytes) || !is_power_of_two(megabytes)))
        return bad_value(of, &size);
    if (peek(from) != ':')
        return bad_list(of, from);
    from->at++;
    token number = read_token(from);
    if (!mo_parse_integer(number.text, &value) || value > of->high ||
        (value != 0 && !is_power_of_two(value)))
        return bad_value(of, &number);
    if (rest) {
        fill_slots(divisions, *last == MO_CONFIG_SLOTS ? 1 : *last + 1, MO_CONFIG_SLOTS, value);
        return MEMOPT_OK;
    }
    size_t slot = slot_of(megabytes);
    fill_slots(divisions, *last == MO_CONFIG_SLOTS ? 0 : slot, slot + 1, value);
    *last = slot;
    return MEMOPT_OK;
}

/* "[256:1,512:2,>:8]", the cursor at the bracket. */
static memopt_status read_divisions(parser *from, const key *of, mo_config_divisions *divisions)
{
    size_t last = MO_CONFIG_SLOTS;
    from->at++;
    while (peek(from) != ']') {
        if (*from->at == '\0')
            return bad_list(of, from);
        MO_TRY(read_division(from, of, &last, divisions));
        if (peek(from) == ',')
            from->at++;
        else if (*from->at != ']')
            return bad_list(of, from);
    }
    from->at++;
    return MEMOPT_OK;
}

static memopt_status skip_list(parser *from, const key *of)
{
    size_t length = strcspn(from->at, "]");
    from->at += length;
    if (*from->at == '\0')
        return bad_list(of, from);
    from->at++;
    return MEMOPT_OK;
}

/* --- keys ------------------------------------------------------------------------------------- */

static memopt_status read_value(parser *from, const key *of)
{
    void *field = (char *)&from->config + of->offset;
    int list = peek(from) == '[';
    from->columns[of - keys] = column_of(from);
    if (list && of->kind == DIVISIONS)
        return read_divisions(from, of, field);
    if (list && of->kind == SKIPPED)
        return skip_list(from, of);
    token found = read_token(from);
    if (of->kind != DIVISIONS)
        return read_scalar(of, &found, field);
    uint64_t value;
    if (!mo_parse_integer(found.text, &value) || !is_power_of_two(value) || value > of->high)
        return bad_value(of, &found);
    fill_slots(field, 0, MO_CONFIG_SLOTS, value);
    return MEMOPT_OK;
}

static const key *find_key(const char *name)
{
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

/* One "key:value" with the comma behind it. */
static memopt_status read_entry(parser *from)
{
    token name = read_token(from);
    const key *of = find_key(name.text);
    if (of == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "allocator config: column %zu: unknown key \"%s\"; the nearest valid one is "
                       "\"%s\"",
                       name.column, name.text,
                       mo_nearest_word(name.text, keys, sizeof keys[0], KEY_COUNT));
    if (peek(from) != ':')
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "allocator config: column %zu: %s has no value; write %s:value",
                       column_of(from), name.text, name.text);
    from->at++;
    MO_TRY(read_value(from, of));
    if (peek(from) != '\0' && *from->at != ',')
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "allocator config: column %zu: \"%.20s\" follows the value of %s; separate "
                       "keys by a comma",
                       column_of(from), from->at, name.text);
    if (!of->acts)
        mo_log(MEMOPT_LOG_INFO, "allocator config: %s is accepted but has no effect here",
               name.text);
    from->at += *from->at == ',';
    return MEMOPT_OK;
}

/* A size may not be below the large segment's; 0 is not set. */
static memopt_status check_above_large(const parser *from, const char *name, uint64_t megabytes)
{
    uint64_t large = from->config.large_segment_size_mb;
    if (megabytes == 0 || megabytes >= large)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "allocator config: column %zu: %s is %" PRIu64 ", below the large segment's "
                   "%" PRIu64 "; raise it, or lower large_segment_size_mb",
                   from->columns[find_key(name) - keys], name, megabytes, large);
}

memopt_status mo_config_parse(const char *text, mo_config *out_config)
{
    parser from = {
        .start = text == NULL ? "" : text,
        .config =
            {
#define INITIAL(key, kind, low, high, initial, acts) .key = MO_CONFIG_INITIAL_##kind(initial),
                MO_CONFIG_KEYS(INITIAL)
#undef INITIAL
            },
    };
    const mo_config *config = &from.config;
    memopt_status status = MEMOPT_OK;
    from.at = from.start;
    while (status == MEMOPT_OK && peek(&from) != '\0')
        status = read_entry(&from);
    if (status == MEMOPT_OK)
        status = check_above_large(&from, "max_split_size_mb", config->max_split_size_mb);
    if (status == MEMOPT_OK)
        status = check_above_large(&from, "max_non_split_rounding_mb",
                                   config->max_non_split_rounding_mb);
    if (status == MEMOPT_OK)
        *out_config = *config;
    return status;
}
