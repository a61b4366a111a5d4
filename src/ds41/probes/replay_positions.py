"""One prompt, any hit: how far bounded replay moves the next tokens, and the text, from a run that kept its windows.

A prompt runs once and leaves its pages. Each request then finds a hit in them, has lost all windows, and goes on in one
of several ways: they differ in how many tokens of the hit are fed again. The run that kept its windows is the
reference. Many hits, and many prompts, are rows of one cache.

Source: report section 3.2.2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby

import torch

from ds41.cache import Cache, PageLayout, PagePool
from ds41.config import ModelConfig
from ds41.decoder_tail import Decoder, check_decoder
from ds41.model import Model
from ds41.probes.replay_distance import Answer, Divergence, Request, answer, divergence, likeliest
from ds41.replay import begin_replay, exact_replay_tokens, plan_replay

# Prompts whose reference is held at a time; rows and tokens of one step, which bound its memory.
_PROMPTS = 32
_ROWS = 64
_STEP_TOKENS = 2048


def standard_ways(config: ModelConfig) -> dict[str, int]:
    """Tokens that each way feeds again: as few as give a distribution, one window, and as many as exact windows need.

    "absent" feeds the last token, which also closes an open group; its windows begin there.
    """
    waiting = max((layer.ratio - 1 for layer in config.layers if layer.owns_kv), default=0)
    return {
        "absent": max(1, waiting),
        "replay": config.sliding_window,
        "exact": exact_replay_tokens(config),
    }


def offsets_after(window: int, windows: int = 2) -> tuple[int, ...]:
    """0, then powers of two and the steps half-way between them, up to some windows of new tokens."""
    steps = {0, windows * window}
    power = 1
    while power < windows * window:
        steps |= {power, min(power + power // 2, windows * window)}
        power *= 2
    return tuple(sorted(steps))


def after_hits(
    model: Model, requests: Sequence[Request], ways: Mapping[str, int], offsets: Sequence[int], page_tokens: int = 16
) -> list[dict[str, Divergence]]:
    """Feed what follows each hit, and compare; all layers run on all tokens that are fed.

    Args:
        ways: name -> tokens of the hit to feed again. Pages of hits shorter than that are kept too: to compute them
            anew, as engines may, is the reference.
        offsets: numbers of new tokens after which to compare, ascending; 0 is the distribution of the first new token.

    Returns:
        For each request one divergence a way.

    Raises:
        ValueError: no request, no offset, or a prompt too short for the largest one and the token after it.
    """
    offsets = _check_offsets(requests, offsets)
    found: list[dict[str, Divergence]] = [{} for _ in requests]
    for prompts, members in _groups(requests):
        kept = _reference_cache(model, prompts, 0, page_tokens)
        reference = list(model.decode([torch.tensor(ids) for ids in prompts], kept))
        ends = {n: requests[n].hit + max(offsets[-1], _answer_offset(requests[n])) for n in members}
        for way, tokens in ways.items():
            for rows in _steps(requests, members, ends, tokens):
                chosen = [(prompts[requests[n].ids], requests[n], ends[n]) for n in rows]
                logits = _decoded(model, kept, chosen, tokens)
                for n, (number, request, end), own in zip(rows, chosen, logits, strict=True):
                    # The last token of the hit gives the distribution at offset 0.
                    first = request.hit - 1
                    found[n][way] = divergence(reference[number][first:end], own[first - end :], request, offsets)
    return found


def answers(
    model: Model,
    requests: Sequence[Request],
    ways: Mapping[str, int],
    new_tokens: int,
    decoder: Decoder = "bounded",
    page_tokens: int = 16,
) -> list[dict[str, Answer]]:
    """Run each prompt to its end behind its hit, and let it go on greedily; ids that end a text do not end it here.

    Args:
        ways: as in :func:`after_hits`.
        decoder: how prompts are run, the reference's too, so that nothing but the hit differs.

    Raises:
        ValueError: no request, fewer than one new token, or no such decoder.
    """
    check_decoder(decoder)
    if not requests or new_tokens < 1:
        raise ValueError(f"{len(requests)} requests and {new_tokens} new tokens; expected 1 or more of each")
    found: list[dict[str, Answer]] = [{} for _ in requests]
    for prompts, members in _groups(requests):
        kept = _reference_cache(model, prompts, new_tokens, page_tokens)
        first = model.prefill([torch.tensor(ids) for ids in prompts], kept, decoder=decoder)
        texts = _continue(model, kept, first, new_tokens)
        ends = {n: len(requests[n].ids) for n in members}
        for way, tokens in ways.items():
            for rows in _steps(requests, members, ends, tokens):
                numbers = [prompts[requests[n].ids] for n in rows]
                chosen = [(number, requests[n], ends[n]) for n, number in zip(rows, numbers, strict=True)]
                logits, own = _answered(model, kept, chosen, tokens, decoder, new_tokens)
                for place, (n, number) in enumerate(zip(rows, numbers, strict=True)):
                    found[n][way] = answer(first[number], logits[place], texts[number], own[place])
    return found


def _check_offsets(requests: Sequence[Request], offsets: Sequence[int]) -> list[int]:
    offsets = list(offsets)
    if not requests or not offsets or offsets[0] < 0 or offsets != sorted(set(offsets)):
        raise ValueError(
            f"{len(requests)} requests and offsets {offsets}; expected one or more of each, offsets ascending from 0"
        )
    for request in requests:
        if request.hit + offsets[-1] >= len(request.ids):
            raise ValueError(
                f"a prompt has {len(request.ids)} tokens; a hit of {request.hit} and offset {offsets[-1]} need "
                f"{request.hit + offsets[-1] + 1}"
            )
    return offsets


def _answer_offset(request: Request) -> int:
    """The offset that predicts the answer's last token."""
    return 0 if request.answer is None else request.answer[1] - 1 - request.hit


