"""What a step takes: fitted to steps of a real engine, or bounded by a roofline times a stated efficiency.

Source: measurements of :mod:`ds41.serving`; :mod:`ds41.roofline`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Protocol

from ds41 import flops, reads, roofline, weights
from ds41.config import ModelConfig
from ds41.decoder_tail import Decoder
from ds41.roofline import Device
from ds41.serving.simulation.line import Line

# Contexts are rounded to this many per doubling before a roofline is asked, which changes it by less than 2 %.
_PER_DOUBLING = 32


@dataclass(frozen=True)
class StepWork:
    """What one step of a worker feeds.

    reading: tokens of prompts. tail: of those, how many run through the layers above the last source. answering:
    tokens of answers, with drafts that are verified. turns: that have a part in the step. reading_context: tokens that
    stand before the tokens of prompts, summed over the pieces; answering_context: over the tokens of answers.
    """

    reading: int = 0
    tail: int = 0
    answering: int = 0
    turns: int = 0
    reading_context: int = 0
    answering_context: int = 0
    pieces: tuple[tuple[int, int, int], ...] = ()
    answers: tuple[int, ...] = ()

    @classmethod
    def of(cls, pieces: Iterable[tuple[int, int, int]], answers: Iterable[int], verified: int = 0) -> StepWork:
        """From pieces of prompts as (tokens, tokens before, tail), and the contexts of the answers.

        verified: drafts of all answers together.
        """
        pieces, answers = tuple(pieces), tuple(answers)
        return cls(
            reading=sum(tokens for tokens, _, _ in pieces),
            tail=sum(tail for _, _, tail in pieces),
            answering=len(answers) + verified,
            turns=len(pieces) + len(answers),
            reading_context=sum(tokens * (before + tokens // 2) for tokens, before, _ in pieces),
            answering_context=sum(answers),
            pieces=pieces,
            answers=answers,
        )


@dataclass(frozen=True)
class Started:
    """What a turn's start asked of the tiers. lookup_pages: of its whole conversation; read_bytes: from the store."""

    lookup_pages: int = 0
    read_bytes: int = 0
    window_bytes: int = 0
    live: bool = False


@dataclass(frozen=True)
class Finished:
    """What a turn left. held_pages: of its conversation. written_bytes: to the store, window_bytes: to the pool."""

    held_pages: int = 0
    written_bytes: int = 0
    window_bytes: int = 0


class Costs(Protocol):
    """Seconds, all of them on the worker's own time."""

    def step(self, work: StepWork) -> float:
        """Of one step of the model."""

    def start(self, started: Started) -> float:
        """Of bringing a turn's state into its row, before its first step."""

    def finish(self, finished: Finished) -> float:
        """Of putting a turn's state into the tiers."""

    def images(self, tokens: int) -> float:
        """Of encoding images of so many tokens."""


STEP_FEATURES = ("constant", "turns", "reading", "tail", "answering", "reading_context", "answering_context")
START_FEATURES = ("constant", "lookup_pages", "read_bytes", "window_bytes")
FINISH_FEATURES = ("constant", "held_pages", "written_bytes")


