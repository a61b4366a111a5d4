"""How far two different contexts can agree in the rows that they read.

The heads of an order take one 63-bit hash modulo different primes, so two hashes agree in a head only where its
prime divides their difference. And two contexts agree in every column only if their 2-grams have one hash.

Source: ds41's own analysis of the released ``inference/engram.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np

_HASH_BITS = 63
Gram = tuple[int, int]
"""A 2-gram of compressed ids, newest first."""


def heads_that_may_agree(primes: Iterable[int]) -> int:
    """In how many heads of one order two different hashes agree at most.

    Their difference is below 2^63 and a multiple of every prime of a head in which they agree.
    """
    smallest = sorted(primes)
    return max(count for count in range(len(smallest) + 1) if prod(smallest[:count]) < 2**_HASH_BITS)


def search_classes(vocabulary: int) -> int:
    """Into how many classes :func:`equal_hashes` divides the pairs of 2-grams: a power of two."""
    return 1 << max(vocabulary - 1, 0).bit_length()


def equal_hashes(multipliers: Iterable[int], vocabulary: int, search_class: int) -> list[tuple[Gram, Gram]]:
    """Pairs of different 2-grams with the same hash, of one class; the classes together give every pair once.

    Products of one multiplier m decide it: a m ^ a' m of two newest ids must equal b n ^ b' n of two ids before
    them. The low bits of a m depend on the low bits of a alone, and m is odd, so with a and the low bits of
    a m ^ a' m, which are the class, a' is known: a class takes one step for each id instead of for each pair.

    Args:
        multipliers: of the newest id and of the one before it, both odd. vocabulary: number of compressed ids.
        search_class: 0 up to :func:`search_classes`.

    Returns:
        ((a, b), (a', b')), newest id first, with a < a'.

    Raises:
        ValueError: a class beyond :func:`search_classes`.
    """
    classes = search_classes(vocabulary)
    if not 0 <= search_class < classes:
        raise ValueError(f"search_class is {search_class}; expected 0 to {classes - 1}")
    newest, before = (_differences(int(m), vocabulary, search_class, classes) for m in multipliers)
    found = []
    for difference in np.intersect1d(newest[0], before[0]):
        for a, a2 in newest[1][newest[0] == difference].tolist():
            for b, b2 in before[1][before[0] == difference].tolist():
                # Either order of b and b' makes one pair.
                found += [((a, b), (a2, b2)), ((a, b2), (a2, b))]
    return sorted(found)


def _differences(multiplier: int, vocabulary: int, search_class: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """a m ^ a' m of every pair a < a' of the class, int64 [N], and the pairs, int64 [N, 2]."""
    if multiplier % 2 == 0 or multiplier * (vocabulary - 1) >= 2**_HASH_BITS:
        raise ValueError(f"multiplier {multiplier} is even or too large for {vocabulary} ids")
    low = classes - 1
    ids = np.arange(vocabulary, dtype=np.int64)
    products = ids * multiplier
    partners = ((products ^ search_class) & low) * pow(multiplier, -1, classes) & low
    taken = (partners > ids) & (partners < vocabulary)
    pairs = np.stack((ids[taken], partners[taken]), axis=1)
    return products[pairs[:, 0]] ^ products[pairs[:, 1]], pairs
