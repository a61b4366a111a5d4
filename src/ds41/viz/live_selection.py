"""What a trained model selects in a text that the reader may change: its own decode step, watched.

A prefill of the text, then one decode step of the token that asks. Each selecting layer's indexer says what it chose
and which pool it chose from; nothing is computed a second time.

Source: ds41's own.
"""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import torch
from tokenizers import Tokenizer

from ds41.config import ModelConfig
from ds41.model import Model
from ds41.ops.selection import entries_of_blocks
from ds41.tokenizer import byte_tokenizer
from ds41.training.corpus import Corpus, standard_library
from ds41.training.tasks import LINE, make_row
from ds41.viz.live_selection_picture import LayerChoice, SelectionReport
from ds41.viz.live_widgets import explore

# nano is measured up to here (its card), and a change is answered within a second or two.
MOST_TOKENS = 1024


def example_text(config: ModelConfig, tokens: int = 480, corpus: Corpus | None = None) -> str:
    """A piece of Python's standard library with two needles ``@kk=v-v`` in it, that ends in the query of one: ``?kk=``.

    The needle lies beyond the window, and what should come next is the first byte of its value.

    Args:
        tokens: of the whole row, the query's answer included. corpus: other files.

    Raises:
        ValueError: no row of this length has such a needle in plain code.
    """
    corpus = corpus or standard_library("held-out")
    for seed in range(200):
        row = make_row("planted", corpus, random.Random(seed), tokens, queries=1)
        if not row.asked:
            continue
        end, needle = row.asked[0].answers[0], row.asked[0].needle
        text = byte_tokenizer().decode(row.ids[1:end])
        # One that looks like a program, with a needle that is far away.
        if text.isascii() and "    def " in text and end - needle > max(tokens // 2, config.sliding_window + LINE):
            return text
    raise ValueError(f"no row of {tokens} tokens has a needle beyond the window of {config.sliding_window} tokens")


def select_entries(model: Model, text: str, back: int = 0, tokenizer: Tokenizer | None = None) -> SelectionReport:
    """Read ``text`` and watch what every selecting layer chooses for one token.

    Args:
        back: how far before the last token the one stands that asks; what follows it is not read.
        tokenizer: default: bytes, as nano has them.

    Raises:
        ValueError: a text that is empty or has more than ``MOST_TOKENS`` tokens, or no token so far back.
    """
    most = min(MOST_TOKENS, model.config.max_position_embeddings)
    encoded = (tokenizer or byte_tokenizer()).encode(text, add_special_tokens=False)
    if not 1 <= len(encoded.ids) < most:
        given = f"{len(encoded.ids):,} tokens" if encoded.ids else "empty"
        raise ValueError(f"the text is {given}; expected 1 to {most - 1:,} tokens")
    if not 0 <= back < len(encoded.ids):
        raise ValueError(f"back is {back}; expected 0 to {len(encoded.ids) - 1}, the tokens before the last")
    ids = torch.tensor([model.config.bos_token_id, *encoded.ids][: len(encoded.ids) + 1 - back])
    logits, seen = _watched_step(model, ids)
    likely = logits.softmax(-1).topk(3)
    decode = (tokenizer or byte_tokenizer()).decode
    return SelectionReport(
        text=text,
        # The begin token stands before the text and for none of it.
        spans=((0, 0), *encoded.offsets),
        token=len(ids) - 1,
        window=model.config.sliding_window,
        choices=tuple(_choice(model.config, layer, len(ids), *seen[layer]) for layer in sorted(seen)),
        likely=tuple((decode([int(i)], skip_special_tokens=False), float(p)) for p, i in zip(*likely, strict=True)),
    )


def explore_selection(model: Model, text: str | None = None, tokenizer: Tokenizer | None = None) -> None:
    """Show what ``model`` selects at the end of ``text``, and under it a field to edit the text in.

    Args:
        text: default: :func:`example_text`.

    Works with ipywidgets 7 and 8; without ipywidgets the first result stands alone. Errors as in
    :func:`select_entries`.
    """
    text = example_text(model.config) if text is None else text
    last: dict[tuple[str, int], SelectionReport] = {}

    def report(text: str, back: int) -> SelectionReport:
        # Another layer of the same step needs no other step.
        if (text, back) not in last:
            made = select_entries(model, text, back, tokenizer)
            last.clear()
            last[text, back] = made
        return last[text, back]

    first = report(text, 0)
    explore(
        first.diagram(),
        lambda widgets: _controls(widgets, first),
        lambda text, back, layer: report(text, back).diagram((layer,)),
        prompt="Edit the text and leave the field: the model reads it again, and what it selects stands here.",
        reset="Back to the first text",
        refused="The model cannot read this",
    )


def _watched_step(model: Model, ids: torch.Tensor) -> tuple[torch.Tensor, dict[int, tuple]]:
    """Logits after the last of ``ids``, and by layer the entries and the pool of its selection, each [1, n] or None."""
    seen: dict[int, tuple] = {}

    def note(indexer: torch.nn.Module, given: tuple, made: Any) -> None:
        pool = made.candidates if indexer.publishes else given[-1]
        seen[indexer.plan.index] = made.entries, pool

    with torch.no_grad():
        # The values of packed pages without them: with them, kernels on a GPU would pass the indexers by.
        cache = model.new_cache(len(ids), storage="plain" if model.quantization == "none" else "fake")
        model.prefill(ids[:-1], cache)
        choosers = [plan.index for plan in model.config.layers if plan.owns_selection]
        hooks = [model.layers[layer].attn.indexer.register_forward_hook(note) for layer in choosers]
        try:
            logits = model.decode(int(ids[-1]), cache)[0, 0]
        finally:
            for hook in hooks:
                hook.remove()
    return logits, seen


def _choice(
    config: ModelConfig, layer: int, tokens: int, entries: torch.Tensor, pool: torch.Tensor | None
) -> LayerChoice:
    plan = config.layers[layer]
    visible = tokens // plan.ratio
    held = None
    if pool is not None:
        found = entries_of_blocks(pool, config.candidate_block_size, torch.tensor([visible], device=pool.device))
        held = tuple(entry for entry in found[0].tolist() if entry >= 0)
    return LayerChoice(
        layer=layer,
        mode=plan.mode,
        ratio=plan.ratio,
        visible=visible,
        entries=tuple(entry for entry in entries[0].tolist() if entry >= 0),
        pool=held,
        pool_source=layer if layer == config.candidate_source_layer_id else plan.candidate_source,
        followers=tuple(other.index for other in config.layers if other.index_source == layer and other.index != layer),
    )


def _controls(widgets: ModuleType, first: SelectionReport) -> dict[str, dict[str, Any]]:
    style = {"description_width": "8rem"}
    rows = min(14, 2 + first.text.count("\n"))
    layers = [(f"layer {choice.layer}, {choice.mode}", choice.layer) for choice in first.choices]
    return {
        "": {
            "text": widgets.Textarea(
                value=first.text, rows=rows, description="text", continuous_update=False, style=style
            ),
            "back": widgets.IntSlider(
                value=0, min=0, max=200, description="tokens left out", continuous_update=False, style=style
            ),
            "layer": widgets.Dropdown(options=layers, description="text marked by", style=style),
        }
    }
