"""Whose turn is next, and how many tokens of each prompt a step takes."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar


class OfTenant(Protocol):
    """What waits: it is somebody's."""

    @property
    def tenant(self) -> str: ...


Waiting = TypeVar("Waiting", bound=OfTenant)


class FairQueue(Generic[Waiting]):
    """Who waits: one tenant after the other, the turns of each in the order in which they came."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, deque[Waiting]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def put(self, turn: Waiting, first: bool = False) -> None:
        """Add a turn behind its tenant's others, or before all of them."""
        turns = self._tenants.setdefault(turn.tenant, deque())
        if first:
            turns.appendleft(turn)
            self._tenants.move_to_end(turn.tenant, last=False)
        else:
            turns.append(turn)

    def head(self) -> Waiting | None:
        """The turn that is next."""
        return next(iter(self._tenants.values()))[0] if self._tenants else None

    def remove(self, turn: Waiting) -> None:
        """Take a turn out. Where that was the next of all, its tenant's next one waits for all other tenants."""
        tenant, was_next = turn.tenant, turn is self.head()
        self._tenants[tenant].remove(turn)
        if not self._tenants[tenant]:
            del self._tenants[tenant]
        elif was_next:
            self._tenants.move_to_end(tenant)

    def __iter__(self):
        return (turn for turns in list(self._tenants.values()) for turn in list(turns))


def share_out(budget: int, wanted: Sequence[int]) -> list[int]:
    """Split ``budget`` tokens evenly among those who want some; what one does not need goes to the others."""
    given = [0] * len(wanted)
    asking = sorted((number for number, want in enumerate(wanted) if want), key=lambda number: wanted[number])
    for place, number in enumerate(asking):
        given[number] = min(wanted[number], max(1, budget // (len(asking) - place)) if budget else 0)
        budget -= given[number]
    return given
