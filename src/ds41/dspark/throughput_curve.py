"""What a step of so many tokens costs: measured once, read between and beyond the measured points.

Source: DSpark paper, section 3.2, for deciding by a measured curve; reading between points is ds41's own.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ThroughputCurve:
    """Seconds of one step by the number of tokens in it, over all requests.

    tokens: ascending, the first is 1, two or more. seconds: one for each, above zero.

    Raises:
        ValueError: a value is not as above.
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.seconds):
            raise ValueError(f"{len(self.tokens)} token counts and {len(self.seconds)} times; expected as many of each")
        if len(self.tokens) < 2:
            raise ValueError(f"the curve has {len(self.tokens)} points; expected two or more")
        if self.tokens[0] != 1:
            raise ValueError(f"the curve begins at {self.tokens[0]} tokens; expected 1")
        for before, after in zip(self.tokens, self.tokens[1:], strict=False):
            if not after > before:
                raise ValueError(f"tokens go from {before} to {after}; expected them to rise")
        for count, seconds in zip(self.tokens, self.seconds, strict=True):
            if not 0 < seconds < math.inf:
                raise ValueError(f"a step of {count} tokens takes {seconds} s; expected a time above zero")

    def step_seconds(self, tokens: int) -> float:
        """Seconds of a step of ``tokens`` tokens: on the line between two points, beyond the last by the last slope.

        A last slope that falls is noise of the measurement, and counts as flat.

        Raises:
            ValueError: fewer than one token.
        """
        if tokens < 1:
            raise ValueError(f"tokens is {tokens}; expected 1 or more")
        left = bisect_right(self.tokens, tokens) - 1
        last = len(self.tokens) - 1
        start = min(left, last - 1)
        slope = (self.seconds[start + 1] - self.seconds[start]) / (self.tokens[start + 1] - self.tokens[start])
        if left == last:
            slope = max(slope, 0.0)
        return self.seconds[left] + (tokens - self.tokens[left]) * slope

    def steps_per_second(self, tokens: int) -> float:
        """How many steps of ``tokens`` tokens a second holds."""
        return 1 / self.step_seconds(tokens)

    def smoothed(self) -> ThroughputCurve:
        """The nearest curve whose seconds never fall, by the sum of squares: neighbours out of order share their mean.

        Isotonic regression by pooling adjacent violators.
        """
        pools: list[tuple[float, int]] = []
        for seconds in self.seconds:
            total, count = seconds, 1
            while pools and pools[-1][0] / pools[-1][1] > total / count:
                before, members = pools.pop()
                total, count = total + before, count + members
            pools.append((total, count))
        return ThroughputCurve(self.tokens, tuple(total / count for total, count in pools for _ in range(count)))

    def to_dict(self) -> dict[str, list]:
        """Both fields, for JSON."""
        return {"tokens": list(self.tokens), "seconds": list(self.seconds)}

    @classmethod
    def from_dict(cls, fields: Mapping) -> ThroughputCurve:
        """What :meth:`to_dict` gave.

        Raises:
            ValueError: a field is missing or unknown, or no curve.
        """
        if set(fields) != {"tokens", "seconds"}:
            raise ValueError(f"a throughput curve has the fields {sorted(fields)}; expected seconds and tokens")
        return cls(tuple(fields["tokens"]), tuple(fields["seconds"]))
