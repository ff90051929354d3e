"""Parameters whose states stay in 32 bits, whatever the optimizer's format is.

A marked parameter has an attribute, which optimizers read. What replaces parameters loses it:
`load_state_dict(assign=True)`, `fully_shard()`, a deep copy. So each module also remembers the names
of its marked parameters, and an optimizer that is made marks what has these names by then.
"""

from __future__ import annotations

import copy
import fnmatch
import warnings
import weakref
from typing import Any, Dict, Iterable, List, Optional, Union

import torch

_MARK = "_memopt_keep_32bit"


def keep_32bit(what: Union[torch.nn.Module, torch.Tensor], *patterns: str) -> List[str]:
    """Marks parameters: an optimizer of this package gives them 32-bit states. It is for programs
    that do not make the groups themselves, such as a Trainer; with groups of your own,
    ``min_8bit_size`` does the same.

        mt.keep_32bit(model, "*embed*", "lm_head.*")
        mt.keep_32bit(model.embed_tokens)

    Call it before the first step or `load_state_dict()` of the optimizer (which turns codes of a
    marked parameter into 32-bit states). A module remembers the names of its marked parameters: what
    has them when the optimizer is made is marked, also after `load_state_dict(assign=True)`,
    `copy.deepcopy()` and `fully_shard()` of the model. A parameter that is marked without its module
    is remembered itself. The optimizer warns where a marked parameter is gone and no other has its
    place.

    Args:
        what: a module, or one parameter.
        patterns: shell patterns for the names that `what.named_parameters()` gives; without any,
            all parameters are marked.

    Returns:
        The names of the marked parameters, in the module's order.

    Raises:
        ValueError: a pattern fits no parameter, or patterns are given for one parameter. Nothing is
            marked then.
    """
    if isinstance(what, torch.Tensor):
        if patterns:
            raise ValueError("patterns choose among a module's parameters; this is one parameter")
        if not kept(what):
            _marks.append(_Mark("one of shape %s" % (tuple(what.shape),), weakref.ref(what)))
        mark(what)
        return [""]
    named = dict(what.named_parameters())
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in named):
            some = ", ".join(list(named)[:8]) + (", …" if len(named) > 8 else "")
            raise ValueError("no parameter fits %r; there are: %s" % (pattern, some or "none"))
    chosen = [n for n in named if not patterns or any(fnmatch.fnmatchcase(n, p) for p in patterns)]
    for name in chosen:
        path, _, local = name.rpartition(".")
        _remember(what.get_submodule(path), local, name)
        mark(named[name])
    return chosen


def kept(parameter: torch.Tensor) -> bool:
    """Whether the parameter is marked."""
    return getattr(parameter, _MARK, False)


def mark(parameter: torch.Tensor) -> None:
    """Marks one tensor, which is not remembered."""
    setattr(parameter, _MARK, True)


# --- by name --------------------------------------------------------------------------------------


class _Mark:
    """What was marked: a name in a module, or a parameter."""

    def __init__(self, name: str, where: "weakref.ref[Any]", local: Optional[str] = None) -> None:
        self.name = name
        self.where = where
        self.local = local  # None: `where` is the parameter
        self.used = False  # an optimizer has had it, or a copy of the module has it too

    def find(self) -> Optional[torch.Tensor]:
        """The parameter that is there now."""
        there = self.where()
        if self.local is None or there is None:
            return there
        return there._parameters.get(self.local)  # type: ignore[no-any-return]


class _Names:
    """What a module has of its own: marks by name, which a deep copy of it makes for itself."""

    def __init__(self) -> None:
        self.marks: Dict[str, _Mark] = {}

    def __deepcopy__(self, memo: Dict[int, Any]) -> "_Names":
        made = _Names()
        for local, one in self.marks.items():
            module, parameter = one.where(), one.find()
            twin = memo.get(id(module))
            if twin is not None and parameter is not None:
                mark(copy.deepcopy(parameter, memo))
                made.add(twin, local, one.name)
                one.used = True
        return made

    def __reduce__(self) -> Any:
        return list, (list(self.marks),)  # a pickled module can be read without this package

    def add(self, module: torch.nn.Module, local: str, name: str) -> None:
        """Remembers a parameter of the module."""
        if local not in self.marks:
            self.marks[local] = _Mark(name, weakref.ref(module), local)
            _marks.append(self.marks[local])


_marks: List[_Mark] = []


def _remember(module: torch.nn.Module, local: str, name: str) -> None:
    names = module.__dict__.get(_MARK)
    if not isinstance(names, _Names):
        names = module.__dict__[_MARK] = _Names()
    names.add(module, local, name)


def settle(parameters: Iterable[torch.Tensor]) -> None:
    """For an optimizer that gets these parameters: marks what has a marked name now, and warns of
    marks without a parameter."""
    given, lost = set(map(id, parameters)), []
    for one in _marks[:]:
        parameter = one.find()
        if parameter is not None:
            mark(parameter)
            one.used = one.used or id(parameter) in given
            continue
        _marks.remove(one)
        if not one.used:
            lost.append(one.name)
    if lost:
        warnings.warn(
            "parameters that keep_32bit() marked are gone: %s. If others have their place, mark"
            " those, or mark by module and name" % ", ".join(lost),
            stacklevel=7,  # who makes an AdamW
        )
