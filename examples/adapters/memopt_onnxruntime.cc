#include "memopt_onnxruntime.h"

#include <cstring>
#include <exception>
#include <new>
#include <string>

namespace
{

struct memory : OrtAllocator /* ONNX Runtime hands its address back */ {
    const OrtApi *api;
    OrtMemoryInfo *info;
    memopt_allocator *allocator;
    memopt_tag tag;
    memopt_stream stream;
};

struct failure : std::bad_alloc {
    std::string message = memopt_last_error();
    const char *what() const noexcept override
    {
        return message.c_str();
    }
};

void *ORT_API_CALL take(OrtAllocator *self, size_t bytes)
{
    auto *m = static_cast<memory *>(self);
    void *pointer = nullptr;
    if (memopt_allocator_alloc(m->allocator, bytes, m->tag, m->stream, &pointer) != MEMOPT_OK)
        throw failure();
    return pointer;
}

void ORT_API_CALL give_back(OrtAllocator *self, void *pointer)
{
    (void)memopt_allocator_free(static_cast<memory *>(self)->allocator, pointer);
}

const OrtMemoryInfo *ORT_API_CALL info_of(const OrtAllocator *self)
{
    return static_cast<const memory *>(self)->info;
}

OrtStatus *make_info(const OrtApi *api, memopt_allocator *allocator, OrtMemoryInfo **out_info)
{
    memopt_allocator_info a = MEMOPT_ALLOCATOR_INFO_INIT;
    memopt_device_properties device = MEMOPT_DEVICE_PROPERTIES_INIT;
    memopt_status status = memopt_allocator_get_info(allocator, &a);
    if (status == MEMOPT_OK)
        status = memopt_device_get_properties(a.device, &device);
    if (status != MEMOPT_OK)
        return api->CreateStatus(ORT_INVALID_ARGUMENT, memopt_last_error());
    if (std::strcmp(device.backend, "cpu") == 0)
        return api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, out_info);
    if (std::strcmp(device.backend, "cuda") == 0)
        return api->CreateMemoryInfo("Cuda", OrtDeviceAllocator, device.index, OrtMemTypeDefault,
                                     out_info);
    return api->CreateStatus(ORT_NOT_IMPLEMENTED,
                             "memopt: ONNX Runtime has no name for this device");
}

} // namespace

OrtStatus *memopt_onnxruntime_create(const OrtApi *api, memopt_allocator *allocator, memopt_tag tag,
                                     memopt_stream stream, OrtAllocator **out_memory)
{
    auto *m =
        new (std::nothrow) memory(); /* functions of later versions stay NULL: there are none */
    if (m == nullptr)
        return api->CreateStatus(ORT_FAIL, "memopt: no host memory");
    m->version = ORT_API_VERSION;
    m->Alloc = take;
    m->Free = give_back;
    m->Info = info_of;
    m->api = api;
    m->allocator = allocator;
    m->tag = tag;
    m->stream = stream;
    OrtStatus *status = make_info(api, allocator, &m->info);
    if (status != nullptr)
        delete m;
    else
        *out_memory = m;
    return status;
}

void memopt_onnxruntime_destroy(OrtAllocator *self)
{
    auto *m = static_cast<memory *>(self);
    if (m == nullptr)
        return;
    m->api->ReleaseMemoryInfo(m->info);
    delete m;
}
