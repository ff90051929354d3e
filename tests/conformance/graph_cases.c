/*
 * Graphs: what is captured once and replayed does what plain calls do, bit for bit. A capture goes
 * through every mode in which a program may begin one.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

/* --- a training step ----------------------------------------------------------------------- */

enum { PARAMETERS = 9, REPLAYS = 7, FORMATS = 16 };

/* All that one mixed-precision step touches. Gradients are copied from `source`, which the host
 * changes between steps: a replay must see that. */
typedef struct step_state {
    memopt_optimizer *optimizers[FORMATS];
    memopt_scaler *scaler;
    memopt_tensor parameters[PARAMETERS], copies[PARAMETERS], lows[PARAMETERS];
    memopt_tensor gradients[PARAMETERS];
    memopt_tensor source, gradient_bytes, norm;
    uint64_t elements;
    uint32_t formats;
} step_state;

static const uint64_t sizes[PARAMETERS] = {1, 7, 256, 257, 1023, 2048, 2049, 4097, 300};

static memopt_optimizer *new_optimizer(world *w, uint32_t format)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_optimizer *optimizer = NULL;
    uint32_t number = 0;
    options.state_format = format;
    options.min_8bit_size = 64;
    options.stochastic_rounding = 1;
    options.seed = 3;
    if (memopt_optimizer_create(w->allocator, &options, &optimizer) != MEMOPT_OK)
        return NULL;
    OK(memopt_optimizer_add_group(optimizer, &group, &number));
    return optimizer;
}

/* Parameter i belongs to the optimizer of format i % formats; every third is bf16 itself, the
 * others are f32 masters with a bf16 copy. */
static void begin_steps(world *w, step_state *s)
{
    float values[4097];
    uint64_t index = 0;
    memopt_scaler_options options = MEMOPT_SCALER_OPTIONS_INIT;
    memset(s, 0, sizeof *s);
    options.init_scale = 64;
    options.growth_interval = 3;
    OK(memopt_scaler_create(w->device, &options, &s->scaler));
    for (uint32_t format = 1; format < FORMATS; format++)
        if ((s->optimizers[s->formats] = new_optimizer(w, format)) != NULL)
            s->formats++;
    for (int i = 0; i < PARAMETERS; i++)
        s->elements += sizes[i];
    s->source = new_tensor(w, s->elements, MEMOPT_DTYPE_F16, NULL);
    s->gradient_bytes = new_tensor(w, s->elements, MEMOPT_DTYPE_F16, NULL);
    s->norm = new_tensor(w, 1, MEMOPT_DTYPE_F32, NULL);
    uint16_t *gradient = s->gradient_bytes.data;
    for (int i = 0; i < PARAMETERS; i++) {
        int narrow = i % 3 == 2;
        fill_smooth(values, sizes[i], (uint64_t)i + 1, 0.3f);
        s->parameters[i] =
            new_tensor(w, sizes[i], narrow ? MEMOPT_DTYPE_BF16 : MEMOPT_DTYPE_F32, values);
        s->copies[i] = new_tensor(w, sizes[i], MEMOPT_DTYPE_BF16, NULL);
        s->lows[i] = new_tensor(w, sizes[i], MEMOPT_DTYPE_F16, NULL);
        s->gradients[i] = (memopt_tensor){gradient, sizes[i], MEMOPT_DTYPE_F16};
        gradient += sizes[i];
        OK(memopt_optimizer_add_parameter(
            s->optimizers[i % (int)s->formats], 0, &s->parameters[i],
            &(memopt_parameter_options){sizeof(memopt_parameter_options),
                                        narrow ? (memopt_tensor){NULL, 0, 0} : s->copies[i],
                                        NULL,
                                        0,
                                        NULL,
                                        0,
                                        0,
                                        {0, 0}},
            w->stream, &index));
    }
}

/* Unscale with the check, clip, a step of each optimizer, a cast of all masters, the scaler's
 * update: nothing of it may wait or allocate from the second time on. */
