"""How many sessions a node serves: by its memory, by the speed that each is promised, by how little agents generate.

V4.1's weights and operations are exact for the published configuration. For other models there are the parameters that
their cards state, at an assumed number of bytes each, and their operations beyond two a parameter are left out, which
favours them; the KV that a step reads is exact for all (:mod:`ds41.systems`).

Source: ds41's own; configurations and datasheets as in :mod:`ds41.systems` and :mod:`ds41.roofline`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from ds41 import roofline, weights
from ds41.config import ModelConfig
from ds41.economics import MILLION_TOKENS
from ds41.roofline import DEVICES, Device
from ds41.serving.simulation.sensitivity import Sensitivity, one_at_a_time
from ds41.systems import System, system

OURS = "deepseek-v4.1-flash"
"""The key of the system that this book is about."""
NODE_SYSTEMS = (OURS, "deepseek-v4-flash", "deepseek-v3.2")
"""Keys of the systems that are compared on one node."""


@dataclass(frozen=True)
class Assumed:
    """Weights of a model by its card. parameter_bytes: a mean over all; picked: of the experts, those a token takes.

    The part outside the experts follows from total and active parameters and ``picked``.
    """

    parameter_bytes: float
    picked: float
    note: str


@cache
def assumed() -> dict[str, Assumed]:
    """What is assumed of the models whose weights are not described here, by key."""
    ours = weights.backbone(ModelConfig.flash())
    mixed = ours.nbytes / ours.parameters
    return {
        "deepseek-v4-flash": Assumed(mixed, 6 / 256, "bytes a parameter as V4.1's backbone; 6 of 256 experts"),
        "deepseek-v3.2": Assumed(1.0, 8 / 256, "FP8, one byte a parameter; 8 of 256 experts"),
    }


@dataclass(frozen=True)
class NodeQuestion:
    """What is asked of a node, and what is assumed.

    tokens: of every context. tokens_per_s: that each answering session gets at least. duty: of the time that a session
    is open, the share in which it is answered. efficiency: of the device's datasheet rates that a step reaches.
    reserve: of device memory, kept for activations and the like. devices: of a node; weights and KV are spread evenly.
    host_bytes: for the state of sessions that wait, DRAM and SSD together. load_bytes_per_s: at which it comes back.
    answer_tokens: of a turn, after which a session waits and its state may leave the device. parameter_bytes: None for
    what :func:`assumed` says.

    Raises:
        ValueError: a share out of range, or a number not above 0.
    """

    tokens: int = MILLION_TOKENS
    tokens_per_s: float = 20.0
    duty: float = 0.1
    efficiency: float = 0.5
    reserve: float = 0.1
    devices: int = 8
    host_bytes: float = 32e12
    load_bytes_per_s: float = 50e9
    answer_tokens: int = 500
    parameter_bytes: float | None = None

    def __post_init__(self) -> None:
        for name in ("duty", "efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0 and at most 1")
        if not 0 <= self.reserve < 1:
            raise ValueError(f"reserve is {self.reserve}; expected 0 or more and less than 1")
        for name in ("tokens", "tokens_per_s", "devices", "load_bytes_per_s", "answer_tokens"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")
        if self.host_bytes < 0:
            raise ValueError(f"host_bytes is {self.host_bytes}; expected 0 or more")


@dataclass(frozen=True)
class NodeSessions:
    """One model on one kind of node. Whole sessions; 0 where the weights alone do not fit.

    by_memory: contexts with their windows beside the weights. by_speed: that a step may serve at the promised speed.
    by_loading: whose state comes back in time, if each turn's has to. answering: the least of the three; bound: which.
    open: sessions with a turn or between two, if the others' state lies in the host's tiers. step_s: of a decode step
    of all that are answered, None where nobody is.
    """

    system: System
    device: str
    weight_bytes: float
    pool_bytes: float
    session_bytes: int
    by_memory: int
    by_speed: int
    by_loading: int
    open: int
    parked_bytes: float
    step_s: float | None

    @property
    def answering(self) -> int:
        """Sessions that can be answered at once: the fewest of the three bounds."""
        return min(self.by_memory, self.by_speed, self.by_loading)

    @property
    def bound(self) -> str:
        """Which of the three is the fewest: memory, speed or loading."""
        kinds = {"memory": self.by_memory, "speed": self.by_speed, "loading": self.by_loading}
        return min(kinds, key=kinds.__getitem__)

    def to_dict(self) -> dict:
        """For JSON."""
        names = (
            "device", "weight_bytes", "pool_bytes", "session_bytes", "by_memory", "by_speed", "by_loading", "answering",
            "bound", "open", "parked_bytes", "step_s",
        )  # fmt: skip
        return {"system": self.system.key} | {name: getattr(self, name) for name in names}


def sessions_per_node(
    keys: Iterable[str] = NODE_SYSTEMS,
    devices: Iterable[str] = ("H200",),
    question: NodeQuestion | None = None,
) -> list[NodeSessions]:
    """A row for each device and model.

    Raises:
        KeyError: no such device or system. ValueError: a model of which neither weights nor assumptions are known.
    """
    question = question or NodeQuestion()
    return [_node(system(key), DEVICES[name], question) for name in devices for key in keys]


def node_sensitivity(key: str, device: str = "H200", question: NodeQuestion | None = None) -> list[Sensitivity]:
    """What each assumption does to the sessions that may be open."""
    base = question or NodeQuestion()
    changes = {
        "tokens": (base.tokens // 8, base.tokens // 2),
        "tokens_per_s": (base.tokens_per_s / 2, base.tokens_per_s * 2),
        "duty": (base.duty / 2, min(1.0, base.duty * 5)),
        "efficiency": (base.efficiency / 2, min(1.0, base.efficiency * 2)),
        "reserve": (0.0, 0.2),
        "host_bytes": (base.host_bytes / 4, base.host_bytes * 4),
        "load_bytes_per_s": (base.load_bytes_per_s / 4, base.load_bytes_per_s * 4),
        "answer_tokens": (base.answer_tokens // 5, base.answer_tokens * 5),
    }
    arguments: dict[str, object] = {name: getattr(base, name) for name in changes}
    if key != OURS:
        arguments["parameter_bytes"] = assumed()[key].parameter_bytes
        changes["parameter_bytes"] = (0.5, 1.0)

    def opened(**changed: object) -> float:
        return float(_node(system(key), DEVICES[device], replace(base, **changed)).open)

    return one_at_a_time(opened, arguments, changes)


def step_seconds(kept: System, device: Device, batch: int, question: NodeQuestion) -> float:
    """Seconds of a decode step of ``batch`` sequences at the question's context and efficiency.

    Raises:
        ValueError: nothing is known or assumed of the system's parameters.
    """
    if kept.key == OURS:
        bound = roofline.decode_step(
            ModelConfig.flash(), question.tokens, device, batch=batch, devices=question.devices
        )
    else:
        bound = roofline.step(
            kv_bytes=batch * kept.bytes_read(question.tokens),
            weight_bytes=card_weight_bytes_read(kept, batch, _parameter_bytes(kept, question)),
            low_precision_flops=2 * batch * kept.active_parameters,
            half_flops=0,
            device=device,
            devices=question.devices,
        )
    return bound.seconds / question.efficiency


def weight_bytes(kept: System, question: NodeQuestion) -> float:
    """Bytes of all weights that have to lie in the node's device memory.

    Raises:
        ValueError: nothing is known of them.
    """
    if kept.key == OURS:
        return weights.backbone(ModelConfig.flash()).nbytes
    return kept.total_parameters * _parameter_bytes(kept, question)


def card_weight_bytes_read(kept: System, tokens: int, parameter_bytes: float) -> float:
    """Bytes of weights that a step of ``tokens`` tokens reads, from the total and active parameters on a model's card.

    The counterpart of :func:`ds41.weights.read_per_step`, for models whose weights are not described here.

    Raises:
        KeyError: nothing is assumed of the model.
    """
    picked = assumed()[kept.key].picked
    experts = (kept.total_parameters - kept.active_parameters) / (1 - picked)
    return (kept.total_parameters - experts + experts * (1 - (1 - picked) ** tokens)) * parameter_bytes


def _parameter_bytes(kept: System, question: NodeQuestion) -> float:
    if kept.key not in assumed() or kept.total_parameters is None:
        raise ValueError(f"nothing is known of the weights of {kept.key!r}; expected one of {', '.join(NODE_SYSTEMS)}")
    return question.parameter_bytes or assumed()[kept.key].parameter_bytes


def _node(kept: System, device: Device, question: NodeQuestion) -> NodeSessions:
    need = weight_bytes(kept, question)
    pool = question.devices * device.memory * (1 - question.reserve) - need
    one = kept.nbytes(question.tokens) + kept.window_bytes
    by_memory = max(0, int(pool // one))
    # A turn's state comes back once and serves the whole answer.
    by_loading = int(question.load_bytes_per_s * question.answer_tokens / question.tokens_per_s // one)
    by_speed = _largest_batch(kept, device, question) if by_memory else 0
    answering = min(by_memory, by_speed, by_loading)
    room = max(0.0, max(0.0, pool) - answering * one) + question.host_bytes
    opened = min(int(answering / question.duty), answering + int(room // one))
    step = step_seconds(kept, device, answering, question) if answering else None
    parked = float((opened - answering) * one)
    return NodeSessions(
        kept, device.name, need, max(0.0, pool), one, by_memory, by_speed, by_loading, opened, parked, step
    )


def _largest_batch(kept: System, device: Device, question: NodeQuestion) -> int:
    """The most sequences whose step keeps the promised speed; seconds rise with the batch."""
    limit = 1 / question.tokens_per_s
    if step_seconds(kept, device, 1, question) > limit:
        return 0
    low, high = 1, 2
    while step_seconds(kept, device, high, question) <= limit:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if step_seconds(kept, device, middle, question) <= limit else (low, middle)
    return low
