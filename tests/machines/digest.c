/*
 * Runs the optimizers' kernels on fixed inputs and prints a digest for each case, which must be the
 * same for every instruction set and processor; states also for every byte order.
 *
 *   digest                     prints the digests
 *   digest FILE                compares them with those in the file, for each instruction set that
 *                              this processor has (or MEMOPT_ISA names)
 *
 *   --write STATES             also writes optimizer states to a file
 *   --read STATES              takes the states from there, as another processor wrote them
 *   --best NAME                fails unless this is the best instruction set of the processor
 *   --only states              runs the cases of optimizer states alone
 */
#include "machines/digest.h"

#include "device/cpu/cpu.h"
#include "support/flush.h"

#include <stdarg.h>

static memopt_device *device;
static FILE *expected; /* NULL: print */
static int lines, differences, only_states;

void digest_must(memopt_status status, const char *call)
{
    if (status == MEMOPT_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", call, memopt_status_name(status), memopt_last_error());
    exit(1);
}

memopt_device *digest_device(void)
{
    return device;
}

void digest_launch(const mo_kernel *kernel, const void *args, uint64_t items)
{
    MUST(mo_launch(device, NULL, kernel, args, items));
}

static void add_byte(uint64_t *digest, uint64_t byte)
{
    *digest = (*digest ^ byte) * 0x100000001b3u;
}

void digest_add_u64(uint64_t *digest, uint64_t value)
{
    for (int i = 0; i < 64; i += 8)
        add_byte(digest, value >> i & 0xff);
}

void digest_add(uint64_t *digest, const void *values, uint64_t count, uint32_t size)
{
    const unsigned char *at = values;
    const uint16_t one = 1;
    int little = *(const unsigned char *)&one;
    for (uint64_t i = 0; i < count; i++, at += size)
        for (uint32_t k = 0; k < size; k++)
            add_byte(digest, at[little ? k : size - 1 - k]);
}

void digest_add_f32(uint64_t *digest, float value)
{
    digest_add_u64(digest, mo_f32_bits(mo_f32_one_nan(value)));
}

/* The digest that is expected of a name: the rest of its line. */
static const char *wanted(const char *name)
{
    static char line[160];
    size_t length = strlen(name);
    rewind(expected);
    while (fgets(line, sizeof line, expected) != NULL)
        if (strncmp(line, name, length) == 0 && line[length] == ' ') {
            line[strcspn(line, "\n")] = '\0';
            return line + length + 1;
        }
    return "nothing";
}

void digest_report(uint64_t digest, const char *format, ...)
{
    char name[100], number[20];
    va_list list;
    va_start(list, format);
    vsnprintf(name, sizeof name, format, list);
    va_end(list);
    snprintf(number, sizeof number, "%016llx", (unsigned long long)digest);
    lines++;
    if (expected == NULL) {
        printf("%s %s\n", name, number);
    } else if (strcmp(number, wanted(name)) != 0) {
        differences++;
        fprintf(stderr, "%s: %s is %s; %s is expected\n", getenv("MEMOPT_ISA"), name, number,
                wanted(name));
    }
}

static int expected_lines(void)
{
    char line[160];
    int count = 0;
    rewind(expected);
    while (fgets(line, sizeof line, expected) != NULL)
        count +=
            !only_states || strncmp(line, "export.", 7) == 0 || strncmp(line, "import.", 7) == 0;
    return count;
}

static void run_isa(FILE *in, FILE *out)
{
    lines = differences = 0;
    MUST(memopt_device_open("cpu", NULL, &device));
    if (!only_states)
        digest_optimizers();
    digest_states(in, out);
    MUST(memopt_device_close(device));
}

/* Each instruction set of this processor in turn. Returns the number of differences. */
static int compare(FILE *in, FILE *out)
{
    int best = (int)mo_cpu_best_isa(), all = 0;
    for (int isa = getenv("MEMOPT_ISA") != NULL ? best : MO_ISA_SCALAR; isa <= best; isa++) {
        setenv("MEMOPT_ISA", mo_isa_name((mo_isa)isa), 1);
        if (in != NULL)
            rewind(in);
        run_isa(in, out);
        out = NULL;
        printf("%s: %d digests, %d of them differ; %d are expected\n", getenv("MEMOPT_ISA"), lines,
               differences, expected_lines());
        all += differences + (lines != expected_lines());
    }
    return all;
}

static FILE *open_file(const char *name, const char *mode)
{
    FILE *file = fopen(name, mode);
    if (file == NULL) {
        perror(name);
        exit(1);
    }
    return file;
}

/* The value of an option, or NULL. */
static const char *option(int argc, char **argv, const char *name)
{
    for (int i = 2; i + 1 < argc; i += 2)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    return NULL;
}

static int compare_with(const char *digests, const char *from, const char *to, const char *best)
{
    FILE *in = from != NULL ? open_file(from, "rb") : NULL;
    FILE *out = to != NULL ? open_file(to, "wb") : NULL;
    if (best != NULL && strcmp(best, mo_isa_name(mo_cpu_best_isa())) != 0) {
        fprintf(stderr, "the best instruction set is %s; %s is expected\n",
                mo_isa_name(mo_cpu_best_isa()), best);
        return 1;
    }
    expected = open_file(digests, "r");
    int all = compare(in, out);
    fclose(expected);
    if (in != NULL)
        fclose(in);
    if (out != NULL && fclose(out) != 0) {
        perror(to);
        return 1;
    }
    return all != 0;
}

int main(int argc, char **argv)
{
    flush_subnormals();
    only_states = option(argc, argv, "--only") != NULL;
    if (argc > 1)
        return compare_with(argv[1], option(argc, argv, "--read"), option(argc, argv, "--write"),
                            option(argc, argv, "--best"));
    run_isa(NULL, NULL);
    return 0;
}
