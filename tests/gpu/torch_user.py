"""What a PyTorch user does with memopt.torch on a GPU, each thing compared with plain PyTorch or with the CPU.

    torch_user.py [--device cuda:N] [--json FILE] [--small]

One object a line is written to the file. Status 77 where torch, or its support of the GPU, is missing.
--device cpu runs every check but the allocator's with the cpu in the place of the GPU.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import traceback

try:
    import torch
except ImportError as problem:
    print("torch_user: %s" % problem)
    sys.exit(77)

import accelerators
import memopt
import memopt.torch as mt

WIDTHS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def same_bits(one, other, what):
    """Two tensors of any device."""
    bits = WIDTHS[one.dtype]
    one, other = (t.detach().cpu().contiguous().view(bits) for t in (one, other))
    if not torch.equal(one, other):
        places = (one != other).nonzero()
        raise AssertionError(
            "%s: %d of %d elements differ, the first at %s"
            % (what, len(places), one.numel(), places[0].tolist())
        )


def values(gpu, dtype, seed, scale):
    """Host tensors of several sizes: the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (1, 255, 4097) if gpu.small else (1, 255, 4097, 100003, 3 * 2**20 + 5)
    return [(torch.randn(n, generator=generator) * scale).to(dtype) for n in sizes]


def stepped(gpu, place, dtype, busy=False):
    """Parameters and 8-bit states after five steps on a device."""
    parameters = [p.to(place).requires_grad_() for p in values(gpu, dtype, 0, 0.02)]
    optimizer = mt.AdamW8bit(parameters, lr=1e-3, min_8bit_size=0)
    for step in range(5):
        gradients = [g.to(place) for g in values(gpu, dtype, 1 + step, 0.01)]
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = torch.zeros_like(gradient)
        if busy:
            gpu.busy()
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad.copy_(gradient)
        optimizer.step()
    states = [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)]
    return parameters, [t.cpu() for t in states]


def adamw8bit(gpu):
    """Steps on CUDA parameters, also on a side stream that is kept busy: the bits of the CPU."""
    for dtype in WIDTHS:
        wanted, states = stepped(gpu, "cpu", dtype)
        side = gpu.side()
        for stream in (gpu.current(), side):
            gpu.sync()
            with gpu.on(stream):
                found, seen = stepped(gpu, gpu.device, dtype, busy=stream is side)
                gpu.sync()
            for i, (one, other) in enumerate(zip(found, wanted)):
                same_bits(one, other, "%s, parameter %d" % (dtype, i))
            check(len(seen) == len(states), "%d and %d states" % (len(seen), len(states)))
            for one, other in zip(seen, states):
                check(torch.equal(one, other), "%s: a state differs" % dtype)


def model_of(gpu, layers=8):
    """A deterministic network and its input."""
    width = 64 if gpu.small else 1024
    torch.manual_seed(3)
    parts = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Dropout(0.1)]
    model = torch.nn.Sequential(*parts).to(gpu.device)
    return model, torch.randn(4 * width, width).to(gpu.device)


def gradients_of(gpu, forward):
    """Gradients of the network's parameters when `forward` makes its output; and the peak."""
    model, data = model_of(gpu)
    torch.manual_seed(5)
    gpu.reset_peak()
    forward(model, data).square().mean().backward()
    return [p.grad for p in model.parameters()], gpu.peak()


def compare_with_plain(gpu, forward, what):
    wanted, plain = gradients_of(gpu, lambda model, data: model(data))
    found, ours = gradients_of(gpu, forward)
    for one, other in zip(found, wanted):
        same_bits(one, other, "%s: a gradient" % what)
    check(ours < plain or gpu.name == "cpu", "%s: peak %d, plain %d bytes" % (what, ours, plain))


def save_on_cpu(gpu):
    """With prefetch: plain PyTorch's gradients, less memory, and values that were brought back ahead."""
    context = mt.save_on_cpu(device_type=gpu.device.type)

    def forward(model, data):
        with context:
            return model(data)

    compare_with_plain(gpu, forward, "save_on_cpu")
    stats = context.stats()
    check(stats["packs"] > 0, "nothing went to the host")
    check(stats["prefetch_hits"] > 0 or gpu.name == "cpu", "no value was brought back ahead")


