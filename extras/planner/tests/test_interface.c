/* The public functions: results by name and as JSON, bytes from a function, and refusals. */
#include "support.h"

#include "memopt/plan.h"

#define MODEL                                                                                      \
    "model.hidden=256;model.layers=4;model.heads=4;model.vocabulary=4096;run.sequence=256;"        \
    "card.device=cpu;card.margin=1;"
#define USER_STATUS ((memopt_status)0x10007)

static double value(const memopt_plan *plan, const char *name)
{
    double number = -1;
    OK(memopt_plan_get_value(plan, name, &number));
    return number;
}

TEST(results_have_names)
{
    static const char *const categories[] = {"parameters", "gradients", "optimizer", "activations",
                                             "logits",     "batch",     "overhead"};
    memopt_plan *plan = NULL;
    char name[48];
    double sum = 0, number = 7;
    OK(memopt_plan_create(MODEL "run.batch=2;card.capacity=1GiB", NULL, NULL, &plan));
    for (size_t i = 0; i < sizeof categories / sizeof *categories; i++) {
        (void)snprintf(name, sizeof name, "categories.%s", categories[i]);
        sum += value(plan, name);
    }
    assert_true(sum == value(plan, "peak_bytes"));
    assert_true(value(plan, "phases.backward.total") <= sum);
    assert_true(value(plan, "fits") == 1 && value(plan, "limit_bytes") == 1 << 30);
    GIVES(MEMOPT_NOT_FOUND, memopt_plan_get_value(plan, "peek_bytes", &number));
    assert_non_null(strstr(memopt_last_error(), "\"peak_bytes\""));
    GIVES(MEMOPT_NOT_FOUND, memopt_plan_get_value(plan, "peak_reason", &number));
    GIVES(MEMOPT_NOT_FOUND, memopt_plan_get_value(plan, "solution.fits", &number));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_plan_get_value(NULL, "fits", &number));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_plan_get_value(plan, NULL, &number));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_plan_get_value(plan, "fits", NULL));
    assert_true(number == 7);
    (void)snprintf(name, sizeof name, "\"peak_bytes\": %.0f", sum);
    assert_non_null(strstr(memopt_plan_get_json(plan), name));
    assert_non_null(strstr(memopt_plan_get_json(plan), "\"name\": \"layers.3\""));
    assert_null(memopt_plan_get_json(NULL));
    OK(memopt_plan_destroy(plan));
    OK(memopt_plan_destroy(NULL));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_plan_create(MODEL, NULL, NULL, NULL));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_plan_solve(MODEL, NULL, NULL, NULL));
}

/* --- blocks ----------------------------------------------------------------------------------- */

/* Plays a list; gives the most bytes alive, and in `rest` those at its end. Ids are below 2^16. */
static uint64_t play(const memopt_plan_event *events, uint64_t count, uint64_t *rest)
{
    static uint64_t alive[1 << 16];
    uint64_t now = 0, most = 0;
    memset(alive, 0, sizeof alive);
    for (uint64_t i = 0; i < count; i++) {
        assert_true(events[i].id < 1 << 16);
        uint64_t *bytes = &alive[events[i].id];
        assert_true((*bytes > 0) == (events[i].bytes == 0)); /* it begins, or ends, but once */
        now += events[i].bytes - *bytes;
        *bytes = events[i].bytes;
        most = now > most ? now : most;
    }
    *rest = now;
    return most;
}

/* The blocks of a run have its peak, and leave weights and states. */
static void check_blocks(const char *settings)
{
    memopt_plan *plan = NULL;
    uint64_t count = 0, again = 0, rest = 0;
    OK(memopt_plan_create(settings, NULL, NULL, &plan));
    OK(memopt_plan_get_events(plan, NULL, 0, &count));
    memopt_plan_event *events = calloc(count + 1, sizeof *events);
    assert_non_null(events);
    OK(memopt_plan_get_events(plan, events, count, &again));
    assert_true(again == count && count > 100 && events[count].bytes == 0);
    double most = (double)play(events, count, &rest);
    assert_true(most == value(plan, "peak_bytes") - value(plan, "categories.overhead"));
    assert_true((double)rest ==
                value(plan, "phases.load.parameters") + value(plan, "phases.load.optimizer"));
    free(events);
    OK(memopt_plan_destroy(plan));
}

TEST(blocks_have_the_peak_of_the_plan)
{
    check_blocks(MODEL "run.batch=2");
    check_blocks(MODEL "run.batch=2;run.checkpointing=full;run.accumulation=2");
    check_blocks(MODEL "run.batch=2;card.device=cuda;run.optimizer=adamw8bit");
    check_blocks(MODEL "run.batch=4;run.world_size=2;run.sharding=zero3;model.family=gpt2");
}

/* The optimizer's step makes a block for each weight where it steps all at once: none is as large
 * as all. */
