"""What a prefill worker hands to a decode worker: pages, private rows, and where the drawing of tokens stands.

A page has the same bytes everywhere, so pages that the receiver has are not read.

Source: report section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ds41.cache import CacheError, WindowSnapshot
from ds41.replay import feed_again
from ds41.serving.admission import Tiers
from ds41.serving.images import SequenceImages
from ds41.serving.keys import PrefixKeys
from ds41.serving.turn import Sampling, Turn

# Pages that travel together: 3.6 MB of the published configuration's, few enough to leave out what is there.
CHUNK_PAGES = 64

Fetch = Callable[[object], torch.Tensor]


class HandoverLost(RuntimeError):
    """Pages of a handover are gone with the worker that made them; the prompt has to be read again."""


@dataclass(frozen=True, eq=False)
class Handover:
    """A turn whose prompt has been read and whose first token has been drawn.

    ids: the prompt, and that token. images: where those of the prompt are. chunks: its pages, uint8 [up to
    CHUNK_PAGES, page bytes] each, or what a transport makes of them. windows: the private rows at the prompt's end
    (:class:`ds41.cache.WindowSnapshot`). stored: tokens whose pages are in the prefix store. window_key: of the
    windows that the conversation's turn before left in a pool. random: state of the turn's own random numbers.
    fingerprint: of the model that has read it.
    """

    tenant: str
    ids: list[int]
    images: SequenceImages
    sampling: Sampling
    chunks: tuple[object, ...]
    windows: bytes
    stored: int
    window_key: bytes | None
    random: torch.Tensor
    fingerprint: bytes

    @property
    def prompt_tokens(self) -> int:
        return len(self.ids) - 1

    @property
    def first_token(self) -> int:
        return self.ids[-1]


@dataclass(frozen=True, eq=False)
class Takeover:
    """How a turn starts from a handover.

    fetch: gives a chunk's tensor; raises HandoverLost. given: tokens after the first that were given out before: a
    worker that had the turn was lost. They are fed again, drawn again and stand.
    """

    handover: Handover
    fetch: Fetch
    given: Sequence[int] = ()


def make_handover(tiers: Tiers, turn: Turn, row: int) -> Handover:
    """All that a row holds, as bytes in host memory."""
    pool = tiers.cache.pool
    pages = tiers.cache.pages_of(row)
    chunks = tuple(
        torch.stack([pool.read_page(page).cpu() for page in pages[first : first + CHUNK_PAGES]])
        for first in range(0, len(pages), CHUNK_PAGES)
    )
    windows = tiers.cache.window_snapshot(row).to_bytes()
    return Handover(
        turn.tenant,
        list(turn.ids),
        turn.images.without_vectors(),
        turn.sampling,
        chunks,
        windows,
        turn.stored,
        turn.session.window_key,
        turn.random.get_state(),
        tiers.fingerprint,
    )


def take_over(tiers: Tiers, turn: Turn, row: int, keys: PrefixKeys) -> None:
    """Bring ``row`` to where the worker before had it. Pages that lie in this model's memory are not fetched.

    Raises:
        HandoverLost: a chunk is gone. CacheError: the handover is of another page size or layout. Either way the row
            holds nothing.
    """
    takeover: Takeover = turn.takeover
    handover, pool, report = takeover.handover, tiers.cache.pool, turn.report
    tokens = handover.prompt_tokens
    resident = tiers.resident.longest(keys)
    pages = list(resident)
    pool.share_many(pages)
    try:
        needed = pool.layout.pages_for(tokens)
        first = len(pages) // CHUNK_PAGES
        for number, chunk in enumerate(handover.chunks[first:], start=first):
            begin = number * CHUNK_PAGES
            if begin + CHUNK_PAGES <= len(pages) or begin >= needed:
                continue
            data = takeover.fetch(chunk)
            if data.dtype != torch.uint8 or data.dim() != 2 or data.shape[1] != pool.layout.nbytes:
                raise CacheError(
                    f"pages handed over are {data.dtype} {list(data.shape)}; expected uint8 [n, {pool.layout.nbytes}]"
                )
            for page_bytes in data[max(0, len(pages) - begin) :]:
                page = pool.allocate()
                pages.append(page)
                pool.write_page(page, page_bytes)
            report.handed_bytes += data.nbytes
        tiers.cache.adopt(row, pages, tokens)
        feed_again(tiers.model, tiers.cache, row, turn.ids, tokens, turn.image_mask)
        tiers.cache.restore_windows(row, WindowSnapshot.from_bytes(handover.windows))
        tiers.resident.keep(keys, pages[: tokens // keys.page_tokens])
    except BaseException:
        tiers.cache.reset(row)
        raise
    finally:
        pool.release_many(pages)
    report.resident_tokens = len(resident) * keys.page_tokens
    report.handed_tokens = tokens - report.resident_tokens
    report.windows, report.window_bytes = "handed_over", len(handover.windows)
    report.handed_bytes += len(handover.windows)
    turn.stored, turn.session.window_key = handover.stored, handover.window_key
    turn.random.set_state(handover.random)