def _groups(requests: Sequence[Request]) -> Iterator[tuple[dict[tuple[int, ...], int], list[int]]]:
    """A few prompts at a time with their row, and the numbers of the requests that belong to them."""
    order = {ids: number for number, ids in enumerate(dict.fromkeys(request.ids for request in requests))}
    numbers = sorted(range(len(requests)), key=lambda n: order[requests[n].ids])
    for _, members in groupby(numbers, key=lambda n: order[requests[n].ids] // _PROMPTS):
        members = list(members)
        prompts = dict.fromkeys(requests[n].ids for n in members)
        yield {ids: row for row, ids in enumerate(prompts)}, members


def _steps(
    requests: Sequence[Request], members: Sequence[int], ends: Mapping[int, int], tokens: int
) -> Iterator[list[int]]:
    """Requests that go through the model together."""
    rows: list[int] = []
    total = 0
    for n in members:
        count = ends[n] - max(0, requests[n].hit - tokens)
        if rows and (total + count > _STEP_TOKENS or len(rows) == _ROWS):
            yield rows
            rows, total = [], 0
        rows.append(n)
        total += count
    yield rows


def _reference_cache(model: Model, prompts: Collection[tuple[int, ...]], new_tokens: int, page_tokens: int) -> Cache:
    """An empty cache for the prompts; its pool has room for one step of resumed rows too."""
    room = max(map(len, prompts)) + new_tokens
    pages = (len(prompts) + _ROWS) * PageLayout.of(model.config, page_tokens).pages_for(room)
    storage = "plain" if model.quantization == "none" else "packed"
    pool = PagePool(
        model.config, pages, page_tokens=page_tokens, storage=storage, dtype=model.dtype, device=model.device
    )
    return model.new_cache(room, len(prompts), pool=pool)


def _resume(
    model: Model, kept: Cache, chosen: Sequence[tuple[int, Request, int]], tokens: int
) -> tuple[Cache, list[torch.Tensor]]:
    """Rows that adopted the pages of their hits, and what each has to be fed up to its end.

    chosen: the row of ``kept`` that has the prompt, the request, and the position to go to.
    """
    cache, feeds = model.new_cache(kept.max_tokens, len(chosen), pool=kept.pool), []
    for row, (number, request, end) in enumerate(chosen):
        plan = plan_replay(request.hit, model.config.sliding_window, "replay", tokens)
        pages = kept.pages_of(number)[: kept.pool.layout.pages_for(request.hit)]
        ids = torch.tensor(request.ids)
        begin_replay(model, cache, row, ids, pages, plan)
        feeds.append(ids[plan.start : end])
    return cache, feeds


def _decoded(model: Model, kept: Cache, chosen: Sequence[tuple[int, Request, int]], tokens: int) -> list[torch.Tensor]:
    cache, feeds = _resume(model, kept, chosen, tokens)
    return list(model.decode(feeds, cache))


def _answered(
    model: Model,
    kept: Cache,
    chosen: Sequence[tuple[int, Request, int]],
    tokens: int,
    decoder: Decoder,
    new_tokens: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    cache, feeds = _resume(model, kept, chosen, tokens)
    logits = model.prefill(feeds, cache, decoder=decoder)
    return logits, _continue(model, cache, logits, new_tokens)


def _continue(model: Model, cache: Cache, logits: torch.Tensor, new_tokens: int) -> torch.Tensor:
    """Greedy text of every row, int64 [B, new_tokens]."""
    found = [likeliest(logits)]
    while len(found) < new_tokens:
        found.append(likeliest(model.decode(found[-1], cache)[:, -1]))
    return torch.stack(found, 1)
