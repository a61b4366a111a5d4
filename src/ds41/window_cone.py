"""How far back window rows reach: what must run again before windows are whole, layer by layer.

A row of layer l is made from the state that enters the layer, and that state has attended to a window of rows in
layer l - 1. Windows that meet share a token, so each layer adds ``sliding_window - 1`` tokens. Entries of the
global KV are there already and add nothing.

Source: report section 3.2.2; the counts follow from its rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ds41.config import ModelConfig
from ds41.ledger import check_tokens


@dataclass(frozen=True)
class Cone:
    """Tokens [begin, hit) of each layer that have to leave a window row again.

    Attributes:
        hit: tokens of the prefix; the next one has position ``hit``.
        begins: for each layer the first position whose row is needed. A layer attends only for those that the layer
            above it needs, the last one for none.
    """

    hit: int
    begins: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens that have to be fed again."""
        return self.hit - min(self.begins, default=self.hit)

    @property
    def rows(self) -> int:
        """Window rows made, over all layers."""
        return sum(self.hit - begin for begin in self.begins)

    @property
    def attended(self) -> int:
        """Tokens × layers that attend and run experts, if each layer runs on no more than it must."""
        return sum(self.hit - begin for begin in self.begins[1:])


def exact(config: ModelConfig, hit: int, layers: int | None = None) -> Cone:
    """What it takes to restore the rows that the token at ``hit`` sees, as they were.

    Args:
        layers: restore those of layers 0 to ``layers - 1`` only; all if None. With ``decoder_start + 1`` a prefill
            can go on that leaves the same entries as one that was never interrupted.

    Raises:
        ValueError: no such number of layers, or ``hit`` is negative.
        TypeError: ``hit`` is no whole number.
    """
    hit, layers = check_tokens(hit), _check_layers(config, layers)
    step = config.sliding_window - 1
    return Cone(hit, tuple(max(0, hit - step * (layers - layer)) for layer in range(layers)))


def bounded(config: ModelConfig, hit: int, layers: int | None = None) -> Cone:
    """What bounded replay does instead: the last window of the prefix, in every layer. Arguments as in :func:`exact`.

    The rows are those of a sequence that began there.

    Raises:
        ValueError: a hit below 0, or layers that the model does not have.
        TypeError: ``hit`` is no whole number.
    """
    hit, layers = check_tokens(hit), _check_layers(config, layers)
    return Cone(hit, (max(0, hit - config.sliding_window),) * layers)


def right_layers(config: ModelConfig, hit: int, replayed: int) -> int:
    """Layers, counted from 0, whose rows are exact after a replay of the last ``replayed`` tokens in full depth.

    Raises:
        TypeError: a count is no whole number.
        ValueError: a count is negative.
    """
    hit, replayed = check_tokens(hit), check_tokens(replayed)
    if replayed >= hit:
        return config.num_hidden_layers
    return min(config.num_hidden_layers, replayed // (config.sliding_window - 1))


def outline(cone: Cone) -> tuple[Sequence[int], Sequence[float]]:
    """The left edge of a cone for a plot: tokens before the hit, and edges of the layers, two points a layer."""
    back = [cone.hit - begin for begin in cone.begins for _ in range(2)]
    edges = [layer + side for layer in range(len(cone.begins)) for side in (0, 1)]
    return back, edges


def _check_layers(config: ModelConfig, layers: int | None) -> int:
    layers = config.num_hidden_layers if layers is None else layers
    if not 1 <= layers <= config.num_hidden_layers:
        raise ValueError(f"layers is {layers}; expected 1 to {config.num_hidden_layers}")
    return layers
