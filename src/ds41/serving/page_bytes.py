"""Pages as bytes on disk: partial ones without what they do not hold yet, each with a checksum bound to its key."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ds41.cache import PageLayout

DIGEST_BYTES = 16
_ID_TYPES = tuple(map(np.dtype, ("<u1", "<u2", "<u4", "<i8")))
_ID_LIMITS = tuple(int(np.iinfo(kind).max) for kind in _ID_TYPES[:-1])


def stored_bytes(layout: PageLayout, tokens: int) -> int:
    """Bytes that a page of ``tokens`` tokens has on disk: ``tokens // ratio`` entries of every plane."""
    if tokens == layout.page_tokens:
        return layout.nbytes
    return sum(tokens // source.ratio * plane.row_bytes for source in layout.sources for plane in source.planes)


def as_page(page, layout: PageLayout) -> np.ndarray:
    """A page as uint8 [layout.nbytes] in host memory, from an array, a tensor or bytes.

    Raises:
        TypeError, ValueError: no bytes, or not a page's.
    """
    if hasattr(page, "detach"):
        page = page.detach().cpu().numpy()
    elif isinstance(page, (bytes, bytearray, memoryview)):
        page = np.frombuffer(page, np.uint8)
    if not isinstance(page, np.ndarray) or page.dtype != np.uint8:
        raise TypeError(f"a page is {getattr(page, 'dtype', type(page).__name__)}; expected uint8")
    if page.shape != (layout.nbytes,):
        raise ValueError(f"a page has shape {list(page.shape)}; expected [{layout.nbytes}]")
    return np.ascontiguousarray(page)


def trim(page: np.ndarray, layout: PageLayout, tokens: int) -> np.ndarray:
    """What of a page of ``tokens`` tokens is stored, uint8 [stored_bytes]: the page itself if it is whole."""
    if tokens == layout.page_tokens:
        return page
    parts = [page[start:stop] for start, stop in _used(layout, tokens)]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def expand(stored: np.ndarray, layout: PageLayout, tokens: int) -> np.ndarray:
    """The page of what :func:`trim` left, uint8 [layout.nbytes]; entries that it does not hold are zero."""
    if tokens == layout.page_tokens:
        return stored
    page, at = np.zeros(layout.nbytes, np.uint8), 0
    for start, stop in _used(layout, tokens):
        page[start:stop] = stored[at : at + stop - start]
        at += stop - start
    return page


def checksum(key: bytes, stored: np.ndarray) -> bytes:
    """16 bytes over a page's key and its stored bytes: the right bytes in the wrong place are damage too."""
    digest = hashlib.sha256(key)
    digest.update(stored)
    return digest.digest()[:DIGEST_BYTES]


def pack_ids(ids: np.ndarray) -> bytes:
    """Token ids in as few bytes each as the largest of them needs; the first byte says how many."""
    largest = int(ids.max()) if ids.min() >= 0 else _ID_LIMITS[-1] + 1
    code = sum(largest > limit for limit in _ID_LIMITS)
    return bytes([code]) + ids.astype(_ID_TYPES[code]).tobytes()


def unpack_ids(packed: bytes) -> np.ndarray | None:
    """The ids of :func:`pack_ids`, int64 [n], or None for bytes that it cannot have made."""
    if not isinstance(packed, bytes) or len(packed) < 2 or packed[0] >= len(_ID_TYPES):
        return None
    kind = _ID_TYPES[packed[0]]
    if (len(packed) - 1) % kind.itemsize:
        return None
    return np.frombuffer(packed, kind, offset=1).astype("<i8")


def _used(layout: PageLayout, tokens: int) -> list[tuple[int, int]]:
    """Where in a page its entries lie, plane by plane."""
    return [
        (plane.offset, plane.offset + tokens // source.ratio * plane.row_bytes)
        for source in layout.sources
        for plane in source.planes
    ]
