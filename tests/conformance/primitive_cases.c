/* The primitives on a device: what they compute is what the cpu computes, bit for bit. */
#include "conformance.h"

#include "memopt/checkpoint.h"
#include "memopt/offload.h"
#include "memopt/optim.h"

#include <stdlib.h>
#include <string.h>

enum { ODD = 5003 };

static const uint64_t counts[] = {1, 7, 255, 256, 257, 4096, ODD};
enum { COUNTS = sizeof counts / sizeof counts[0] };

static const memopt_dtype floats[] = {MEMOPT_DTYPE_F32, MEMOPT_DTYPE_F16, MEMOPT_DTYPE_BF16,
                                      MEMOPT_DTYPE_F8_E4M3, MEMOPT_DTYPE_F8_E5M2};
enum { FLOATS = sizeof floats / sizeof floats[0], WIDE = 3 };

/* --- allocator ----------------------------------------------------------------------------- */

/* Blocks on two streams, written and read back while others come and go. */
static void allocator_blocks_are_separate(world *w)
{
    enum { BLOCKS = 24 };
    void *blocks[BLOCKS];
    uint64_t sizes[BLOCKS];
    unsigned char byte = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            memopt_stream stream = i % 3 == 0 ? w->other : w->stream;
            sizes[i] = 100 + (uint64_t)(i * 7919 % 13) * 50000 * (uint64_t)(round + 1);
            OK(memopt_allocator_alloc(w->allocator, sizes[i], MEMOPT_TAG_OTHER, stream,
                                      &blocks[i]));
            OK(memopt_fill(w->device, blocks[i], i + 1, sizes[i], stream));
        }
        for (int i = 0; i < BLOCKS; i++) {
            memopt_stream stream = i % 3 == 0 ? w->other : w->stream;
            OK(memopt_copy(w->device, &byte, (char *)blocks[i] + sizes[i] - 1, 1, stream));
            OK(memopt_stream_sync(w->device, stream));
            CHECK(byte == i + 1);
            OK(memopt_allocator_free(w->allocator, blocks[i]));
        }
    }
    OK(memopt_allocator_trim(w->allocator, NULL));
}

/* Memory that another stream still uses goes to nobody else before that. */
static void recorded_streams_protect_blocks(world *w)
{
    unsigned char *back = NULL;
    void *p = NULL, *q = NULL;
    memopt_event *written = NULL;
    OK(memopt_host_alloc(w->device, 4096, (void **)&back));
    OK(memopt_event_create(w->device, 0, &written));
    for (int i = 0; i < 10; i++) {
        OK(memopt_allocator_alloc(w->allocator, 4096, MEMOPT_TAG_OTHER, w->stream, &p));
        OK(memopt_fill(w->device, p, i, 4096, w->stream));
        OK(memopt_event_record(written, w->stream));
        OK(memopt_stream_wait_event(w->device, w->other, written));
        OK(memopt_copy(w->device, back, p, 4096, w->other));
        OK(memopt_allocator_record_stream(w->allocator, p, w->other));
        OK(memopt_allocator_free(w->allocator, p));
        OK(memopt_allocator_alloc(w->allocator, 4096, MEMOPT_TAG_OTHER, w->stream, &q));
        OK(memopt_fill(w->device, q, 0xEE, 4096, w->stream));
        OK(memopt_stream_sync(w->device, w->other));
        CHECK(back[0] == i && back[4095] == i);
        OK(memopt_allocator_free(w->allocator, q));
    }
    OK(memopt_event_destroy(written));
    OK(memopt_device_sync(w->device));
    OK(memopt_host_free(w->device, back));
}

/* --- casts and gradients ------------------------------------------------------------------- */

static void cast_pair(world *w, uint64_t count, memopt_dtype from, memopt_dtype to,
                      uint32_t rounding, const float *values)
{
    memopt_cast_options options = MEMOPT_CAST_OPTIONS_INIT;
    memopt_tensor source = new_tensor(w, count, from, values);
    memopt_tensor target = new_tensor(w, count, to, NULL);
    options.rounding = rounding;
    options.seed = 42;
    options.sequence = count;
    OK(memopt_cast(w->device, &target, &source, 1, &options, w->stream));
    result_of(w, target.data, tensor_bytes(&target));
    free_tensor(w, &source);
    free_tensor(w, &target);
}

