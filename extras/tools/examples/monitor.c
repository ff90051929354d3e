/*
 * Watching devices without opening one: memory, load, and who uses how much.
 *
 * A monitor makes no context, so it costs no device memory. What a machine does not tell is a
 * missing bit in `fields`, not an error: the same loop serves every back end.
 */
#include "example.h"
#include <memopt/tools/monitor.h>

/* Processes come with the greatest user first; any other status than OK ends the visit. */
enum { ENOUGH = MEMOPT_STATUS_USER };

typedef struct top {
    int left, seen;
} top;

static memopt_status print_process(void *user, const memopt_process_info *process)
{
    top *t = user;
    t->seen++;
    if (process->used_known)
        printf("    %8d  %-20s %10.1f MiB\n", (int)process->pid, process->name,
               (double)process->used_bytes / (double)MIB);
    else
        printf("    %8d  %-20s    unknown\n", (int)process->pid, process->name);
    return --t->left == 0 ? ENOUGH : MEMOPT_OK;
}

static void print_device(memopt_monitor *monitor, const char *backend, int32_t index)
{
    memopt_monitor_reading r = MEMOPT_MONITOR_READING_INIT;
    top three = {3, 0};
    CHECK(memopt_monitor_get_reading(monitor, index, &r));
    printf("%s:%d %s\n", backend, (int)index, r.name);
    if (r.fields & MEMOPT_MONITOR_MEMORY)
        printf("  memory       %10.1f of %.1f MiB used\n", (double)r.memory_used / (double)MIB,
               (double)r.memory_total / (double)MIB);
    if (r.fields & MEMOPT_MONITOR_UTILIZATION)
        printf("  utilization  %10.0f %%\n", r.utilization);
    if (r.fields & MEMOPT_MONITOR_TEMPERATURE)
        printf("  temperature  %10.0f degrees\n", r.temperature);
    if (r.fields & MEMOPT_MONITOR_POWER)
        printf("  power        %10.1f W\n", r.power);
    if (r.denied | r.failed)
        printf("  not told: %s\n", r.problem);

    memopt_status status = memopt_monitor_processes(monitor, index, print_process, &three);
    if (status != MEMOPT_OK && status != ENOUGH)
        printf("  processes: %s\n", memopt_last_error());
}

/* Without --device every device of every back end; with it, that one. */
int main(int words_count, char **words)
{
    static const char *const backends[] = {"cpu", "cuda", "hip"};
    const char *wanted = device_argument(words_count, words, "");
    size_t prefix = strcspn(wanted, ":");
    int devices = 0;
    for (int b = 0; b < 3; b++) {
        memopt_monitor *monitor;
        int32_t count, only = wanted[prefix] == ':' ? atoi(wanted + prefix + 1) : 0;
        if (prefix > 0 && (strncmp(wanted, backends[b], prefix) || backends[b][prefix] != '\0'))
            continue;
        if (memopt_monitor_open(backends[b], &monitor) != MEMOPT_OK) {
            printf("%s: %s\n", backends[b], memopt_last_error());
            continue;
        }
        CHECK(memopt_monitor_get_device_count(monitor, &count));
        for (int32_t i = 0; i < count; i++)
            if (prefix == 0 || i == only) {
                print_device(monitor, backends[b], i);
                devices++;
            }
        CHECK(memopt_monitor_close(monitor));
    }
    if (devices == 0) /* the machine itself is always there */
        tell_usage("there is no such device");
    return 0;
}
