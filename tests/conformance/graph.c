/* Capturing a stream's work into a graph with the driver's own calls, and replaying it. */
#include "driver.h"

#include <string.h>

const char *const capture_mode_names[CAPTURE_MODES] = {"global", "thread-local", "relaxed"};

/* The capture under way; cases run one after the other. */
static int capturing;
static world capturing_world; /* a copy: that of the case may be gone */
static memopt_stream captured;

void need_graphs(world *w)
{
    const driver *d = driver_enter(w);
    driver_leave(w);
    if (d == NULL)
        skip("the cpu device records no graphs");
    if (d->capture_begin == NULL || d->capture_end == NULL || d->instantiate == NULL ||
        d->launch == NULL || d->graph_destroy == NULL || d->executable_destroy == NULL)
        skip("this driver records no graphs");
}

void begin_capture(world *w, memopt_stream stream, int mode)
{
    const driver *d = driver_enter(w);
    DRIVER_OK(d->capture_begin(stream, mode));
    driver_leave(w);
    capturing = 1;
    capturing_world = *w;
    captured = stream;
}

void *end_capture(world *w, memopt_stream stream)
{
    void *graph = NULL, *executable = NULL;
    const driver *d = driver_enter(w);
    capturing = 0;
    DRIVER_OK(d->capture_end(stream, &graph));
    CHECK(graph != NULL);
    DRIVER_OK(d->instantiate(&executable, graph, 0));
    DRIVER_OK(d->graph_destroy(graph));
    driver_leave(w);
    return executable;
}

int drop_capture(world *w, memopt_stream stream)
{
    void *graph = NULL;
    const driver *d = driver_enter(w);
    capturing = 0;
    int code = d->capture_end(stream, &graph);
    if (code == 0 && graph != NULL)
        DRIVER_OK(d->graph_destroy(graph));
    driver_leave(w);
    return code;
}

static void end_captured(world *w)
{
    (void)drop_capture(w, captured);
}

void abandon_capture(void)
{
    char message[64];
    if (capturing)
        (void)run_guarded(end_captured, &capturing_world, message, sizeof message);
}

void launch_graph(world *w, void *graph, memopt_stream stream)
{
    const driver *d = driver_enter(w);
    DRIVER_OK(d->launch(graph, stream));
    driver_leave(w);
}

void destroy_graph(world *w, void *graph)
{
    const driver *d = driver_enter(w);
    DRIVER_OK(d->executable_destroy(graph));
    driver_leave(w);
}
