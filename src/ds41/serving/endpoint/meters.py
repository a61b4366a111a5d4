"""What the endpoint has counted, as text that Prometheus reads. No key and no tenant is in it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ds41.serving.counters import Counters

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")


class Histogram:
    """Seconds by upper bounds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(_SECONDS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*map(str, _SECONDS), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {total}"


class Meters:
    """Counts of one event loop. requests: by path and status, 499 without one; ended: by how an answer ended."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.ended: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter({"prompt": 0, "cached": 0, "completion": 0})
        self.first_token, self.seconds = Histogram(), Histogram()

    def lines(self, running: int, health: Mapping[str, Mapping[str, int]], tiers: Mapping[str, Counters]) -> str:
        """All of it, with the state of the pools and the counts of the tiers below."""
        requests = (
            (f'path="{path}",status="{status}"', count) for (path, status), count in sorted(self.requests.items())
        )
        lines = [
            *_series("ds41_http_requests_total", "counter", "Completions by status; 499 is none.", requests),
            *_series("ds41_http_running", "gauge", "Completions that run.", [("", running)]),
            *_series(
                "ds41_answers_total", "counter", "Answers by how they ended.", _labelled("end", self.ended.items())
            ),
            *_series("ds41_tokens_total", "counter", "Tokens of answered requests; cached ones are of the prompts.",
                     _labelled("kind", self.tokens.items())),
        ]  # fmt: skip
        histograms = {
            "ds41_first_token_seconds": (self.first_token, "From a request's arrival to its first token."),
            "ds41_request_seconds": (self.seconds, "From a request's arrival to the end of its answer."),
        }
        for name, (histogram, meaning) in histograms.items():
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} histogram", *histogram.lines(name)]
        states = {state for pool in health.values() for state in pool}
        for state in sorted(states):
            values = ((pool, counts[state]) for pool, counts in health.items() if state in counts)
            lines += _series(f"ds41_pool_{_name(state)}", "gauge", f"{state} of a pool.", _labelled("pool", values))
        for tier, counters in tiers.items():
            for name, count in counters.snapshot().items():
                full = f"ds41_{_name(tier)}_{_name(name)}_total"
                lines += _series(full, "counter", f"{name.replace('_', ' ')} of the {tier}.", [("", count)])
        return "\n".join(lines) + "\n"


def _series(name: str, kind: str, meaning: str, values: Iterable[tuple[str, float]]) -> list[str]:
    values = [f"{name}{{{labels}}} {value}" if labels else f"{name} {value}" for labels, value in values]
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *values] if values else []


def _labelled(label: str, values: Iterable[tuple[str, int]]) -> list[tuple[str, float]]:
    return [(f'{label}="{_name(value)}"', count) for value, count in sorted(values)]


def _name(text: str) -> str:
    return _NOT_IN_NAMES.sub("_", text)
