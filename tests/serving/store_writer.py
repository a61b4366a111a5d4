"""Writers to be killed: one warm process that forks a fresh one for every line it is sent.

A line is ``folder seed evicts``. The child opens the store in that folder and puts ever longer conversations until it
is killed. Its lines are ``pid N``, ``ready``, then after every put ``put tenant conversation tokens``; the parent's
is ``end`` once the child is gone. Pages follow from their ids and these from the number of the conversation, so
whoever reads the store can say what has to be in it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from store_made import Clock, made_pages, open_store

TENANTS = ("a", "b")
CONVERSATIONS = 4
LONGEST = 160
# An evicting store has room for about a third of all conversations beside its index.
EVICTING_BUDGET = 60_000 + 12 * 4096


def conversation(number: int, tokens: int = LONGEST) -> np.ndarray:
    """The first ids of a conversation; those of the same parity begin with the same page and a half."""
    shared = np.random.default_rng(number % 2).integers(0, 1000, 12)
    own = np.random.default_rng(100 + number).integers(0, 1000, LONGEST - 12)
    return np.concatenate([shared, own])[:tokens]


def store_in(folder: str | Path, evicts: bool):
    """A store that never evicts, or one that always has to."""
    if not evicts:
        return open_store(folder)
    return open_store(folder, budget_bytes=EVICTING_BUDGET, guaranteed_s=0, clock=Clock(1e9))


def say(*words: object) -> None:
    # One write of a short line arrives whole or not at all.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def write_until_killed(folder: str, seed: int, evicts: bool) -> None:
    """Put, find and read until somebody ends it."""
    say("pid", os.getpid())
    random = np.random.default_rng(seed)
    store = store_in(folder, evicts)
    say("ready")
    while True:
        tenant, number = TENANTS[random.integers(len(TENANTS))], int(random.integers(CONVERSATIONS))
        with store.find(tenant, conversation(number)) as prefix:
            if random.random() < 0.3:
                list(prefix.pages())
            stored = prefix.tokens
        length = min(LONGEST, stored + int(random.integers(1, 50)))
        first = min(stored, length) // store.layout.page_tokens if not evicts else 0
        ids = conversation(number, length)
        store.put(tenant, ids, made_pages(ids, first=first), first)
        say("put", tenant, number, length)


def main() -> int:
    for line in sys.stdin:
        folder, seed, evicts = line.split()
        child = os.fork()
        if not child:
            try:
                write_until_killed(folder, int(seed), evicts == "1")
            except BaseException as error:
                say("error", repr(error).replace("\n", " "))
            os._exit(1)
        os.waitpid(child, 0)
        say("end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
