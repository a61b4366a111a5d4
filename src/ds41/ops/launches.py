"""What a piece of the model asks of the device: its kernels, and the torch operators that launch at least one.

Counting needs no GPU. It is exact for the kernels of :mod:`ds41.kernels`. A torch operator counts as one launch, which
is the least it can be; views and allocations count as none. What an operator of ours does by torch within itself, such
as a copy of a strided argument, is not seen.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch.utils._python_dispatch import TorchDispatchMode

# They allocate or give back what is there; no kernel runs.
_WITHOUT_LAUNCH = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::_unsafe_view",
    "aten::_reshape_alias",
    "aten::lift_fresh",
    "aten::set_",
    "aten::is_nonzero",
    "aten::_local_scalar_dense",
}


@dataclass
class Launches:
    """kernels: names of our kernels, in order. torch: names of torch operators, in order."""

    kernels: list[str] = field(default_factory=list)
    torch: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Launches of kernels and of torch operators together."""
        return len(self.kernels) + len(self.torch)


@contextmanager
def count_launches() -> Iterator[Launches]:
    """Count within the block; the result fills up as it runs."""
    from ds41.kernels.launch import recorded

    found = Launches()
    with recorded() as found.kernels, _Operators(found.torch):
        yield found


class _Operators(TorchDispatchMode):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name
        if not (name.startswith("ds41::") or name in _WITHOUT_LAUNCH or function.is_view):
            self.names.append(name)
        return function(*args, **(kwargs or {}))
