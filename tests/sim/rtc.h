/*
 * The core of the simulated run-time compilers: programs, their logs, running a real compiler.
 *
 * A source is compiled by clang for the vendor's GPU, without any header or built-in folder, as
 * NVRTC and hipRTC would; without clang the host compiler checks its syntax. What comes out can be
 * loaded by the simulated driver of the vendor and, for HIP with clang, is a real code object.
 *
 * A program's handle is checked by address and magic; one lock guards all programs.
 */
#ifndef MEMOPT_SIM_RTC_H
#define MEMOPT_SIM_RTC_H

#include <stddef.h>
#include <stdint.h>

/* Both vendors' numbers. */
enum {
    RTC_OK = 0,
    RTC_OUT_OF_MEMORY = 1,
    RTC_PROGRAM_CREATION = 2,
    RTC_INVALID_INPUT = 3,
    RTC_INVALID_PROGRAM = 4,
    RTC_INVALID_OPTION = 5,
    RTC_COMPILATION = 6
};

enum { RTC_ARGUMENTS = 40, RTC_TARGET_BYTES = 64 };

/* What the options of a compilation come to. */
typedef struct rtc_job {
    const char *arguments[RTC_ARGUMENTS]; /* for the compiler; the last is NULL */
    int count;
    char target[RTC_TARGET_BYTES]; /* "sm_90", "compute_90", "gfx1030" */
    int no_code;                   /* only the text (PTX) is wanted */
    const char *only;              /* the kernel of -DMO_ONLY_name, or NULL: all */
    char problem[512];             /* what the log says first, or where the options are refused */
} rtc_job;

typedef struct rtc_program {
    uint64_t magic;
    struct rtc_program *next;
    char *source, *name;
    char *log, *code, *text;
    size_t log_bytes, code_bytes, text_bytes; /* log and text: with their zero byte */
} rtc_program;

/* --- of the vendor's file --- */
extern const char *const rtc_environment; /* "MEMOPT_SIM_NVRTC" */
/* Reads the options into job. RTC_OK, or the code and job->problem. */
int rtc_read_options(int count, const char *const *options, rtc_job *job);
/* Turns the output of the compiler (NULL, 0 without one) into what the driver loads: fills in code
 * and, where the vendor has it, text. */
int rtc_finish(rtc_program *program, const rtc_job *job, char *output, size_t bytes);

/* --- of the core --- */
int rtc_create(rtc_program **out, const char *source, const char *name, int headers);
int rtc_destroy(rtc_program **program);
int rtc_compile(rtc_program *program, int count, const char *const *options);
typedef enum rtc_part { RTC_LOG, RTC_CODE, RTC_TEXT } rtc_part;
int rtc_size(rtc_program *program, rtc_part part, size_t *out);
int rtc_get(rtc_program *program, rtc_part part, char *out);
const char *rtc_error_name(int code, const char *const *names, int count);
void rtc_argument(rtc_job *job, const char *argument);
/* Where the option is a definition: notes it. */
int rtc_definition(rtc_job *job, const char *option);
/* A minimal ELF of the machine that holds the kernels' names as its symbols would. names: one
 * after the other, each with its zero byte. */
char *rtc_container(uint16_t machine, uint8_t abi, uint32_t flags, const char *names,
                    size_t name_bytes, size_t *out_bytes);
/* The names behind each `word` of text, up to a character that no name has. Capitals between the
 * two are skipped: "\nMO_" finds what MO_GLOBAL(…) and macros around it declare at a line's start.
 * `only`: no other name. */
char *rtc_names(const char *text, const char *word, const char *only, size_t *out_bytes);

/* --- the vendor's functions, whose names begin with v --- */
#define RTC_CALL(name, parameters)                                                                 \
    __attribute__((visibility("default"))) int name parameters;                                    \
    int name parameters

#define RTC_PROGRAMS(v, V, other)                                                                  \
    RTC_CALL(v##CreateProgram, (rtc_program * *out, const char *source, const char *name,          \
                                int headers, const char *const *texts, const char *const *names))  \
    {                                                                                              \
        return rtc_create(out, source, name, headers);                                             \
    }                                                                                              \
    RTC_CALL(v##DestroyProgram, (rtc_program * *program))                                          \
    {                                                                                              \
        return rtc_destroy(program);                                                               \
    }                                                                                              \
    RTC_CALL(v##CompileProgram, (rtc_program * program, int count, const char *const *options))    \
    {                                                                                              \
        return rtc_compile(program, count, options);                                               \
    }                                                                                              \
    RTC_PART(v##GetProgramLog, RTC_LOG)                                                            \
    __attribute__((visibility("default"))) const char *v##GetErrorString(int code);                \
    const char *v##GetErrorString(int code)                                                        \
    {                                                                                              \
        static const char *const names[] = {                                                       \
            V "_SUCCESS",                                                                          \
            V "_ERROR_OUT_OF_MEMORY",                                                              \
            V "_ERROR_PROGRAM_CREATION_FAILURE",                                                   \
            V "_ERROR_INVALID_INPUT",                                                              \
            V "_ERROR_INVALID_PROGRAM",                                                            \
            V "_ERROR_INVALID_OPTION",                                                             \
            V "_ERROR_COMPILATION",                                                                \
        };                                                                                         \
        const char *name = rtc_error_name(code, names, sizeof names / sizeof names[0]);            \
        return name[0] != '\0' ? name : V other;                                                   \
    }

#define RTC_PART(name, part)                                                                       \
    RTC_CALL(name##Size, (rtc_program * program, size_t * out))                                    \
    {                                                                                              \
        return rtc_size(program, part, out);                                                       \
    }                                                                                              \
    RTC_CALL(name, (rtc_program * program, char *out))                                             \
    {                                                                                              \
        return rtc_get(program, part, out);                                                        \
    }

#endif
