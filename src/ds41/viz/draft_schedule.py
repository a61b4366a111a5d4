"""What the scheduler makes of a throughput curve: expected tokens per second as drafts are admitted one by one.

All numbers are the library's (:mod:`ds41.dspark.schedule`); the script only shows another number of requests.

Source: ds41's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ds41.dspark.schedule import Optimum, admit, expected_tokens, throughput
from ds41.dspark.throughput_curve import ThroughputCurve
from ds41.viz.bit_explorer import show
from ds41.viz.diagram import Diagram, choices, table

TOGETHER = (1, 2, 4, 8, 16, 32)
# Requests in a row of the picture.
_COLUMNS = 32
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Plan:
    """What running so many requests together comes to. Rates in expected tokens per second, times in seconds.

    rates: of a step with drafting that verifies 0, 1, 2 ... drafts, in the order in which they are admitted; the last
    verifies all. lengths: drafts verified of each request by the greedy rule. never: the rate of plain decoding.
    step_seconds, draft_seconds: of a step that verifies ``lengths``, and of the drafting before it.
    """

    rates: tuple[float, ...]
    lengths: tuple[int, ...]
    never: float
    tokens: float
    step_seconds: float
    draft_seconds: float

    @property
    def requests(self) -> int:
        return len(self.lengths)

    @property
    def admitted(self) -> int:
        return sum(self.lengths)


def draft_schedule(
    curve: ThroughputCurve,
    survival: torch.Tensor,
    drafter: ThroughputCurve | None = None,
    together: Sequence[int] = TOGETHER,
    shown: int | None = None,
) -> Diagram:
    """Expected tokens per second by the drafts that are verified, for several numbers of requests.

    Args:
        curve: seconds of a step of the model by its tokens. survival: [R, k], falling along each row, of R requests;
            more than R requests run together are these in turn. drafter: seconds of a draft by the requests that are
            drafted for; None for a drafter that takes no time.
        together: numbers of requests to choose from, rising. shown: the one drawn first; the middle one if None.

    Raises:
        ValueError: a number of requests is below 1 or not above the one before it, ``shown`` is none of them, there is
            no survival, or one is no probability or above the one before it.
    """
    if survival.dim() != 2 or not survival.numel():
        raise ValueError(f"survival has shape {list(survival.shape)}; expected [requests, drafts], 1 or more of each")
    if not together or together[0] < 1 or sorted(set(together)) != list(together):
        raise ValueError(f"together is {list(together)}; expected rising numbers of requests, 1 or more")
    shown = together[len(together) // 2] if shown is None else shown
    if shown not in together:
        raise ValueError(f"shown is {shown}; expected one of: {', '.join(map(str, together))}")
    drafts = survival.shape[1]
    plans = {requests: plan_of(curve, survival, requests, drafter) for requests in together}
    few, many = plans[together[0]], plans[together[-1]]
    return Diagram(
        kind="schedule",
        title=f"Of {drafts} drafts a request, {show(few.admitted / few.requests, 2)} are worth verifying when "
        f"{_count(few.requests, 'request runs', 'requests run')}, {show(many.admitted / many.requests, 2)} when "
        f"{_count(many.requests, 'runs', 'run')}",
        body=f'<div class="ds-picture">{picture(plans[shown], drafts)}</div>{_LEGEND}{_controls(together, shown)}',
        caption=overview(plans[shown], drafts),
        table=_table(plans, drafts),
        table_title="All numbers of requests as a table",
        data={
            "pictures": {requests: picture(plan, drafts) for requests, plan in plans.items()},
            "captions": {requests: overview(plan, drafts) for requests, plan in plans.items()},
        },
    )


def plan_of(
    curve: ThroughputCurve, survival: torch.Tensor, requests: int, drafter: ThroughputCurve | None = None
) -> Plan:
    """The plan of ``requests`` requests, whose survivals are the rows of ``survival`` in turn."""
    rows = survival.detach().to("cpu", torch.float64)[torch.arange(requests) % len(survival)]
    draft_seconds = Optimum(curve, drafter).draft_seconds(requests)
    lengths = admit(rows, curve, draft_seconds)
    reached = [0] * requests
    rates = [throughput(rows, reached, curve, draft_seconds)]
    for request in admission_order(rows):
        reached[request] += 1
        rates.append(throughput(rows, reached, curve, draft_seconds))
    return Plan(
        rates=tuple(rates),
        lengths=tuple(lengths),
        never=throughput(rows, [0] * requests, curve),
        tokens=expected_tokens(rows, lengths),
        step_seconds=curve.step_seconds(requests + sum(lengths)),
        draft_seconds=draft_seconds,
    )


def admission_order(survival: torch.Tensor) -> list[int]:
    """The requests [R * k] whose next draft is visited, in the order of :func:`ds41.dspark.schedule.admit`."""
    visits = sorted(
        (-value, request, place) for request, row in enumerate(survival.tolist()) for place, value in enumerate(row)
    )
    return [request for _, request, _ in visits]


def picture(plan: Plan, drafts: int) -> str:
    """Three rates, the chart of all, and each request's drafts."""
    best, every = plan.rates[plan.admitted], plan.rates[-1]
    rates = (
        ("never", "never", plan.never, "plain decoding"),
        ("every", f"always {drafts}", every, f"{_count(drafts * plan.requests, 'draft')}, {_times(every, plan)}"),
        ("best", "greedy rule", best, f"{_count(plan.admitted, 'draft')}, {_times(best, plan)}"),
    )
    readouts = "".join(
        f'<div><dt><i class="ds-mark ds-{kind}"></i>{name}</dt><dd>{_rate(rate)}</dd><dd class="ds-fine">{note}</dd>'
        "</div>"
        for kind, name, rate, note in rates
    )
    return f"<dl>{readouts}</dl>{_chart(plan)}{_requests(plan, drafts)}"


