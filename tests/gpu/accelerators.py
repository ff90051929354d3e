"""What the checks with PyTorch need of a device: the real one, or the cpu in its place.

The stand-in runs the lines of the checks on a machine without a GPU. It has no streams, and no peaks.
"""

import contextlib
import time

import torch


class Gpu:
    """A CUDA or HIP device; torch calls both cuda."""

    def __init__(self, name):
        self.name = name
        self.index = int(name.partition(":")[2] or 0)
        self.device = torch.device("cuda", self.index)
        torch.cuda.set_device(self.index)

    @staticmethod
    def problem(name):
        """Why torch cannot use the device, or None."""
        if not torch.cuda.is_available():
            return "torch %s sees no GPU" % torch.__version__
        wanted = "hip" if torch.version.hip else "cuda"
        if name.partition(":")[0] != wanted:
            return "this torch is for %s" % wanted
        return None

    def current(self):
        """The stream that torch works on now."""
        return torch.cuda.current_stream(self.index)

    def side(self):
        """A new stream."""
        return torch.cuda.Stream(self.index)

    def on(self, stream):
        """A context in which torch works on a stream."""
        return torch.cuda.stream(stream)

    def sync(self):
        """Waits for everything."""
        torch.cuda.synchronize(self.index)

    def busy(self):
        """Keeps the current stream working for a while, so that a missing order shows."""
        torch.cuda._sleep(20_000_000)

    def reset_peak(self):
        """Begins to look for the most memory that torch's tensors take."""
        torch.cuda.synchronize(self.index)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.index)

    def free(self):
        """Bytes that the device has free."""
        return torch.cuda.mem_get_info(self.index)[0]

    def peak(self):
        """The most bytes of tensors since then."""
        torch.cuda.synchronize(self.index)
        return torch.cuda.max_memory_allocated(self.index)

    def empty_cache(self):
        """Gives the memory that torch caches back."""
        torch.cuda.empty_cache()

    def seconds(self, function, times):
        """Seconds of the device for one of `times` calls."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            function()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / times


class StandIn:
    """The cpu with the same words."""

    def __init__(self):
        self.name = "cpu"
        self.index = 0
        self.device = torch.device("cpu")

    def current(self):
        return None

    def side(self):
        return None

    def on(self, stream):
        return contextlib.nullcontext(stream)

    def sync(self):
        pass

    def busy(self):
        pass

    def reset_peak(self):
        pass

    def peak(self):
        return 0

    def empty_cache(self):
        pass

    def seconds(self, function, times):
        begin = time.perf_counter()
        for _ in range(times):
            function()
        return (time.perf_counter() - begin) / times


def of(name):
    """The device of this name, or why torch cannot use it."""
    if name == "cpu":
        return StandIn()
    return Gpu.problem(name) or Gpu(name)
