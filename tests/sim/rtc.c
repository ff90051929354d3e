#include "rtc.h"

#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAGIC 0x72746370726f6731u
enum { PATH_BYTES = 1024 };
#define RTC_EXPORT __attribute__((visibility("default")))

extern char **environ;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static rtc_program *programs;
static int compiled;

/* How often this library was asked to compile. */
RTC_EXPORT int memopt_sim_rtc_compiled(void);
RTC_EXPORT int memopt_sim_rtc_compiled(void)
{
    return __atomic_load_n(&compiled, __ATOMIC_SEQ_CST);
}

/* How many programs live. */
RTC_EXPORT int memopt_sim_rtc_programs(void);
RTC_EXPORT int memopt_sim_rtc_programs(void)
{
    int count = 0;
    pthread_mutex_lock(&lock);
    for (rtc_program *p = programs; p != NULL; p = p->next)
        count++;
    pthread_mutex_unlock(&lock);
    return count;
}

/* The environment may say that a call fails: <VENDOR>_FAIL=call=code. */
static int told_to_fail(const char *call)
{
    char variable[64];
    snprintf(variable, sizeof variable, "%s_FAIL", rtc_environment);
    const char *text = getenv(variable);
    size_t length = strlen(call);
    return text != NULL && strncmp(text, call, length) == 0 && text[length] == '='
               ? atoi(text + length + 1)
               : RTC_OK;
}

/* Pre: lock held. Where the program hangs in the list, or NULL. */
static rtc_program **find(const rtc_program *program)
{
    for (rtc_program **at = &programs; *at != NULL; at = &(*at)->next)
        if (*at == program && program->magic == MAGIC)
            return at;
    return NULL;
}

/* --- programs ------------------------------------------------------------------------------ */

static void set_log(rtc_program *p, const char *text)
{
    free(p->log);
    p->log = strdup(text);
    p->log_bytes = p->log != NULL ? strlen(p->log) + 1 : 0;
}

int rtc_create(rtc_program **out, const char *source, const char *name, int headers)
{
    int code = told_to_fail("create");
    if (out == NULL)
        return RTC_INVALID_PROGRAM;
    if (source == NULL || headers != 0) /* no program here brings headers */
        return RTC_INVALID_INPUT;
    if (code != RTC_OK)
        return code;
    rtc_program *p = calloc(1, sizeof *p);
    if (p == NULL)
        return RTC_OUT_OF_MEMORY;
    p->magic = MAGIC;
    p->source = strdup(source);
    p->name = strdup(name != NULL ? name : "default_program");
    p->text = strdup("");
    p->text_bytes = 1;
    set_log(p, "");
    pthread_mutex_lock(&lock);
    p->next = programs;
    programs = p;
    pthread_mutex_unlock(&lock);
    *out = p;
    return RTC_OK;
}

int rtc_destroy(rtc_program **program)
{
    if (program == NULL)
        return RTC_INVALID_PROGRAM;
    pthread_mutex_lock(&lock);
    rtc_program *p = *program, **at = find(p);
    if (at != NULL)
        *at = p->next;
    pthread_mutex_unlock(&lock);
    if (at == NULL)
        return RTC_INVALID_PROGRAM;
    free(p->source);
    free(p->name);
    free(p->log);
    free(p->code);
    free(p->text);
    p->magic = 0;
    free(p);
    *program = NULL;
    return RTC_OK;
}

