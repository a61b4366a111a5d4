"""Where a turn starts: the longest prefix that some tier holds, and the windows that go with it.

The row that the session still has comes first, then pages in the model's memory, then the prefix store. Windows of
the prefix's end come from the window pool, or are made again by bounded replay.

Source: report sections 3.2.1, 3.2.2.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ds41.cache import Cache, CacheError, PagePool, WindowSnapshot
from ds41.replay import KeptWindows, ShortHits, begin_replay, feed_again, plan_replay
from ds41.serving.keys import PrefixKeys
from ds41.serving.resident import ResidentPages
from ds41.serving.store_errors import StoreError
from ds41.serving.turn import Turn

if TYPE_CHECKING:
    from ds41.model import Model
    from ds41.serving.store import PrefixStore
    from ds41.serving.windows import Lease, WindowPool


@dataclass(frozen=True, eq=False)
class Tiers:
    """What keeps state between turns, and how it is used; store and windows may be absent.

    fingerprint: of model and formats. drafter: that of the drafter whose windows go with the model's, empty without
    one.
    """

    model: Model
    cache: Cache
    resident: ResidentPages
    store: PrefixStore | None
    windows: WindowPool | None
    kept_windows: KeptWindows
    short_hits: ShortHits
    fingerprint: bytes
    drafter: bytes = b""

    @property
    def window(self) -> int:
        return self.model.config.sliding_window


def window_key(tiers: Tiers, keys: PrefixKeys, tokens: int, decoder: str) -> bytes:
    """Under what the window pool keeps the windows of a prefix.

    They also depend on how the decoder was run, and on the drafter whose windows are among them.
    """
    drafter = f" {tiers.cache.draft_layers} {tiers.drafter.hex()}" if tiers.cache.draft_layers else ""
    name = f"ds41 windows 1 {tiers.kept_windows}{drafter} {decoder} "
    return hashlib.sha256(name.encode() + keys.at(tokens)).digest()


def start_turn(tiers: Tiers, turn: Turn, row: int, keys: PrefixKeys, decoder: str) -> None:
    """Bring ``row`` of the cache to where the turn's tokens have to be fed, from whatever holds most of them."""
    pages, tokens = _load_pages(tiers, turn, keys)
    try:
        lease, at = _find_windows(tiers, keys, tokens, decoder)
        if lease is None or not _restore(tiers, turn, row, pages, tokens, at, lease):
            _replay(tiers, turn, row, pages, tokens)
        if tiers.cache.stored[row]:
            # Only pages that the row has too: others would be beside what was reserved for it.
            tiers.resident.keep(keys, pages[: tokens // keys.page_tokens])
    finally:
        # The row refers to those that it adopted; the references of the look-up go.
        tiers.cache.pool.release_many(pages)


def _load_pages(tiers: Tiers, turn: Turn, keys: PrefixKeys) -> tuple[list[int], int]:
    """Pages of the longest prefix, each with a reference for the caller, and its tokens."""
    pool, report = tiers.cache.pool, turn.report
    pages = tiers.resident.longest(keys)
    pool.share_many(pages)
    tokens = report.resident_tokens = len(pages) * keys.page_tokens
    if tiers.store is None:
        return pages, tokens
    try:
        with tiers.store.find(turn.tenant, keys.ids) as prefix:
            turn.stored = prefix.tokens
            # A page read is a page copied: not for a hit that will be computed anyway.
            if prefix.tokens > tokens and _worth(tiers, prefix.tokens):
                for data in prefix.pages(first=len(pages)):
                    pages.append(_write(pool, data))
                    report.store_bytes += data.nbytes
                turn.stored = prefix.tokens
                report.store_tokens = max(0, prefix.tokens - tokens)
    except StoreError as error:
        # A store that cannot be read is a miss.
        report.refused = str(error)
        report.store_tokens = 0
        pool.release_many(pages[tokens // keys.page_tokens :])
        del pages[tokens // keys.page_tokens :]
    except BaseException:
        pool.release_many(pages)
        raise
    return pages, tokens + report.store_tokens


def _worth(tiers: Tiers, tokens: int) -> bool:
    return tiers.windows is not None or plan_replay(tokens, tiers.window, tiers.short_hits).adopts


def _write(pool: PagePool, data) -> int:
    page = pool.allocate()
    pool.write_page(page, torch.from_numpy(data))
    return page


def _find_windows(tiers: Tiers, keys: PrefixKeys, tokens: int, decoder: str) -> tuple[Lease | None, int]:
    """Windows of the prefix's end, or of a little before: closer than a window they save more than a replay."""
    if tiers.windows is None or not tokens:
        return None, 0
    lengths = range(tokens, max(0, tokens - tiers.window), -1)
    wanted = {window_key(tiers, keys, n, decoder): n for n in lengths}
    lease = tiers.windows.take(list(wanted))
    return (None, 0) if lease is None else (lease, wanted[lease.key])


def _restore(tiers: Tiers, turn: Turn, row: int, pages: list[int], tokens: int, at: int, lease: Lease) -> bool:
    """Adopt the pages and put the windows back; False if they are not what they should be."""
    cache, ids, image_mask = tiers.cache, turn.ids, turn.image_mask
    cache.adopt(row, pages, tokens)
    feed_again(tiers.model, cache, row, ids, at, image_mask)
    with lease:
        try:
            cache.restore_windows(row, WindowSnapshot.from_bytes(lease.data))
        except CacheError:
            return False
        turn.report.window_bytes = lease.data.nbytes
    # The last token has to be fed in any case. Without the decoder's windows, so do those of the last window.
    start = min(at, len(ids) - 1)
    if tiers.kept_windows == "prefill":
        start = max(0, min(start, len(ids) - tiers.window))
    if start < at:
        feed_again(tiers.model, cache, row, ids, start, image_mask)
    if turn.hands_over:
        # Of a session that this engine has not seen before; its next windows take their place.
        turn.session.window_key = lease.key
    turn.report.windows = "restored"
    turn.report.replayed_tokens = tokens - start
    return True


def _replay(tiers: Tiers, turn: Turn, row: int, pages: list[int], tokens: int) -> None:
    plan = plan_replay(tokens, tiers.window, tiers.short_hits)
    begin_replay(tiers.model, tiers.cache, row, turn.ids, pages, plan, turn.image_mask)
    report = turn.report
    report.replayed_tokens = plan.replayed
    report.windows = "replayed" if plan.adopts else "cold"
    if not plan.adopts:
        report.resident_tokens = report.store_tokens = 0
