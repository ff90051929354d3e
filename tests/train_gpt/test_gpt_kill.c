/*
 * Kills the trainer with SIGKILL at random moments, resumes it each time, and compares the losses
 * of all steps, in hexadecimal, with those of a run that was left alone.
 *
 * Usage: test_gpt_kill PATH-OF-TRAIN_GPT
 */
#include "support.h"

#include "ops.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STEPS 160
#define KILLS 12

static const char *program;
static char folder[64], text_path[96], save_path[96], log_path[96];

/* Starts the trainer with its output appended to the log; resume: from the save file. */
static pid_t start(int resume, int save)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0)
        return child;
    int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    dup2(log, STDOUT_FILENO);
    const char *arguments[64] = {
        program,   "--text",      text_path,   "--layers",     "2",    "--width",
        "32",      "--heads",     "2",         "--context",    "32",   "--batch",
        "2",       "--dropout",   "0.1",       "--dtype",      "bf16", "--master",
        "off",     "--optimizer", "adamw8bit", "--checkpoint", "on",   "--offload",
        "on",      "--capacity",  "128MiB",    "--threads",    "1",    "--json",
        "--steps", "160"};
    int count = 32;
    if (save) {
        const char *more[] = {"--save", save_path, "--save-every", "1"};
        memcpy(arguments + count, more, sizeof more);
        count += 4;
    }
    if (resume) {
        arguments[count++] = "--resume";
        arguments[count++] = save_path;
    }
    execv(program, (char *const *)arguments);
    _exit(127);
}

static int finish(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

/* Reads the losses of the log by step and starts it anew. A step that was taken twice (the run was
 * killed before it was saved) must give the same loss each time. A line that the kill cut short is
 * passed over. */
static void collect(char losses[STEPS + 1][32])
{
    char line[512];
    FILE *log = fopen(log_path, "r");
    if (!log)
        return;
    while (fgets(line, sizeof line, log)) {
        int step;
        char loss[32];
        const char *hex = strstr(line, "\"loss_hex\":\"");
        if (!strchr(line, '\n') || !hex || sscanf(line, "{\"step\":%d,", &step) != 1 ||
            sscanf(hex, "\"loss_hex\":\"%31[^\"]\"", loss) != 1)
            continue;
        assert_in_range(step, 1, STEPS);
        if (losses[step][0])
            assert_string_equal(losses[step], loss);
        memcpy(losses[step], loss, sizeof loss);
    }
    fclose(log);
    unlink(log_path);
}

static void sleep_for(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

TEST(a_killed_run_resumes_to_the_same_losses)
{
    static char alone[STEPS + 1][32], killed[STEPS + 1][32];
    double begin = seconds_now();
    assert_int_equal(finish(start(0, 1)), 0);
    double whole = seconds_now() - begin;
    collect(alone);
    unlink(save_path);

    random_state random = {(uint64_t)time(NULL), 0};
    print_message("seed %llu\n", (unsigned long long)random.seed);
    int kills = 0, ends = 0;
    while (!ends) {
        pid_t child = start(access(save_path, R_OK) == 0, 1);
        if (kills < KILLS) {
            /* Anywhere from before the first step to a sixth of the way. */
            sleep_for(whole * (double)(random_next(&random) % 1000) / 6000);
            kill(child, SIGKILL);
        }
        int status = finish(child);
        kills += WIFSIGNALED(status) ? 1 : 0;
        ends = WIFEXITED(status);
        if (ends)
            assert_int_equal(WEXITSTATUS(status), 0);
        collect(killed);
    }
    print_message("killed %d times\n", kills);
    for (int step = 1; step <= STEPS; step++) {
        assert_true(alone[step][0]);
        if (killed[step][0]) /* printed before the kill */
            assert_string_equal(alone[step], killed[step]);
    }
    assert_string_equal(alone[STEPS], killed[STEPS]);
    assert_true(kills > 0);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s TRAIN_GPT\n", argv[0]);
        return 2;
    }
    program = argv[1];
    snprintf(folder, sizeof folder, "gpt_kill_%ld", (long)getpid());
    snprintf(text_path, sizeof text_path, "%s.txt", folder);
    snprintf(save_path, sizeof save_path, "%s.bin", folder);
    snprintf(log_path, sizeof log_path, "%s.log", folder);
    corpus text;
    tiny_text(&text);
    FILE *file = fopen(text_path, "wb");
    if (!file || fwrite(text.bytes, 1, text.length, file) != text.length || fclose(file) != 0)
        return 2;
    text_free(&text);
    int failed = run_all_tests(NULL, NULL);
    char temporary[128];
    snprintf(temporary, sizeof temporary, "%s.tmp", save_path);
    unlink(temporary);
    unlink(text_path);
    unlink(save_path);
    unlink(log_path);
    return failed;
}
