"""What the source article got right: its claims one by one, each with a verdict and a value computed here.

The article (a check of the 890 bytes, in eight sections with four code cells) started this book.

Source: the article; the values are this library's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache

from ds41.errata import cast, cells, doubts, opening, selection, storage
from ds41.errata.claim import MARGIN, SECTIONS, VERDICTS, Claim, Verdict, agrees, as_printed, numeric_verdicts

__all__ = [
    "MARGIN",
    "SECTIONS",
    "VERDICTS",
    "Claim",
    "Verdict",
    "agrees",
    "as_printed",
    "claims",
    "numeric_verdicts",
    "of_cell",
    "of_section",
    "tally",
]


def tally(claims: Iterable[Claim]) -> dict[str, dict[Verdict, int]]:
    """How many claims of each section have which verdict."""
    counts = Counter((claim.section, claim.verdict) for claim in claims)
    return {section: {verdict: counts[section, verdict] for verdict in VERDICTS} for section in SECTIONS}


@cache
def claims() -> tuple[Claim, ...]:
    """All claims, in the article's order: in a section first its prose, then the printed lines of its cells.

    Raises:
        ValueError: two claims have one key.
    """
    modules = (opening, selection, storage, cast, doubts, cells)
    found = [claim for module in modules for claim in module.CLAIMS]
    twice = [key for key, count in Counter(claim.key for claim in found).items() if count > 1]
    if twice:
        raise ValueError(f"claims with one key: {', '.join(twice)}")
    return tuple(sorted(found, key=lambda claim: claim.section))


def of_section(section: str) -> tuple[Claim, ...]:
    """The claims in the prose of one section."""
    return tuple(claim for claim in claims() if claim.section == section and claim.cell is None)


def of_cell(cell: int) -> tuple[Claim, ...]:
    """The printed figures of one of the article's code cells, line by line."""
    return tuple(claim for claim in claims() if claim.cell == cell)
