"""Our steps on PyTorch's tensors, streams and graphs of a GPU.

    torch_interop.py [--device cuda:N] [--json FILE] [--small]

Bits are compared with our cpu device. Status 77 where torch, or its support of the GPU, is missing.
--device cpu runs every check with the cpu in the place of the GPU.
"""

import argparse
import gc
import json
import sys
import time
import traceback

try:
    import torch
except ImportError as problem:
    print("torch_interop: %s" % problem)
    sys.exit(77)

import accelerators
import memopt

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KINDS = (memopt.AdamW, memopt.AdamW8bit)
BITS = {4: torch.int32, 2: torch.int16, 1: torch.uint8}


class World:
    """The GPU with torch and us on it, and our cpu device."""

    def __init__(self, gpu, small):
        self.gpu = gpu
        self.sizes = (1, 255, 4097) if small else (1, 255, 4097, 100003, 3 * 2**20 + 5)
        self.device = memopt.Device(gpu.name)
        self.allocator = memopt.Allocator(self.device)
        self.cpu = memopt.Device("cpu", threads=4)
        self.cpu_allocator = memopt.Allocator(self.cpu)

    def close(self):
        gc.collect()
        self.gpu.sync()
        for handle in (self.allocator, self.cpu_allocator, self.device, self.cpu):
            handle.close()


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def same_bits(one, other, what):
    """Compares two tensors of any device bit for bit."""
    one, other = (t.detach().cpu().contiguous() for t in (one, other))
    bits = BITS[one.element_size()]
    one, other = one.view(bits), other.view(bits)
    if not torch.equal(one, other):
        different = (one != other).nonzero()
        raise AssertionError(
            "%s: %d of %d elements differ, the first at %s"
            % (what, len(different), one.numel(), different[0].tolist())
        )


def host_copy(world, view):
    """A torch tensor on the host with the bytes of a view of ours."""
    out = torch.empty(view.nbytes, dtype=torch.uint8)
    world.device.copy(out, view, stream=world.gpu.current())
    world.device.sync_stream(world.gpu.current())
    return out


def values(world, dtype, scale=0.02, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, generator=generator) * scale).to(dtype) for n in world.sizes]


def on_gpu(world, tensors):
    return [t.to(world.gpu.device) for t in tensors]


def reference_steps(world, kind, dtype, steps):
    """Parameters and states after some steps on our cpu device."""
    parameters = values(world, dtype)
    with kind(world.cpu_allocator, parameters, lr=1e-3) as optimizer:
        for step in range(steps):
            optimizer.step(values(world, dtype, 0.01, 1 + step))
        states = [
            {name: bytes(view.as_memoryview().cast("B")) for name, view in optimizer.state(i).items()}
            for i in range(len(parameters))
        ]
    return parameters, states


def compare_with_reference(world, optimizer, parameters, kind, dtype, steps):
    expected, states = reference_steps(world, kind, dtype, steps)
    for i, (mine, wanted) in enumerate(zip(parameters, expected)):
        same_bits(mine, wanted, "%s %s, parameter %d" % (kind.__name__, dtype, i))
        for name, view in optimizer.state(i).items():
            check(
                bytes(host_copy(world, view).numpy()) == states[i][name],
                "%s %s, %s of parameter %d" % (kind.__name__, dtype, name, i),
            )


# --- the checks -----------------------------------------------------------------------------------


def steps_on_the_current_stream(world):
    """32-bit and 8-bit steps over torch's tensors give the bits of the cpu device."""
    for kind in KINDS:
        for dtype in DTYPES:
            stream = world.gpu.current()
            parameters = on_gpu(world, values(world, dtype))
            with kind(world.allocator, parameters, lr=1e-3, stream=stream) as optimizer:
                for step in range(5):
                    optimizer.step(on_gpu(world, values(world, dtype, 0.01, 1 + step)), stream=stream)
                compare_with_reference(world, optimizer, parameters, kind, dtype, 5)


