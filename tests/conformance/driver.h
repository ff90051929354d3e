/*
 * The driver's own entry points, for what a program beside the library does: streams and memory of
 * its own, and graphs. Nothing here is the library's.
 */
#ifndef MEMOPT_CONFORMANCE_DRIVER_H
#define MEMOPT_CONFORMANCE_DRIVER_H

#include "conformance.h"

/* X(field, parameters, CUDA symbol, HIP symbol); they return the driver's status, 0 for success. */
#define DRIVER_CALLS(X)                                                                            \
    X(stream_create, (void **out, unsigned flags), cuStreamCreate, hipStreamCreateWithFlags)       \
    X(stream_destroy, (void *stream), cuStreamDestroy_v2, hipStreamDestroy)                        \
    X(stream_sync, (void *stream), cuStreamSynchronize, hipStreamSynchronize)                      \
    X(mem_alloc, (void **out, size_t bytes), cuMemAlloc_v2, hipMalloc)                             \
    X(mem_free, (void *pointer), cuMemFree_v2, hipFree)                                            \
    X(memory_info, (size_t * out_free, size_t * out_total), cuMemGetInfo_v2, hipMemGetInfo)

/* The same for graphs, which an old driver may lack. */
#define GRAPH_CALLS(X)                                                                             \
    X(capture_begin, (void *stream, int mode), cuStreamBeginCapture_v2, hipStreamBeginCapture)     \
    X(capture_end, (void *stream, void **out_graph), cuStreamEndCapture, hipStreamEndCapture)      \
    X(instantiate, (void **out, void *graph, unsigned long long flags),                            \
      cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)                                   \
    X(launch, (void *executable, void *stream), cuGraphLaunch, hipGraphLaunch)                     \
    X(graph_destroy, (void *graph), cuGraphDestroy, hipGraphDestroy)                               \
    X(executable_destroy, (void *executable), cuGraphExecDestroy, hipGraphExecDestroy)

typedef struct driver {
#define DRIVER_FIELD(field, parameters, cuda, hip) int(*field) parameters;
    DRIVER_CALLS(DRIVER_FIELD)
    GRAPH_CALLS(DRIVER_FIELD)
#undef DRIVER_FIELD
} driver;

/* --- driver.c --- */
/* Makes the world's device current on this thread with the driver's own calls, and loads those.
 * NULL on "cpu", which has no driver. The case fails where a call is missing. */
const driver *driver_enter(world *w);
/* Puts back what was current before. Every driver_enter has one. */
void driver_leave(world *w);
#define DRIVER_OK(call)                                                                            \
    do {                                                                                           \
        int driver_code_ = (call);                                                                 \
        if (driver_code_ != 0)                                                                     \
            fail(__FILE__, __LINE__, "%s: the driver says %d", #call, driver_code_);               \
    } while (0)

/* --- graph.c --- */
enum { CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED, CAPTURE_MODES };
extern const char *const capture_mode_names[];

/* Skips the case where nothing can be captured. */
void need_graphs(world *w);
void begin_capture(world *w, memopt_stream stream, int mode);
/* Ends a capture and makes a graph that can be launched; the case fails where that fails. */
void *end_capture(world *w, memopt_stream stream);
/* Ends a capture that may be spoilt, and throws away what it recorded; the driver's status. */
int drop_capture(world *w, memopt_stream stream);
/* Ends the capture that a failed case has left open, if there is one. */
void abandon_capture(void);
void launch_graph(world *w, void *graph, memopt_stream stream);
void destroy_graph(world *w, void *graph);

#endif
