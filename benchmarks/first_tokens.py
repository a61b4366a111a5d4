"""One turn of a coding agent's session, served in every way that the tiers allow: the time to its first token."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ds41 import ModelConfig, agent_workload, flops
from ds41.agent_workspace import Workspace
from ds41.cache import PageLayout
from ds41.model import Model
from ds41.serving import Engine, HostWindowPool, PrefixStore, Session, Stored, TurnReport
from ds41.tokenizer import byte_tokenizer

# Of the history, what a row that is live has read as a turn of its own.
LIVE_TAIL = 64
_UNBOUNDED = 2**50
_FINGERPRINT = bytes(32)
_DECODER = "bounded"


class FrozenStore(PrefixStore):
    """A store that takes nothing, so that every turn served from it finds the same prefix."""

    def put(self, tenant, ids, pages, first_page=0) -> Stored:
        return Stored(0, len(ids), 0)


class FrozenPool(HostWindowPool):
    """A pool that takes nothing once it is frozen."""

    frozen = False

    def put(self, key, data) -> bool:
        return not self.frozen and super().put(key, data)


@dataclass(frozen=True)
class FirstToken:
    """One way to serve the same turn; seconds is the median over the rounds, to the turn's first token.

    hit, replayed, fed: tokens found, fed again, and fed in all. operations: predicted for those that are fed.
    """

    context: int
    way: str
    hit: int
    replayed: int
    fed: int
    operations: int
    seconds: float


def agent_ids(tokens: int) -> list[int]:
    """The first bytes of an agent's session, as the nano preset's ids."""
    workspace = Workspace.standard_library()
    turns, text = 8, ""
    while len(text) < tokens:
        text, turns = agent_workload.session(workspace, "read", turns).text, 2 * turns
    return byte_tokenizer().encode(text[:tokens]).ids[:tokens]


def fed_operations(config: ModelConfig, context: int, fed: int) -> int:
    """Predicted operations of the last ``fed`` of ``context`` tokens, with the logits of the last."""
    return flops.prefill(config, fed, _DECODER, cached=context - fed).total


def first_tokens(model: Model, context: int, new: int, rounds: int, folder: Path) -> list[FirstToken]:
    """The turn after ``context`` tokens that brings ``new`` more, served in every way.

    Raises:
        RuntimeError: a turn did not start from where its way says.
    """
    ids = agent_ids(context + new)
    history, prompt = ids[:context], ids[context:]
    layout, pool = PageLayout.of(model.config), FrozenPool()

    def engine(store=None, pool=None) -> Engine:
        options = {"rows": 1, "max_tokens": context + new + 8, "decoder": _DECODER, "fingerprint": _FINGERPRINT}
        return Engine(model, store, pool, **options)

    def say(session: Session, said: Sequence[int]) -> TurnReport:
        stream = session.say(said, max_new_tokens=1, stop_ids=())
        list(stream)
        return stream.report

    with PrefixStore(folder, layout, _FINGERPRINT, budget_bytes=_UNBOUNDED) as store, engine(store, pool) as first:
        say(first.open(), history)
    pool.frozen = True

    def turn(begun: Sequence[int], *tiers, live: bool = False) -> TurnReport:
        with engine(*tiers) as serving:
            if not live:
                return say(serving.open(ids=begun), prompt)
            # The row is brought to the same place first; what the last of it says does not matter here.
            session = serving.open(ids=begun[:-LIVE_TAIL])
            say(session, begun[-LIVE_TAIL:-1])
            return say(session, prompt)

    with FrozenStore(folder, layout, _FINGERPRINT, budget_bytes=_UNBOUNDED) as store:
        ways: dict[str, tuple[str, Callable[[], TurnReport]]] = {
            "cold": ("cold", partial(turn, history)),
            "pages and windows": ("restored", partial(turn, history, store, pool)),
            "pages and replay": ("replayed", partial(turn, history, store)),
            "live row": ("live", partial(turn, history, store, pool, live=True)),
        }
        reports: dict[str, list[TurnReport]] = {way: [] for way in ways}
        for count in range(rounds + 1):
            for way, (windows, serve) in ways.items():
                report = serve()
                if report.windows != windows:
                    raise RuntimeError(f"a turn that should have been {windows} was {report.windows}")
                if count:
                    reports[way].append(report)
    return [_row(model.config, context, way, found) for way, found in reports.items()]


def _row(config: ModelConfig, context: int, way: str, reports: list[TurnReport]) -> FirstToken:
    one = reports[0]
    fed = one.computed_tokens + one.replayed_tokens
    return FirstToken(
        context,
        way,
        one.hit_tokens,
        one.replayed_tokens,
        fed,
        fed_operations(config, one.context_tokens, fed),
        statistics.median(report.first_token_s for report in reports),
    )