def steps_on_a_side_stream(world):
    """Gradients made by torch on a side stream that is kept busy are seen by the step there."""
    dtype = torch.bfloat16
    stream = world.gpu.side()
    parameters = on_gpu(world, values(world, dtype))
    world.gpu.sync()
    with memopt.AdamW8bit(world.allocator, parameters, lr=1e-3, stream=stream) as optimizer:
        with world.gpu.on(stream):
            for step in range(5):
                sources = on_gpu(world, values(world, dtype, 0.01, 1 + step))
                gradients = [torch.zeros_like(source) for source in sources]
                world.gpu.busy()
                for gradient, source in zip(gradients, sources):
                    gradient.copy_(source)
                optimizer.step(gradients, stream=stream)
                del gradients, sources
            world.gpu.sync()
            compare_with_reference(world, optimizer, parameters, memopt.AdamW8bit, dtype, 5)


def casts_are_torchs(world):
    """Casts give torch's own bits."""
    stream = world.gpu.current()
    source = on_gpu(world, values(world, torch.float32, 1e3))
    for dtype in (torch.bfloat16, torch.float16):
        into = [torch.empty_like(t, dtype=dtype) for t in source]
        memopt.cast(world.device, into, source, stream=stream)
        for mine, theirs in zip(into, source):
            same_bits(mine, theirs.to(dtype), "cast to %s" % dtype)


def our_memory_in_torch(world):
    """A block of our allocator is a torch tensor through DLPack, and cannot be freed meanwhile."""
    buffer = world.allocator.alloc(4 * 1000, stream=world.gpu.current())
    tensor = torch.from_dlpack(buffer.tensor("f32"))
    check(tensor.device.type == world.gpu.device.type, "it is on %s" % tensor.device)
    check(tensor.data_ptr() == buffer.pointer, "DLPack made a copy")
    tensor.copy_(torch.arange(1000, dtype=torch.float32))
    world.gpu.sync()
    seen = host_copy(world, buffer.tensor("f32")).view(torch.float32)
    check(torch.equal(seen, torch.arange(1000, dtype=torch.float32)), "torch's values are not there")
    try:
        buffer.free()
    except BufferError:
        pass
    else:
        raise AssertionError("the block was freed under torch's tensor")
    del tensor
    gc.collect()
    buffer.free()


class OnlyDlpack:
    """A tensor seen through its DLPack methods alone."""

    def __init__(self, tensor):
        self._tensor = tensor

    def __dlpack__(self, **options):
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


def torchs_memory_here(world):
    """A torch tensor is ours through its attributes and through DLPack, at the same address."""
    for dtype in DTYPES:
        tensor = on_gpu(world, [torch.ones(1001, dtype=dtype)])[0]
        for source in (tensor, OnlyDlpack(tensor)):
            view = memopt.tensor(source)
            check(view.pointer == tensor.data_ptr(), "%s: it is a copy" % dtype)
            check(view.count == 1001, "%s: %d elements" % (dtype, view.count))
            into = torch.empty(1001, dtype=torch.float32, device=world.gpu.device)
            memopt.cast(world.device, into, source, stream=world.gpu.current())
            check(bool((into == 1).all()), "%s: not its values" % dtype)


def a_graph_of_our_step(world):
    """torch's graph of our steps, replayed, gives the bits of as many steps."""
    for kind in KINDS:
        dtype = torch.bfloat16
        parameters = on_gpu(world, values(world, dtype))
        gradients = [torch.empty_like(p) for p in parameters]
        sources = [on_gpu(world, values(world, dtype, 0.01, 1 + step)) for step in range(5)]
        optimizer = kind(world.allocator, parameters, lr=1e-3, stream=world.gpu.current())
        for gradient, source in zip(gradients, sources[0]):
            gradient.copy_(source)
        world.gpu.sync()
        # Capturing runs the step once before; the graph does the other four.
        replay = world.gpu.capture(lambda: optimizer.step(gradients, stream=world.gpu.current()))
        for source in sources[1:]:
            for gradient, value in zip(gradients, source):
                gradient.copy_(value)
            replay()
        world.gpu.sync()
        compare_with_reference(world, optimizer, parameters, kind, dtype, 5)
        del replay
        optimizer.close()