static int checked(rtc_program *program)
{
    pthread_mutex_lock(&lock);
    int found = find(program) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

static char *part_of(rtc_program *p, rtc_part part, size_t *out_bytes)
{
    *out_bytes = part == RTC_LOG ? p->log_bytes : part == RTC_CODE ? p->code_bytes : p->text_bytes;
    return part == RTC_LOG ? p->log : part == RTC_CODE ? p->code : p->text;
}

int rtc_size(rtc_program *program, rtc_part part, size_t *out)
{
    size_t bytes;
    if (!checked(program))
        return RTC_INVALID_PROGRAM;
    if (out == NULL)
        return RTC_INVALID_INPUT;
    (void)part_of(program, part, &bytes);
    *out = bytes;
    return told_to_fail(part == RTC_CODE ? "code_size" : "size");
}

int rtc_get(rtc_program *program, rtc_part part, char *out)
{
    size_t bytes;
    if (!checked(program))
        return RTC_INVALID_PROGRAM;
    if (out == NULL)
        return RTC_INVALID_INPUT;
    int code = part == RTC_CODE ? told_to_fail("code") : RTC_OK;
    const char *data = part_of(program, part, &bytes);
    if (code == RTC_OK && bytes != 0)
        memcpy(out, data, bytes);
    return code;
}

const char *rtc_error_name(int code, const char *const *names, int count)
{
    return code >= 0 && code < count ? names[code] : "";
}

void rtc_argument(rtc_job *job, const char *argument)
{
    if (job->count + 1 < RTC_ARGUMENTS)
        job->arguments[job->count++] = argument;
    job->arguments[job->count] = NULL;
}

int rtc_definition(rtc_job *job, const char *option)
{
    static const char only[] = "-DMO_ONLY_";
    if (strncmp(option, "-D", 2) != 0)
        return 0;
    if (strncmp(option, only, sizeof only - 1) == 0)
        job->only = option + sizeof only - 1;
    return 1;
}

/* --- compiling ----------------------------------------------------------------------------- */

static char *read_file(const char *path, size_t *out_bytes)
{
    FILE *file = fopen(path, "rb");
    *out_bytes = 0;
    if (file == NULL)
        return NULL;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *data = size >= 0 ? calloc((size_t)size + 1, 1) : NULL;
    if (data != NULL)
        *out_bytes = fread(data, 1, (size_t)size, file);
    fclose(file);
    return data;
}

static int write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL)
        return 0;
    size_t length = strlen(text);
    int whole = fwrite(text, 1, length, file) == length;
    return fclose(file) == 0 && whole;
}

/* Runs the compiler in the folder; its messages go to the file "log" there. */
static int run(const rtc_job *job, const char *folder)
{
    posix_spawn_file_actions_t actions;
    pid_t child;
    int state = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, folder);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "log", O_WRONLY | O_CREAT, 0600);
    int failed = posix_spawn(&child, job->arguments[0], &actions, NULL,
                             (char *const *)(uintptr_t)job->arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed || waitpid(child, &state, 0) != child)
        return 0;
    return WIFEXITED(state) && WEXITSTATUS(state) == 0;
}

/* The bits of what is compiled and how (FNV-1a). */
static uint64_t key_of(const rtc_program *p, const rtc_job *job)
{
    uint64_t key = 0xCBF29CE484222325u;
    for (int i = -1; i < job->count; i++) {
        const char *at = i < 0 ? p->source : job->arguments[i];
        do
            key = (key ^ (unsigned char)*at) * 0x100000001B3u;
        while (*at++ != '\0');
    }
    return key;
}

/* Compiles in the folder, or finds what an earlier run with this source and these options made: it
 * is kept in the build folder, since a compilation takes seconds and tests ask for many alike. */
static int compile_in(rtc_program *p, rtc_job *job, const char *folder)
{
    char log_path[PATH_BYTES], out_path[PATH_BYTES], kept_log[PATH_BYTES], kept_out[PATH_BYTES];
    size_t bytes, log_bytes;
    snprintf(out_path, sizeof out_path, "%s/%s", folder, p->name);
    if (strchr(p->name, '/') != NULL || !write_file(out_path, p->source))
        return RTC_INVALID_INPUT;
    rtc_argument(job, p->name);
    rtc_argument(job, "-o");
    rtc_argument(job, "out");
    unsigned long long key = key_of(p, job);
    snprintf(log_path, sizeof log_path, "%s/log", folder);
    snprintf(out_path, sizeof out_path, "%s/out", folder);
    snprintf(kept_log, sizeof kept_log, RTC_KEPT "/%016llx.log", key);
    snprintf(kept_out, sizeof kept_out, RTC_KEPT "/%016llx.out", key);
    char *output = read_file(kept_out, &bytes);
    int kept = output != NULL, works = kept || run(job, folder);
    char *log = read_file(kept ? kept_log : log_path, &log_bytes), *all = NULL;
    if (asprintf(&all, "%s%s", job->problem, log != NULL ? log : "") >= 0)
        set_log(p, all);
    free(all);
    free(log);
    if (!works)
        return RTC_COMPILATION;
    if (!kept) {
        output = read_file(out_path, &bytes); /* NULL where only the syntax is checked */
        if (rename(log_path, kept_log) == 0)  /* the output last: it says that both are there */
            (void)rename(out_path, kept_out);
    }
    int code = rtc_finish(p, job, output, bytes);
    free(output);
    return code;
}

