/* Settings, faults and processes of the simulated libraries for monitoring. */
#include "monitor_sim.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_VIOLATIONS = 16, TEXT = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char fault_call[64];
static int64_t fault_countdown, calls, listings;
static int32_t fault_code;
static char violations[MOST_VIOLATIONS][TEXT];
static uint32_t violation_count;

static uint64_t parse_size(const char *text)
{
    static const char suffixes[] = "KMG";
    char *end = NULL;
    uint64_t value = strtoull(text, &end, 0);
    const char *found = *end != '\0' ? strchr(suffixes, *end) : NULL;
    return found != NULL ? value << (10 * (found - suffixes + 1)) : value;
}

uint64_t sim_number(const char *name, uint64_t missing)
{
    const char *text = getenv(name);
    return text == NULL || *text == '\0' ? missing : parse_size(text);
}

const char *sim_text(const char *name, const char *missing)
{
    const char *text = getenv(name);
    return text != NULL ? text : missing;
}

int sim_device_count(void)
{
    return (int)sim_number("MEMOPT_SIM_DEVICES", 2);
}

uint64_t sim_total(void)
{
    return sim_number("MEMOPT_SIM_MEMORY", (uint64_t)1 << 30);
}

uint64_t sim_used(int device)
{
    return sim_number("MEMOPT_SIM_USED", 256u << 20) + ((uint64_t)device << 24);
}

/* --- faults and violations ------------------------------------------------------------------- */

/* "call:*=code" in MEMOPT_SIM_FAIL: every call of it fails. */
static int always_fails(const char *call)
{
    size_t length = strlen(call);
    const char *list = sim_text("MEMOPT_SIM_FAIL", "");
    while (*list != '\0') {
        if (strncmp(list, call, length) == 0 && strncmp(list + length, ":*=", 3) == 0)
            return (int)strtol(list + length + 3, NULL, 0);
        list += strcspn(list, ",");
        list += *list == ',';
    }
    return 0;
}

int sim_monitor_call(const char *call)
{
    int code = always_fails(call);
    pthread_mutex_lock(&lock);
    calls++;
    if (fault_countdown > 0 && (strcmp(fault_call, "*") == 0 || strcmp(fault_call, call) == 0) &&
        --fault_countdown == 0)
        code = fault_code;
    pthread_mutex_unlock(&lock);
    return code;
}

void sim_monitor_violation(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&lock);
    if (violation_count < MOST_VIOLATIONS)
        vsnprintf(violations[violation_count++], TEXT, format, arguments);
    pthread_mutex_unlock(&lock);
    va_end(arguments);
}

void memopt_sim_fail_at(const char *call, int64_t n, int32_t code)
{
    pthread_mutex_lock(&lock);
    snprintf(fault_call, sizeof fault_call, "%s", call);
    fault_countdown = n;
    fault_code = code;
    pthread_mutex_unlock(&lock);
}

int64_t memopt_sim_fault_pending(void)
{
    return fault_countdown;
}

int64_t memopt_sim_calls(void)
{
    return calls;
}

uint32_t memopt_sim_violations(void)
{
    return violation_count;
}

int memopt_sim_take_violation(char *out, uint64_t bytes)
{
    if (violation_count == 0)
        return 0;
    snprintf(out, bytes, "%s", violations[0]);
    memmove(violations[0], violations[1], sizeof violations - TEXT);
    violation_count--;
    return 1;
}

/* A program that ends with a violation which nobody took is told. */
__attribute__((destructor)) static void tell(void)
{
    if (violation_count == 0)
        return;
    fprintf(stderr, "memopt_sim: violation: %s\n", violations[0]);
    _Exit(98);
}

/* --- processes ------------------------------------------------------------------------------- */

/* "pid:bytes:kinds[@device]", where bytes may be "?" and kinds has c, g or both. */
static int parse_process(const char *item, sim_process *out)
{
    char bytes[32] = "", kinds[8] = "";
    int device = 0;
    if (sscanf(item, "%u:%31[^:]:%7[cg]@%d", &out->pid, bytes, kinds, &device) < 3)
        return 0;
    out->device = device;
    out->known = bytes[0] != '?';
    out->compute = strchr(kinds, 'c') != NULL;
    out->graphics = strchr(kinds, 'g') != NULL;
    out->bytes = out->known ? parse_size(bytes) : 0;
    return 1;
}

size_t sim_processes(sim_process out[MOST_PROCESSES])
{
    size_t count = 0;
    const char *list = sim_text("MEMOPT_SIM_PROCESSES", "4000001:64M:c,4000002:16M:g,4000001:1M:g");
    for (; *list != '\0' && count < MOST_PROCESSES; list += *list == ',') {
        count += (size_t)parse_process(list, &out[count]);
        list += strcspn(list, ",");
    }
    pthread_mutex_lock(&lock);
    uint64_t started = (uint64_t)listings++ * sim_number("MEMOPT_SIM_STARTING", 0);
    pthread_mutex_unlock(&lock);
    for (uint64_t i = 0; i < started && count < MOST_PROCESSES; i++)
        out[count++] = (sim_process){
            .pid = (uint32_t)(5000000 + i), .compute = 1, .known = 1, .bytes = (uint64_t)1 << 20};
    return count;
}