static void enqueue_step(world *w, step_state *s)
{
    memopt_step_options options = MEMOPT_STEP_OPTIONS_INIT;
    memopt_tensor mine[PARAMETERS];
    options.scaler = s->scaler;
    options.already_unscaled = 1;
    OK(memopt_copy(w->device, s->gradient_bytes.data, s->source.data, tensor_bytes(&s->source),
                   w->stream));
    OK(memopt_scaler_unscale(s->scaler, s->gradients, PARAMETERS, w->stream));
    OK(memopt_norm(w->device, s->norm.data, s->gradients, PARAMETERS, 2.0, w->stream));
    for (int k = 0; k < (int)s->formats; k++) {
        uint64_t count = 0;
        for (int i = k; i < PARAMETERS; i += (int)s->formats)
            mine[count++] = s->gradients[i];
        OK(memopt_optimizer_step(s->optimizers[k], mine, count, &options, w->stream));
    }
    OK(memopt_cast(w->device, s->lows, s->parameters, PARAMETERS, NULL, w->stream));
    OK(memopt_scaler_update(s->scaler, w->stream));
}

/* New gradients; those of step 3 hold an infinity, which must skip it. */
static void new_gradients(world *w, const step_state *s, int step)
{
    float *values = host_memory(s->elements * sizeof *values);
    uint32_t infinite = 0x7F800000u;
    fill_smooth(values, s->elements, 1000 + (uint64_t)step, 40.0f);
    if (step == 3)
        memcpy(&values[s->elements / 2], &infinite, sizeof infinite);
    memopt_tensor wide = new_tensor(w, s->elements, MEMOPT_DTYPE_F32, values);
    OK(memopt_cast(w->device, &s->source, &wide, 1, NULL, w->stream));
    free_tensor(w, &wide);
    free(values);
}

static void report_steps(world *w, const step_state *s, int step)
{
    memopt_scaler_state scale = {.struct_size = sizeof scale};
    for (int i = 0; i < PARAMETERS; i++) {
        label(w, "step %d, parameter %d", step, i);
        result_of_tensor(w, &s->parameters[i]);
        result_of_tensor(w, &s->copies[i]);
        result_of_tensor(w, &s->lows[i]);
    }
    label(w, "step %d, scale and norm", step);
    OK(memopt_scaler_get_state_sync(s->scaler, w->stream, &scale));
    result(w, &scale.scale, sizeof scale.scale);
    result(w, &scale.growth_tracker, sizeof scale.growth_tracker);
    result_of_tensor(w, &s->norm);
}

static void end_steps(world *w, step_state *s)
{
    OK(memopt_stream_sync(w->device, w->stream));
    for (uint32_t k = 0; k < s->formats; k++) {
        uint64_t bytes = 0;
        OK(memopt_optimizer_export_sync(s->optimizers[k], 0, NULL, NULL, &bytes));
        void *state = host_memory(bytes);
        OK(memopt_optimizer_export_sync(s->optimizers[k], bytes, w->stream, state, NULL));
        label(w, "state of optimizer %u", k);
        result(w, state, bytes);
        free(state);
        OK(memopt_optimizer_destroy(s->optimizers[k]));
    }
    OK(memopt_scaler_destroy(s->scaler));
    for (int i = 0; i < PARAMETERS; i++) {
        free_tensor(w, &s->parameters[i]);
        free_tensor(w, &s->copies[i]);
        free_tensor(w, &s->lows[i]);
    }
    free_tensor(w, &s->source);
    free_tensor(w, &s->gradient_bytes);
    free_tensor(w, &s->norm);
}

