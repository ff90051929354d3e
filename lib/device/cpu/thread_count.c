/*
 * How many threads a "cpu" device has by default: the number in the environment, else the
 * processors that this process may use: those of its affinity mask, or fewer if the CPU quota of
 * its control group is smaller.
 */
#define _GNU_SOURCE /* sched_getaffinity */
#include "base/small_file.h"
#include "device/cpu/cpu.h"

#include "base/checked.h"
#include "base/log.h"

#include <ctype.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_PROCESSORS = 1 << 16, LINE_BYTES = 2048, FOLDER_BYTES = 2 * LINE_BYTES };

/* --- the environment ----------------------------------------------------------------------- */

/* The positive number at the start of a text, and the rest of the text; 0: no number. */
static unsigned long leading_number(const char *text, const char **out_rest)
{
    char *rest;
    text += strspn(text, " \t");
    if (!isdigit((unsigned char)text[0]))
        return 0;
    unsigned long number = strtoul(text, &rest, 10);
    *out_rest = rest + strspn(rest, " \t");
    return number;
}

static uint32_t own_variable(void)
{
    const char *text = getenv("MEMOPT_NUM_THREADS"), *rest = "";
    if (text == NULL || text[0] == '\0')
        return 0;
    unsigned long number = leading_number(text, &rest);
    if (number >= 1 && number <= MO_MOST_THREADS && *rest == '\0')
        return (uint32_t)number;
    mo_log(MEMOPT_LOG_WARNING,
           "cpu: MEMOPT_NUM_THREADS=%s is not a number from 1 to %d; it is ignored", text,
           MO_MOST_THREADS);
    return 0;
}

/* A list gives the numbers of nested levels: the first counts. */
static uint32_t openmp_variable(void)
{
    const char *text = getenv("OMP_NUM_THREADS"), *rest = "";
    unsigned long number = text != NULL ? leading_number(text, &rest) : 0;
    if (*rest != '\0' && *rest != ',')
        return 0;
    return number < MO_MOST_THREADS ? (uint32_t)number : MO_MOST_THREADS;
}

/* --- the affinity mask --------------------------------------------------------------------- */

static uint64_t processors(void)
{
    cpu_set_t mask[MOST_PROCESSORS / CPU_SETSIZE];
    if (sched_getaffinity(0, sizeof mask, mask) == 0)
        return (uint64_t)CPU_COUNT_S(sizeof mask, mask);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint64_t)online : 1;
}

/* --- the quota of control groups ----------------------------------------------------------- */

/* Where this process is in one hierarchy; both texts are of one line of /proc/self/cgroup. */
typedef struct group {
    int unified; /* the hierarchy of version 2, else that of version 1 with the controller "cpu" */
    const char *path;
} group;

/* The next line that fits, without its newline; 0 at the end. */
static int next_line(FILE *file, char line[LINE_BYTES])
{
    int whole = 1;
    while (fgets(line, LINE_BYTES, file) != NULL) {
        size_t length = strlen(line);
        int ends = length > 0 && line[length - 1] == '\n';
        if (ends && whole) {
            line[length - 1] = '\0';
            return 1;
        }
        whole = ends;
    }
    return 0;
}

static FILE *open_below(const char *root, const char *name)
{
    char path[FOLDER_BYTES];
    int length = snprintf(path, sizeof path, "%s%s", root, name);
    return length < (int)sizeof path ? fopen(path, "re") : NULL;
}

/* True if a list separated by commas has the word. */
static int has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += length)
        if ((at == list || at[-1] == ',') && (at[length] == '\0' || at[length] == ','))
            return 1;
    return 0;
}

/* The kernel writes a blank, a backslash and the like as \ooo. */
static void undo_escapes(char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0'; to++) {
        int escaped = from[0] == '\\' && strspn(from + 1, "01234567") >= 3;
        int byte = escaped ? (from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0') : *from;
        *to = (char)byte;
        from += escaped ? 4 : 1;
    }
    *to = '\0';
}