static void casts_agree(world *w)
{
    float values[ODD];
    fill_floats(values, ODD, 11);
    for (int from = 0; from < FLOATS; from++)
        for (int to = 0; to < FLOATS; to++)
            cast_pair(w, counts[(from + to) % COUNTS], floats[from], floats[to],
                      MEMOPT_ROUND_NEAREST_EVEN, values);
    for (int to = 1; to < WIDE; to++)
        cast_pair(w, ODD, MEMOPT_DTYPE_F32, floats[to], MEMOPT_ROUND_STOCHASTIC, values);
}

static void many_tensors_cast_at_once(world *w)
{
    memopt_tensor from[COUNTS], to[COUNTS];
    float values[ODD];
    fill_floats(values, ODD, 12);
    for (int i = 0; i < COUNTS; i++) {
        from[i] = new_tensor(w, counts[i], MEMOPT_DTYPE_F32, values);
        to[i] = new_tensor(w, counts[i], MEMOPT_DTYPE_BF16, NULL);
    }
    OK(memopt_cast(w->device, to, from, COUNTS, NULL, w->stream));
    for (int i = 0; i < COUNTS; i++) {
        result_of(w, to[i].data, tensor_bytes(&to[i]));
        free_tensor(w, &from[i]);
        free_tensor(w, &to[i]);
    }
}

static void report_state(world *w, memopt_scaler *scaler)
{
    memopt_scaler_state state = {.struct_size = sizeof state};
    OK(memopt_scaler_get_state_sync(scaler, &state, w->stream));
    result(w, &state.scale, sizeof state.scale);
    result(w, &state.growth_tracker, sizeof state.growth_tracker);
}

