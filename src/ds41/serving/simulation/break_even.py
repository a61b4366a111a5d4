"""Where bounded replay stops paying: the pause after which windows have cost more in memory than making them again.

Kept, windows cost gigabyte-hours for as long as the pause lasts; thrown away, they cost device-seconds once. Both
prices are the caller's. A replay alone reads the weights of a whole pass for 128 tokens; in a step that reads them
anyway it adds its operations.

Source: report sections 3.2.1 and 3.2.2 for the rule; SGLang's formula for exact windows in V4; prices are assumptions,
named in :class:`ReplayPrices`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Literal

from ds41 import flops, roofline, weights
from ds41.config import ModelConfig
from ds41.replay import exact_replay_tokens
from ds41.roofline import DEVICES
from ds41.serving.simulation.nodes import OURS, assumed, card_weight_bytes_read
from ds41.serving.simulation.sensitivity import Sensitivity, one_at_a_time
from ds41.systems import system

Way = Literal["alone", "batched", "in a step"]
"""How a replay runs: by itself, with others, or in a decode step that runs anyway."""
WAYS: tuple[Way, ...] = ("alone", "batched", "in a step")
"""All values of :data:`Way`."""
_V4 = "deepseek-v4-flash"
# SGLang on 8 × B200, 8 prompts with hits of 7,936 tokens: first tokens with 8 replays one by one, and with windows.
_PUBLISHED_DEVICES, _PUBLISHED_REPLAYS, _PUBLISHED_S = 8, 8, (1.5496, 0.2732)


@dataclass(frozen=True)
class ReplayPrices:
    """What is assumed. Prices in one currency: of a gigabyte of DRAM for an hour, of a device for a second.

    load: of the prefill pool; a device-second of an idle pool costs nothing more, so its price counts by this share.
    batch: replays that run together where they are batched. context: tokens of each sequence.

    Raises:
        ValueError: a price not above 0, a share out of range, or a count below 1.
    """

    dram_gb_hour: float = 0.004
    device_second: float = 2.5 / 3600
    load: float = 0.6
    efficiency: float = 0.5
    device: str = "H200"
    devices: int = 8
    batch: int = 8
    context: int = 100_000

    def __post_init__(self) -> None:
        for name in ("dram_gb_hour", "device_second"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a price above 0")
        if not 0 <= self.load < 1:
            raise ValueError(f"load is {self.load}; expected 0 or more and less than 1")
        if not 0 < self.efficiency <= 1:
            raise ValueError(f"efficiency is {self.efficiency}; expected more than 0 and at most 1")
        for name in ("devices", "batch", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")


@dataclass(frozen=True)
class BreakEven:
    """One way to make windows again, at one load of the pool. tokens: fed for it. device_s: of all devices, one
    sequence. price: of that.

    pause_s: from which on keeping ``window_bytes`` costs more than this. waits_s: what a turn waits for it longer, in a
    pool that is loaded like a queue of one server (1 / (1 - load)).
    """

    model: str
    way: str
    load: float
    tokens: int
    window_bytes: int
    device_s: float
    waits_s: float
    price: float
    pause_s: float

    def to_dict(self) -> dict:
        """All fields, for JSON."""
        return asdict(self)


def break_even(prices: ReplayPrices | None = None) -> list[BreakEven]:
    """Bounded and exact replay of V4.1, exact replay of V4-Flash, in every way; last, what SGLang measured of one."""
    prices, config = prices or ReplayPrices(), ModelConfig.flash()
    ours, theirs = system(OURS), system(_V4)
    rows = []
    for way in WAYS:
        rows.append(_bounded(way, prices))
    for way in WAYS:
        tokens = exact_replay_tokens(config)
        seconds = replay_seconds(config, tokens, prices, way, encoder=False)
        rows.append(_row("V4.1 exact", way, tokens, ours.window_bytes, seconds, prices))
    for way in WAYS:
        tokens = v4_replay_tokens()
        rows.append(_row("V4 exact", way, tokens, theirs.window_bytes, _v4_seconds(tokens, prices, way), prices))
    replayed, restored = _PUBLISHED_S
    measured = (replayed - restored) / _PUBLISHED_REPLAYS * _PUBLISHED_DEVICES
    rows.append(
        _row("V4.1 bounded", "alone, SGLang on 8 × B200", config.sliding_window, ours.window_bytes, measured, prices)
    )
    return rows


def break_even_sensitivity(way: Way = "alone", prices: ReplayPrices | None = None) -> list[Sensitivity]:
    """What each assumption does to the pause at which V4.1's bounded replay stops paying."""
    prices = prices or ReplayPrices()
    changes = {
        "dram_gb_hour": (prices.dram_gb_hour / 4, prices.dram_gb_hour * 4),
        "device_second": (prices.device_second / 4, prices.device_second * 4),
        "load": (0.1, 0.95),
        "efficiency": (prices.efficiency / 5, min(1.0, prices.efficiency * 2)),
        "batch": (1, prices.batch * 8),
        "context": (prices.context // 10, prices.context * 10),
        "device": ("H100", "B200"),
    }

    def pause(**changed: object) -> float:
        return _bounded(way, replace(prices, **changed)).pause_s

    return one_at_a_time(pause, {name: getattr(prices, name) for name in changes}, changes)


def load_curve(loads: Iterable[float], way: Way = "alone", prices: ReplayPrices | None = None) -> list[BreakEven]:
    """V4.1's bounded replay at several loads of the prefill pool."""
    prices = prices or ReplayPrices()
    return [_bounded(way, replace(prices, load=load)) for load in loads]


@dataclass(frozen=True)
class Kept:
    """The price of one sequence's windows in memory for a pause. cheaper: ways to make them again that cost less."""

    pause_s: float
    model: str
    price: float
    cheaper: tuple[str, ...]


def by_pause(pauses_s: Iterable[float], prices: ReplayPrices | None = None) -> list[Kept]:
    """For each pause what keeping costs, for V4.1 and V4-Flash, and which replays cost less."""
    prices = prices or ReplayPrices()
    made, rate = break_even(prices), prices.dram_gb_hour / 1e9 / 3600
    rows = []
    for pause in pauses_s:
        for model, key in (("V4.1", OURS), ("V4", _V4)):
            price = system(key).window_bytes * rate * pause
            ways = [row for row in made if row.model.split()[0] == model and row.price < price]
            rows.append(Kept(pause, model, price, tuple(f"{row.model}, {row.way}" for row in ways)))
    return rows


def replay_seconds(config: ModelConfig, tokens: int, prices: ReplayPrices, way: Way, encoder: bool) -> float:
    """Device-seconds of one sequence's replay of its last ``tokens`` tokens.

    encoder: the layers below the decoder alone, as a bounded replay of the encoder runs them.
    """
    stop = config.decoder_start if encoder else config.num_hidden_layers
    layers = flops.by_layer(config, tokens, "full", cached=max(0, prices.context - tokens))[:stop]
    share = stop / config.num_hidden_layers
    read = {count: share * weights.read_per_step(config, count * tokens) for count in (1, prices.batch)}
    return _seconds(sum(layer.total for layer in layers), read, prices, way)


def v4_replay_tokens() -> int:
    """SGLang's for V4-Flash: one page of 256 and a window for each of the other layers; 5,632."""
    window, page = system(_V4).window, 256

    def in_pages(tokens: int) -> int:
        return -(-tokens // page) * page

    return in_pages(in_pages(window.length) + (window.layers - 1) * window.length)


def _v4_seconds(tokens: int, prices: ReplayPrices, way: Way) -> float:
    """By the parameters on V4-Flash's card; attention is left out, which favours it."""
    theirs, parameter_bytes = system(_V4), assumed()[_V4].parameter_bytes
    read = {count: card_weight_bytes_read(theirs, count * tokens, parameter_bytes) for count in (1, prices.batch)}
    return _seconds(2 * theirs.active_parameters * tokens, read, prices, way)


def _seconds(operations: float, read: dict[int, float], prices: ReplayPrices, way: Way) -> float:
    device = DEVICES[prices.device]
    if way == "in a step":
        return operations / device.best_flops / prices.efficiency
    count = 1 if way == "alone" else prices.batch
    bound = roofline.step(
        kv_bytes=0,
        weight_bytes=read[count],
        low_precision_flops=count * operations,
        half_flops=0,
        device=device,
        devices=prices.devices,
    )
    return bound.seconds * prices.devices / prices.efficiency / count


def _bounded(way: Way, prices: ReplayPrices) -> BreakEven:
    """V4.1's bounded replay."""
    config = ModelConfig.flash()
    seconds = replay_seconds(config, config.sliding_window, prices, way, encoder=True)
    return _row("V4.1 bounded", way, config.sliding_window, system(OURS).window_bytes, seconds, prices)


def _row(model: str, way: str, tokens: int, nbytes: int, device_s: float, prices: ReplayPrices) -> BreakEven:
    price = device_s * prices.device_second * prices.load
    per_second = nbytes / 1e9 * prices.dram_gb_hour / 3600
    waits = device_s / prices.devices / (1 - prices.load)
    return BreakEven(model, way, prices.load, tokens, nbytes, device_s, waits, price, price / per_second)
