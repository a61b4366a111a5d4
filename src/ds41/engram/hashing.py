"""From compressed ids to table rows: exact 64-bit hashes of the 2-, 3- and 4-grams that end at a token.

Products reach 2^63, ten bits more than a double holds: nothing here passes through a float.

Source: the released ``inference/engram.py``; report section 2.4.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import count, islice
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from ds41.config import ConfigError, ModelConfig
from ds41.engram.history import DEAD
from ds41.ops import choose_backend
from ds41.ops.operators import operators

_INT64_MAX = 2**63 - 1
_SEED_STEP = 10007
# The multipliers of the released model's two Engram layers, over its 99,092 compressed ids.
_PUBLISHED_VOCAB = 99092
_PUBLISHED = {
    1: (76632096046245, 4839876093313, 35959672319349, 73987337458391),
    14: (67716810739261, 51510806800915, 30921347202721, 82619226485591),
}


class HashConstants(NamedTuple):
    """What fixes the hash of every Engram layer, in the order of ``engram_layer_ids``; int64 arrays.

    primes: [layers, orders, heads], rows that each column owns. offsets: [layers, orders * heads], the first of
    them. multipliers: [layers, max_ngram], odd, one for each distance back.
    """

    primes: np.ndarray
    offsets: np.ndarray
    multipliers: np.ndarray


def hash_constants(config: ModelConfig) -> HashConstants:
    """Primes, row offsets and multipliers of a configuration.

    Columns own consecutive primes of at least ``engram_vocab_size`` rows: 2-grams before 3-grams before 4-grams,
    head by head, and no prime twice, not even in another layer.

    Raises:
        ConfigError: there is no Engram layer, ``engram_num_embeddings`` is not the sum of a layer's primes, or the
            compressed vocabulary leaves no multiplier whose products fit 63 bits.
        RuntimeError: NumPy draws other numbers than those that the published multipliers come from.
    """
    if not config.engram_layer_ids:
        raise ConfigError("engram_layer_ids is empty: there is nothing to hash for")
    layers, orders, heads = len(config.engram_layer_ids), config.engram_max_ngram_size - 1, config.engram_n_heads
    found = islice(_primes_from(config.engram_vocab_size), layers * orders * heads)
    primes = np.array(list(found), dtype=np.int64).reshape(layers, orders * heads)
    for place, layer in enumerate(config.engram_layer_ids):
        rows, expected = int(primes[place].sum()), config.engram_num_embeddings[place]
        if rows != expected:
            raise ConfigError(
                f"engram_num_embeddings[{place}] is {expected}; the {orders * heads} primes of layer {layer} "
                f"(from engram_vocab_size {config.engram_vocab_size} up) sum to {rows}"
            )
    offsets = primes.cumsum(axis=1) - primes
    multipliers = np.stack([_multipliers(config, layer) for layer in config.engram_layer_ids])
    return HashConstants(primes.reshape(layers, orders, heads), offsets, multipliers)


class Hasher(nn.Module):
    """Token ids to compressed ids, and windows of these to rows. No parameters; nothing in the checkpoint.

    Buffers, all int64: ``primes`` [layers, orders, heads], ``offsets`` [layers, columns], ``multipliers``
    [layers, max_ngram] (:func:`hash_constants`).

    Args:
        token_map: int64 [vocab_size] from :func:`ds41.tokenizer.compression_map`. Row numbers mean something only
            with the map that the tables were trained with. None leaves it for :meth:`set_token_map`.

    Raises:
        ConfigError: the constants do not follow from the configuration, or the map does not fit it.
    """

    token_map: torch.Tensor | None
    primes: torch.Tensor
    offsets: torch.Tensor
    multipliers: torch.Tensor

    def __init__(self, config: ModelConfig, token_map: torch.Tensor | np.ndarray | None = None) -> None:
        super().__init__()
        self.config = config
        # from_numpy gives real tensors even while a model is built on the meta device.
        self._constants = {name: torch.from_numpy(a) for name, a in hash_constants(config)._asdict().items()}
        for name, constant in self._constants.items():
            self.register_buffer(name, constant, persistent=False)
        self.register_buffer("token_map", None, persistent=False)
        self.pad_id: int | None = None
        if token_map is not None:
            self.set_token_map(token_map)

    def set_token_map(self, token_map: torch.Tensor | np.ndarray) -> None:
        """Use the map of a tokenizer, int64 [vocab_size].

        Raises:
            ConfigError: it does not fit the configuration.
        """
        token_map = torch.from_numpy(token_map) if isinstance(token_map, np.ndarray) else token_map
        _check_token_map(token_map, self.config)
        token_map = token_map.detach().cpu().clone()
        self._constants["token_map"] = token_map
        self.token_map = token_map.to(self.multipliers.device)
        self.pad_id = int(token_map[self.config.engram_pad_token_id])

    def compress(
        self, token_ids: torch.Tensor, dead: torch.Tensor | None = None, validate: bool = True
    ) -> torch.Tensor:
        """Compressed ids, int64 [...]; DEAD at image positions.

        Args:
            token_ids: int64 [...]. dead: bool [...], true at image positions; None for text alone.
            validate: look at the values (on a GPU that waits for the device).

        Raises:
            ValueError: an id lies outside the vocabulary. RuntimeError: no token map was given.
        """
        token_map = self._required_map()
        _check_int64("token_ids", token_ids)
        if validate:
            _check_range("token id", token_ids, 0, self.config.vocab_size)
        compressed = token_map[token_ids]
        return compressed if dead is None else compressed.masked_fill(dead, DEAD)

    def rows(self, windows: torch.Tensor, validate: bool = True) -> dict[int, torch.Tensor]:
        """The rows that each Engram layer looks up, int64 [N, orders * heads], by layer id.

        A column that is DEAD blocks all columns further back; the hash takes the pad token's id in their place.

        Args:
            windows: int64 [N, max_ngram] of compressed ids, column k the one k tokens back.
            validate: look at the values (on a GPU that waits for the device).

        Raises:
            ValueError: the shape does not fit, or an id is no compressed id: its product could exceed 63 bits.
            RuntimeError: no token map is set.
        """
        self._required_map()
        _check_int64("windows", windows)
        if windows.dim() != 2 or windows.shape[1] != self.multipliers.shape[1]:
            raise ValueError(f"windows are {list(windows.shape)}; expected [tokens, {self.multipliers.shape[1]}]")
        if validate:
            _check_range("compressed id", windows, DEAD, self.config.engram_compressed_vocab_size)
        if choose_backend(windows.device).name == "triton":
            constants = (self.multipliers, self.primes, self.offsets)
            rows = operators.hash_rows(windows.contiguous(), *constants, self.pad_id)
            return dict(zip(self.config.engram_layer_ids, rows.unbind(), strict=True))
        blocked = (windows == DEAD).cumsum(1) > 0
        products = windows.masked_fill(blocked, self.pad_id) * self.multipliers[:, None]
        mixed, hashes = products[..., 0], []
        for distance in range(1, products.shape[-1]):
            mixed = mixed ^ products[..., distance]
            hashes.append(mixed)
        # One hash serves all heads of its order; they differ in the modulus alone.
        buckets = torch.stack(hashes, dim=-1)[..., None] % self.primes[:, None]
        rows = buckets.flatten(-2) + self.offsets[:, None]
        return dict(zip(self.config.engram_layer_ids, rows, strict=True))

    def _required_map(self) -> torch.Tensor:
        if self.token_map is None:
            raise RuntimeError("the Engram hash has no token map; give it one with set_token_map()")
        return self.token_map

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        # The constants may move, never change: not by a cast, not by to_empty() after a build on the meta device.
        for name, constant in self._constants.items():
            self._buffers[name] = constant.to(self._buffers[name].device)
        return self


def _multipliers(config: ModelConfig, layer: int) -> np.ndarray:
    """Odd numbers whose product with any compressed id stays below 2^63, int64 [max_ngram]."""
    vocab = config.engram_compressed_vocab_size
    bound = _INT64_MAX // vocab // 2 if vocab > 0 else 0
    if bound < 1:
        raise ConfigError(
            f"engram_compressed_vocab_size is {vocab}; expected 1 to {_INT64_MAX // 2}, "
            "so that id x multiplier fits 63 bits"
        )
    _check_generator()
    return _draw(layer, bound, config.engram_max_ngram_size)


def _draw(layer: int, bound: int, size: int) -> np.ndarray:
    return 2 * np.random.default_rng(_SEED_STEP * layer).integers(0, bound, size=size, dtype=np.int64) + 1


@lru_cache(maxsize=1)
def _check_generator() -> None:
    """NumPy promises no stable stream; another one would read wrong rows without a word."""
    for layer, expected in _PUBLISHED.items():
        drawn = _draw(layer, _INT64_MAX // _PUBLISHED_VOCAB // 2, len(expected))
        if tuple(drawn.tolist()) != expected:
            raise RuntimeError(
                f"NumPy {np.__version__} draws other numbers than the released Engram hash was made with"
            )


def _primes_from(start: int) -> Iterator[int]:
    return (n for n in count(max(start, 2)) if all(n % divisor for divisor in range(2, math.isqrt(n) + 1)))


def _check_token_map(token_map: torch.Tensor, config: ModelConfig) -> None:
    if token_map.dtype != torch.int64 or tuple(token_map.shape) != (config.vocab_size,):
        raise ConfigError(
            f"the token map is {token_map.dtype} {list(token_map.shape)}; expected torch.int64 [{config.vocab_size}]"
        )
    size = config.engram_compressed_vocab_size
    lowest, highest, distinct = int(token_map.min()), int(token_map.max()), token_map.unique().numel()
    if (lowest, highest, distinct) != (0, size - 1, size):
        raise ConfigError(
            f"the token map has {distinct} compressed ids from {lowest} to {highest}; engram_compressed_vocab_size is "
            f"{size}: another tokenizer, or one that decodes otherwise, would look up wrong rows"
        )
    if not 0 <= config.engram_pad_token_id < config.vocab_size:
        raise ConfigError(f"engram_pad_token_id is {config.engram_pad_token_id}; expected 0 to {config.vocab_size - 1}")


def _check_int64(name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype != torch.int64:
        raise ValueError(f"{name} are {tensor.dtype}; expected torch.int64")


def _check_range(name: str, ids: torch.Tensor, lowest: int, end: int) -> None:
    outside = (ids < lowest) | (ids >= end)
    if bool(outside.any()):
        place = tuple(outside.nonzero()[0].tolist())
        where = ", ".join(map(str, place))
        raise ValueError(f"{name} [{where}] is {int(ids[place])}; expected {lowest} to {end - 1}")
