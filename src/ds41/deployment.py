"""This model on several GPUs: what lies on each of them, and how many sessions that leaves room for.

Weights are counted as the checkpoint stores them. Routed experts are spread over all GPUs. Everything else is split
(tensor parallel) or whole on each (data-parallel attention). The latent cache has one key-value head, so tensor
parallelism cannot split it: each GPU of the group holds all of it, while data parallelism gives each GPU the caches
of its own sequences. Engram tables live in host memory unless told otherwise.

Source: the released checkpoint's formats; vLLM's tensor and data parallel attention; ds41's own arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ds41 import ledger, weights
from ds41.config import ModelConfig
from ds41.engine_storages import Stored, stored_ways
from ds41.roofline import Device

Attention = Literal["tensor", "data"]
"""How attention is spread over GPUs: every GPU a share of the heads, or sequences of its own."""
UTILIZATION = 0.9
"""The share of a GPU's memory that vLLM takes by default; activations and graphs come out of it too."""
MILLION = 2**20
"""Tokens of the longest context, 2^20."""
_LARGEST_POWER = 10


@dataclass(frozen=True)
class Spread:
    """Bytes of weights on one GPU, by what they are."""

    experts: int
    rest: int
    drafter: int
    engram: int

    @property
    def nbytes(self) -> int:
        """Bytes of weights on one GPU, all parts together."""
        return self.experts + self.rest + self.drafter + self.engram


def spread(
    config: ModelConfig, gpus: int, attention: Attention = "tensor", *, drafter: bool = True, engram: bool = False
) -> Spread:
    """What lies on each of ``gpus`` GPUs, in bytes, rounded up.

    Norms, routers and mixing coefficients are split here with the rest, although engines copy them: about 0.3 GiB.
    The vision tower is left out.

    Args:
        drafter: hold DSpark's layers. engram: hold the tables on the GPUs, split over all of them.

    Raises:
        ValueError: a count below one, or an unknown ``attention``.
    """
    if gpus < 1:
        raise ValueError(f"gpus is {gpus}; expected 1 or more")
    if attention not in ("tensor", "data"):
        raise ValueError(f"attention is {attention!r}; expected 'tensor' or 'data'")
    experts = config.num_hidden_layers * config.n_routed_experts * weights.expert(config).nbytes
    projections = len(config.engram_layer_ids) * weights.engram_projection(config).nbytes
    rest = weights.backbone(config).nbytes - experts + projections
    draft = weights.drafter(config).nbytes if drafter else 0
    draft_experts = (
        config.num_nextn_predict_layers * config.dspark_n_routed_experts * weights.expert(config).nbytes if draft else 0
    )
    share = gpus if attention == "tensor" else 1
    return Spread(
        _share(experts, gpus),
        _share(rest, share),
        _share(draft_experts, gpus) + _share(draft - draft_experts, share),
        _share(weights.engram_table(config).nbytes, gpus) if engram else 0,
    )


@dataclass(frozen=True)
class Room:
    """What is left on ``gpus`` GPUs for caches.

    cache: bytes on each GPU; negative if the weights do not fit. request: bytes that one session takes on a GPU that
    holds it. sessions: whole sessions on all GPUs together.
    """

    device: Device
    gpus: int
    attention: Attention
    held: Spread
    cache: int
    tokens: int
    request: int
    stored: Stored

    @property
    def fits(self) -> bool:
        """Whether one session of ``tokens`` tokens fits beside the weights."""
        return self.cache >= self.request

    @property
    def sessions(self) -> int:
        """Whole sessions of ``tokens`` tokens that all GPUs hold at once."""
        each = max(self.cache, 0) // self.request
        return each * (self.gpus if self.attention == "data" else 1)

    @property
    def cluster_bytes_per_token(self) -> float:
        """Bytes that one token takes on all GPUs together."""
        return float(self.stored.bytes_per_token) * (self.gpus if self.attention == "tensor" else 1)


def room(
    config: ModelConfig,
    device: Device,
    gpus: int,
    attention: Attention = "tensor",
    *,
    storage: str = "published",
    tokens: int = MILLION,
    utilization: float = UTILIZATION,
    drafter: bool = True,
    engram: bool = False,
) -> Room:
    """Room for sessions of ``tokens`` tokens, their windows included, activations left aside.

    Raises:
        ValueError: a count below one, a utilization outside (0, 1], an unknown storage or ``attention``.
    """
    if not 0 < utilization <= 1:
        raise ValueError(f"utilization is {utilization}; expected more than 0 and at most 1")
    if ledger.check_tokens(tokens) < 1:
        raise ValueError(f"tokens is {tokens}; expected 1 or more")
    ways = {way.name: way for way in stored_ways(config, drafts=drafter)}
    if storage not in ways:
        raise ValueError(f"storage is {storage!r}; expected one of {', '.join(ways)}")
    held = spread(config, gpus, attention, drafter=drafter, engram=engram)
    stored = ways[storage]
    request = stored.nbytes(tokens) + stored.window_bytes
    left = int(utilization * device.memory) - held.nbytes
    return Room(device, gpus, attention, held, left, tokens, request, stored)


def smallest(config: ModelConfig, device: Device, attention: Attention = "tensor", **options: object) -> Room:
    """The fewest GPUs, a power of two, that hold the model and one session.

    Raises:
        ValueError: not even 1,024 of them do.
    """
    for power in range(_LARGEST_POWER + 1):
        found = room(config, device, 2**power, attention, **options)
        if found.fits:
            return found
    raise ValueError(
        f"{2**_LARGEST_POWER:,} × {device.name} with {attention} parallel attention hold no session of this model"
    )


def _share(nbytes: int, parts: int) -> int:
    return -(-nbytes // parts)