def _times(rate: float, plan: Plan) -> str:
    return f"{show(rate / plan.never, 3)} × plain"


def _chart(plan: Plan) -> str:
    last = len(plan.rates) - 1
    lines = _round_values(max(*plan.rates, plan.never))
    top = lines[-1]

    def at(drafts: int, rate: float) -> tuple[str, str]:
        return f"{1000 * drafts / last:.1f}", f"{1000 - 1000 * rate / top:.1f}"

    def mark(kind: str, drafts: int, rate: float) -> str:
        x, y = at(drafts, rate)
        return f'<i class="ds-mark ds-{kind}" style="left:calc({x}% / 10);top:calc({y}% / 10)"></i>'

    points = [",".join(at(drafts, rate)) for drafts, rate in enumerate(plan.rates)]
    grid = "".join(
        f'<span class="ds-rate" style="top:calc(100% * {len(lines) - 1 - i} / {len(lines) - 1})">{show(rate, 3)}</span>'
        for i, rate in enumerate(lines)
    )
    best = plan.admitted
    return (
        '<p class="ds-label">expected tokens per second</p>'
        f'<div class="ds-chart" aria-hidden="true">{grid}<svg viewBox="0 0 1000 1000" preserveAspectRatio="none">'
        f'<polyline points="{" ".join(points[: best + 1])}"></polyline>'
        f'<polyline class="ds-passed" points="{" ".join(points[best:])}"></polyline></svg>'
        f"{mark('never', 0, plan.never)}{mark('every', last, plan.rates[-1])}{mark('best', best, plan.rates[best])}"
        '</div><p class="ds-axis" aria-hidden="true"><span>0</span><span>drafts verified, the likeliest first</span>'
        f"<span>{last:,}</span></p>"
    )


def _round_values(most: float) -> list[float]:
    """Two to five round values from 0 to the first that is not below ``most``."""
    unit = 1e-9
    while True:
        for step in (unit, 2 * unit, 5 * unit):
            if 4 * step >= most:
                count = next(number for number in range(1, 5) if number * step >= most)
                return [number * step for number in range(count + 1)]
        unit *= 10


