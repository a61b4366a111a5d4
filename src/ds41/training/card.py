"""A model's card: what was measured on held-out text, in a form that people and programs read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ds41.ledger import bytes_per_token
from ds41.model import Model
from ds41.probes.estimates import Estimate
from ds41.training.corpus import Corpus
from ds41.training.evaluation import Retrieval, far_enough, retrieval, selected_mass, tail_losses, text_loss
from ds41.training.tasks import LINE


@dataclass(frozen=True)
class Card:
    """text: nats a byte by length of row. answers: of recall and planted rows by length. crowded: of those queries
    alone that have more than top-k other needles between. apart: of recall rows in which a value lies one entry behind
    what it is found by, otherwise than in training. mass: share of attention that is selected, by layer.
    bounded: nats a byte that a bounded prefill costs on what follows."""

    parameters: int
    bytes_per_token: float
    least_distance: int
    top_k: int
    text: dict[int, Estimate]
    answers: tuple[Retrieval, ...]
    crowded: Retrieval
    apart: Retrieval
    mass: dict[int, Estimate]
    bounded: Estimate


def measure_card(model: Model, corpus: Corpus, length: int, longer: Sequence[int] = (), rows: int = 200) -> Card:
    """Measure a model on held-out rows.

    Args:
        length: the training length. longer: further lengths. rows: of each measurement.

    Raises:
        ValueError: rows of ``length`` have no room for more than top-k needles between needle and query.
    """
    lengths, config = (length, *longer), model.config
    least = far_enough(config) + 4 * LINE
    for one in lengths:
        if not least <= one <= config.max_position_embeddings:
            raise ValueError(f"a length is {one}; expected {least} to {config.max_position_embeddings}")
    if rows < 1:
        raise ValueError(f"rows is {rows}; expected 1 or more")
    return Card(
        sum(parameter.numel() for parameter in model.parameters()),
        float(bytes_per_token(config)),
        far_enough(config),
        config.index_topk,
        {one: text_loss(model, corpus, one, rows) for one in lengths},
        tuple(retrieval(model, corpus, one, rows, kind) for kind in ("recall", "planted") for one in lengths),
        retrieval(model, corpus, length, rows, queries=2, least_distractors=config.index_topk + 1),
        retrieval(model, corpus, length, rows, parity=0),
        selected_mass(model, corpus, length, max(1, rows // 4)),
        tail_losses(model, corpus, length, max(1, rows // 2)),
    )


def card_rows(card: Card) -> list[tuple[str, str, str]]:
    """(what, number with its interval, on what) for a table."""
    found = [
        ("parameters", f"{card.parameters:,}", ""),
        ("global KV", f"{card.bytes_per_token:g} bytes a token", ""),
    ]
    for length, loss in card.text.items():
        bits = loss.mean / math.log(2)
        found.append(("text", f"{loss.text()} nats a byte ({bits:.2f} bits)", f"{loss.samples} rows of {length}"))
    for one in card.answers:
        found.append(
            (f"answers, {one.kind}", one.answers_right.text(), f"{one.queries} queries in rows of {one.length}")
        )
    found.append(
        (
            f"answers behind more than {card.top_k} other needles",
            card.crowded.answers_right.text(),
            f"{card.crowded.queries} queries in rows of {card.crowded.length}",
        )
    )
    found.append(
        (
            "answers whose bytes lie one entry apart from their marks",
            card.apart.answers_right.text(),
            f"{card.apart.queries} queries in rows of {card.apart.length}",
        )
    )
    for layer, share in card.mass.items():
        found.append((f"attention mass selected, layer {layer}", share.text(), f"{share.samples} rows"))
    found.append(("cost of a bounded prefill", f"{card.bounded.text(4)} nats a byte", f"{card.bounded.samples} rows"))
    return found
