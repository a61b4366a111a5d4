"""Who comes when, says how much and pauses how long: the load of a simulated cluster, the same for the same seed.

Lengths of prompts are those of real tool results (:mod:`ds41.agent_workload`) or given; arrivals and pauses are
drawn from distributions that the caller states.

Source: ds41's own; distributions are assumptions, named in :class:`Pauses`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from ds41 import agent_workload
from ds41.agent_workload import Kind
from ds41.agent_workspace import Workspace

_HOUR = 3600.0


@dataclass(frozen=True)
class TurnPlan:
    """One turn: ``prompt`` tokens come in, ``answer`` tokens are generated, then nothing happens for ``pause_s``.

    images: of the prompt's tokens, those that are an image encoder's output.

    Raises:
        ValueError: no tokens, more image tokens than prompt, or a pause below 0.
    """

    prompt: int
    answer: int
    pause_s: float = 0.0
    images: int = 0

    def __post_init__(self) -> None:
        for name in ("prompt", "answer"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more tokens")
        if not 0 <= self.images <= self.prompt:
            raise ValueError(f"images is {self.images}; expected 0 to {self.prompt}, the tokens of the prompt")
        if not 0 <= self.pause_s < math.inf:
            raise ValueError(f"pause_s is {self.pause_s}; expected 0 or more seconds")


@dataclass(frozen=True)
class SessionPlan:
    """A session: its first turn arrives at ``arrives_s``, each later one a pause after the turn before has ended.

    shared: the name of a preamble that other sessions begin with too; its ``shared_tokens`` are the first of the first
    prompt. Sessions of other tenants share it only in a store that shares tenants.

    Raises:
        ValueError: no turns, an arrival before 0, or a shared part longer than the first prompt.
    """

    name: str
    arrives_s: float
    turns: tuple[TurnPlan, ...]
    tenant: str = "default"
    shared: str = ""
    shared_tokens: int = 0

    def __post_init__(self) -> None:
        if not self.turns:
            raise ValueError(f"session {self.name!r} has no turns; expected one or more")
        if not 0 <= self.arrives_s < math.inf:
            raise ValueError(f"arrives_s of {self.name!r} is {self.arrives_s}; expected 0 or more seconds")
        if not 0 <= self.shared_tokens < self.turns[0].prompt:
            raise ValueError(
                f"shared_tokens of {self.name!r} is {self.shared_tokens}; expected 0 to "
                f"{self.turns[0].prompt - 1}, fewer than its first prompt has"
            )

    @property
    def tokens(self) -> int:
        """Of the whole conversation."""
        return sum(turn.prompt + turn.answer for turn in self.turns)


@dataclass(frozen=True)
class Pauses:
    """Seconds between two turns: lognormal around a median, and now and then somebody who comes back much later.

    sigma: of the logarithm. returns: the share of pauses that last hours or days; these are lognormal around
    ``return_median_s``.

    Raises:
        ValueError: a median not above 0, a spread below 0, or a share outside 0 to 1.
    """

    median_s: float = 20.0
    sigma: float = 1.0
    returns: float = 0.02
    return_median_s: float = 10 * _HOUR
    return_sigma: float = 1.0

    def __post_init__(self) -> None:
        for name in ("median_s", "return_median_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0 seconds")
        for name in ("sigma", "return_sigma"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 or more")
        if not 0 <= self.returns <= 1:
            raise ValueError(f"returns is {self.returns}; expected a share from 0 to 1")

    def draw(self, source: random.Random) -> float:
        """One pause in seconds."""
        if source.random() < self.returns:
            return source.lognormvariate(math.log(self.return_median_s), self.return_sigma)
        return source.lognormvariate(math.log(self.median_s), self.sigma)


def poisson_arrivals(count: int, per_second: float, source: random.Random) -> list[float]:
    """``count`` arrival times in seconds, at a mean rate of ``per_second``.

    Raises:
        ValueError: a rate that is not above 0 and finite.
    """
    if not 0 < per_second < math.inf:
        raise ValueError(f"per_second is {per_second}; expected more than 0")
    now, times = 0.0, []
    for _ in range(count):
        now += source.expovariate(per_second)
        times.append(now)
    return times


def sessions_of(
    turns: Iterable[Sequence[tuple[int, int]]],
    arrivals: Sequence[float],
    pauses: Pauses,
    seed: int = 0,
    shared_tokens: int = 0,
) -> list[SessionPlan]:
    """Sessions from given lengths.

    Args:
        turns: for each session its (prompt, answer) tokens. arrivals: seconds, one for each session.
        shared_tokens: of each first prompt, those that all sessions begin with.

    Raises:
        ValueError: not as many arrivals as sessions, or a length that cannot be.
    """
    turns = list(turns)
    if len(turns) != len(arrivals):
        raise ValueError(f"there are {len(turns)} sessions and {len(arrivals)} arrivals; expected as many of each")
    shared, plans = "preamble" if shared_tokens else "", []
    for number, (lengths, arrives) in enumerate(zip(turns, arrivals, strict=True)):
        # Each session has its own numbers, so that one more session leaves the others as they are.
        source = random.Random(f"{seed} pauses {number}")
        said = tuple(TurnPlan(prompt, answer, pauses.draw(source)) for prompt, answer in lengths)
        plans.append(SessionPlan(f"s{number}", arrives, said, shared=shared, shared_tokens=shared_tokens))
    return plans


def agent_sessions(
    count: int,
    per_second: float,
    pauses: Pauses | None = None,
    *,
    kinds: Sequence[Kind] = ("edit", "read", "ask"),
    turns: tuple[int, int] = (5, 20),
    workspace: Workspace | None = None,
    count_tokens: Callable[[str], int] | None = None,
    seed: int = 0,
) -> list[SessionPlan]:
    """Sessions of the simulated coding agent over real source files, with Poisson arrivals.

    Args:
        count: of sessions. per_second: of them that arrive. kinds: of work, in turn.
        turns: fewest and most turns of a session.
        workspace: the files; Python's standard library if None. count_tokens: of a text; a quarter of its UTF-8 bytes,
            rounded up, if None, which is what byte pairs learnt on such files come to.

    All sessions begin with the workspace's preamble, which they share.

    Raises:
        ValueError: no sessions, no rate, or fewest turns above most.
    """
    if count < 1 or not 1 <= turns[0] <= turns[1]:
        raise ValueError(f"count is {count} and turns {turns}; expected 1 or more sessions, and fewest to most turns")
    workspace, count_tokens = workspace or Workspace.standard_library(), count_tokens or quarter_of_bytes
    source = random.Random(f"{seed} sessions")
    preamble = count_tokens(agent_workload.preamble(workspace))
    lengths = []
    for number in range(count):
        kind, length = kinds[number % len(kinds)], source.randint(*turns)
        one = agent_workload.session(workspace, kind, length, seed=seed * 1_000_003 + number)
        lengths.append(
            [(turn.prompt, max(1, turn.answer)) for turn in agent_workload.tokens(one, count_tokens)],
        )
    arrivals = poisson_arrivals(count, per_second, source)
    plans = sessions_of(lengths, arrivals, pauses or Pauses(), seed, shared_tokens=preamble)
    return [replace(plan, shared="workspace") for plan in plans]


def quarter_of_bytes(text: str) -> int:
    """Tokens of a text at four UTF-8 bytes each, rounded up."""
    return -(-len(text.encode()) // 4)