TEST(blocks_of_a_step_are_those_of_its_weights)
{
    memopt_plan *plan = NULL;
    uint64_t count = 0, rest, largest = 0;
    OK(memopt_plan_create(MODEL "run.batch=1;run.sequence=8;card.device=cuda", NULL, NULL, &plan));
    OK(memopt_plan_get_events(plan, NULL, 0, &count));
    memopt_plan_event *events = calloc(count, sizeof *events);
    assert_non_null(events);
    OK(memopt_plan_get_events(plan, events, count, &count));
    assert_true((double)play(events, count, &rest) ==
                value(plan, "peak_bytes") - value(plan, "categories.overhead"));
    for (uint64_t i = 0; i < count; i++)
        largest = events[i].bytes > largest ? events[i].bytes : largest;
    assert_true(largest == 4096 * 256 * 4); /* the embeddings */
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_plan_get_events(plan, NULL, 1, &count));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_plan_get_events(plan, events, 1, NULL));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_plan_get_events(NULL, events, 1, &count));
    free(events);
    OK(memopt_plan_destroy(plan));
}

TEST(keys_are_listed)
{
    const char *name = NULL, *kind, *accepts, *help;
    uint64_t count = 0;
    while (memopt_plan_get_key(count, &name, &kind, &accepts, &help) == MEMOPT_OK) {
        assert_true(strlen(help) > 5 && strlen(accepts) > 2 && strchr(name, '.') != NULL);
        count++;
    }
    assert_true(count > 90);
    assert_string_equal(name, "target.all_changes"); /* untouched after the last */
    GIVES(MEMOPT_NOT_FOUND, memopt_plan_get_key(count, &name, &kind, &accepts, &help));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_plan_get_key(0, NULL, &kind, &accepts, &help));
}

TEST(a_solution_is_found)
{
    memopt_plan *plan = NULL;
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_plan_solve(MODEL, NULL, NULL, &plan));
    assert_non_null(strstr(memopt_last_error(), "card.capacity"));
    GIVES(MEMOPT_INVALID_ARGUMENT,
          memopt_plan_solve(MODEL "card.capacity=1GiB;target.max_micro_batch=65537", NULL, NULL,
                            &plan));
    assert_null(plan);
    OK(memopt_plan_solve(MODEL "card.capacity=300MiB;target.effective_batch=64", NULL, NULL,
                         &plan));
    assert_true(value(plan, "solution.micro_batch") > 1);
    assert_true(value(plan, "solution.micro_batch") * value(plan, "solution.accumulation") == 64);
    assert_true(value(plan, "solution.peak_bytes") <= 300 * (double)MIB);
    assert_true(value(plan, "peak_bytes") == value(plan, "solution.start_peak_bytes"));
    OK(memopt_plan_destroy(plan));
}

/* --- bytes from a function ------------------------------------------------------------------- */

typedef struct asked {
    uint64_t batch; /* above which nothing is known; 0: always known */
    memopt_status status;
    int count;
    uint64_t adapted; /* bytes of a sample with adapters; 0: nothing is known of them */
    uint64_t kernels; /* what they take beside tensors in the step */
} asked;

/* So many bytes a sample; with adapters others, and weights of few bits under them save half. */
static memopt_status line(void *user, const char *settings, uint64_t *bytes)
{
    asked *a = user;
    const char *batch = strstr(settings, "run.batch=");
    a->count++;
    assert_non_null(batch);
    const char *model = strstr(settings, "model.");
    uint64_t samples = strtoull(batch + strlen("run.batch="), NULL, 10), sample = MIB;
    if (model != NULL) {
        assert_non_null(strstr(model, "model.lora_rank=16\nmodel.lora_targets=query,value\n"));
        if (a->adapted == 0)
            return MEMOPT_UNSUPPORTED;
        sample = strstr(model, "model.quantize=none") != NULL ? a->adapted : a->adapted / 2;
    }
    bytes[3 * MEMOPT_PLAN_CATEGORIES + 3] = samples * sample; /* backward, activations */
    bytes[4 * MEMOPT_PLAN_CATEGORIES + 2] = MIB + MIB / 2;    /* step, optimizer */
    bytes[4 * MEMOPT_PLAN_CATEGORIES + 6] = a->kernels;
    return a->batch != 0 && samples > a->batch ? a->status : MEMOPT_OK;
}

