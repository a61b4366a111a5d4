"""What runs between the sites of hyper-connections, in order: sweeps over the streams, with and without the shift.

A site's ``pre`` is a function of every channel of its streams. Un-shifted it collapses those same streams, so they
are read twice; with the one-site shift it collapses the next site's, and one sweep is enough. Reads and writes are
counted as in :mod:`ds41.mhc_traffic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ds41.config import ModelConfig

Mode = Literal["shifted", "unshifted"]
MODES: tuple[Mode, ...] = ("shifted", "unshifted")


@dataclass(frozen=True)
class Site:
    """A sublayer between its way in and its way out. ``engram``: Engram adds to the streams right before it."""

    layer: int
    sublayer: Literal["attention", "FFN"]
    engram: bool = False


@dataclass(frozen=True)
class Step:
    """One sweep over the streams before site ``boundary``, or before the final norm if there is no such site.

    updates: forms the streams from old ones and the last sublayer's output. predicts: sums up the coefficients of
    site ``boundary``. collapses: forms its sublayer's normed input. engram: no sweep of the hyper-connections but
    Engram's addition, whose reads and writes are not counted here.
    """

    boundary: int
    updates: bool = False
    predicts: bool = False
    collapses: bool = False
    engram: bool = False

    def reads(self, n: int) -> int:
        """Vectors of hidden_size values read per token with ``n`` streams."""
        return 0 if self.engram else n + self.updates

    def writes(self, n: int) -> int:
        """Vectors of hidden_size values written per token."""
        return n * self.updates + self.collapses


def sites_of(config: ModelConfig, layers: int) -> tuple[Site, ...]:
    """The sites of the first ``layers`` layers."""
    if not 1 <= layers <= config.num_hidden_layers:
        raise ValueError(f"layers is {layers}; expected 1 to {config.num_hidden_layers}")
    sites = []
    for layer in range(layers):
        sites += [Site(layer, "attention", layer in config.engram_layer_ids), Site(layer, "FFN")]
    return tuple(sites)


def steps(sites: Sequence[Site], mode: Mode) -> tuple[Step, ...]:
    """Every sweep from the embedding to the final norm."""
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; expected one of: {', '.join(MODES)}")
    shifted = mode == "shifted"
    found = []
    for boundary in range(len(sites) + 1):
        last = boundary == len(sites)
        updates = boundary > 0
        if not last and sites[boundary].engram:
            # The coefficients of this site must see Engram's addition, the streams must be whole before it.
            if updates:
                found.append(Step(boundary, updates=True))
            found.append(Step(boundary, engram=True))
            updates = False
        # Shifted, the final norm takes the last site's pre; un-shifted, it needs a predictor of its own.
        predicts = not (shifted and last)
        if shifted:
            found.append(Step(boundary, updates, predicts, collapses=True))
        else:
            found += [Step(boundary, updates, predicts), Step(boundary, collapses=True)]
    return tuple(found)


def words(step: Step, sites: Sequence[Site], mode: Mode, n: int) -> str:
    """HTML: what happens in a step with ``n`` streams, at what cost, and why it can or must."""
    shifted = mode == "shifted"
    last = step.boundary == len(sites)
    if step.engram:
        why = (
            "The pre that collapses them was predicted before this addition, post and comb are predicted after it, "
            "so the sweep is cut in two here."
            if shifted
            else "This site's coefficients are predicted after it."
        )
        return f"<b>Engram</b> of layer {sites[step.boundary].layer} adds to all streams. {why}"
    cost = f"{values(step.reads(n))} values read, {values(step.writes(n)) or 'none'} written"
    return (
        f"<b>{_actions(step, shifted, last)}</b> ({cost}). {_reason(step, shifted, last)}"
        f"{_then(step, sites, last) if step.collapses else ''}"
    )


def values(vectors: int) -> str:
    """Vectors of d = hidden_size values: "", "d", "5d"."""
    return {0: "", 1: "d"}.get(vectors, f"{vectors}d")


def _actions(step: Step, shifted: bool, last: bool) -> str:
    """What the kernel does, in one sentence."""
    done = []
    if step.updates:
        done.append(f"writes the output of site {step.boundary - 1} back into the mixed streams")
    if step.predicts:
        done.append("sums up collapse weights" if last else f"sums up the coefficients of site {step.boundary}")
    if step.collapses:
        done.append("collapses the new streams" if step.updates else "collapses them")
    what = done[0] if len(done) == 1 else f"{', '.join(done[:-1])} and {done[-1]}"
    if step.collapses and not shifted:
        return f"A second kernel reads the same streams again and {what}"
    link = ", " if len(done) > 1 else " and "
    return f"One kernel reads the streams{link}{what}"


def _reason(step: Step, shifted: bool, last: bool) -> str:
    boundary = step.boundary
    if not step.collapses:
        if step.predicts:
            return "The weights are known only after the last channel, so nothing can be collapsed yet."
        return "Engram comes next, and the coefficients have to see it."
    if not shifted:
        return "Now the weights are known." if last else f"Now pre of site {boundary} is known."
    if boundary == 0:
        return "No site comes before this one: fixed weights pick the first stream, the embedding itself."
    return f"It can do so at once: pre of site {boundary - 1} was there before it began."


def _then(step: Step, sites: Sequence[Site], last: bool) -> str:
    if last:
        return " Final norm and head follow."
    site = sites[step.boundary]
    return f" Then {'attention' if site.sublayer == 'attention' else 'the FFN'} of layer {site.layer} runs."