def both_allocators(world):
    """Our memory and torch's count against the same device, and both give it back."""
    world.gpu.empty_cache()
    world.allocator.trim()
    before = world.gpu.free_bytes()
    ours = world.allocator.alloc("64MiB")
    theirs = torch.empty(64 * 2**20, dtype=torch.uint8, device=world.gpu.device)
    used = before - world.gpu.free_bytes()
    if before:
        check(used >= 128 * 2**20, "both hold 128 MiB, the device says %d bytes" % used)
        seen = world.device.memory_info().free
        check(abs(seen - world.gpu.free_bytes()) < 256 * 2**20, "the views of free memory differ")
    ours.free()
    del theirs
    world.gpu.empty_cache()
    world.allocator.trim()
    if before:
        left = before - world.gpu.free_bytes()
        check(left < 64 * 2**20, "%d bytes were not given back" % left)


def save_on_cpu(world):
    """Offloading torch's tensors and taking them back keeps their bits; also as saved-tensor hooks."""
    stream = world.gpu.current()
    with memopt.Offloader(world.allocator) as offloader:
        for tensor in on_gpu(world, values(world, torch.bfloat16, 1.0)):
            ticket = offloader.pack_borrowed(tensor, stream=stream)
            back = torch.empty_like(tensor)
            ticket.wait_packed(stream)
            ticket.unpack_into(back, stream=stream)
            same_bits(back, tensor, "offloaded tensor")
            ticket.release(stream)
        _gradients_through_hooks(world, offloader)


def _gradients_through_hooks(world, offloader):
    def pack(tensor):
        if not tensor.is_contiguous():  # another layout might make another product of matrices
            return tensor
        ticket = offloader.pack_borrowed(tensor, stream=world.gpu.current())
        ticket.wait_packed(world.gpu.current())
        return ticket, tensor.shape, tensor.dtype

    def unpack(packed):
        if isinstance(packed, torch.Tensor):
            return packed
        ticket, shape, dtype = packed
        out = torch.empty(shape, dtype=dtype, device=world.gpu.device)
        ticket.unpack_into(out, stream=world.gpu.current())
        return out

    torch.manual_seed(3)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).to(world.gpu.device)
    data = torch.randn(32, 64).to(world.gpu.device)
    model(data).square().mean().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = model(data).square().mean()
    loss.backward()
    for parameter, wanted in zip(model.parameters(), expected):
        same_bits(parameter.grad, wanted, "gradient through the hooks")


def both_end(world):
    """Closing a second device of ours leaves the context to torch."""
    other = memopt.Device(world.gpu.name)
    other.close()
    tensor = torch.ones(1000, device=world.gpu.device)
    check(tensor.sum().item() == 1000, "torch no longer computes")


CHECKS = (
    steps_on_the_current_stream,
    steps_on_a_side_stream,
    casts_are_torchs,
    our_memory_in_torch,
    torchs_memory_here,
    a_graph_of_our_step,
    both_allocators,
    save_on_cpu,
    both_end,
)


def run(function, world, file):
    begin = time.perf_counter()
    problem = ""
    try:
        function(world)
    except Exception as error:  # the other checks run all the same
        problem = "%s: %s" % (type(error).__name__, error)
        traceback.print_exc(file=sys.stdout)
    seconds = time.perf_counter() - begin
    print("%-6s %s %s" % ("FAILED" if problem else "ok", function.__name__, problem), flush=True)
    row = {
        "name": function.__name__,
        "status": "failed" if problem else "passed",
        "seconds": round(seconds, 3),
        "message": problem,
    }
    file.write(json.dumps(row) + "\n")
    file.flush()
    return not problem


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", default="/dev/null", help="one object a line")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.device == "cpu":
        gpu = accelerators.StandIn()
    else:
        problem = accelerators.Gpu.problem(options.device)
        if problem:
            print("torch_interop: %s" % problem)
            return 77
        gpu = accelerators.Gpu(options.device)
    print("torch %s, memopt %s" % (torch.__version__, memopt.__version__))
    world = World(gpu, options.small)
    with open(options.json, "w", encoding="utf-8") as file:
        good = [run(function, world, file) for function in CHECKS]
    if all(good):
        world.close()
    print("%d checks, %d failed" % (len(good), good.count(False)))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
