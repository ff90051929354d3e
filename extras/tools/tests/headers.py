"""Compares what the monitors declare of NVML and of ROCm SMI with their own headers, as
tests/headers/check.py of the library does for the drivers: headers.py nvml|rocm_smi [--include FOLDER]...
"""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "tests" / "headers"))
import check  # noqa: E402
from check import Judge  # noqa: E402

MONITOR = HERE.parent / "lib" / "monitor"
JUDGES = {
    "nvml": Judge(
        "nvml.h", "", [MONITOR / "nvml.c"],
        [("NVML_CALLS", lambda row: row[3].strip('"'), None)],
        {"NVML_OK": "NVML_SUCCESS", **{n: n.replace("NVML_", "NVML_ERROR_", 1) for n in (
            "NVML_NOT_SUPPORTED", "NVML_NO_PERMISSION", "NVML_INSUFFICIENT_SIZE",
            "NVML_DRIVER_NOT_LOADED", "NVML_LIBRARY_NOT_FOUND", "NVML_FUNCTION_NOT_FOUND",
            "NVML_RESET_REQUIRED", "NVML_MEMORY", "NVML_GPU_NOT_FOUND")},
         "NVML_GPU_LOST": "NVML_ERROR_GPU_IS_LOST",
         "NVML_VERSION_MISMATCH": "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
         "NVML_ARGUMENT_VERSION": "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
         "TEMPERATURE_OF_DIE": "NVML_TEMPERATURE_GPU"},
        {"nvml_memory": ("nvmlMemory_t", {"": "==", "total": "total", "free": "free",
                                          "used": "used"}),
         "nvml_memory_v2": ("nvmlMemory_v2_t", {
             "": "==", "version": "version", "total": "total", "reserved": "reserved",
             "free": "free", "used": "used"}),
         "nvml_utilization": ("nvmlUtilization_t", {"": "==", "gpu": "gpu", "memory": "memory"}),
         "nvml_pci": ("nvmlPciInfo_t", {"": "==", "domain": "domain", "device": "device",
                                        "bus_id": "busId"})}),
    "rocm_smi": Judge(
        "rocm_smi/rocm_smi.h", "", [MONITOR / "rocm_smi.c"],
        [("RSMI_CALLS", lambda row: "rsmi_" + row[3].strip('"'), None)],
        {"RSMI_OK": "RSMI_STATUS_SUCCESS", **{n: n.replace("RSMI_", "RSMI_STATUS_", 1) for n in (
            "RSMI_NOT_SUPPORTED", "RSMI_PERMISSION", "RSMI_OUT_OF_RESOURCES",
            "RSMI_NOT_YET_IMPLEMENTED", "RSMI_NOT_FOUND", "RSMI_INSUFFICIENT_SIZE",
            "RSMI_NO_DATA")},
         "RSMI_INIT_ERROR": "RSMI_STATUS_INIT_ERROR", "VRAM": "RSMI_MEM_TYPE_VRAM",
         "EDGE": "RSMI_TEMP_TYPE_EDGE", "JUNCTION": "RSMI_TEMP_TYPE_JUNCTION",
         "CURRENT": "RSMI_TEMP_CURRENT"},
        {"rsmi_process": ("rsmi_process_info_t", {
            "": ">=", "pid": "process_id", "vram": "vram_usage", "occupancy": "cu_occupancy"}),
         "rsmi_entry": ("rsmi_process_info_t", {"": "==", "pid": "process_id"}),
         "rsmi_version": ("rsmi_version_t", {"": "==", "major": "major", "build": "build"})}),
}

if __name__ == "__main__":
    sys.exit(check.main(JUDGES))