/* mode < 0: plain calls. The first step is always plain, since it uploads tables. */
static void train(world *w, int mode)
{
    step_state s;
    void *graph = NULL;
    begin_steps(w, &s);
    for (int step = 0; step <= REPLAYS; step++) {
        new_gradients(w, &s, step);
        if (step == 0 || mode < 0) {
            enqueue_step(w, &s);
        } else {
            if (graph == NULL) {
                OK(memopt_stream_sync(w->device, w->stream));
                begin_capture(w, w->stream, mode);
                enqueue_step(w, &s);
                graph = end_capture(w, w->stream);
            }
            launch_graph(w, graph, w->stream);
        }
        report_steps(w, &s, step);
    }
    end_steps(w, &s);
    if (graph != NULL)
        destroy_graph(w, graph);
}

/* Results are the plain run's, so that the cpu is compared too. */
static void a_captured_step_replays(world *w)
{
    char message[256];
    need_graphs(w);
    train(w, -1);
    for (int mode = 0; mode < CAPTURE_MODES; mode++) {
        world captured = *w;
        captured.segments = NULL;
        captured.bytes = NULL;
        captured.segment_count = captured.segment_capacity = 0;
        captured.byte_count = captured.byte_capacity = 0;
        train(&captured, mode);
        int same = same_results(&captured, w, message, sizeof message);
        free_results(&captured);
        if (!same)
            fail(__FILE__, __LINE__, "%s capture: %s", capture_mode_names[mode], message);
    }
    free_results(w);
}

/* The plain run alone, against the cpu. */
static void a_plain_step_agrees(world *w)
{
    train(w, -1);
}

/* --- what else may happen during a capture ------------------------------------------------- */

/* A graph's own allocator grows, frees and gives out again while its stream is captured; frees that
 * need events are finished afterwards, and nothing of it spoils the capture. */
