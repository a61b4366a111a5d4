"""The route of a batch through one layer's experts: who reads which, how often, and how many bytes that takes.

Source: report section 2.1.1; :mod:`ds41.moe`.
"""

from __future__ import annotations

from collections import Counter
from html import escape

from ds41 import weights
from ds41.config import ModelConfig
from ds41.viz.bit_explorer import show
from ds41.viz.diagram import Diagram, choices, table
from ds41.viz.route_trace import RoutedTokens, route_batches

_STRIP = 16
# Experts in a row of the picture, on a wide page and on a phone.
_COLUMNS, _NARROW_COLUMNS = 32, 24
_INPUTS = (
    ("even", "Even", "every token its own"),
    ("topics", "By topic", "a few topics are common"),
    ("balanced", "By topic, balanced", "after the bias rule"),
)


def route_explorer(
    config: ModelConfig | None = None, inputs: str = "topics", batch: int = 32, token: int | None = 7
) -> Diagram:
    """One MoE layer of ``config`` (default: the published one) and 64 tokens to send through its router.

    Args:
        inputs: "even", "topics" or "balanced", shown first.
        batch: tokens decoded together at first, 1 to 64.
        token: the token whose route is marked at first, one of the batch; None marks none.

    Raises:
        ValueError: inputs that are none, or a batch or a token out of range.
    """
    config = config or ModelConfig.flash()
    batches = route_batches(config)
    if inputs not in batches:
        raise ValueError(f"inputs is {inputs!r}; expected one of: {', '.join(batches)}")
    tokens = len(batches[inputs].experts)
    if not 1 <= batch <= tokens:
        raise ValueError(f"batch is {batch}; expected 1 to {tokens}")
    if token is not None and not 0 <= token < batch:
        raise ValueError(f"token is {token}; expected one of the batch, 0 to {batch - 1}")
    data = route_data(config, batches)
    state = {"inputs": inputs, "batch": batch, "token": token}
    read = len(load_of(data, {**state, "batch": tokens}))
    return Diagram(
        kind="routes",
        title=f"One token reads {config.num_experts_per_tok} of a layer’s {config.n_routed_experts} experts; "
        f"{tokens} tokens read {read}",
        body=_body(data, state),
        caption=_caption(data, state),
        table=_table(data, state),
        table_title="The load as a table",
        data={**data, "first": state},
        modules=("codec", "strips"),
    )


def route_data(config: ModelConfig, batches: dict[str, RoutedTokens]) -> dict:
    """What the figure computes from: choices and weights of every token, and the bytes of one expert."""
    return {
        "experts": config.n_routed_experts,
        "chosen": config.num_experts_per_tok,
        "expertBytes": weights.expert(config).nbytes,
        "strip": _STRIP,
        "batches": {
            name: {
                "topics": list(routed.topics),
                "experts": [list(experts) for experts in routed.experts],
                "weights": [[round(weight, 5) for weight in row] for row in routed.weights],
            }
            for name, routed in batches.items()
        },
    }


def load_of(data: dict, state: dict) -> Counter[int]:
    """Tokens of the batch for each expert that is read."""
    routed = data["batches"][state["inputs"]]["experts"][: state["batch"]]
    return Counter(expert for experts in routed for expert in experts)


def even_count(data: dict, batch: int) -> float:
    """Experts that ``batch`` tokens read in expectation if they choose evenly and each for itself."""
    return data["experts"] * (1 - (1 - data["chosen"] / data["experts"]) ** batch)


def _body(data: dict, state: dict) -> str:
    load = load_of(data, state)
    return (
        f'<div class="ds-readouts"><dl>{_readouts(data, state, load)}</dl></div>'
        f'<div class="ds-share" aria-hidden="true">{_share(data, state, load)}</div>'
        f'<p class="ds-label">The bar is all of the layer’s {show(data["experts"] * data["expertBytes"] / 1e9, 3)} GB; '
        "the mark on it is where even choices would end.</p>"
        f'<p class="ds-label ds-batch">{_batch(data, state, load)}</p>'
        f'<div class="ds-experts" style="--wide:{min(_COLUMNS, data["experts"])};'
        f'--narrow:{min(_NARROW_COLUMNS, data["experts"])}" aria-hidden="true">'
        f"{_experts(data, state, load)}</div>"
        '<ul class="ds-legend" aria-hidden="true"><li><i class="ds-slot"></i>not read</li>'
        '<li><i class="ds-slot"><i class="ds-fill" style="height:50%"></i></i>read; height: tokens that chose it</li>'
        '<li><i class="ds-slot ds-route"><i class="ds-fill" style="height:50%"></i></i>chosen by the marked token</li>'
        f"</ul>{_tokens(data, state)}{_controls(data, state)}"
    )