def _requests(plan: Plan, drafts: int) -> str:
    columns = min(plan.requests, _COLUMNS)
    bars = "".join(
        f'<i class="ds-request"><i class="ds-fill" style="height:calc(100% * {length} / {drafts})"></i></i>'
        for length in plan.lengths
    )
    tally = sorted(Counter(plan.lengths).items(), reverse=True)
    words = ", ".join(
        f"{length} for {count if number else _count(count, 'request')}" for number, (length, count) in enumerate(tally)
    )
    return (
        f'<p class="ds-label ds-verified">drafts verified: {words}</p>'
        f'<div class="ds-requests" style="--columns:{columns};--drafts:{drafts}" aria-hidden="true">{bars}</div>'
    )


_LEGEND = (
    '<ul class="ds-legend" aria-hidden="true"><li><i class="ds-key ds-line"></i>admitted, one by one</li>'
    '<li><i class="ds-key ds-line ds-passed"></i>behind the draft that does not pay</li>'
    '<li><i class="ds-key ds-fill"></i>draft verified</li></ul>'
)


def overview(plan: Plan, drafts: int) -> str:
    """The plan in words."""
    best, rates = plan.admitted, plan.rates
    together = f"<b>{_count(plan.requests, 'request')}.</b>"
    drafting = f", {_milliseconds(plan.draft_seconds)} of drafting before it" if plan.draft_seconds else ""
    stops = [f"All {best:,} raise the rate."]
    if best < len(rates) - 1:
        loss = 100 * (1 - rates[best + 1] / rates[best])
        # Less is what sums in another order may differ by.
        lower = f"lower the rate by {show(loss, 2)} %" if loss > _ROUNDING else "not raise the rate"
        stops = [f"One more would {lower}."]
    beyond = max(rates)
    if beyond > rates[best] * (1 + _ROUNDING):
        stops.append(
            f"{_count(rates.index(beyond), 'draft')} would bring {_rate(beyond)} tokens a second, but a rule that "
            "looks behind a draft that does not pay does not leave the target’s distribution as it is."
        )
    if rates[best] <= plan.never:
        stops.append("Plain decoding is at least as fast.")
    # Which sentences there are depends on what was measured: each is a text of its own for the translators.
    stopping = " ".join(f"<span>{sentence}</span>" for sentence in stops)
    return (
        f"{together} The rule admits {best:,} of {drafts * plan.requests:,} drafts: a step of "
        f"{_count(plan.requests + best, 'token')} takes {_milliseconds(plan.step_seconds)}{drafting}, and yields "
        f"{show(plan.tokens, 3)} tokens in expectation: <b>{_rate(rates[best])} tokens a second</b>. {stopping}"
    )


def _rate(rate: float) -> str:
    """Tokens per second, to the whole token from 100 on."""
    return f"{rate:,.0f}" if rate >= 100 else show(rate, 3)


def _milliseconds(seconds: float) -> str:
    return f"{show(1000 * seconds, 3)} ms"


def _count(number: int, word: str, several: str | None = None) -> str:
    return f"{number:,} {word if number == 1 else several or word + 's'}"


def _controls(together: Sequence[int], shown: int) -> str:
    options = [(str(requests), str(requests), "") for requests in together]
    return f'<form class="ds-controls">{choices("together", "Requests run together", options, str(shown))}</form>'


def _table(plans: dict[int, Plan], drafts: int) -> str:
    header = ("requests", "never, tokens/s", f"always {drafts}", "greedy rule", "drafts verified", "a request")
    rows = [
        (
            f"{requests:,}",
            *(_rate(rate) for rate in (plan.never, plan.rates[-1], plan.rates[plan.admitted])),
            f"{plan.admitted:,}",
            show(plan.admitted / requests, 3),
        )
        for requests, plan in plans.items()
    ]
    return table(header, rows, numeric=tuple(range(len(header))))