static void allocate_in_capture(world *w, int mode, const char *config)
{
    enum { BYTES = 3 << 20 };
    memopt_allocator *pool = NULL;
    unsigned char back[2] = {0, 0};
    void *in = NULL, *out = NULL, *scratch = NULL, *shared = NULL, *beside = NULL;
    uint64_t released = 1;
    OK(memopt_allocator_create(w->device, config, NULL, &pool));
    OK(memopt_allocator_alloc(pool, BYTES, MEMOPT_TAG_OTHER, w->stream, &in));
    OK(memopt_fill(w->device, in, 1, BYTES, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    begin_capture(w, w->stream, mode);
    OK(memopt_allocator_alloc(pool, BYTES, MEMOPT_TAG_OTHER, w->stream, &scratch));
    OK(memopt_copy(w->device, scratch, in, BYTES, w->stream));
    OK(memopt_allocator_alloc(pool, 9 * BYTES, MEMOPT_TAG_OTHER, w->stream, &out));
    OK(memopt_copy(w->device, out, scratch, BYTES, w->stream));
    OK(memopt_allocator_free(pool, scratch));
    OK(memopt_allocator_alloc(pool, BYTES / 2, MEMOPT_TAG_OTHER, w->stream, &shared));
    OK(memopt_fill(w->device, shared, 9, BYTES / 2, w->stream));
    OK(memopt_copy(w->device, (char *)out + BYTES, shared, BYTES / 2, w->stream));
    OK(memopt_allocator_record_stream(pool, shared, w->other));
    OK(memopt_allocator_free(pool, shared));
    OK(memopt_allocator_trim_sync(pool, 0, &released));
    CHECK(released == 0);
    OK(memopt_allocator_alloc(w->allocator, BYTES, MEMOPT_TAG_OTHER, w->other, &beside));
    OK(memopt_fill(w->device, beside, 5, BYTES, w->other));
    void *graph = end_capture(w, w->stream);
    for (int i = 2; i < 5; i++) {
        OK(memopt_fill(w->device, in, i, BYTES, w->stream));
        launch_graph(w, graph, w->stream);
        OK(memopt_copy(w->device, &back[0], (char *)out + BYTES - 1, 1, w->stream));
        OK(memopt_copy(w->device, &back[1], (char *)out + BYTES, 1, w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
        if (back[0] != i || back[1] != 9)
            fail(__FILE__, __LINE__, "%s, %s: replay %d gave %d and %d", capture_mode_names[mode],
                 config, i, back[0], back[1]);
    }
    OK(memopt_stream_sync(w->device, w->other));
    destroy_graph(w, graph);
    OK(memopt_allocator_free(w->allocator, beside));
    OK(memopt_allocator_free(pool, in));
    OK(memopt_allocator_free(pool, out));
    OK(memopt_allocator_trim_sync(pool, 0, &released));
    CHECK(released >= 10 * (uint64_t)BYTES);
    OK(memopt_allocator_destroy(pool));
}

static void the_allocator_works_in_captures(world *w)
{
    memopt_memory_info before = {.struct_size = sizeof before}, after = before;
    need_graphs(w);
    OK(memopt_device_get_memory_info(w->device, &before));
    for (int mode = 0; mode < CAPTURE_MODES; mode++) {
        allocate_in_capture(w, mode, "expandable_segments:False");
        if (w->properties.virtual_memory)
            allocate_in_capture(w, mode, "expandable_segments:True");
    }
    OK(memopt_allocator_trim_sync(w->allocator, 0, NULL));
    OK(memopt_device_get_memory_info(w->device, &after));
    CHECK(after.used == before.used);
}

/* Each captured norm has scratch of its own, which no later call gets: the stream's next norm runs
 * beside a replay on another stream, and takes one more. */
static void a_graph_keeps_its_scratch(world *w)
{
    memopt_memory_info info = {.struct_size = sizeof info};
    float four[4] = {1, 1, 1, 1}, back[2];
    need_graphs(w);
    memopt_tensor values = new_tensor(w, 4, MEMOPT_DTYPE_F32, four);
    memopt_tensor norms = new_tensor(w, 2, MEMOPT_DTYPE_F32, NULL);
    OK(memopt_device_get_memory_info(w->device, &info));
    const uint64_t before = info.used;
    OK(memopt_stream_sync(w->device, w->stream)); /* the graph runs on another one */
    begin_capture(w, w->stream, 0);
    for (int i = 0; i < 2; i++)
        OK(memopt_norm(w->device, norms.data, &values, 1, 0, w->stream));
    void *graph = end_capture(w, w->stream);
    OK(memopt_device_get_memory_info(w->device, &info));
    CHECK(info.used == before + 2 * 4096);
    launch_graph(w, graph, w->other);
    for (int i = 0; i < 2; i++)
        OK(memopt_norm(w->device, (float *)norms.data + 1, &values, 1, 0, w->stream));
    OK(memopt_device_get_memory_info(w->device, &info));
    CHECK(info.used <= before + 3 * 4096); /* fewer if an ended stream has left one */
    OK(memopt_stream_sync(w->device, w->other));
    OK(memopt_copy_sync(w->device, back, norms.data, sizeof back, w->stream));
    CHECK(back[0] == 2.0f && back[1] == 2.0f);
    destroy_graph(w, graph);
    free_tensor(w, &values);
    free_tensor(w, &norms);
}

/* One value there and back; 1 if all is well, 0 if a call refused, whose status must be clear. */
static int offload_once(world *w, memopt_offloader *offloader, int value, int in_capture)
{
    enum { BYTES = 400000 };
    memopt_ticket ticket = 0;
    void *data = NULL, *back = NULL;
    OK(memopt_allocator_alloc(w->allocator, BYTES, MEMOPT_TAG_OTHER, w->stream, &data));
    OK(memopt_fill(w->device, data, value, BYTES, w->stream));
    memopt_status status = memopt_offloader_pack(offloader, data, BYTES, w->stream, &ticket);
    if (status != MEMOPT_OK) {
        CHECK(in_capture && (status == MEMOPT_UNSUPPORTED || status == MEMOPT_DRIVER_ERROR));
        CHECK(ticket == 0 && memopt_last_error()[0] != '\0');
        OK(memopt_allocator_free(w->allocator, data)); /* still ours */
        return 0;
    }
    OK(memopt_offloader_wait_packed(offloader, ticket, w->stream));
    OK(memopt_offloader_unpack(offloader, ticket, w->stream, &back));
    if (!in_capture) {
        unsigned char byte = 0;
        OK(memopt_copy(w->device, &byte, (char *)back + BYTES - 1, 1, w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
        CHECK(byte == value);
    }
    OK(memopt_offloader_release(offloader, ticket, w->stream));
    return 1;
}

/* Packing in a capture works, or is refused; the capture, the offloader and a value that was packed
 * before stay good either way. */
static void offloading_in_captures_is_clear(world *w)
{
    enum { BYTES = 300000 };
    memopt_offloader *offloader = NULL;
    need_graphs(w);
    for (int mode = 0; mode < CAPTURE_MODES; mode++) {
        memopt_ticket before = 0;
        unsigned char byte = 0;
        void *data = NULL;
        OK(memopt_offloader_create(w->device, w->allocator, NULL, &offloader));
        OK(memopt_allocator_alloc(w->allocator, BYTES, MEMOPT_TAG_OTHER, w->stream, &data));
        OK(memopt_fill(w->device, data, 77, BYTES, w->stream));
        OK(memopt_offloader_pack(offloader, data, BYTES, w->stream, &before));
        CHECK(offload_once(w, offloader, 1, 0));
        OK(memopt_device_sync(w->device));
        begin_capture(w, w->stream, mode);
        int taken = offload_once(w, offloader, 2, 1);
        int code = drop_capture(w, w->stream);
        if (code != 0)
            fail(__FILE__, __LINE__, "%s: offloading was %s, and the capture ended with %d",
                 capture_mode_names[mode], taken ? "taken" : "refused", code);
        for (int i = 3; i < 6; i++)
            CHECK(offload_once(w, offloader, i, 0));
        OK(memopt_offloader_unpack(offloader, before, w->stream, &data));
        OK(memopt_copy(w->device, &byte, (char *)data + BYTES - 1, 1, w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
        CHECK(byte == 77);
        OK(memopt_offloader_release(offloader, before, w->stream));
        OK(memopt_device_sync(w->device));
        OK(memopt_offloader_destroy(offloader));
    }
}

/* A call that waits cannot be captured: it says so, the capture is spoilt, and when that has ended
 * everything works again. */
static void waiting_in_captures_is_refused(world *w)
{
    unsigned char byte = 0;
    need_graphs(w);
    memopt_tensor t = new_tensor(w, 100, MEMOPT_DTYPE_F32, NULL);
    OK(memopt_stream_sync(w->device, w->stream));
    for (int mode = 0; mode < CAPTURE_MODES; mode++) {
        begin_capture(w, w->stream, mode);
        OK(memopt_fill(w->device, t.data, 1, 400, w->stream));
        memopt_status status = memopt_stream_sync(w->device, w->stream);
        CHECK(status == MEMOPT_DRIVER_ERROR && memopt_last_error()[0] != '\0');
        CHECK(drop_capture(w, w->stream) != 0);
        OK(memopt_fill(w->device, t.data, mode + 2, 400, w->stream));
        OK(memopt_copy(w->device, &byte, t.data, 1, w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
        CHECK(byte == mode + 2);
    }
    free_tensor(w, &t);
}

const conformance_case graph_cases[] = {
    {"step_plain", a_plain_step_agrees, 1, 0, 0},
    {"graph_step", a_captured_step_replays, 0, 0, 0},
    {"graph_allocator", the_allocator_works_in_captures, 0, 0, 0},
    {"graph_offload", offloading_in_captures_is_clear, 0, 0, 0},
    {"graph_scratch", a_graph_keeps_its_scratch, 0, 0, 0},
    {"graph_waiting", waiting_in_captures_is_refused, 0, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