def _readouts(data: dict, state: dict, load: Counter[int]) -> str:
    batch, size, read = state["batch"], data["expertBytes"], len(load)
    even = show(even_count(data, batch), 3)
    return (
        f"<div><dt>experts read</dt><dd>{read} <small>of {data['experts']}</small></dd>"
        f'<dd class="ds-fine">even choices would read {even}</dd></div>'
        f"<div><dt>bytes of them, this layer</dt><dd>{show(read * size / 1e9, 3)} <small>GB</small></dd>"
        f'<dd class="ds-fine">{read} × {size:,}</dd></div>'
        f"<div><dt>for each token</dt><dd>{show(read * size / batch / 1e6, 3)} <small>MB</small></dd>"
        f'<dd class="ds-fine">{show(data["chosen"] * size / 1e6, 3)} MB for one alone</dd></div>'
    )


def _share(data: dict, state: dict, load: Counter[int]) -> str:
    """The layer's bytes as one bar: what is read, and a mark where even choices would end."""
    every, even = data["experts"], even_count(data, state["batch"])
    return (
        f'<i class="ds-length" style="width:calc(100% * {len(load)} / {every})"></i>'
        f'<i class="ds-even" style="left:calc(100% * {even:.2f} / {every})"></i>'
    )


def _batch(data: dict, state: dict, load: Counter[int]) -> str:
    most = max(load.values())
    busiest = min(expert for expert, count in load.items() if count == most)
    tokens = "1 token" if state["batch"] == 1 else f"{state['batch']} tokens"
    served = "1 token" if most == 1 else f"{most} tokens"
    return (
        f"{tokens}, {data['chosen'] * state['batch']} choices. Experts 0 to {data['experts'] - 1}, row by row; "
        f"the busiest, {busiest}, serves {served}."
    )


def _experts(data: dict, state: dict, load: Counter[int]) -> str:
    most, token = max(load.values()), state["token"]
    route = [] if token is None else data["batches"][state["inputs"]]["experts"][token]
    slots = ""
    for expert in range(data["experts"]):
        lit = " ds-route" if expert in route else ""
        count = load.get(expert, 0)
        fill = f'<i class="ds-fill" style="height:calc(100% * {count} / {most})"></i>' if count else ""
        slots += f'<i class="ds-slot{lit}">{fill}</i>'
    return slots


def _tokens(data: dict, state: dict) -> str:
    topics = data["batches"][state["inputs"]]["topics"]
    strips = ""
    for first in range(0, len(topics), data["strip"]):
        cells = "".join(_token(topics, state, token) for token in range(first, min(first + data["strip"], len(topics))))
        strips += f'<div class="ds-strip">{cells}</div>'
    return (
        '<p class="ds-label ds-tokens-label">Tokens, those of the batch filled. '
        "A number is a topic, 1 the most common.</p>"
        f'<div class="ds-tokens" role="group" aria-label="Tokens">{strips}</div>'
    )


def _token(topics: list, state: dict, token: int) -> str:
    topic = topics[token]
    within = token < state["batch"]
    label = f"Token {token}{'' if topic is None else f', topic {topic + 1}'}{', in the batch' if within else ''}"
    return (
        f'<button type="button" class="ds-cell{" ds-in" if within else ""}" data-token="{token}" '
        f'aria-pressed="{str(token == state["token"]).lower()}" aria-label="{label}">'
        f"{'' if topic is None else topic + 1}</button>"
    )


def _controls(data: dict, state: dict) -> str:
    tokens = len(data["batches"][state["inputs"]]["experts"])
    options = [(key, name, note) for key, name, note in _INPUTS if key in data["batches"]]
    return (
        '<form class="ds-controls">'
        + choices("inputs", "Kind of tokens", options, state["inputs"])
        + '<label class="ds-field"><span>Batch: tokens decoded together</span>'
        + f'<input type="range" name="batch" min="1" max="{tokens}" step="1" value="{state["batch"]}">'
        + f'<span class="ds-ticks" aria-hidden="true"><span>1</span><span>{tokens}</span></span></label></form>'
    )


def _caption(data: dict, state: dict) -> str:
    token, routed = state["token"], data["batches"][state["inputs"]]
    if token is None:
        return "Choose a token to see the experts that it goes to."
    topic = routed["topics"][token]
    of_topic = ""
    if topic is not None:
        alike = sum(other == topic for other in routed["topics"])
        of_topic = f", one of {alike} of topic {topic + 1}," if alike > 1 else f", the only one of topic {topic + 1},"
    route = ", ".join(
        f"<b>{expert}</b> ({show(weight, 3)})"
        for expert, weight in zip(routed["experts"][token], routed["weights"][token], strict=True)
    )
    return (
        f"<b>Token {token}</b>{of_topic} goes to experts {route}. "
        f"The weights in brackets sum to {show(sum(routed['weights'][token]), 3)}."
    )


def _table(data: dict, state: dict) -> str:
    load = load_of(data, state)
    tally = Counter(load.values())
    tally[0] = data["experts"] - len(load)
    rows = [(tokens, tally[tokens]) for tokens in sorted(tally) if tally[tokens]]
    return table((escape("tokens that chose it"), "experts"), rows, numeric=(0, 1))
