"""Loads and costs for the simulator's tests: small, and with times that can be worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass

from ds41.config import ModelConfig
from ds41.serving.simulation import EngineSpec, SessionPlan, TurnPlan

CONFIG = ModelConfig.nano()


@dataclass(frozen=True)
class Plain:
    """Seconds of a step by what is in it, and nothing else."""

    constant: float = 0.0
    reading: float = 0.0
    answering: float = 0.0
    image: float = 0.0

    def step(self, work) -> float:
        return self.constant + self.reading * work.reading + self.answering * work.answering

    def start(self, started) -> float:
        return 0.0

    def finish(self, finished) -> float:
        return 0.0

    def images(self, tokens) -> float:
        return tokens * self.image


def spec(**changes) -> EngineSpec:
    return EngineSpec(**({"config": CONFIG, "max_tokens": 4096, "rows": 2, "page_tokens": 64} | changes))


def session(name: str, arrives: float, *turns: tuple[int, int, float], **options) -> SessionPlan:
    return SessionPlan(name, arrives, tuple(TurnPlan(*turn) for turn in turns), **options)