/* Unscale, norm and clip over odd sizes; an infinity backs the scale off. */
static void the_scaler_agrees(world *w)
{
    memopt_scaler_options options = MEMOPT_SCALER_OPTIONS_INIT;
    memopt_scaler *scaler = NULL;
    memopt_tensor gradients[COUNTS], norm;
    float values[ODD];
    for (int i = 0; i < ODD; i++)
        values[i] = (float)(i % 101 - 50) * 0.37f;
    options.init_scale = 1024;
    options.growth_interval = 2;
    OK(memopt_scaler_create(w->device, &options, &scaler));
    norm = new_tensor(w, 1, MEMOPT_DTYPE_F32, NULL);
    for (int i = 0; i < COUNTS; i++)
        gradients[i] = new_tensor(w, counts[i], floats[i % WIDE], values);
    for (int step = 0; step < 4; step++) {
        float bad = 1.0f / (step == 3 ? 0.0f : 1.0f);
        OK(memopt_copy(w->device, gradients[0].data, &bad, 4, w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
        OK(memopt_scaler_unscale(scaler, gradients, COUNTS, w->stream));
        OK(memopt_scaler_norm(scaler, gradients, COUNTS, norm.data, w->stream));
        result_of(w, norm.data, 4);
        OK(memopt_scaler_clip(scaler, gradients, COUNTS, 0.5, norm.data, w->stream));
        OK(memopt_scaler_update(scaler, w->stream));
        report_state(w, scaler);
    }
    for (int i = 0; i < COUNTS; i++) {
        result_of(w, gradients[i].data, tensor_bytes(&gradients[i]));
        free_tensor(w, &gradients[i]);
    }
    free_tensor(w, &norm);
    OK(memopt_stream_sync(w->device, w->stream));
    OK(memopt_scaler_destroy(scaler));
}

/* Every pair of wide types, odd sizes, in one call; then scaling by a factor in device memory. */
static void accumulation_agrees(world *w)
{
    enum { PAIRS = WIDE * WIDE };
    memopt_tensor to[PAIRS], from[PAIRS], cells;
    float values[ODD], start[2] = {0.75f, 0.0f};
    for (int i = 0; i < PAIRS; i++) {
        fill_floats(values, ODD, (uint64_t)(100 + i));
        to[i] = new_tensor(w, counts[(i + 3) % COUNTS], floats[i % WIDE], values);
        fill_floats(values, ODD, (uint64_t)(200 + i));
        from[i] = new_tensor(w, counts[(i + 3) % COUNTS], floats[i / WIDE], values);
    }
    cells = new_tensor(w, 2, MEMOPT_DTYPE_F32, start);
    OK(memopt_accumulate(w->device, to, from, PAIRS, -1.0f / 3, w->stream));
    OK(memopt_check_finite(w->device, from, PAIRS, (float *)cells.data + 1, w->stream));
    OK(memopt_scale(w->device, from, PAIRS, cells.data, (float *)cells.data + 1, w->stream));
    result_of(w, cells.data, tensor_bytes(&cells));
    for (int i = 0; i < PAIRS; i++) {
        result_of(w, to[i].data, tensor_bytes(&to[i]));
        result_of(w, from[i].data, tensor_bytes(&from[i]));
        free_tensor(w, &to[i]);
        free_tensor(w, &from[i]);
    }
    free_tensor(w, &cells);
}

/* --- optimizer ----------------------------------------------------------------------------- */

/* Three steps over parameters of odd sizes; the exported state is compared too. */
static void train(world *w, uint32_t format, memopt_dtype dtype, uint32_t stochastic)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_step_options step = MEMOPT_STEP_OPTIONS_INIT;
    memopt_optimizer *optimizer = NULL;
    memopt_tensor parameters[COUNTS], gradients[COUNTS];
    float values[ODD], slopes[ODD];
    uint32_t number = 0;
    uint64_t index = 0, bytes = 0;
    fill_floats(slopes, ODD, 21);
    for (int i = 0; i < ODD; i++) {
        values[i] = (float)(i % 37 - 18) * 0.11f;
        slopes[i] = slopes[i] * 1e-3f;
    }
    options.kind = MEMOPT_OPTIMIZER_ADAMW;
    options.state_format = format;
    options.min_8bit_size = 64;
    options.stochastic_rounding = stochastic;
    options.seed = 7;
    step.max_norm = 1.0;
    step.skip_non_finite = 1;
    OK(memopt_optimizer_create(w->allocator, &options, &optimizer));
    OK(memopt_optimizer_add_group(optimizer, &group, &number));
    for (int i = 0; i < COUNTS; i++) {
        parameters[i] = new_tensor(w, counts[i], dtype, values);
        gradients[i] = new_tensor(w, counts[i], dtype, slopes);
        OK(memopt_optimizer_add_parameter(optimizer, number, &parameters[i], NULL, w->stream,
                                          &index));
    }
    for (int i = 0; i < 3; i++)
        OK(memopt_optimizer_step(optimizer, gradients, COUNTS, &step, w->stream));
    for (int i = 0; i < COUNTS; i++)
        result_of(w, parameters[i].data, tensor_bytes(&parameters[i]));
    OK(memopt_optimizer_export_size(optimizer, &bytes));
    void *state = malloc(bytes);
    CHECK(state != NULL);
    OK(memopt_optimizer_export_sync(optimizer, state, bytes, w->stream));
    result(w, state, bytes);
    OK(memopt_optimizer_import_sync(optimizer, state, bytes, w->stream));
    OK(memopt_optimizer_step(optimizer, gradients, COUNTS, &step, w->stream));
    result_of(w, parameters[COUNTS - 1].data, tensor_bytes(&parameters[COUNTS - 1]));
    free(state);
    OK(memopt_stream_sync(w->device, w->stream));
    OK(memopt_optimizer_destroy(optimizer));
    for (int i = 0; i < COUNTS; i++) {
        free_tensor(w, &parameters[i]);
        free_tensor(w, &gradients[i]);
    }
}

static void adamw_agrees(world *w)
{
    for (int d = 0; d < WIDE; d++)
        train(w, MEMOPT_STATE_F32, floats[d], 0);
}

static void adamw_8bit_agrees(world *w)
{
    for (int d = 0; d < WIDE; d++)
        train(w, MEMOPT_STATE_8BIT, floats[d], 0);
}

static void stochastic_steps_agree(world *w)
{
    train(w, MEMOPT_STATE_8BIT, MEMOPT_DTYPE_BF16, 1);
}

static void block_codes_agree(world *w)
{
    float values[ODD];
    fill_floats(values, ODD, 31);
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        for (int i = 0; i < ODD && !is_signed; i++)
            values[i] = values[i] < 0 ? -values[i] : values[i];
        memopt_tensor source = new_tensor(w, ODD, MEMOPT_DTYPE_F32, values);
        memopt_tensor codes = new_tensor(w, ODD, MEMOPT_DTYPE_U8, NULL);
        memopt_tensor absmax = new_tensor(w, (ODD + 255) / 256, MEMOPT_DTYPE_F32, NULL);
        memopt_tensor back = new_tensor(w, ODD, MEMOPT_DTYPE_F32, NULL);
        OK(memopt_quantize_blockwise(w->device, &source, &codes, &absmax, is_signed, 256,
                                     w->stream));
        OK(memopt_dequantize_blockwise(w->device, &codes, &absmax, &back, is_signed, 256,
                                       w->stream));
        result_of(w, codes.data, tensor_bytes(&codes));
        result_of(w, absmax.data, tensor_bytes(&absmax));
        result_of(w, back.data, tensor_bytes(&back));
        free_tensor(w, &source);
        free_tensor(w, &codes);
        free_tensor(w, &absmax);
        free_tensor(w, &back);
    }
}

