/*
 * The functions of NVML that PyTorch looks up before the first page of an expandable segment. It
 * asks whether the device has a fabric: no.
 */
#define NVML __attribute__((visibility("default")))

/* Where nvmlGpuFabricInfoV_t says "state"; 0: not supported. */
enum { FABRIC_STATE = 28, NOT_SUPPORTED = 3 };

NVML int nvmlInit_v2(void);
NVML int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device);
NVML int nvmlDeviceGetGpuFabricInfoV(const void *device, unsigned char *info);

int nvmlInit_v2(void)
{
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device)
{
    static int only;
    *device = &only;
    return 0;
}

int nvmlDeviceGetGpuFabricInfoV(const void *device, unsigned char *info)
{
    info[FABRIC_STATE] = 0;
    return 0;
}

#define LACKING(name)                                                                              \
    NVML int name(void);                                                                           \
    int name(void)                                                                                 \
    {                                                                                              \
        return NOT_SUPPORTED;                                                                      \
    }

LACKING(nvmlDeviceGetNvLinkRemoteDeviceType)
LACKING(nvmlDeviceGetNvLinkRemotePciInfo_v2)
LACKING(nvmlDeviceGetComputeRunningProcesses)
LACKING(nvmlSystemGetCudaDriverVersion_v2)
