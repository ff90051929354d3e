from typing import Any, Dict

HELP = "live memory of devices and of the processes on them"


def about_backend(name: str) -> Dict[str, Any]:
    """What can be told of a back end's devices without opening them."""
    from ...tools import Monitor

    info = Monitor.info(name)
    return {
        "available": info.available,
        "status": getattr(info.status, "name", str(int(info.status))),
        "source": info.source if info.available else None,
        "library": info.library or None,
        "version": info.version or None,
        "device_count": info.device_count,
        "code": info.driver_code,
        "problem": info.problem or None,
        "tried": list(info.tried),
        "missing": list(info.missing),
    }
