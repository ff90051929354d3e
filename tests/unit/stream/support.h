/* What the streamer's tests share: layers of known bytes, and one use of a layer. */
#ifndef TEST_STREAM_SUPPORT_H
#define TEST_STREAM_SUPPORT_H

#include "memopt/stream.h"
#include "unit/offload/support.h"

enum { MOST_LAYERS = 12, MOST_PARTS = 3 };

typedef struct weights {
    memopt_stream_part parts[MOST_PARTS];
    uint32_t count;
    int value; /* each byte of part i is value + i */
} weights;

typedef struct streaming {
    world w;
    memopt_streamer *streamer;
    weights layers[MOST_LAYERS];
    uint32_t count;
} streaming;

static inline void add_layer(streaming *s, uint32_t parts, uint64_t bytes)
{
    weights *layer = &s->layers[s->count];
    uint32_t number = 99;
    layer->count = parts;
    layer->value = 10 * ((int)s->count + 1);
    for (uint32_t i = 0; i < parts; i++)
        layer->parts[i] =
            (memopt_stream_part){reserved(&s->w, bytes, layer->value + (int)i), bytes};
    OK(memopt_streamer_add(s->streamer, layer->parts, parts, &number));
    assert_int_equal(number, s->count++);
}

static inline streaming open_streaming(uint32_t order, uint64_t seed, uint64_t budget)
{
    memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
    options.flags = seed % 4 == 3 ? MEMOPT_OFFLOADER_NULL_STREAM : 0;
    streaming s = {.w = open_world(order, seed, 64 * MIB, &options)};
    OK(memopt_streamer_create(s.w.device, s.w.offloader, budget, &s.streamer));
    return s;
}

static inline void release_layers(streaming *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        for (uint32_t p = 0; p < s->layers[i].count; p++)
            OK(memopt_offloader_release(s->w.offloader, s->layers[i].parts[p].ticket, s->w.s));
}

static inline void close_streaming(streaming *s)
{
    OK(memopt_streamer_destroy(s->streamer));
    release_layers(s);
    world_close(&s->w);
}

static inline memopt_stream_stats streamed(const streaming *s)
{
    memopt_stream_stats stats = MEMOPT_STREAM_STATS_INIT;
    OK(memopt_streamer_get_stats(s->streamer, &stats));
    return stats;
}

/* 1 if the stream reads the layer's bytes from these pointers. */
static inline int is_layer(streaming *s, uint32_t layer, void *const *parts, memopt_stream stream)
{
    const weights *l = &s->layers[layer];
    int same = 1;
    for (uint32_t i = 0; i < l->count; i++)
        same &= holds(&s->w, parts[i], l->value + (int)i, l->parts[i].bytes, stream);
    return same;
}

#endif