TEST(bytes_may_be_measured)
{
    memopt_plan *plan = NULL;
    asked a = {0};
    OK(memopt_plan_create("run.batch=3;card.device=cpu;model.hidden=7", line, &a, &plan));
    assert_true(value(plan, "peak_bytes") == 3 * (double)MIB);
    assert_true(value(plan, "phases.step.optimizer") == 1.5 * (double)MIB);
    assert_int_equal(a.count, 1);
    uint64_t count = 7;
    GIVES(MEMOPT_UNSUPPORTED, memopt_plan_get_events(plan, NULL, 0, &count));
    assert_true(count == 7);
    OK(memopt_plan_destroy(plan));
    a.kernels = 2 * MIB; /* 3.5 MiB in the step, where 1.5 MiB are of tensors */
    OK(memopt_plan_create("run.batch=3;card.device=cpu", line, &a, &plan));
    assert_true(value(plan, "peak_bytes") == 3.5 * (double)MIB);
    assert_true(value(plan, "categories.overhead") == 0.5 * (double)MIB);
    OK(memopt_plan_destroy(plan));
    a.kernels = 0;
    OK(memopt_plan_solve("card.capacity=10MiB;card.margin=1;card.device=cpu", line, &a, &plan));
    assert_true(value(plan, "solution.micro_batch") == 10);
    assert_true(value(plan, "solution.peak_bytes") == 10 * (double)MIB);
    OK(memopt_plan_destroy(plan));
}

TEST(the_function_may_fail)
{
    static const memopt_status all[] = {USER_STATUS, MEMOPT_UNSUPPORTED, MEMOPT_INVALID_ARGUMENT,
                                        MEMOPT_LIMIT_REACHED};
    memopt_plan *plan = NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        asked a = {.batch = 1, .status = all[i]};
        FAILS_SAYING(all[i], "callback measure returned status",
                     memopt_plan_create("run.batch=2", line, &a, &plan));
        GIVES(all[i], memopt_plan_solve("run.batch=2;card.capacity=1GiB", line, &a, &plan));
        assert_int_equal(a.count, 2);
        assert_null(plan);
    }
    /* During the search, too; runs of which nothing is known are left out. */
    asked a = {.batch = 4, .status = USER_STATUS};
    GIVES(USER_STATUS, memopt_plan_solve("card.capacity=1GiB", line, &a, &plan));
    assert_null(plan);
}

/* A function that knows no adapters says so, and they are not proposed. */
TEST(adapters_are_not_known)
{
    memopt_plan *plan = NULL;
    asked a = {0};
    OK(memopt_plan_solve("run.batch=2;card.capacity=10GiB;target.all_changes=yes", line, &a,
                         &plan));
    assert_null(strstr(memopt_plan_get_json(plan), "--lora"));
    assert_non_null(strstr(memopt_plan_get_json(plan), "--batch 1"));
    OK(memopt_plan_destroy(plan));
}

TEST(adapters_are_measured)
{
    memopt_plan *plan = NULL;
    asked a = {.adapted = MIB / 8};
    OK(memopt_plan_solve("run.batch=8;card.capacity=6MiB;card.margin=1;card.device=cpu;"
                         "target.keep_batch=yes",
                         line, &a, &plan));
    assert_non_null(strstr(memopt_plan_get_json(plan), "--lora 16"));
    assert_true(value(plan, "solution.peak_bytes") == 1.5 * (double)MIB);
    assert_null(strstr(memopt_plan_get_json(plan), "--quantize"));
    OK(memopt_plan_destroy(plan));
    a.adapted = MIB;
    OK(memopt_plan_solve("run.batch=8;model.lora_rank=16;card.capacity=10GiB;card.device=cpu;"
                         "target.all_changes=yes",
                         line, &a, &plan));
    assert_non_null(strstr(memopt_plan_get_json(plan), "--quantize nf4"));
    OK(memopt_plan_destroy(plan));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_plan_create("model.quantize=nf4", line, &a, &plan));
    assert_non_null(strstr(memopt_last_error(), "lora_rank"));
}

/* Layers that run again cost the third of a step, and what is copied is taken to cost more. */
TEST(measured_runs_have_a_time)
{
    memopt_plan *plan = NULL;
    asked a = {0};
    OK(memopt_plan_create("run.checkpointing=every;run.checkpoint_every=2;"
                          "run.offload=activations,optimizer",
                          line, &a, &plan));
    assert_float_equal(value(plan, "time_factor"), 1 + 1.0 / 6 + 2 + 0.1, 1e-9);
    assert_non_null(strstr(memopt_plan_get_json(plan), "triple"));
    OK(memopt_plan_destroy(plan));
}

TEST(measured_without_host_memory)
{
    int64_t blocks = mo_memory_live_blocks();
    memopt_status status = MEMOPT_OUT_OF_HOST_MEMORY;
    for (int64_t n = 1; status != MEMOPT_OK; n++) {
        memopt_plan *plan = NULL;
        asked a = {0};
        mo_memory_fail_at(n);
        status = memopt_plan_solve("card.capacity=10MiB;card.device=cpu", line, &a, &plan);
        int struck = mo_memory_fault_struck();
        mo_memory_fail_at(0);
        assert_int_equal(status, struck ? MEMOPT_OUT_OF_HOST_MEMORY : MEMOPT_OK);
        OK(memopt_plan_destroy(plan));
        assert_int_equal(mo_memory_live_blocks(), blocks);
    }
}
