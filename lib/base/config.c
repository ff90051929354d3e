#include "base/config.h"

#include "base/checked.h"
#include "base/log.h"
#include "base/words.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

/* No valid token is as long; a longer one is cut, which keeps it invalid. */
enum { TOKEN_BYTES = MO_WORD_BYTES };

typedef enum kind { INTEGER, POWER_OF_TWO, BOOLEAN, FRACTION, NUMBER, DIVISIONS, BACKEND } kind;

static const struct key {
    const char *name;
    kind kind;
    int acts;
    uint64_t low, high;
    size_t offset;
} keys[] = {
#define ROW(key, kind, low, high, initial, acts)                                                   \
    {#key, kind, acts, low, high, offsetof(mo_config, key)},
    MO_CONFIG_KEYS(ROW)
#undef ROW
};

enum { KEY_COUNT = sizeof keys / sizeof keys[0] };

static const char *skip_blanks(const char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    return text;
}

/* Copies the next token without its white space; returns what follows it. */
static const char *read_token(const char *text, char token[TOKEN_BYTES])
{
    size_t length = 0;
    for (; *text != '\0' && strchr(",:[]", *text) == NULL; text++)
        if (!isspace((unsigned char)*text) && length + 1 < TOKEN_BYTES)
            token[length++] = *text;
    token[length] = '\0';
    return text;
}

static int is_power_of_two(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

static int read_integer(const struct key *key, const char *token, void *field)
{
    uint64_t value;
    if (!mo_parse_integer(token, &value) || value < key->low || value > key->high ||
        (key->kind == POWER_OF_TWO && !is_power_of_two(value)))
        return 0;
    memcpy(field, &value, sizeof value);
    return 1;
}

static int read_number(const struct key *key, const char *token, void *field)
{
    double value, low = (double)key->low, high = (double)key->high;
    const char *end;
    if (!mo_parse_decimal(token, &value, &end) || *end != '\0' || value < low || value > high ||
        (key->kind == FRACTION && (value <= low || value >= high)))
        return 0;
    memcpy(field, &value, sizeof value);
    return 1;
}

/* One of the words; the field becomes its position. */
static int read_word(const char *const *words, const char *token, void *field)
{
    for (int32_t i = 0; words[i] != NULL; i++) {
        if (strcmp(token, words[i]) == 0) {
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
    case DIVISIONS:
        return "a power of two, or [256:1,512:2,>:8] with powers of two in ascending MB";
    default:
        return "a number";
    }
}

static memopt_status bad_value(const struct key *key, const char *token)
{
    if (key->kind == BOOLEAN || key->kind == BACKEND || key->kind == DIVISIONS)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "allocator config: \"%s\" is not a value of %s; write %s", token, key->name,
                       range_text(key->kind));
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "allocator config: \"%s\" is not a value of %s; write %s from %" PRIu64
                   " to %" PRIu64 "%s",
                   token, key->name, key->kind == POWER_OF_TWO ? "a power of two" : "a number",
                   key->low, key->high, key->kind == FRACTION ? ", both excluded" : "");
}

static memopt_status read_scalar(const struct key *key, const char *token, void *field)
{
    static const char *const booleans[] = {"False", "True", NULL};
    static const char *const backends[] = {"native", "cudaMallocAsync", "hipMallocAsync", NULL};
    int good;
    if (key->kind == BOOLEAN)
        good = read_word(booleans, token, field);
    else if (key->kind == BACKEND)
        good = read_word(backends, token, field);
    else if (key->kind == FRACTION || key->kind == NUMBER)
        good = read_number(key, token, field);
    else
        good = read_integer(key, token, field);
    return good ? MEMOPT_OK : bad_value(key, token);
}

/* The slot of a size in MB; sizes beyond the last share it. */
static size_t slot_of(uint64_t megabytes)
{
    size_t slot = 0;
    while (megabytes > 1 && slot + 1 < MO_CONFIG_SLOTS) {
        megabytes >>= 1;
        slot++;
    }
    return slot;
}

/* Fills the slots from the last key's on; the first key fills those before it as well. */
static void fill_slots(mo_config_divisions *divisions, size_t from, uint64_t value)
{
    for (size_t i = from; i < MO_CONFIG_SLOTS; i++)
        divisions->slot[i] = value;
}

/* "[256:1,512:2,>:8]", the cursor at the bracket. */
static memopt_status read_divisions(const struct key *key, const char **cursor,
                                    mo_config_divisions *out_divisions)
{
    char size_token[TOKEN_BYTES], value_token[TOKEN_BYTES];
    mo_config_divisions divisions = {{0}};
    const char *text = *cursor + 1;
    size_t next_slot = 0;
    int entries = 0;
    do {
        uint64_t megabytes = 0, value;
        text = read_token(text, size_token);
        int rest = strcmp(size_token, ">") == 0;
        if (*text != ':' || (!rest && !mo_parse_integer(size_token, &megabytes)))
            return bad_value(key, size_token);
        text = read_token(text + 1, value_token);
        if (!mo_parse_integer(value_token, &value) || !is_power_of_two(value) || value > key->high)
            return bad_value(key, value_token);
        size_t slot = rest ? next_slot : slot_of(megabytes);
        if ((!rest && !is_power_of_two(megabytes)) || slot < next_slot)
            return bad_value(key, size_token);
        fill_slots(&divisions, entries == 0 ? 0 : slot, value);
        next_slot = mo_min_u64(slot + 1, MO_CONFIG_SLOTS - 1);
        entries++;
    } while (*text == ',' && *++text != '\0');
    if (*text != ']')
        return bad_value(key, *text == '\0' ? "an unfinished list" : text);
    *out_divisions = divisions;
    *cursor = text + 1;
    return MEMOPT_OK;
}

static memopt_status read_value(const struct key *key, const char **cursor, mo_config *config)
{
    char token[TOKEN_BYTES];
    void *field = (char *)config + key->offset;
    const char *text = skip_blanks(*cursor);
    if (key->kind == DIVISIONS && *text == '[') {
        *cursor = text;
        return read_divisions(key, cursor, field);
    }
    *cursor = read_token(text, token);
    if (key->kind != DIVISIONS)
        return read_scalar(key, token, field);
    uint64_t value;
    if (!mo_parse_integer(token, &value) || !is_power_of_two(value) || value > key->high)
        return bad_value(key, token);
    fill_slots(field, 0, value);
    return MEMOPT_OK;
}

static const struct key *find_key(const char *name)
{
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

/* One "key:value" with the comma behind it. */
static memopt_status read_entry(const char **cursor, mo_config *config)
{
    char name[TOKEN_BYTES];
    const char *text = read_token(*cursor, name);
    const struct key *key = find_key(name);
    if (key == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "allocator config: unknown key \"%s\"; the nearest valid one is \"%s\"",
                       name, mo_nearest_word(name, keys, sizeof keys[0], KEY_COUNT));
    if (*text != ':')
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "allocator config: %s has no value; write %s:value",
                       name, name);
    text++;
    memopt_status status = read_value(key, &text, config);
    if (status != MEMOPT_OK)
        return status;
    text = skip_blanks(text);
    if (*text != '\0' && *text != ',')
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "allocator config: \"%.20s\" follows the value of %s; separate keys by a "
                       "comma",
                       text, name);
    if (!key->acts)
        mo_log(MEMOPT_LOG_INFO, "allocator config: %s is accepted but has no effect here", name);
    *cursor = *text == ',' ? skip_blanks(text + 1) : text;
    return MEMOPT_OK;
}

/* Rules between keys. */
static memopt_status check_together(const mo_config *config)
{
    if (config->max_split_size_mb != 0 && config->max_split_size_mb < config->large_segment_size_mb)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "allocator config: max_split_size_mb is %" PRIu64
                       ", below the large segment's %" PRIu64 "; raise it, or lower "
                       "large_segment_size_mb",
                       config->max_split_size_mb, config->large_segment_size_mb);
    return MEMOPT_OK;
}

memopt_status mo_config_parse(const char *text, mo_config *out_config)
{
    mo_config config = {
#define INITIAL(key, kind, low, high, initial, acts) .key = MO_CONFIG_INITIAL_##kind(initial),
        MO_CONFIG_KEYS(INITIAL)
#undef INITIAL
    };
    const char *cursor = skip_blanks(text == NULL ? "" : text);
    while (*cursor != '\0') {
        memopt_status status = read_entry(&cursor, &config);
        if (status != MEMOPT_OK)
            return status;
    }
    memopt_status status = check_together(&config);
    if (status == MEMOPT_OK)
        *out_config = config;
    return status;
}