def checkpoint(gpu):
    """Layers and chains that run again in backward: plain PyTorch's gradients, less memory."""

    def layers(model, data):
        for first in range(0, len(model), 6):
            data = mt.checkpoint(model[first : first + 6], data)
        return data

    def chain(model, data):
        return mt.checkpoint_sequential(model, data, budget=12 * data.nbytes)  # of 35

    compare_with_plain(gpu, layers, "checkpoint")
    compare_with_plain(gpu, chain, "checkpoint_sequential")


def grad_scaler(gpu):
    """Beside torch's own: the same scales, skipped steps and parameters, with overflows in between."""
    seen = []
    for kind in (torch.amp.GradScaler, mt.GradScaler):
        model, data = model_of(gpu, 2)
        model.eval()  # no dropout
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = kind(gpu.device.type, init_scale=2.0**10, growth_interval=3)
        scales = []
        for step in range(10):
            optimizer.zero_grad()
            scaler.scale(model(data).square().mean()).backward()
            if step in (2, 7):
                next(model.parameters()).grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        seen.append((scales, [p.detach().clone() for p in model.parameters()]))
    check(seen[0][0] == seen[1][0], "scales %s, torch's %s" % (seen[1][0], seen[0][0]))
    check(len(set(seen[0][0])) > 1, "the scale never changed: %s" % seen[0][0])
    for one, other in zip(seen[1][1], seen[0][1]):
        same_bits(one, other, "GradScaler: a parameter")


ALLOCATOR = """
import torch, memopt.torch as mt
allocator = mt.enable_allocator("expandable_segments:True")
torch.cuda.set_device(%d)
torch.manual_seed(1)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)]).cuda()
optimizer = mt.AdamW8bit(model.parameters(), lr=1e-3)
for step in range(5):
    loss = model(torch.randn(256 + 64 * step, 512, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
assert torch.isfinite(loss), loss
stats = torch.cuda.memory_stats()
assert stats["allocated_bytes.all.peak"] > 6 * 512 * 512 * 4, stats
reserved = torch.cuda.memory_reserved()
del model, optimizer, loss
torch.cuda.synchronize()
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() < reserved
try:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    assert "CUDA out of memory" in str(error), error
else:
    raise AssertionError("a PiB was allocated")
"""


def enable_allocator(gpu):
    """The library's allocator as torch's, in a process of its own: training, statistics, out of memory."""
    if gpu.name == "cpu":
        return "needs a GPU"
    program = ALLOCATOR % gpu.index
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    check(done.returncode == 0, (done.stdout + done.stderr)[-2000:])
    return ""


CHECKS = (adamw8bit, enable_allocator, save_on_cpu, checkpoint, grad_scaler)


def run(function, gpu, file):
    begin, state, message = time.perf_counter(), "passed", ""
    try:
        reason = function(gpu)
        if reason:
            state, message = "skipped", reason
    except Exception as error:  # the other checks run all the same
        state, message = "failed", "%s: %s" % (type(error).__name__, error)
        traceback.print_exc(file=sys.stdout)
    seconds = time.perf_counter() - begin
    print("%-8s %s %s" % (state, function.__name__, message), flush=True)
    row = dict(name=function.__name__, status=state, seconds=round(seconds, 3), message=message)
    file.write(json.dumps(row) + "\n")
    file.flush()
    return state


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", default=os.devnull, help="one object a line")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    gpu = accelerators.of(options.device)
    if isinstance(gpu, str):
        print("torch_user: %s" % gpu)
        return 77
    gpu.small = options.small
    print("torch %s, memopt %s" % (torch.__version__, memopt.__version__))
    with open(options.json, "w", encoding="utf-8") as file:
        states = [run(function, gpu, file) for function in CHECKS]
    print("%d passed, %d failed, %d skipped" % tuple(map(states.count, ("passed", "failed", "skipped"))))
    return 1 if "failed" in states else 0


if __name__ == "__main__":
    sys.exit(main())
