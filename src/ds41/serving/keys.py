"""Keys of prefixes: strong hashes over model and format, tenant, and every token id.

A page's key is the SHA-256 of the key of the page before it and of its own ids, so two prefixes have the same key
only if all their ids are the same; a rolling or short hash, or one of the last ids alone, promises no such thing.
The chain starts at a root that holds the fingerprint of model and format and the tenant (report section 3.2.1).

Source: ds41's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

KEY_BYTES = 32
_DOMAIN = b"ds41 prefix root 1"
_ID = np.dtype("<i8")


def root_key(fingerprint: bytes, tenant: str | None) -> bytes:
    """Where the chain of one tenant starts: 32 bytes.

    Args:
        fingerprint: of the model and the formats of its cache, from :func:`~ds41.serving.model_fingerprint`.
        tenant: None is shared by all tenants, and equals no tenant's name, not even an empty one.

    Raises:
        TypeError, ValueError: no bytes, no bytes in it, or a tenant that is no text.
    """
    if not isinstance(fingerprint, bytes):
        raise TypeError(f"fingerprint is a {type(fingerprint).__name__}; expected bytes")
    if not fingerprint:
        raise ValueError("fingerprint is empty; expected the bytes of model_fingerprint(model)")
    if tenant is not None and not isinstance(tenant, str):
        raise TypeError(f"tenant is {tenant!r}; expected a string or None")
    parts = [_DOMAIN, fingerprint] if tenant is None else [_DOMAIN, fingerprint, tenant.encode()]
    # With its length before it, no part can run into the next.
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest()


def as_ids(ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """Token ids as little-endian int64 [n]; also takes a tensor.

    Raises:
        TypeError, ValueError: no whole numbers, more than one dimension, or a number that int64 cannot hold.
    """
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu().numpy()
    elif isinstance(ids, range):
        ids = np.arange(ids.start, ids.stop, ids.step, dtype=_ID)
    try:
        array = np.asarray(ids)
    except (TypeError, ValueError) as error:
        raise TypeError(f"token ids are no row of integers: {error}") from None
    if array.ndim != 1:
        raise ValueError(f"token ids have shape {list(array.shape)}; expected one dimension")
    if not array.size:
        return np.empty(0, _ID)
    if array.dtype.kind not in "iu":
        raise TypeError(f"token ids are {array.dtype}; expected integers that int64 can hold")
    if array.dtype.kind == "u" and int(array.max()) >= 2**63:
        raise ValueError(f"token id {int(array.max())} is too large; expected less than 2**63")
    return np.ascontiguousarray(array, _ID)


def next_key(key: bytes, ids: np.ndarray) -> bytes:
    """The key of a page with ``ids``, int64 [1 .. page_tokens], after the prefix with ``key``."""
    return hashlib.sha256(key + np.ascontiguousarray(ids, _ID).tobytes()).digest()


class PrefixKeys:
    """Keys of every prefix of one row of token ids.

    Args:
        root: 32 bytes from :func:`root_key`.
        ids: int64 of any value, [n].
        page_tokens: tokens of a page.

    Raises:
        TypeError, ValueError: what :func:`as_ids` refuses, a root of another size, or no tokens in a page.
    """

    def __init__(self, root: bytes, ids: Sequence[int] | np.ndarray, page_tokens: int) -> None:
        if len(root) != KEY_BYTES:
            raise ValueError(f"root has {len(root)} bytes; expected the {KEY_BYTES} of root_key()")
        if page_tokens < 1:
            raise ValueError(f"page_tokens is {page_tokens}; expected 1 or more")
        self.page_tokens = page_tokens
        self.ids = as_ids(ids)
        self._chain = [bytes(root)]

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, ids: Sequence[int] | np.ndarray) -> None:
        """Append ``ids``."""
        self.ids = np.concatenate([self.ids, as_ids(ids)])

    def at(self, n: int) -> bytes:
        """The key of the first ``n`` ids: the chain over whole pages, then what is left over.

        Raises:
            ValueError: there are fewer ids.
        """
        if not 0 <= n <= len(self.ids):
            raise ValueError(f"n is {n}; expected 0 to {len(self.ids)}, the number of ids")
        pages, rest = divmod(n, self.page_tokens)
        while len(self._chain) <= pages:
            self._chain.append(next_key(self._chain[-1], self.page_ids(len(self._chain) - 1)))
        return next_key(self._chain[pages], self.ids[n - rest : n]) if rest else self._chain[pages]

    def page_ids(self, page: int) -> np.ndarray:
        """The ids of one page, int64 [up to page_tokens]."""
        return self.ids[page * self.page_tokens : (page + 1) * self.page_tokens]
