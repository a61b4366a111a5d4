"""What KV bytes decide: how many contexts fit, what a turn leaves in the persistent store, what a session costs.

"1/4" is a constant of the two architectures; "1/8" is a statement about a workload: it needs turns so short that
window checkpoints fill about half of V4's store.

Source: report sections 1, 3.2.1 and 3.2.2; V4 report section 3.5.2 (a window checkpoint at the end of the prompt and at
the end of the output); the vendor's price list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from ds41 import weights
from ds41.config import ModelConfig
from ds41.roofline import Device
from ds41.systems import System, from_config, system

GIB = 2**30
"""Bytes of a GiB."""
MILLION_TOKENS = 2**20
"""Tokens of the longest context, 2^20."""
ARTICLE_POOLS_GIB = (80, 60, 40)
"""Sizes of KV pools that the article reckons with, in GiB."""
TURNS = (500, 1_000, 1_500, 2_000, 3_000, 5_000, 10_000)
"""Lengths of a turn, in tokens, that are tabled."""


@dataclass(frozen=True)
class Capacity:
    """Contexts of one length in one pool of device memory. Fractions; floor them for whole sessions.

    contexts: by global KV alone, as the article counts. live_contexts: with each sequence's windows as well.
    """

    system: System
    pool_bytes: int
    tokens: int
    contexts: Fraction
    live_contexts: Fraction


def capacity(kept: System, pool_bytes: int, tokens: int = MILLION_TOKENS) -> Capacity:
    """How many contexts of ``tokens`` tokens fit into ``pool_bytes``.

    Raises:
        ValueError: a context of that length keeps nothing, or the pool is negative.
    """
    if pool_bytes < 0:
        raise ValueError(f"pool_bytes is {pool_bytes}; expected zero or more")
    size = kept.nbytes(tokens)
    if size == 0:
        raise ValueError(f"{kept.name} keeps no bytes for {tokens} tokens; no number of them fills a pool")
    live = size + kept.window_bytes
    return Capacity(kept, pool_bytes, tokens, Fraction(pool_bytes, size), Fraction(pool_bytes, live))


def capacities(
    config: ModelConfig, pools_gib: Iterable[int] = ARTICLE_POOLS_GIB, tokens: int = MILLION_TOKENS
) -> tuple[Capacity, ...]:
    """The article's table: this configuration and V4-Flash in pools of 80, 60 and 40 GiB.

    92.0 and 23.3 contexts of 2^20 tokens in 80 GiB. The article's 23.0 takes four times 890 for V4-Flash.
    """
    pair = (from_config(config), system("deepseek-v4-flash"))
    return tuple(capacity(kept, pool * GIB, tokens) for pool in pools_gib for kept in pair)


def node_pool_bytes(config: ModelConfig, device: Device, devices: int = 8) -> int:
    """Device memory that the backbone's weights leave on a node; Engram tables stay in host memory.

    Raises:
        ValueError: the weights alone do not fit.
    """
    need = weights.backbone(config).nbytes
    left = int(devices * device.memory) - need
    if left < 0:
        raise ValueError(
            f"{devices} × {device.name} hold {devices * device.memory / 1e9:.0f} GB; the backbone needs "
            f"{need / 1e9:.0f} GB"
        )
    return left


@dataclass(frozen=True)
class Persistence:
    """What one turn of ``new_tokens`` tokens leaves in the persistent store, in bytes.

    baseline_global, baseline_windows: V4-Flash's two parts. ours: global KV only.
    """

    new_tokens: Fraction
    baseline_global: Fraction
    baseline_windows: Fraction
    ours: Fraction

    @property
    def window_share(self) -> Fraction:
        """f: the part of V4's store that window checkpoints fill."""
        return self.baseline_windows / (self.baseline_global + self.baseline_windows)

    @property
    def ratio(self) -> Fraction:
        """How many times smaller the store has become: the report's "1/8" is 8 here."""
        return (self.baseline_global + self.baseline_windows) / self.ours


def persistence(
    config: ModelConfig, new_tokens: int | Fraction, checkpoints: int = 2, baseline: System | None = None
) -> Persistence:
    """One turn, all turns kept, ``checkpoints`` copies of all windows a turn in the baseline (V4-Flash).

    Bytes per token are used as they are, without flooring: long sessions average out the open groups.

    Raises:
        ValueError: no new tokens.
    """
    if new_tokens <= 0:
        raise ValueError(f"new_tokens is {new_tokens}; expected more than zero")
    baseline = baseline or system("deepseek-v4-flash")
    count = Fraction(new_tokens)
    return Persistence(
        count,
        count * baseline.bytes_per_token,
        Fraction(checkpoints * baseline.window_bytes),
        count * from_config(config).bytes_per_token,
    )


def persistence_table(
    config: ModelConfig, turns: Iterable[int] | None = None, checkpoints: int = 2
) -> tuple[Persistence, ...]:
    """:func:`persistence` for several lengths of a turn: 500 to 10,000 new tokens, the even split among them."""
    if turns is None:
        turns = sorted({*TURNS, int(even_split_turn(checkpoints))})
    return tuple(persistence(config, new_tokens, checkpoints) for new_tokens in turns)