/* --- checkpoint and offload ---------------------------------------------------------------- */

typedef struct layer {
    world *w;
    int value, spoil;
} layer;

static memopt_status run_layer(void *user, memopt_region *region, memopt_region_pass pass,
                               memopt_stream stream)
{
    layer *l = user;
    memopt_tensor kept = {NULL, 100000, MEMOPT_DTYPE_U8, 0};
    int value = l->value + (pass == MEMOPT_PASS_RECOMPUTE ? l->spoil : 0);
    memopt_status status = memopt_region_alloc(region, kept.count, &kept.data);
    if (status == MEMOPT_OK)
        status = memopt_fill(l->w->device, kept.data, value, kept.count, stream);
    return status == MEMOPT_OK ? memopt_region_check(region, "kept", &kept) : status;
}

static void regions_recompute(world *w)
{
    static const uint32_t checks[] = {MEMOPT_CHECK_HASH, MEMOPT_CHECK_EXACT};
    for (int c = 0; c < 2; c++) {
        layer l = {w, 3, 0};
        memopt_region_callbacks callbacks = {sizeof callbacks, run_layer, NULL, NULL, &l};
        memopt_region_options options = MEMOPT_REGION_OPTIONS_INIT;
        memopt_region *region = NULL;
        options.check = checks[c];
        OK(memopt_region_create(w->device, w->allocator, &callbacks, &options, &region));
        OK(memopt_region_forward(region, w->stream));
        OK(memopt_region_recompute(region, w->stream));
        OK(memopt_region_release(region));
        OK(memopt_region_forward(region, w->stream));
        l.spoil = 1;
        FAILS(MEMOPT_MISMATCH, memopt_region_recompute(region, w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
        OK(memopt_region_destroy(region));
    }
}

static void offloaded_values_return(world *w)
{
    enum { TENSORS = 6 };
    const uint64_t bytes = 300001;
    memopt_offloader *offloader = NULL;
    memopt_ticket tickets[TENSORS];
    unsigned char *sent = malloc(bytes), *back = malloc(bytes);
    void *data = NULL;
    CHECK(sent != NULL && back != NULL);
    OK(memopt_offloader_create(w->device, w->allocator, NULL, &offloader));
    for (int i = 0; i < TENSORS; i++) {
        fill_bytes(sent, bytes, (uint64_t)i + 1);
        OK(memopt_allocator_alloc(w->allocator, bytes, MEMOPT_TAG_ACTIVATIONS, w->stream, &data));
        OK(memopt_copy(w->device, data, sent, bytes, w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
        OK(memopt_offload_pack(offloader, data, bytes, w->stream, &tickets[i]));
    }
    for (int i = TENSORS - 1; i >= 0; i--) {
        if (i > 0)
            OK(memopt_offload_prefetch(offloader, tickets[i - 1]));
        OK(memopt_offload_unpack(offloader, tickets[i], w->stream, &data));
        OK(memopt_copy(w->device, back, data, bytes, w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
        fill_bytes(sent, bytes, (uint64_t)i + 1);
        CHECK(memcmp(sent, back, bytes) == 0);
        OK(memopt_offload_release(offloader, tickets[i], w->stream));
    }
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_destroy(offloader));
    free(sent);
    free(back);
}

const conformance_case primitive_cases[] = {
    {"allocator", allocator_blocks_are_separate, 0},
    {"record_stream", recorded_streams_protect_blocks, 0},
    {"cast", casts_agree, 1},
    {"cast_many", many_tensors_cast_at_once, 1},
    {"accumulate", accumulation_agrees, 1},
    {"scaler", the_scaler_agrees, 1},
    {"adamw", adamw_agrees, 1},
    {"adamw_8bit", adamw_8bit_agrees, 1},
    {"stochastic", stochastic_steps_agree, 1},
    {"block_codes", block_codes_agree, 1},
    {"checkpoint", regions_recompute, 0},
    {"offload", offloaded_values_return, 0},
    {NULL, NULL, 0},
};