static int read_number(const char *folder, const char *name, uint64_t *out_number)
{
    char path[FOLDER_BYTES + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return mo_read_number(path, out_number) == 0;
}

/* Processors that a group may use, rounded up; UINT64_MAX: no limit. Without a limit the quota is
 * "max" or -1. */
static uint64_t limit_of(const char *folder, int unified)
{
    char path[FOLDER_BYTES + 32], text[64];
    uint64_t quota = 0, period = 0;
    if (unified) {
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        if (mo_read_text(path, text, sizeof text) == 0)
            sscanf(text, "%" SCNu64 " %" SCNu64, &quota, &period);
    } else if (read_number(folder, "cpu.cfs_quota_us", &quota)) {
        read_number(folder, "cpu.cfs_period_us", &period);
    }
    return period != 0 ? mo_ceil_div_u64(quota, period) : UINT64_MAX;
}

/* The least limit of a group and those above it, up to where the hierarchy is mounted. `folder` is
 * cut short meanwhile. */
static uint64_t least_limit(char *folder, size_t mount_length, int unified)
{
    uint64_t least = UINT64_MAX;
    for (;;) {
        least = mo_min_u64(least, limit_of(folder, unified));
        char *slash = strrchr(folder, '/');
        if (slash == NULL || (size_t)(slash - folder) < mount_length)
            return least;
        *slash = '\0';
    }
}

/* The limit by a line of /proc/self/mountinfo: UINT64_MAX if it mounts another hierarchy, or a part
 * without the group. */
static uint64_t limit_at_mount(const char *root, char *line, const group *own)
{
    char top[LINE_BYTES], point[LINE_BYTES], type[32], options[LINE_BYTES];
    char folder[FOLDER_BYTES];
    const char *behind = strstr(line, " - ");
    if (behind == NULL || sscanf(behind, " - %31s %*s %2047s", type, options) != 2 ||
        strcmp(type, own->unified ? "cgroup2" : "cgroup") != 0 ||
        (!own->unified && !has_word(options, "cpu")) ||
        sscanf(line, "%*s %*s %*s %2047s %2047s", top, point) != 2)
        return UINT64_MAX;
    undo_escapes(top);
    undo_escapes(point);
    size_t above = strcmp(top, "/") == 0 ? 0 : strlen(top);
    const char *below = own->path + above;
    if (strncmp(own->path, top, above) != 0 || (*below != '/' && *below != '\0'))
        return UINT64_MAX;
    int mount_length = snprintf(folder, sizeof folder, "%s%s", root, point);
    int length = snprintf(folder, sizeof folder, "%s%s%s", root, point, below);
    if (length >= (int)sizeof folder)
        return UINT64_MAX;
    return least_limit(folder, (size_t)mount_length, own->unified);
}

static uint64_t limit_in_hierarchy(const char *root, const group *own)
{
    char line[LINE_BYTES];
    uint64_t least = UINT64_MAX;
    FILE *mounts = open_below(root, "/proc/self/mountinfo");
    if (mounts == NULL)
        return least;
    while (next_line(mounts, line))
        least = mo_min_u64(least, limit_at_mount(root, line, own));
    fclose(mounts);
    return least;
}

/* Lines of /proc/self/cgroup are NUMBER:CONTROLLERS:PATH; version 2 has no controllers there. */
static uint64_t quota(const char *root)
{
    char line[LINE_BYTES];
    uint64_t least = UINT64_MAX;
    FILE *groups = open_below(root, "/proc/self/cgroup");
    if (groups == NULL)
        return least;
    while (next_line(groups, line)) {
        char *controllers = strchr(line, ':');
        char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (path == NULL)
            continue;
        *path++ = '\0';
        group own = {.unified = controllers[1] == '\0', .path = path};
        if (own.unified || has_word(controllers + 1, "cpu"))
            least = mo_min_u64(least, limit_in_hierarchy(root, &own));
    }
    fclose(groups);
    return least;
}

/* ------------------------------------------------------------------------------------------- */

uint32_t mo_cpu_default_threads(const char *root, const char **out_why)
{
    uint32_t asked = own_variable();
    *out_why = "MEMOPT_NUM_THREADS";
    if (asked == 0) {
        asked = openmp_variable();
        *out_why = "OMP_NUM_THREADS";
    }
    if (asked != 0)
        return asked;
    uint64_t count = processors(), most = quota(root);
    *out_why = most < count ? "the control group's CPU quota" : "the affinity mask";
    count = mo_min_u64(mo_min_u64(most, count), MO_MOST_THREADS);
    return count > 0 ? (uint32_t)count : 1;
}
