"""What is left of a turn when it ends: its global pages in the store, its windows in the pool.

Neither a full store nor a failing disk fails the turn: the answer stands, and the report says what was refused.
"""

from __future__ import annotations

from ds41.replay import snapshot_layers
from ds41.serving.admission import Tiers, window_key
from ds41.serving.keys import PrefixKeys
from ds41.serving.store import MissingPrefix, StoreError
from ds41.serving.turn import Turn


def store_pages(tiers: Tiers, turn: Turn, row: int, tokens: int) -> None:
    """Write to the store what it lacks of the first ``tokens`` tokens."""
    store, layout = tiers.store, tiers.cache.pool.layout
    if store is None or tokens <= turn.stored:
        return
    pages = tiers.cache.pages_of(row)[: layout.pages_for(tokens)]
    first = turn.stored // layout.page_tokens
    try:
        try:
            stored = _put(tiers, turn, pages, tokens, first)
        except MissingPrefix:
            # What came before was evicted meanwhile; the row still has it.
            stored = _put(tiers, turn, pages, tokens, 0)
    except (StoreError, OSError) as error:
        turn.report.refused = str(error)
        return
    turn.report.stored_tokens += tokens - turn.stored
    turn.report.stored_bytes += stored.bytes
    turn.stored = tokens


def _put(tiers: Tiers, turn: Turn, pages: list[int], tokens: int, first: int):
    data = (tiers.cache.pool.read_page(page).cpu().numpy() for page in pages[first:])
    return tiers.store.put(turn.tenant, turn.images.key_ids(turn.ids[:tokens]), data, first_page=first)


def store_windows(tiers: Tiers, turn: Turn, row: int, keys: PrefixKeys, decoder: str) -> None:
    """Put the windows of a row into the pool; those of the session's turn before are of no use any more."""
    if tiers.windows is None:
        return
    session, length = turn.session, tiers.cache.lengths[row]
    key = window_key(tiers, keys, length, decoder)
    layers = snapshot_layers(tiers.model.config, tiers.kept_windows, tiers.cache.draft_layers)
    data = tiers.cache.window_snapshot(row, layers).to_bytes()
    try:
        if tiers.windows.put(key, data):
            turn.report.kept_window_bytes = len(data)
        if session.window_key not in (None, key):
            tiers.windows.drop(session.window_key)
    except Exception as error:
        # A pool of whatever make may fail in its own ways; what it would have kept can be replayed.
        turn.report.refused = f"window pool: {error}"
    session.window_key = key