def even_split_turn(checkpoints: int = 2, baseline: System | None = None) -> Fraction:
    """New tokens a turn at which windows fill half of the baseline's store: about 1,829 for V4-Flash."""
    baseline = baseline or system("deepseek-v4-flash")
    return checkpoints * baseline.window_bytes / baseline.bytes_per_token


def architecture_ratio(config: ModelConfig) -> Fraction:
    """The "1/4": V4-Flash's bytes per token over this configuration's, 3.949."""
    return system("deepseek-v4-flash").bytes_per_token / from_config(config).bytes_per_token


def persistent_ratio(config: ModelConfig, window_share: Fraction | float) -> float:
    """The "1/8" from the share f of windows in V4's store: ``architecture_ratio / (1 - f)``.

    Raises:
        ValueError: ``window_share`` is not in [0, 1).
    """
    if not 0 <= window_share < 1:
        raise ValueError(f"window_share is {window_share}; expected at least 0 and less than 1")
    return float(architecture_ratio(config) / (1 - Fraction(window_share)))


def share_for_ratio(config: ModelConfig, ratio: float) -> float:
    """The share f of windows that a given ratio needs: 0.506 for exactly 8."""
    return float(1 - architecture_ratio(config) / Fraction(ratio))


@dataclass(frozen=True)
class Residency:
    """Bytes times hours that one turn occupies, by what is kept and where."""

    name: str
    medium: str
    nbytes: Fraction
    hours: Fraction

    @property
    def byte_hours(self) -> Fraction:
        """Bytes times the hours that they stay."""
        return self.nbytes * self.hours


def residencies(
    config: ModelConfig, new_tokens: int, store_hours: int = 72, window_minutes: int = 10, checkpoints: int = 2
) -> tuple[Residency, ...]:
    """V4 keeps global KV and window checkpoints for days; V4.1 keeps global KV for days, one window for minutes.

    Args:
        store_hours: lifetime in the persistent store; the report guarantees 72 and more.
        window_minutes: lifetime in the host-memory pool; the report says minutes, the 10 is an assumption.
    """
    turn = persistence(config, new_tokens, checkpoints)
    window = Fraction(from_config(config).window_bytes)
    days, minutes = Fraction(store_hours), Fraction(window_minutes, 60)
    return (
        Residency("V4-Flash global KV", "SSD", turn.baseline_global, days),
        Residency("V4-Flash windows", "SSD", turn.baseline_windows, days),
        Residency("V4.1-Flash global KV", "SSD", turn.ours, days),
        Residency("V4.1-Flash windows", "host memory", window, minutes),
    )


@dataclass(frozen=True)
class Prices:
    """Per million tokens: input found in the cache, input not found, output."""

    currency: str
    hit: Fraction
    miss: Fraction
    output: Fraction

    @property
    def hit_to_miss(self) -> Fraction:
        """How many times dearer an input token is that was not cached."""
        return self.miss / self.hit


# The vendor's off-peak list for the served model; peak hours cost twice as much.
PRICES = {
    "CNY": Prices("CNY", Fraction("0.02"), Fraction(1), Fraction(4)),
    "USD": Prices("USD", Fraction("0.003"), Fraction("0.15"), Fraction("0.60")),
}
"""List prices of a million tokens by currency, off-peak: cached input, other input, output."""


@dataclass(frozen=True)
class Session:
    """Tokens billed over an agent's session, and their price with the prefix cache and without."""

    hit_tokens: int
    miss_tokens: int
    output_tokens: int
    price: Fraction
    price_without_cache: Fraction

    @property
    def saving(self) -> float:
        """How many times dearer the session would be without a cache."""
        return float(self.price_without_cache / self.price)


def session(turns: int, first_prompt: int, new_tokens: int, output_tokens: int, prices: Prices) -> Session:
    """An agent's session: every turn sends the whole history again, with ``new_tokens`` more.

    Args:
        first_prompt: input tokens of the first turn, none of them cached.
        new_tokens: input tokens that each later turn adds (tool results, user messages).
        output_tokens: tokens generated in each turn; they are cached input in the next.

    Raises:
        ValueError: fewer than one turn or first token, or another count below 0.
    """
    for name, count in (("turns", turns), ("first_prompt", first_prompt)):
        if count < 1:
            raise ValueError(f"{name} is {count}; expected 1 or more")
    for name, count in (("new_tokens", new_tokens), ("output_tokens", output_tokens)):
        if count < 0:
            raise ValueError(f"{name} is {count}; expected zero or more")
    hits = misses = history = 0
    for turn in range(turns):
        fresh = first_prompt if turn == 0 else new_tokens
        hits += history
        misses += fresh
        history += fresh + output_tokens
    outputs = turns * output_tokens
    generated = outputs * prices.output
    price = (hits * prices.hit + misses * prices.miss + generated) / 10**6
    return Session(hits, misses, outputs, price, ((hits + misses) * prices.miss + generated) / 10**6)
