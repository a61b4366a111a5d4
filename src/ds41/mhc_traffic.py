"""Activation values that hyper-connections move between two sublayers, by implementation.

Counted per token and site, in vectors of ``hidden_size`` values, from what each kernel reads and writes. The few
coefficients per token are left out.

Source: report section 2.4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from ds41.config import ModelConfig


@dataclass(frozen=True)
class Operand:
    """An activation tensor; per token ``n * per_stream + fixed`` vectors of hidden_size values."""

    name: str
    per_stream: int
    fixed: int

    def vectors(self, n: int) -> int:
        """Vectors of hidden size that it has a token, for ``n`` streams."""
        return n * self.per_stream + self.fixed


OLD_STREAMS = Operand("streams", per_stream=1, fixed=0)
"""The residual streams as the site received them."""
NEW_STREAMS = Operand("new streams", per_stream=1, fixed=0)
"""The residual streams with the sublayer's output written."""
OUTPUT = Operand("sublayer output", per_stream=0, fixed=1)
"""The sublayer's output."""
COLLAPSED = Operand("collapsed streams", per_stream=0, fixed=1)
"""The streams' weighted sum before the norm."""
INPUT = Operand("normed sublayer input", per_stream=0, fixed=1)
"""The next sublayer's input."""


@dataclass(frozen=True)
class Kernel:
    """One launch: it reads its operands from memory once and writes its results once."""

    name: str
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]


@dataclass(frozen=True)
class Implementation:
    """The kernels between one sublayer's output and the next sublayer's input, in order."""

    name: str
    kernels: tuple[Kernel, ...]

    def reads(self, n: int) -> int:
        """Vectors read per token and site with ``n`` streams."""
        return sum(operand.vectors(n) for kernel in self.kernels for operand in kernel.reads)

    def writes(self, n: int) -> int:
        """Vectors written per token and site with ``n`` streams."""
        return sum(operand.vectors(n) for kernel in self.kernels for operand in kernel.writes)

    def values(self, config: ModelConfig) -> int:
        """Values read and written per token and site."""
        return (self.reads(config.hc_mult) + self.writes(config.hc_mult)) * config.hidden_size

    def nbytes(self, config: ModelConfig, bytes_per_value: int = 2) -> int:
        """Bytes moved per token through all sites of the backbone; a stream is stored in BF16."""
        return self.values(config) * sites(config) * bytes_per_value

    @property
    def formula(self) -> str:
        """Values per token and site for n streams of d channels, for example ``(2n + 2)d``."""
        operands = [operand for kernel in self.kernels for operand in kernel.reads + kernel.writes]
        slope = sum(operand.per_stream for operand in operands)
        return f"({slope}n + {sum(operand.fixed for operand in operands)})d"


# The next site's collapse weights come from the very streams that they collapse: four kernels, one after the other.
SEPARATE = Implementation(
    "separate kernels",
    (
        Kernel("update", reads=(OLD_STREAMS, OUTPUT), writes=(NEW_STREAMS,)),
        Kernel("coefficients", reads=(NEW_STREAMS,), writes=()),
        Kernel("collapse", reads=(NEW_STREAMS,), writes=(COLLAPSED,)),
        Kernel("norm", reads=(COLLAPSED,), writes=(INPUT,)),
    ),
)
"""Four kernels, each of which reads what the one before wrote."""
TWO_PASSES = Implementation(
    "fused, two passes",
    (
        Kernel("update and coefficients", reads=(OLD_STREAMS, OUTPUT), writes=(NEW_STREAMS,)),
        Kernel("collapse and norm", reads=(NEW_STREAMS,), writes=(INPUT,)),
    ),
)
"""Two kernels: the collapse weights need a sum over all channels of the new streams before the first is collapsed."""
SINGLE_PASS = Implementation(
    "fused and shifted, one pass",
    (Kernel("update, coefficients, collapse, norm", reads=(OLD_STREAMS, OUTPUT), writes=(NEW_STREAMS, INPUT)),),
)
"""One kernel: with the one-site shift the collapse weights are known before it begins."""
IMPLEMENTATIONS = (SEPARATE, TWO_PASSES, SINGLE_PASS)
"""The three ways, most traffic first."""


def sites(config: ModelConfig) -> int:
    """Sites of the backbone: attention and FFN of every layer."""
    return 2 * config.num_hidden_layers