@dataclass(frozen=True)
class MeasuredCosts:
    """Lines that were fitted to a real engine's steps, starts and finishes (``benchmarks/simulation.py``).

    live_start: seconds of a turn that goes on in its own row. between: seconds that a step takes outside the model.
    """

    step_line: Line
    start_line: Line
    finish_line: Line
    live_start: float = 0.0
    between: float = 0.0
    image_token_s: float = 0.0

    def step(self, work: StepWork) -> float:
        """Seconds of a step, by the line fitted to measured ones."""
        return self.step_line.at(work) + self.between

    def start(self, started: Started) -> float:
        """Seconds that a turn's start holds up its worker."""
        return self.live_start if started.live else self.start_line.at(started)

    def finish(self, finished: Finished) -> float:
        """Seconds that a turn's end holds up its worker."""
        return self.finish_line.at(finished)

    def images(self, tokens: int) -> float:
        """Seconds to encode images of so many tokens."""
        return tokens * self.image_token_s

    def to_dict(self) -> dict:
        """All fields, for JSON."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value.to_dict() if isinstance(value, Line) else value for name, value in values}

    @classmethod
    def from_dict(cls, found: Mapping) -> MeasuredCosts:
        """What :meth:`to_dict` gave."""
        return cls(**{name: Line(**value) if isinstance(value, Mapping) else value for name, value in found.items()})


@dataclass(frozen=True)
class RooflineCosts:
    """A step moves its bytes and does its operations at ``efficiency`` of the devices' full rates.

    Args:
        devices: that share a step evenly and exchange nothing. efficiency: of both rates; real engines reach less
            than 1, and how much is the caller's statement. overhead_s: of a step, whatever is in it.
        store_bytes_per_s, host_bytes_per_s: at which pages come from the store and windows from the host's memory; a
            turn's start holds up the worker's steps as it does the engine's. Writes go on beside the next steps.
        image_flops: of the encoder, for one token of an image.

    Bytes and operations as in :func:`ds41.roofline.decode_step` and :func:`ds41.flops.prefill`.

    Raises:
        ValueError: an efficiency outside (0, 1], no device, or a speed not above 0.
    """

    config: ModelConfig
    device: Device
    devices: int = 8
    efficiency: float = 0.5
    overhead_s: float = 0.0
    store_bytes_per_s: float = 5e9
    host_bytes_per_s: float = 50e9
    image_flops: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.efficiency <= 1:
            raise ValueError(f"efficiency is {self.efficiency}; expected more than 0 and at most 1")
        if self.devices < 1:
            raise ValueError(f"devices is {self.devices}; expected 1 or more")
        for name in ("store_bytes_per_s", "host_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")

    def step(self, work: StepWork) -> float:
        """Seconds of a step at the roofline, efficiency and overhead included."""
        config, tokens = self.config, work.reading + work.answering
        if not tokens:
            return 0.0
        contexts = [rounded(context) for context in work.answers]
        share = work.answering / len(contexts) if contexts else 0
        moved = sum(_kv_bytes(config, context) for context in contexts)
        # A piece of a prompt reads its keys at least once.
        moved += sum(_kv_bytes(config, rounded(before + count)) for count, before, _ in work.pieces)
        low = share * sum(_low_flops(config, context) for context in contexts)
        half = share * sum(_half_flops(config, context) for context in contexts)
        low += sum(_piece_flops(config, count, rounded(before), tail) for count, before, tail in work.pieces)
        bound = roofline.step(
            kv_bytes=moved,
            weight_bytes=_weight_bytes(config, tokens),
            low_precision_flops=low,
            half_flops=half,
            device=self.device,
            devices=self.devices,
        )
        return bound.seconds / self.efficiency + self.overhead_s

    def start(self, started: Started) -> float:
        """Seconds to read a turn's pages from the store and its windows from the host."""
        return started.read_bytes / self.store_bytes_per_s + started.window_bytes / self.host_bytes_per_s

    def finish(self, finished: Finished) -> float:
        """Zero seconds: writes go on beside the next steps."""
        return 0.0

    def images(self, tokens: int) -> float:
        """Seconds to encode images of so many tokens."""
        return tokens * self.image_flops / (self.device.best_flops * self.efficiency)


def rounded(tokens: int) -> int:
    """A context to the nearest of 32 values a doubling; short ones as they are."""
    if tokens < 2 * _PER_DOUBLING:
        return tokens
    grain = 2 ** (tokens.bit_length() - 1) // _PER_DOUBLING
    return max(1, round(tokens / grain)) * grain


@lru_cache(maxsize=2**14)
def _kv_bytes(config: ModelConfig, tokens: int) -> int:
    return reads.kv_bytes_read(config, tokens)


@lru_cache(maxsize=2**14)
def _low_flops(config: ModelConfig, tokens: int) -> int:
    every = weights.active(config) + weights.head(config)
    return 2 * every.parameters + 2 * sum(reads.index_macs(config, tokens).values())


@lru_cache(maxsize=2**14)
def _half_flops(config: ModelConfig, tokens: int) -> int:
    return reads.attention_flops(config, tokens)


@lru_cache(maxsize=2**14)
def _weight_bytes(config: ModelConfig, batch: int) -> float:
    return weights.read_per_step(config, batch)


@lru_cache(maxsize=2**14)
def _piece_flops(config: ModelConfig, tokens: int, before: int, tail: int) -> int:
    """Of a piece of a prompt: the encoder for every token, the layers above the last source for the tail alone."""
    decoder: Decoder = "full" if tail >= tokens else "bounded"
    layers = flops.by_layer(config, tokens, decoder, cached=before)
    return sum(layer.total for layer in (layers if tail else layers[: config.decoder_start]))
