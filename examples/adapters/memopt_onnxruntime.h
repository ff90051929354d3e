/*
 * A memopt_allocator as ONNX Runtime's allocator (C API 13 and later): sessions that use the environment's allocators
 * take the memory of weights, activations and outputs from it.
 *
 *     memopt_onnxruntime_create(api, allocator, MEMOPT_TAG_ACTIVATIONS, stream, &memory);
 *     api->RegisterAllocator(env, memory);
 *     api->AddSessionConfigEntry(session_options, "session.use_env_allocators", "1");
 *     ...
 *     api->UnregisterAllocator(env, memory->Info(memory)); // after the last session
 *     memopt_onnxruntime_destroy(memory);
 *
 * On the device "cpu" it serves the CPU provider, on "cuda:N" the CUDA provider of device N. The stream is the one that
 * the session computes on (user_compute_stream), NULL for "cpu": a free is ordered behind its work. It borrows the
 * allocator. Any thread may use it.
 *
 * ONNX Runtime does not look at what an allocator returns. So if there is no memory, it gets a std::bad_alloc, as from its
 * own allocators, and its call returns a status with the library's message. That is why memopt_onnxruntime.cc is C++.
 */
#ifndef MEMOPT_ONNXRUNTIME_H
#define MEMOPT_ONNXRUNTIME_H

#include <memopt/allocator.h>
#include <onnxruntime_c_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* api: of the version of the header that this file is compiled with. NULL or a status; release it as any other. */
OrtStatus *memopt_onnxruntime_create(const OrtApi *api, memopt_allocator *allocator, memopt_tag tag,
                                     memopt_stream stream, OrtAllocator **out_memory);

/* NULL does nothing. */
void memopt_onnxruntime_destroy(OrtAllocator *memory);

#ifdef __cplusplus
}
#endif
#endif