static void remove_folder(const char *folder, const char *name)
{
    const char *const files[] = {name, "log", "out"};
    char path[PATH_BYTES];
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        (void)unlink(path);
    }
    (void)rmdir(folder);
}

/* <VENDOR>_HANG=file: makes the file, and never returns. */
static void hang_if_told(void)
{
    char variable[64];
    snprintf(variable, sizeof variable, "%s_HANG", rtc_environment);
    const char *path = getenv(variable);
    if (path == NULL || !write_file(path, ""))
        return;
    for (;;)
        pause();
}

int rtc_compile(rtc_program *program, int count, const char *const *options)
{
    rtc_job job = {0};
    char folder[] = RTC_KEPT "/XXXXXX";
    __atomic_add_fetch(&compiled, 1, __ATOMIC_SEQ_CST);
    hang_if_told();
    if (!checked(program))
        return RTC_INVALID_PROGRAM;
    if (count < 0 || (count > 0 && options == NULL))
        return RTC_INVALID_INPUT;
    int code = told_to_fail("compile");
    if (code == RTC_OK)
        code = rtc_read_options(count, options, &job);
    if (code != RTC_OK) {
        set_log(program, job.problem);
        return code;
    }
    if (mkdtemp(folder) == NULL)
        return RTC_OUT_OF_MEMORY;
    code = compile_in(program, &job, folder);
    remove_folder(folder, program->name);
    return code;
}

/* --- what the driver loads ------------------------------------------------------------------- */

char *rtc_container(uint16_t machine, uint8_t abi, uint32_t flags, const char *names,
                    size_t name_bytes, size_t *out_bytes)
{
    Elf64_Ehdr header = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT}};
    Elf64_Shdr sections[2] = {{0}};
    size_t bytes = sizeof header + name_bytes + 1;
    header.e_ident[EI_ABIVERSION] = abi;
    header.e_type = ET_EXEC;
    header.e_machine = machine;
    header.e_version = EV_CURRENT;
    header.e_flags = flags;
    header.e_ehsize = sizeof header;
    header.e_shentsize = sizeof sections[0];
    header.e_shnum = 2;
    header.e_shoff = (bytes + 7) / 8 * 8;
    sections[1].sh_type = SHT_STRTAB;
    sections[1].sh_offset = sizeof header + 1;
    sections[1].sh_size = name_bytes;
    char *image = calloc(header.e_shoff + sizeof sections, 1);
    if (image == NULL)
        return NULL;
    memcpy(image, &header, sizeof header);
    memcpy(image + sizeof header + 1, names, name_bytes);
    memcpy(image + header.e_shoff, sections, sizeof sections);
    *out_bytes = header.e_shoff + sizeof sections;
    return image;
}

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";

char *rtc_names(const char *text, const char *word, const char *only, size_t *out_bytes)
{
    char *names = calloc(strlen(text) + 1, 1);
    size_t used = 0;
    if (names == NULL)
        return NULL;
    for (const char *at = text; (at = strstr(at, word)) != NULL;) {
        at += strlen(word);
        at += strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_("); /* the rest of a macro's name */
        size_t length = strspn(at, letters);
        if (only != NULL && (strlen(only) != length || memcmp(at, only, length) != 0))
            continue;
        memcpy(names + used, at, length);
        used += length + (length != 0);
    }
    *out_bytes = used;
    return names;
}
