"""Weights of 4 bits as bitsandbytes keeps them: in checkpoints (QLoRA), and in its layers.

A weight is a tensor of bytes with two codes each. Its state has a scale for each block (`absmax`), or with double
quantisation codes of scales, whose scales are `nested_absmax` and whose mean is a number. bitsandbytes' layers
keep the state beside the parameter, and their product keeps the bytes outside of autograd's saved tensors.
"""

from __future__ import annotations

import json
import sys
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from ..blocks import dequantize_blocks

#: What a checkpoint has beside "weight": the state's small values, as JSON.
_STATE = ".quant_state.bitsandbytes__"
_TENSORS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")


class Packed(NamedTuple):
    """A checkpoint's weight."""

    codes: torch.Tensor
    scales: torch.Tensor  # of f32, one for each block
    block: int
    shape: torch.Size

    def name(self) -> str:
        """The library's format."""
        return "nf4" if self.block == 64 else "nf4_%d" % self.block

    def tensor(self, dtype: torch.dtype) -> torch.Tensor:
        """Its values."""
        count = self.shape.numel()
        return dequantize_blocks(self.codes, self.scales, self.name(), dtype=dtype, columns=count).view(self.shape)


def take_packed(state: Dict[str, Any], name: str) -> Optional[Packed]:
    """Takes what belongs to a weight of NF4 out of a state dict, but for the weight itself."""
    key = name + _STATE + "nf4"
    if key not in state:
        return None
    values, tensors = _taken(state, name, key)
    scales = tensors["absmax"]
    if "nested_absmax" in tensors:
        level = tensors["nested_absmax"].repeat_interleave(int(values["nested_blocksize"]))[: scales.numel()]
        scales = tensors["nested_quant_map"][scales.long()] * level + torch.tensor(float(values["nested_offset"]))
    codes = state[name].contiguous().view(torch.uint8).reshape(-1).cpu()
    packed = Packed(codes, scales.float().contiguous().cpu(), int(values["blocksize"]), torch.Size(values["shape"]))
    count = packed.shape.numel()
    need = -(-count // 2), -(-count // packed.block)
    if (codes.numel(), scales.numel()) != need:
        raise ValueError(
            "stream_weights: %s has %d bytes of codes and %d scales in the state dict; %s of blocks of %d has %d and %d"
            % (name, codes.numel(), scales.numel(), list(packed.shape), packed.block, *need)
        )
    return packed


def _taken(state: Dict[str, Any], name: str, key: str) -> Tuple[Dict[str, Any], Dict[str, torch.Tensor]]:
    """The small values, and the tensors."""
    values = json.loads(bytes(state.pop(key).tolist()).decode())
    wanted = _TENSORS if "nested_blocksize" in values else _TENSORS[:2]
    missing = [of for of in wanted if "%s.%s" % (name, of) not in state]
    if missing:
        raise ValueError("stream_weights: the state dict has no %s.%s" % (name, missing[0]))
    return values, {of: state.pop("%s.%s" % (name, of)) for of in wanted}


# --- bitsandbytes' layers ----------------------------------------------------------------------------


def is_four_bits(p: torch.Tensor) -> bool:
    """A parameter of a layer of bitsandbytes."""
    return type(p).__name__ == "Params4bit" and type(p).__module__.startswith("bitsandbytes.")


def why_not(p: Any) -> str:
    """Why such a parameter cannot stream; "" if it can."""
    if p.quant_state is None or p.is_meta:
        return "has no codes yet; bitsandbytes makes them when the layer moves to its device"
    if getattr(p.quant_state, "packing_format_for_cpu", False):
        return "was packed for inference on the CPU; make its state_dict() once, which undoes that"
    return ""


def tensors_of(p: Any) -> Dict[str, torch.Tensor]:
    """The tensors of a parameter's state that grow with it, by their names in a state dict."""
    state = p.quant_state
    found = {"absmax": state.absmax}
    if state.state2 is not None:
        found["nested_absmax"] = state.state2.absmax
    return found


def move_state(p: Any, device: torch.device, streamed: Callable[[torch.Tensor], bool]) -> None:
    """The state's tensors that do not stream go to a device."""
    state = p.quant_state
    for owner, names in ((state, ("absmax", "code", "offset")), (state.state2, ("absmax", "code"))):
        for name in names if owner is not None else ():
            value = getattr(owner, name)
            if value is not None and not streamed(value):
                value.data = value.data.to(device)


def load_state(
    p: Any, state: Dict[str, Any], name: str, write: Callable[[torch.Tensor, torch.Tensor], None]
) -> None:
    """Loads what belongs to a layer's weight from a state dict, but for the weight itself; `write` gets tensors of the
    parameter's state and their new values."""
    own = p.quant_state
    key = name + _STATE + own.quant_type
    if key not in state:
        return
    values, tensors = _taken(state, name, key)
    here = {"blocksize": own.blocksize, "shape": list(own.shape), "nested_blocksize": own.state2 and own.state2.blocksize}
    there = {what: values.get(what) for what in here}
    if here != there:
        raise ValueError("stream_weights: %s is quantised as %s in the state dict, as %s in the model" % (name, there, here))
    for of, target in tensors_of(p).items():
        write(target, tensors[of])
    own.code.copy_(tensors["quant_map"])
    if own.state2 is not None:
        own.state2.code.copy_(tensors["nested_quant_map"])
        own.offset.fill_(float(values["nested_offset"]))


def keep_layout(module: torch.nn.Module) -> Callable[[], None]:
    """Keeps a layer from packing its weight anew for inference on the CPU; returns what ends that."""
    name = "support_avx512bf16_for_cpu"
    if not getattr(module, name, False):
        return lambda: None
    setattr(module, name, False)
    return lambda: setattr(module, name, True)


#: bitsandbytes' own product, while that of _seen() is in its place, and who needs this.
_plain: List[Any] = []
_users: "weakref.WeakSet[Any]" = weakref.WeakSet()


def see(user: Any) -> None:
    """From now on products of 4-bit weights save them as others do, so that hooks see them; also where a checkpoint
    runs a part of a layer again."""
    functions: Any = sys.modules["bitsandbytes.autograd._functions"]
    if not _plain:
        _plain.append(functions.MatMul4Bit)
        functions.MatMul4Bit = _seen(_plain[0])
    _users.add(user)


def see_no_more(user: Any) -> None:
    """One user less; after the last one bitsandbytes has its own again."""
    _users.discard(user)
    if _plain and not _users:
        functions: Any = sys.modules["bitsandbytes.autograd._functions"]
        functions.MatMul4Bit = _plain.pop()


def _seen(plain: Any) -> Any:
    """bitsandbytes' product, with its weight saved by autograd; the state it keeps is the parameter's own."""

    class MatMul4Bit(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, A: Any, B: Any, out: Any = None, bias: Any = None, quant_state: Any = None) -> Any:
            result = plain.forward(ctx, A, B, out, bias, quant_state)
            if getattr(ctx, "tensors", (None, None))[1] is not None:
                ctx.save_for_backward(B)
                ctx.tensors = None
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            saved = () if ctx.is_empty else ctx.saved_tensors  # a checkpoint gives them once
            if not saved:
                return plain.backward(ctx, *gradients)
            ctx.tensors = None, saved[0].view(-1, 1)
            try:
                return plain.backward(ctx, *gradients)
            finally:
                ctx.tensors = None

    return MatMul4Bit
