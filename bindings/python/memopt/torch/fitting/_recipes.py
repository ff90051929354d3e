"""How a saved tensor is made again by one cheap operation from tensors that stay.

A recipe is read from the graph of this very step (the node that made the tensor tells its operation
and what it saved), or is a call of the module that made it. So it cannot be another step's.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import torch

_aten = torch.ops.aten


class Recipe:
    """Makes a storage's tensor again; what is made is shared while it lives."""

    __slots__ = ("make", "tensors", "versions", "made", "__weakref__")

    def __init__(self, make: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        self.make = make
        self.tensors = [t if t.grad_fn is None else t.detach() for t in tensors]
        self.versions = [t._version for t in tensors]
        self.made: Any = None

    def tensor(self) -> torch.Tensor:
        """The base of what was saved."""
        base = None if self.made is None else self.made()
        if base is None:
            for tensor, version in zip(self.tensors, self.versions):
                if tensor._version != version:
                    raise RuntimeError(
                        "fit: a tensor of shape %s from which backward needs another one was changed in place:"
                        " it is at version %d, expected version %d" % (list(tensor.shape), tensor._version, version)
                    )
            with torch.no_grad():
                base = self.make(*self.tensors)
            self.made = weakref.ref(base)
        return base


class Part:
    """What autograd holds in place of a saved tensor: a view of a recipe's."""

    __slots__ = ("recipe", "size", "stride", "offset")

    def __init__(self, recipe: Recipe, tensor: torch.Tensor) -> None:
        self.recipe = recipe
        self.size, self.stride, self.offset = tensor.size(), tensor.stride(), tensor.storage_offset()

    def tensor(self) -> torch.Tensor:
        """The saved tensor again."""
        base = self.recipe.tensor()
        result = base.as_strided(self.size, self.stride, self.offset)
        result._memopt_base = base  # type: ignore[attr-defined]  # it lives as long as the view
        return result


class Note(NamedTuple):
    """Stands at a storage: how to make what is in it. Once a saved tensor holds the recipe, the note
    does not, so that nothing else keeps its tensors alive."""

    recipe: Callable[[], Optional[Recipe]]
    version: int
    dtype: torch.dtype


def note(tensor: torch.Tensor, recipe: Recipe) -> None:
    """From now on packs of the tensor's storage, as it is now, hold the recipe."""
    storage: Any = tensor.untyped_storage()
    storage._memopt_fit = Note(lambda: recipe, tensor._version, tensor.dtype)


def noted(tensor: torch.Tensor) -> Optional[Part]:
    """What to hold in place of a tensor, if there is a recipe."""
    if tensor.layout is not torch.strided:
        return None
    storage: Any = tensor.untyped_storage()
    found: Optional[Note] = getattr(storage, "_memopt_fit", None)
    recipe = None if found is None else found.recipe()
    if found is None or recipe is None or found.version != tensor._version or found.dtype is not tensor.dtype:
        return None
    storage._memopt_fit = Note(weakref.ref(recipe), found.version, found.dtype)
    return Part(recipe, tensor)


def look(tensor: torch.Tensor) -> List[Any]:
    """What a tensor must agree in with the one of the plan, as JSON has it."""
    node = _maker(tensor)
    name = "" if node is None else node.name()
    return [list(tensor.shape), list(tensor.stride()), str(tensor.dtype), name]


def words_of(look: List[Any]) -> str:
    """The same in short."""
    return "%s %s" % (look[3] or "value", "x".join(map(str, look[0])))


_VIEWS = ("View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "T", "Unsqueeze", "Squeeze", "Alias", "Slice")
_VIEW_NODES = frozenset(name + "Backward%d" % i for name in _VIEWS for i in range(5))


def _maker(tensor: torch.Tensor) -> Any:
    """The node that made the tensor's storage, or None."""
    node: Any = tensor.grad_fn
    for _ in range(8):
        if node is None or node.name() not in _VIEW_NODES:
            return node
        node = node.next_functions[0][0]
    return None


def _unary(operation: Any, *attributes: str) -> Callable[[Any], Any]:
    def make(node: Any) -> Any:
        values = {name: getattr(node, "_saved_" + name) for name in attributes}
        return (lambda x: operation(x, **values)), [node._saved_self]

    return make


def _product(node: Any) -> Any:
    return _aten.mul.Tensor, [node._saved_self, node._saved_other]


#: By the name of the node: its operation, from what it saved, and the tensors.
_MAKERS = {
    "GeluBackward0": _unary(_aten.gelu.default, "approximate"),
    "SiluBackward0": _unary(_aten.silu.default),
    "MulBackward0": _product,
}


def of_graph(tensor: torch.Tensor) -> Optional[Recipe]:
    """The recipe of a tensor that an operation has just made, if that is a cheap one that saved all
    that it took."""
    node = _maker(tensor)
    maker = None if node is None else _MAKERS.get(node.name())
    if maker is None:
        return None
    make, tensors = maker(node)
    storage = tensor.untyped_storage()
    if any(t is None or t.untyped_storage()._cdata == storage._cdata for t in tensors):
        return None
    if any(t.dim() == 0 for t in tensors) or not _is_whole(tensor, tensors):
        return None
    return Recipe(make, tensors)


def _is_whole(tensor: torch.Tensor, sources: Sequence[torch.Tensor]) -> bool:
    """Whether what the operation makes fills the tensor's storage, in the order that it has there."""
    shape: Tuple[int, ...] = torch.broadcast_shapes(*(t.shape for t in sources))  # type: ignore[no-untyped-call]
    count = 1
    for length in shape:
        count *= length
    return (
        count * tensor.element_size() == tensor.untyped_storage().nbytes()
        and tensor.is_contiguous()
        and all(t.is_contiguous() and t.dtype is tensor.dtype for t in sources)
    )
